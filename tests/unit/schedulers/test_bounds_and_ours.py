"""Upper bounds, causal lookahead, the lockstep equaliser, calibration and gating."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.schedulers.base import UndeclaredReadError, checked_plan
from specsim.schedulers.calibration import OnlineTemperatures, conditional, scaled
from specsim.schedulers.greedy import Greedy
from specsim.schedulers.group import allocate_group, group_budgets, group_theta
from specsim.schedulers.kernels import NO_PATIENCE_LIMIT, ascending, capacity
from specsim.schedulers.lookahead import (
    Lookahead,
    LookaheadConfig,
    expected_ahead,
    in_order,
    learn,
    walk,
    walk_twin,
)
from specsim.schedulers.oracle import Optimal, Oracle
from specsim.schedulers.static import FixedLength
from specsim.schedulers.topk import GlobalSearch
from specsim.schedulers.wrapped import CalibratedConfig, GatedConfig, _Record
from tests.scheduler_views import make_view, outcome

GRID = st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9, 0.97, 1.0])
RISES = st.lists(st.sampled_from([0.0, 0.0, 0.05, 0.4]), min_size=40, max_size=40)


@st.composite
def confidences(draw):
    count, gamma = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    row = st.lists(GRID, min_size=gamma, max_size=gamma)
    return np.array(draw(st.lists(row, min_size=count, max_size=count)))


# Upper bounds


@settings(max_examples=150, deadline=None)
@given(confidences(), RISES, st.data())
def test_the_oracle_wastes_nothing_and_beats_every_plan(c, rises, data) -> None:
    table = 1 + np.cumsum(rises)
    accepted = np.array([data.draw(st.integers(0, c.shape[1])) for _ in c])
    view = make_view(c, table=table, num_accepted_R=accepted)
    plan = checked_plan(Oracle(), view)
    assert (plan <= accepted).all()  # on a table that never falls, nothing is verified in vain

    def got(lengths: np.ndarray) -> float:
        tokens = len(c) + np.minimum(lengths, accepted).sum()
        return float(tokens / table[len(c) + lengths.sum()])

    other = np.array([data.draw(st.integers(0, c.shape[1])) for _ in c])
    assert got(plan) >= got(other) - 1e-12


def test_the_oracle_pads_where_a_larger_forward_is_quicker() -> None:
    table = np.array([0, 1, 1, 2, 2, 2, 1.5, 9, 9])
    view = make_view(np.full((2, 3), 0.5), table=table, num_accepted_R=np.array([0, 3]))
    plan = Oracle().plan(view)
    assert plan.sum() == 4  # 5 / 1.5 beats 4 / 2 and 2 / 1; one of the four is padding
    assert plan.tolist() == [1, 3]


def test_the_oracle_weighs_tokens_at_the_rate_of_the_run() -> None:
    """A lucky step must not turn down drafts that pay more than the run's rate."""
    table = 1 + 0.4 * np.arange(12)
    unlucky = make_view([[0.5] * 4], table=table, num_accepted_R=np.array([0]))
    lucky = make_view([[0.5] * 4] * 2, table=table, num_accepted_R=np.array([4, 4]))
    fresh, seasoned = Oracle(), Oracle()
    for _ in range(100):
        seasoned.plan(unlucky)  # a run at 1 / 1.4 tokens a second: a draft costs 0.29 tokens
    assert seasoned.plan(lucky).sum() == 8
    assert fresh.plan(lucky).sum() == 8
    steep = 1 + 0.9 * np.arange(12)
    alone = make_view([[0.5] * 4], table=steep, num_accepted_R=np.array([4]))
    poor = Oracle()
    for _ in range(100):
        poor.plan(make_view([[0.5] * 4], table=steep, num_accepted_R=np.array([0])))
    assert poor.plan(alone).sum() == 4
    # At 1 / 1.4 tokens a second a draft is worth 1.4 s: it pays at 1.2 s, and not at 1.6.
    for cost_s, drafts in ((1.2, 4), (1.6, 0)):
        dear = make_view(
            [[0.5] * 4], table=1 + cost_s * np.arange(12), num_accepted_R=np.array([4])
        )
        priced = Oracle()
        for _ in range(100):
            priced.plan(unlucky)
        assert priced.plan(dear).sum() == drafts


