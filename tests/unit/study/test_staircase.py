"""Planning rules on staircases: each chooses what it says it chooses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specsim.acceptance.trace import DenseTrace, load_trace
from specsim.cost.table import Provenance, StepTable, curve, load_table
from specsim.errors import InputError
from specsim.rng import stream
from specsim.study.staircase import beta_survivals, choose, noisy, shares, straight_line

ROOT = Path(__file__).parents[3]
HERE = Provenance(status="synthetic", source="a test", date="2026-11-29", licence="Apache-2.0")
# Waves of 8 tokens: a riser of 4 ms at 9, 17, ..
PROBES = list(range(1, 65))
STAIRS = StepTable("s", HERE, curve(PROBES, [10e-3 + 4e-3 * ((p - 1) // 8) for p in PROBES]))


@pytest.fixture(scope="module")
def trace() -> DenseTrace:
    return load_trace(ROOT / "profiles" / "traces" / "smollm2_markov_t1.npz")


def survivals(requests: int = 8, seed: int = 0) -> np.ndarray:
    return beta_survivals(requests, 7, stream(seed, "test"))


def theta(tokens: int, tau: float) -> float:
    return tau / STAIRS.dense("linear", 64)[tokens]


def test_first_descent_parks_before_the_first_riser_and_argmax_does_not() -> None:
    survival_RG = survivals()
    plan = STAIRS.dense("linear", 64)
    greedy = choose("greedy", survival_RG, STAIRS, plan, 0.0)
    best = choose("argmax", survival_RG, STAIRS, plan, 0.0)
    assert greedy[0] == 8  # R = 8: the first draft is past the riser
    assert best[0] > 16
    assert theta(*best) > 1.2 * theta(*greedy)


def test_argmax_is_the_best_of_all_k() -> None:
    survival_RG = survivals()
    plan = STAIRS.dense("linear", 64)
    falling = np.sort(survival_RG, axis=None)[::-1]
    tau_K = 8 + np.concatenate([[0.0], np.cumsum(falling)])
    theta_K = tau_K / plan[8 + np.arange(len(tau_K))]
    tokens, tau = choose("argmax", survival_RG, STAIRS, plan, 0.0)
    assert tokens == 8 + int(np.argmax(theta_K))
    assert tau == pytest.approx(tau_K[tokens - 8])


def test_fixed_lengths() -> None:
    survival_RG = survivals()
    plan = STAIRS.dense("linear", 64)
    tokens, tau = choose("fixed_all", survival_RG, STAIRS, plan, 0.0)
    assert (tokens, tau) == (64, pytest.approx(8 + survival_RG.sum()))
    tokens, tau = choose("fixed_best", survival_RG, STAIRS, plan, 0.0)
    every = [(8 + survival_RG[:, :k].sum()) / plan[8 * (1 + k)] for k in range(8)]
    assert tokens == 8 * (1 + int(np.argmax(every)))


def test_a_straight_line_through_a_straight_table_is_that_table() -> None:
    line = StepTable("l", HERE, curve([1, 16, 64], [5.1e-3, 6.6e-3, 11.4e-3]))
    np.testing.assert_allclose(straight_line(line, 64), 5e-3 + 1e-4 * np.arange(65), rtol=1e-6)


def test_noise_has_its_size_and_leaves_the_truth_alone() -> None:
    measured = noisy(STAIRS, 0.02, stream(0, "noise"))
    ratio = measured.verify.seconds_N / STAIRS.verify.seconds_N
    assert 0.014 < ratio.std() < 0.027
    assert STAIRS.verify.seconds_N[0] == 10e-3


def test_without_noise_argmax_reaches_the_optimum(trace: DenseTrace) -> None:
    found = shares(STAIRS, num_requests=8, survivals="beta", trace=trace, noise=0.0, draws=20)
    assert found.mean_by_rule["argmax"] == pytest.approx(1.0)
    assert found.mean_by_rule["monotone_argmax"] == pytest.approx(1.0)
    assert found.mean_by_rule["greedy"] < 0.9
    assert all(share <= 1 + 1e-12 for share in found.mean_by_rule.values())


def test_on_a_smooth_convex_table_first_descent_is_the_optimum(trace: DenseTrace) -> None:
    smooth = StepTable("c", HERE, curve(PROBES, [10e-3 + 2e-6 * p * p for p in PROBES]))
    found = shares(smooth, num_requests=8, survivals="beta", trace=trace, noise=0.0, draws=20)
    assert found.mean_by_rule["greedy"] == pytest.approx(1.0)


def test_a_real_table_under_noise(trace: DenseTrace) -> None:
    path = ROOT / "profiles" / "steps" / "aiconfigurator" / "h100_llama31-8b_tp1_bf16.json"
    found = shares(load_table(path), num_requests=64, survivals="beta", trace=trace, draws=30)
    assert found.mean_by_rule["argmax"] > 0.98
    assert found.mean_by_rule["greedy"] < 0.75
    again = shares(load_table(path), num_requests=64, survivals="beta", trace=trace, draws=30)
    assert again == found


def test_mistakes_are_named(trace: DenseTrace) -> None:
    with pytest.raises(InputError, match='no rule "greed"'):
        choose("greed", survivals(), STAIRS, STAIRS.dense("linear", 64), 0.0)
    with pytest.raises(InputError, match='"trace" or "beta"'):
        shares(STAIRS, num_requests=8, survivals="gamma", trace=trace)
