"""Laws of planning on cost tables, each one a fault that an engine really had."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.cost.table import Read, curve, load_table
from specsim.interop.sglang import SpsAdditiveCostTable
from specsim.rng import stream
from specsim.schedulers.kernels import NO_PATIENCE_LIMIT, ascending, capacity
from specsim.study.staircase import beta_survivals

STEPS = Path(__file__).parents[2] / "profiles" / "steps"
R, GAMMA = 16, 7
SURVIVAL_RG = beta_survivals(R, GAMMA, stream(0, "laws"), a=4.0, b=2.0)


def planned(
    verify_s_B: np.ndarray, *, fixed_s: float = 0.0, patience: int = NO_PATIENCE_LIMIT
) -> int:
    return int(capacity(ascending(SURVIVAL_RG), R, R, verify_s_B, fixed_s, patience))


def test_a_flat_table_makes_the_argmax_verify_everything() -> None:
    flat = np.full(R * (GAMMA + 1) + 1, 10e-3)
    assert planned(flat) == R * GAMMA
    sloped = 10e-3 + 1e-4 * np.arange(len(flat))
    assert planned(sloped) < R * GAMMA


def test_leaving_out_what_cannot_be_trimmed_trims_too_much() -> None:
    count_B = np.arange(R * (GAMMA + 1) + 1)
    with_bias = planned(0.1e-3 * count_B, fixed_s=10e-3)
    without = planned(0.1e-3 * count_B)
    assert without < with_bias
    # A constant inside the curve is the same as one outside it.
    assert planned(10e-3 + 0.1e-3 * count_B) == with_bias


def test_first_descent_parks_on_the_first_shelf() -> None:
    count_B = np.arange(R * (GAMMA + 1) + 1)
    stairs = 10e-3 + 3e-3 * ((count_B - 1) // 8)
    tau_K = R + np.concatenate([[0.0], np.cumsum(ascending(SURVIVAL_RG)[::-1])])
    early, whole = planned(stairs, patience=0), planned(stairs)
    assert early < whole
    assert tau_K[early] / stairs[R + early] < 0.9 * tau_K[whole] / stairs[R + whole]


@pytest.mark.parametrize("running_max", [True, False])
def test_nobody_plans_past_the_eager_cliff(running_max: bool) -> None:
    table = load_table(STEPS / "vllm" / "v4_flash_tp4_b300.json")
    requests, gamma = 200, 7
    for seed in range(10):
        survival_RG = beta_survivals(requests, gamma, stream(seed, "cliff"))
        for read in ("floor", "linear", "ceil"):
            verify_s_B = table.dense(read, requests * (gamma + 1), running_max=running_max)
            assert table.draft is not None
            draft_s = float(table.draft.dense("ceil", requests)[requests])
            k = capacity(
                ascending(survival_RG), requests, requests, verify_s_B, draft_s, NO_PATIENCE_LIMIT
            )
            assert k <= 1024 - requests, (seed, read)
    # Without the cliff the same survivals want more: it is the cliff that holds them back.
    smooth_B = np.minimum(verify_s_B, 20.63e-3)
    free = capacity(
        ascending(survival_RG), requests, requests, smooth_B, draft_s, NO_PATIENCE_LIMIT
    )
    assert free > 1024 - requests


def test_the_same_tokens_of_fewer_requests_cost_less_in_an_additive_table() -> None:
    table = SpsAdditiveCostTable(0.01, [1, 64], [0.001, 0.02], [1, 512], [0.0, 0.03])
    assert table.step_time(8, 64) < table.step_time(64, 64)


@pytest.mark.parametrize("first", [0.9, 0.8, 0.7, 0.6])
def test_alone_the_apple_table_is_best_served_by_a_short_constant_length(first: float) -> None:
    # Algorithm 1 at one request: its walk ends at the length that is best among all fixed ones up
    # to the next shelf, and trimming per step buys nothing over that constant.
    table = load_table(STEPS / "rapidmlx" / "m3ultra_qwen35_9b_4bit.json")
    verify_s_B = table.dense("floor", 32)
    survival_RG = np.cumprod(np.full((1, 15), first), axis=1)
    tau_K = 1 + np.concatenate([[0.0], np.cumsum(survival_RG[0])])
    theta_K = tau_K / verify_s_B[1 + np.arange(16)]
    best = int(np.argmax(theta_K))
    k = capacity(ascending(survival_RG), 1, 1, verify_s_B, 0.0, NO_PATIENCE_LIMIT)
    assert k == best
    # SPS rises again from 16 to 32 tokens; that never pays for what lies between.
    assert verify_s_B[32] < verify_s_B[16]
    assert best < 15


def test_two_tokens_are_the_apple_optimum_for_weak_drafters() -> None:
    table = load_table(STEPS / "rapidmlx" / "m3ultra_qwen35_9b_4bit.json")
    verify_s_B = table.dense("linear", 32)
    for first in (0.4, 0.5, 0.6, 0.7):
        survival_RG = np.cumprod(np.full((1, 15), first), axis=1)
        k = capacity(ascending(survival_RG), 1, 1, verify_s_B, 0.0, NO_PATIENCE_LIMIT)
        assert 1 + k == 2, first


@given(
    steps=st.lists(st.tuples(st.integers(1, 64), st.floats(-0.4, 1.0)), min_size=1, max_size=40),
    read=st.sampled_from(["floor", "linear", "ceil"]),
)
@settings(max_examples=200, deadline=None)
def test_readings_are_monotone_once_the_table_is(
    steps: list[tuple[int, float]], read: Read
) -> None:
    # A bucket look-up that jumps back (an engine's fault) would break this.
    probes = np.cumsum([width for width, _ in steps])
    seconds = 10e-3 * np.exp(np.cumsum([rise for _, rise in steps]))
    found = curve(probes, seconds)
    most = int(probes[-1]) + 50
    dense = found.dense(read, most, running_max=True)
    assert dense[0] == 0
    assert np.all(np.diff(dense[1:]) >= -1e-15)
    exact = found.dense(read, most)
    np.testing.assert_allclose(exact[probes], seconds)
    floor, ceil = found.dense("floor", int(probes[-1])), found.dense("ceil", int(probes[-1]))
    linear = found.dense("linear", int(probes[-1]))
    low, high = np.minimum(floor, ceil), np.maximum(floor, ceil)
    assert np.all(linear >= low * (1 - 1e-12))
    assert np.all(linear <= high * (1 + 1e-12))