@settings(max_examples=50, deadline=None)
@given(confidences(), RISES)
def test_optimal_is_the_global_argmax(c, rises) -> None:
    view = make_view(c, table=1 + np.cumsum(rises))
    assert Optimal().plan(view).tolist() == GlobalSearch().plan(view).tolist()


def test_what_is_not_shown_cannot_be_read() -> None:
    with pytest.raises(UndeclaredReadError, match="oracle"):
        Oracle().plan(make_view([[0.5]]))
    with pytest.raises(UndeclaredReadError, match="sampled"):
        _ = make_view([[0.5]]).sampled_RG


# Causal lookahead


@settings(max_examples=200, deadline=None)
@given(confidences(), RISES, st.data())
def test_the_walk_equals_its_twin(c, rises, data) -> None:
    view = make_view(c, table=1 + np.cumsum(rises))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    ahead = -np.sort(-rng.random((16, c.shape[1])), axis=1)
    ahead[:, 0] = 1.0
    bins = np.minimum((c * 16).astype(np.int64), 15)
    args = (view.base_tokens, view.verify_s_B, 0.1)
    found = walk(view.survival_RG, in_order(view.survival_RG), bins, ahead, *args)
    assert found.tolist() == walk_twin(view.survival_RG, bins, ahead, *args).tolist()


@settings(max_examples=150, deadline=None)
@given(confidences(), RISES)
def test_it_never_stops_before_algorithm_1_would(c, rises) -> None:
    view = make_view(c, table=1 + np.cumsum(rises))
    assert (LookaheadConfig(kind="lookahead").build().plan(view) >= Greedy().plan(view)).all()


def test_a_riser_is_walked_past_if_what_follows_pays_on_average() -> None:
    table = np.ones(40)
    table[5:] = 1.5  # a riser right after the four anchors
    sure, unsure = np.full((4, 3), 0.95), np.full((4, 3), 0.05)
    assert Greedy().plan(make_view(sure, table=table)).tolist() == [0] * 4
    assert Lookahead(8, 0.99).plan(make_view(sure, table=table)).tolist() == [3] * 4
    assert Lookahead(8, 0.99).plan(make_view(unsure, table=table)).tolist() == [0] * 4


def test_it_learns_that_first_confidences_mislead() -> None:
    """Blocks that begin surely and then break: after some steps the riser is left alone."""
    table = np.ones(40)
    table[5:] = 2.2
    scheduler = Lookahead(8, 0.99)
    blocks = np.array([[0.9, 0.02, 0.02]] * 4)
    first = scheduler.plan(make_view(blocks, table=table))
    assert first.sum() > 0  # it cannot know yet
    for _ in range(30):
        last = scheduler.plan(make_view(blocks, table=table))
    assert last.sum() == 0


def test_what_is_learned_is_the_mean_survival_ahead() -> None:
    sums, weights = np.zeros((16, 3)), np.zeros((16, 3))
    c = np.array([[0.5, 0.4, 0.25], [0.5, 0.8, 1.0]])
    learn(c, np.minimum((c * 16).astype(np.int64), 15), 1.0, sums, weights)
    ahead = expected_ahead(sums, weights, 1e-12)
    assert ahead[8].tolist() == pytest.approx([1.0, 0.6, (0.1 + 0.8) / 2])
    assert ahead[6].tolist()[:2] == pytest.approx([1.0, 0.25])
    prior = expected_ahead(np.zeros((16, 3)), np.zeros((16, 3)), 1.0)
    assert prior[15].tolist() == pytest.approx([1.0, 31 / 32, (31 / 32) ** 2])


# The lockstep equaliser


def budgets(ranks, table, fixed, bases=None):
    rows = [ascending(np.cumprod(c, axis=1)) if len(c) else np.zeros(0) for c in ranks]
    known = {
        "num_requests_D": [len(c) for c in ranks],
        "base_tokens_D": bases or [max(len(c), 1) for c in ranks],
        "verify_s_B": table,
        "fixed_s_D": fixed,
    }
    return group_budgets(rows, **known), rows, known


