"""Capacity and allocation against their twins, with ties and saturated survivals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from specsim.schedulers.kernels import (
    NO_PATIENCE_LIMIT,
    allocate,
    allocate_twin,
    ascending,
    capacity,
    capacity_twin,
)

CONFIDENCES = st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0, 1e-30]) | st.floats(0, 1)


@st.composite
def survivals(draw) -> np.ndarray:
    shape = draw(st.tuples(st.integers(0, 7), st.integers(0, 5)))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    width = 32 if dtype == np.float32 else 64
    elements = st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.floats(0, 1, width=width)
    c = draw(hnp.arrays(dtype, shape, elements=elements))
    return np.cumprod(c, axis=1, dtype=dtype)


@st.composite
def tables(draw) -> np.ndarray:
    steps = draw(hnp.arrays(np.float64, 64, elements=st.sampled_from([0.0, 0.1, 1.0, 5.0])))
    return 1.0 + np.cumsum(steps)


@settings(max_examples=300, deadline=None)
@given(survivals(), tables(), st.sampled_from([0, 1, 3, NO_PATIENCE_LIMIT]), st.integers(0, 9))
def test_capacity_equals_its_twin(a, table, patience, prefill) -> None:
    base = len(a) + prefill
    args = (ascending(a), len(a), base, table, 0.3, patience)
    assert capacity(*args) == capacity_twin(*args)


@settings(max_examples=300, deadline=None)
@given(survivals(), st.integers(-1, 40))
def test_allocate_equals_its_twin_and_admits_prefixes(a, k) -> None:
    found = allocate(a, k)
    np.testing.assert_array_equal(found, allocate_twin(a, k))
    assert found.sum() == min(max(k, 0), (a > 0).sum())
    for row, length in zip(a, found, strict=True):
        assert (row[:length] > 0).all()


@settings(max_examples=200, deadline=None)
@given(survivals(), tables())
def test_the_argmax_is_the_best_of_all(a, table) -> None:
    k = capacity(ascending(a), len(a), len(a), table, 0.0, NO_PATIENCE_LIMIT)
    flat = np.sort(a, axis=None)[::-1].astype(float)
    flat = flat[flat > 0]
    theta = [(len(a) + flat[:n].sum()) / table[len(a) + n] for n in range(len(flat) + 1)]
    assert theta[k] == pytest.approx(max(theta), rel=1e-12)


def test_a_riser_stops_the_greedy_walk_and_not_the_argmax() -> None:
    a = np.cumprod(np.full((4, 3), 0.9), axis=1)
    table = np.ones(32)
    table[5:] = 1.5  # the fifth token costs half a step, the rest nothing
    walk = (ascending(a), 4, 4, table, 0.0)
    assert capacity(*walk, 0) == 0
    assert capacity(*walk, 1) == 0
    assert capacity(*walk, NO_PATIENCE_LIMIT) == 12


def test_a_flat_table_verifies_everything_that_can_survive() -> None:
    a = np.cumprod(np.array([[0.5, 0.5], [0.1, 0.0]]), axis=1)
    assert capacity(ascending(a), 2, 2, np.ones(16), 0.0, NO_PATIENCE_LIMIT) == 3


def test_equal_survivals_go_to_earlier_positions_first() -> None:
    a = np.ones((3, 2))
    np.testing.assert_array_equal(allocate(a, 3), [1, 1, 1])
    np.testing.assert_array_equal(allocate(a, 4), [2, 1, 1])


def test_costs_that_nobody_can_trim_do_not_cancel() -> None:
    """Dropping the bias over-trims: T = 10 + 0.1 M against T = 0.1 M with the same survivals."""
    a = np.cumprod(np.full((8, 5), 0.8), axis=1)
    table = 0.1 * np.arange(64.0)
    with_bias = capacity(ascending(a), 8, 8, table, 10.0, NO_PATIENCE_LIMIT)
    without = capacity(ascending(a), 8, 8, table, 0.0, NO_PATIENCE_LIMIT)
    assert without < with_bias
