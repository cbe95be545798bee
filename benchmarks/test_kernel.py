"""Kernels beside their floor and their numpy twins: survivals of R requests, gamma 5 and 7."""

from __future__ import annotations

import numpy as np
import pytest

from specsim.schedulers.kernels import (
    DIGITS,
    NO_PATIENCE_LIMIT,
    allocate,
    allocate_twin,
    ascending,
    capacity,
    capacity_twin,
    sort_survivals,
)
from specsim.schedulers.topk import AsyncTopK
from specsim.study.bench import PLANNED, planning_view

pytestmark = pytest.mark.benchmark(group="kernel")
SIZES = pytest.mark.parametrize(("requests", "gamma"), PLANNED)


@SIZES
def test_floor_library_sort(benchmark, requests: int, gamma: int) -> None:
    benchmark(np.sort, planning_view(requests, gamma).survival_RG, axis=None)


@SIZES
def test_sort_survivals(benchmark, requests: int, gamma: int) -> None:
    key_X = planning_view(requests, gamma).survival_RG.ravel().view(np.uint32)
    out_X, scratch_X = np.zeros_like(key_X), np.zeros_like(key_X)
    benchmark(sort_survivals, key_X, len(key_X), out_X, scratch_X, np.zeros(DIGITS, np.uint32))


@SIZES
@pytest.mark.parametrize("how", [capacity, capacity_twin])
def test_capacity(benchmark, how, requests: int, gamma: int) -> None:
    view = planning_view(requests, gamma)
    ascending_C = ascending(view.lagged_survival_RG)
    table = (view.base_tokens, view.verify_s_B, view.fixed_s, NO_PATIENCE_LIMIT)
    benchmark(how, ascending_C, requests, *table)


@SIZES
@pytest.mark.parametrize("how", [allocate, allocate_twin])
def test_allocate(benchmark, how, requests: int, gamma: int) -> None:
    benchmark(how, planning_view(requests, gamma).survival_RG, requests)


@SIZES
def test_plan(benchmark, requests: int, gamma: int) -> None:
    view = planning_view(requests, gamma)
    benchmark(AsyncTopK(2).plan, view)