@settings(max_examples=100, deadline=None)
@given(st.lists(confidences(), min_size=1, max_size=3), RISES, st.data())
def test_group_budgets_are_the_best_of_all(ranks, rises, data) -> None:
    """Against brute force, on tables that may fall as well as rise."""
    ranks = [c[:2, :2] for c in ranks]
    falls = np.array(data.draw(st.lists(st.sampled_from([0, 0.3]), min_size=40, max_size=40)))
    table = np.maximum(1 + np.cumsum(rises) - np.cumsum(falls) * 0.3, 0.2)
    fixed = [data.draw(st.sampled_from([0.0, 0.5])) for _ in ranks]
    found, rows, known = budgets(ranks, table, fixed)
    best = max(
        group_theta(k, rows, **known)
        for k in product(*(range(int((r > 0).sum()) + 1) for r in rows))
    )
    assert group_theta(found.tolist(), rows, **known) == pytest.approx(best, rel=1e-12)


def test_on_20_uneven_groups_the_group_budget_is_no_worse_than_each_rank_for_itself() -> None:
    gains = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(1, 65, 8)
        ranks = [rng.beta(*rng.choice([[8, 1], [2, 1], [1, 1]]), (n, 7)) for n in sizes]
        batch = np.arange(600)
        table = 5e-3 + 2e-5 * batch + 8e-4 * (batch // 64)
        found, rows, known = budgets(ranks, table, [1e-3] * 8)
        alone = [
            capacity(row, len(c), len(c), table, 1e-3, NO_PATIENCE_LIMIT)
            for row, c in zip(rows, ranks, strict=True)
        ]
        gains.append(group_theta(found.tolist(), rows, **known) / group_theta(alone, rows, **known))
    assert min(gains) >= 1 - 1e-12
    assert np.mean(gains) > 1.005


def test_an_idle_rank_and_equal_ranks() -> None:
    table = 1 + 0.05 * np.arange(60)
    c = np.full((4, 3), 0.8)
    found, rows, known = budgets([c, np.zeros((0, 3))], table, [0.0, 0.0])
    assert found[1] == 0
    same, _, _ = budgets([c, c], table, [0.0, 0.0])
    assert same[0] == same[1] == capacity(rows[0], 4, 4, table, 0.0, NO_PATIENCE_LIMIT)
    live = [np.cumprod(c, axis=1), np.zeros((0, 3))]
    known.pop("num_requests_D")
    plans = allocate_group(rows, live, **known)
    assert plans[0].sum() == found[0]
    assert plans[1].tolist() == []
    assert (
        group_budgets([], num_requests_D=[], base_tokens_D=[], verify_s_B=table, fixed_s_D=[]).size
        == 0
    )


def test_only_the_slowest_ranks_tokens_cost_time() -> None:
    """A light rank beside a heavy one verifies whatever fits below the heavy one's step."""
    table = 1 + 0.1 * np.arange(200)
    heavy, light = np.full((30, 3), 0.3), np.full((2, 3), 0.3)
    found, rows, _ = budgets([heavy, light], table, [0.0, 0.0])
    alone = capacity(rows[1], 2, 2, table, 0.0, NO_PATIENCE_LIMIT)
    assert found[1] == 6 > alone


# Calibration


def draws(rng, steps, temperature):
    """Steps of judged blocks whose head says sigmoid(logit(c) T)."""
    for _ in range(steps):
        truth = rng.beta(4, 2, (32, 3))
        said = scaled(truth, 1 / temperature)
        accepted = np.cumprod(rng.random(truth.shape) < truth, axis=1).sum(axis=1)
        yield said, accepted


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperatures_are_found_from_full_and_from_trimmed_rows(temperature) -> None:
    for trimmed in (False, True):
        fit, rng = OnlineTemperatures(3, memory=1.0), np.random.default_rng(1)
        for said, accepted in draws(rng, 400, temperature):
            verified = np.full(32, 3)
            if trimmed:  # by what the head said of drafts before: no censoring of the outcome
                verified = np.logical_and.accumulate(said > 0.6, axis=1).sum(axis=1)
            fit.add(said, verified, np.minimum(accepted, verified))
        fit.refit()
        np.testing.assert_allclose(fit.temperature_G, temperature, rtol=0.15)


def test_a_naive_fit_to_trimmed_rows_is_biased() -> None:
    """Counting unverified drafts as rejected, as a censored log invites to, misses T by far."""
    naive, right = OnlineTemperatures(3, memory=1.0), OnlineTemperatures(3, memory=1.0)
    rng, verified = np.random.default_rng(1), np.full(32, 2)
    for said, accepted in draws(rng, 200, 1.0):
        naive.add(said, np.full(32, 3), np.minimum(accepted, verified))
        right.add(said, verified, np.minimum(accepted, verified))
    naive.refit()
    right.refit()
    np.testing.assert_allclose(right.temperature_G, 1.0, rtol=0.15)
    assert naive.temperature_G[2] > 4


def test_nothing_moves_before_enough_was_judged_and_the_past_fades() -> None:
    fit, rng = OnlineTemperatures(3, memory=0.95, prior=0.0), np.random.default_rng(2)
    for said, accepted in draws(rng, 1, 2.0):
        fit.add(said[:4], np.full(4, 3), accepted[:4])
    fit.refit()
    assert fit.temperature_G.tolist() == [1, 1, 1]
    for wanted in (2.0, 0.6):  # the domain drifts, the fit follows
        for said, accepted in draws(rng, 200, wanted):
            fit.add(said, np.full(32, 3), accepted)
        fit.refit()
        assert fit.temperature_G[0] == pytest.approx(wanted, rel=0.35)


def test_certain_confidences_stay_and_ratios_undo_products() -> None:
    c = np.array([[0.0, 1.0, 0.5], [1.0, 0.25, 0.0]])
    np.testing.assert_allclose(scaled(c, 3.0)[:, :2][[0, 1], [0, 0]], [0, 1])
    assert scaled(np.array([1.0, 0.0]), 2.0).tolist() == [1.0, 0.0]
    survival = np.cumprod(np.array([[0.9, 0.5, 0.2]]), axis=1)
    np.testing.assert_allclose(conditional(survival), [[0.9, 0.5, 0.2]])
    assert conditional(np.array([[0.0, 0.0]])).tolist() == [[0.0, 0.0]]
    assert conditional(np.ones((1, 2))).tolist() == [[1.0, 1.0]]


def test_a_calibrated_scheduler_undoes_a_distorted_head() -> None:
    inner = {"kind": "threshold", "threshold": 0.6}
    spoilt = CalibratedConfig(kind="calibrated", inner=inner, distort=3.0, refit_every=0).build()
    mended = CalibratedConfig(kind="calibrated", inner=inner, distort=3.0, full_rows=2).build()
    rng = np.random.default_rng(5)
    table = np.ones(200)
    for _ in range(400):
        c = rng.beta(4, 2, (16, 3))
        accepted = np.cumprod(rng.random(c.shape) < c, axis=1).sum(axis=1)
        plan = mended.plan(make_view(c, table=table))
        mended.observe(outcome(plan, np.minimum(accepted, plan)))
    c = np.array([[0.7, 0.7, 0.7]] * 8)
    assert spoilt.plan(make_view(c, table=table)).tolist() == [0] * 8  # says .57 of .7
    plan = mended.plan(make_view(c, table=table))
    assert (plan == 3).sum() >= 2
    np.testing.assert_allclose(mended._fit.temperature_G, 1 / 3, rtol=0.3)
    straight = CalibratedConfig(kind="calibrated", inner=inner, refit_every=0).build()
    assert straight.plan(make_view(c, table=table)).tolist() == [3] * 8


def test_lagged_survivals_are_calibrated_too() -> None:
    inner = {"kind": "async_topk", "lag": 1}
    table = 1 + 0.2 * np.arange(40)
    c = np.full((4, 3), 0.8)
    plain = CalibratedConfig(kind="calibrated", inner=inner, refit_every=0).build()
    wrapped = CalibratedConfig(kind="calibrated", inner=inner, distort=4.0, refit_every=0).build()
    assert (
        wrapped.plan(make_view(c, table=table)).sum() < plain.plan(make_view(c, table=table)).sum()
    )


# Gating


def gated(**more):
    return GatedConfig(
        kind="gated", inner={"kind": "fixed", "k": 2}, draft_us_per_request=0.0, **more
    ).build()


def run_gated(scheduler, accepts, steps, table):
    """accepts: probability (0 or 1) that the drafts of each request are accepted."""
    plans = []
    for step in range(steps):
        view = make_view(np.full((len(accepts), 2), 0.9), table=table, step=step)
        drafting = scheduler.drafting(view)
        plan = scheduler.plan(view)
        assert (plan[~drafting] == 0).all()
        plans.append(plan.tolist())
        accepted = np.where(accepts, plan, 0)
        seconds = float(table[len(accepts) + plan.sum()])
        scheduler.observe(outcome(plan, accepted, seconds=seconds))
    return np.array(plans)


def test_a_hopeless_request_is_no_longer_drafted_for_and_tried_again() -> None:
    table = 1 + 0.2 * np.arange(30)
    plans = run_gated(gated(retry=10), [1, 1, 0], 200, table)
    assert (plans[60:, :2] == 2).all()
    late = plans[60:, 2]
    assert (late == 0).mean() == pytest.approx(0.9, abs=0.02)
    assert set(late.tolist()) == {0, 2}


def test_a_request_that_recovers_is_drafted_for_again() -> None:
    table = 1 + 0.2 * np.arange(30)
    scheduler = gated(retry=5)
    run_gated(scheduler, [1, 1, 0], 100, table)
    plans = run_gated(scheduler, [1, 1, 1], 200, table)
    assert (plans[-20:, 2] == 2).all()


def test_free_drafts_are_never_gated() -> None:
    plans = run_gated(gated(), [1, 0, 0], 100, np.ones(30))
    assert (plans == 2).all()


def test_the_gate_forgets_who_left() -> None:
    scheduler = gated(retry=1000)
    run_gated(scheduler, [1, 1, 0], 100, 1 + 0.2 * np.arange(30))
    view = make_view(np.full((1, 2), 0.9), table=np.ones(30), ids=[77], step=200)
    scheduler.plan(view)
    assert list(scheduler._records) == [77]
    assert FixedLength(2).plan(view).tolist() == [2]


def test_a_calibrated_scheduler_refits_after_every_so_many_steps() -> None:
    inner = {"kind": "fixed", "k": 2}
    scheduler = CalibratedConfig(kind="calibrated", inner=inner, refit_every=3).build()
    view = make_view(np.full((400, 2), 0.9))
    changed = []
    for step in range(9):
        scheduler.plan(view)
        before = scheduler._fit.temperature_G.copy()
        all_accepted = 40 * (step + 1)
        scheduler.observe(outcome([2] * 400, [2] * all_accepted + [0] * (400 - all_accepted)))
        changed.append(bool((scheduler._fit.temperature_G != before).any()))
    assert changed == [False, False, True] * 3


def test_what_a_round_is_worth_by_hand() -> None:
    scheduler = GatedConfig(kind="gated", inner={"kind": "fixed", "k": 2}, prior=2.0).build()
    scheduler._all = _Record(rounds=10, verified=20, accepted=10, squares=12)
    own = _Record(rounds=4, verified=8, accepted=4, squares=4)
    # Over 4 rounds of its own and 2 as the batch fares: 1 accepted, 2 verified, variance 1 / 15.
    assert scheduler._worth(own, 0.1) == pytest.approx(1 - 0.1 * 2 + np.sqrt(1 / 15 / 6))
    scheduler._all = _Record(rounds=10, verified=20, accepted=10, squares=10)
    assert scheduler._worth(own, 0.1) == pytest.approx(0.8)
    assert scheduler._worth(_Record(), 0.0) == pytest.approx(1.0)
