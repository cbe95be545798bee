"""Edges of the planners, calibration and gating: equalities, floors and counts worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.errors import SchedulerFault
from specsim.schedulers.base import BatchView, LaggedSurvival, checked_plan
from specsim.schedulers.calibration import (
    _REACH,
    _TEMPERATURES,
    OnlineTemperatures,
    logit,
    scaled,
)
from specsim.schedulers.engines import EnginePlanner
from specsim.schedulers.feedback import Goodput
from specsim.schedulers.greedy import Greedy
from specsim.schedulers.group import group_budgets, group_theta
from specsim.schedulers.guarded import DCut, MinimumGain, TierAware, UniformLength
from specsim.schedulers.lookahead import Lookahead, learn
from specsim.schedulers.oracle import Oracle
from specsim.schedulers.per_request import FixedBudget, KeepAndStop, Tetris
from specsim.schedulers.promise import reread
from specsim.schedulers.static import FixedLength
from specsim.schedulers.topk import Stale
from specsim.schedulers.wrapped import Calibrated, Gated, GatedConfig, _Record
from tests.scheduler_views import make_view, outcome

# Survivals of earlier steps


def test_lagged_survivals_are_of_so_many_steps_ago_and_by_request() -> None:
    for lag in (1, 2, 3):
        past = LaggedSurvival(lag)
        for step in range(6):
            ids = np.array([10 + step, 11 + step, 12 + step])  # one leaves, one comes
            mine = np.array([[0.01 * step + 0.1 * row] for row in range(3)])
            wanted = np.ones((3, 1))
            if step >= lag:
                then = step - lag
                for row in range(3):
                    if (old := row + lag) < 3:
                        wanted[row] = 0.01 * then + 0.1 * old
            assert past.aligned(ids, mine).tolist() == wanted.tolist()
            past.push(ids, mine)
            mine[:] = 9.0  # what was pushed is a copy
    now = np.array([[0.5]])
    live = LaggedSurvival(0)
    live.push(np.array([1]), now)
    assert live.aligned(np.array([1]), now) is now
    with pytest.raises(ValueError, match="lag must be at least 0, not -1"):
        LaggedSurvival(-1)


def test_a_fault_names_the_innermost_line_and_narrow_integers_are_faults() -> None:
    class Deep:
        reads, lag, lossless = frozenset(), 0, True

        def plan(self, view):
            return _inner(view)

    with pytest.raises(SchedulerFault, match=r"step 4: Deep\.plan raised ZeroDivisionError") as at:
        checked_plan(Deep(), make_view([[0.5]], step=4))
    line = _inner.__code__.co_firstlineno + 1
    assert f"test_planners_by_hand.py:{line})" in str(at.value)
    short = type("Short", (Deep,), {"plan": lambda self, view: np.zeros(1, np.int32)})
    with pytest.raises(SchedulerFault, match=r"step 0: .*int32 array of shape \(1,\); an int64"):
        checked_plan(short(), make_view([[0.5]]))


def _inner(view):
    return 1 // view.step if view.step == 0 else 1 // 0


# Argmaxes that hold back


def test_a_gain_that_is_just_reached_does_not_trim() -> None:
    view = make_view([[0.5, 0.5]], table=[0, 1, 1, 3.5])  # promises 1, 1.5, 0.5
    for gain, trimmed in ((1.9, True), (2.0, False), (2.1, False)):
        wanted = [1] if trimmed else [2]
        assert MinimumGain(gain, 1).plan(view).tolist() == wanted
        assert EnginePlanner(lag=1, gain=gain).plan(view).tolist() == wanted


def test_a_uniform_length_moves_for_more_than_its_margin_only() -> None:
    for margin, length in ((0.49, 1), (0.5, 2), (0.51, 2)):
        scheduler = UniformLength(margin, 1)
        assert scheduler.plan(make_view([[1.0, 1.0]])).tolist() == [2]
        # Promises 1, 1.5, 1: half more for one draft than for the two of now.
        view = make_view([[0.5, 0.5]], table=[0, 1, 1, 1.75])
        assert scheduler.plan(view).tolist() == [length]


def test_a_length_of_nothing_is_held_like_any_other() -> None:
    for margin, length in ((0.49, 1), (0.5, 0)):
        scheduler = UniformLength(margin, 1)
        assert scheduler.plan(make_view([[0.5, 0.5]], table=[0, 1, 9, 9])).tolist() == [0]
        # Promises 1, 1.5, 0.5.
        assert scheduler.plan(make_view([[0.5, 0.5]], table=[0, 1, 1, 3.5])).tolist() == [length]


def test_tiers_below_the_anchors_and_past_everything_are_left_out() -> None:
    rule = TierAware((2, 3, 4, 6, 8, 9), 1)
    view = make_view([[0.5, 0.5], [0.5, 0.5]], base=3)
    assert rule._legal(view, 5).tolist() == [
        0,
        1,
        3,
        4,
    ]  # B = 3, 4, 6 and 7: none and all are legal
    assert TierAware((), 1)._legal(view, 5).tolist() == [0, 4]
    stairs = make_view([[0.5, 0.5], [0.5, 0.5]], base=3, table=[0, 0, 0, 1, 1, 2, 1.5, 2])
    assert TierAware((), 1)._legal(stairs, 5).tolist() == [0, 1, 3, 4]


def test_of_equal_shares_the_smallest() -> None:
    view = make_view([[1.0, 1.0, 1.0, 1.0]], table=[0, 9, 1, 2, 3, 4])
    assert DCut((0.25, 0.5, 1.0), 1).plan(view).tolist() == [1]  # 1, 2 / 2, 4 / 4 scores a second
    assert DCut((0.3, 0.6), 1).plan(view).tolist() == [2]  # of a part of a draft, the whole


def test_dcut_counts_the_time_that_nobody_trims() -> None:
    for fixed_s, length in ((0.0, 1), (8.0, 4)):
        view = make_view([[0.9] * 4], table=[0, 1, 1, 2, 3, 4], fixed_s=fixed_s)
        assert DCut((0.25, 1.0), 1).plan(view).tolist() == [length]


def test_lagged_scores_say_how_many_and_live_ones_who() -> None:
    live, old = [[0.1, 0.1], [0.9, 0.9]], np.array([[0.9, 0.81], [0.1, 0.01]])
    view = make_view(live, lagged=old, table=[0, 1, 1, 1, 1, 8, 8])
    assert MinimumGain(0.0, 1).plan(view).tolist() == [0, 2]
    assert TierAware((4,), 1).plan(view).tolist() == [0, 2]
    assert DCut((0.5,), 1).plan(view).tolist() == [1, 1]
    dear = make_view(live, lagged=old, table=[0, 1, 1, 1, 8, 8, 8])
    assert MinimumGain(0.0, 1).plan(dear).tolist() == [0, 1]
    assert MinimumGain(0.0, 0).plan(dear).tolist() == [0, 1]
    assert UniformLength(0.0, 1).plan(dear).tolist() == [0, 0]


# The engines' planners


def test_survivals_at_the_floor_count_as_none() -> None:
    for second, length in ((0.25, 1), (0.2500001, 2)):
        view = make_view([[1.0, second]])
        assert EnginePlanner(lag=1, faint=0.25).plan(view).tolist() == [length]


def test_a_budget_is_filled_up_to_the_tier_that_holds_it() -> None:
    def filled(budget: int, tiers: tuple[int, ...]) -> int:
        return EnginePlanner(lag=1, tiers=tiers)._filled(budget, 4, 10)

    assert [filled(n, (5, 8, 20)) for n in range(6)] == [1, 1, 4, 4, 4, 10]
    assert [filled(n, (5, 8)) for n in (4, 5, 9)] == [4, 5, 9]
    assert filled(3, ()) == 3


def test_of_equal_promises_the_first_or_the_largest() -> None:
    view = make_view([[1.0, 1.0, 1.0]], table=[0, 1, 2, 3, 8])  # promises 1, 1, 1, 1 / 2
    assert EnginePlanner(lag=1).plan(view).tolist() == [0]
    assert EnginePlanner(lag=1, larger=True).plan(view).tolist() == [2]


def test_captured_lengths_leave_the_floor_and_everything() -> None:
    # Two requests of three: promises for each K with one draft sure of each.
    view = make_view(np.ones((2, 3)), table=[0, 1, 1, 1, 1, 2, 2, 9, 9])
    free = EnginePlanner(lag=1, least=1).plan(view)
    assert free.tolist() == [1, 1]
    assert EnginePlanner(lag=1, least=1, lengths=(2,)).plan(view).tolist() == [2, 2]
    assert EnginePlanner(lag=1, least=1, lengths=(1, 2)).plan(view).tolist() == [1, 1]
    assert EnginePlanner(lag=1, least=1, lengths=(0, 7)).plan(view).tolist() == [3, 3]
    assert EnginePlanner(lag=1, least=5).plan(view).tolist() == [3, 3]  # a floor above gamma


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 12), st.data())
def test_a_flattened_topk_takes_rows_or_later_positions_first(budget, data) -> None:
    grid = st.sampled_from([0.0, 0.5, 1.0])
    a = np.array(
        data.draw(st.lists(st.lists(grid, min_size=3, max_size=3), min_size=1, max_size=3))
    )
    a = np.cumprod(a, axis=1)
    for ties, place in (("row", lambda r, k: (r, k)), ("later", lambda r, k: (-k, r))):
        order = sorted(
            (-a[r, k], *place(r, k), r) for r in range(len(a)) for k in range(3) if a[r, k] > 0
        )
        wanted = np.bincount([row for *_, row in order[:budget]], minlength=len(a))
        found = EnginePlanner(lag=1, ties=ties)._split(a, budget)
        assert found.tolist() == wanted.tolist()
        assert found.dtype == np.int64


def test_probes_past_the_table_are_not_read() -> None:
    table = np.arange(6.0) ** 2
    for read in ("floor", "linear", "ceil"):
        assert reread(table, 2, 3, (6, 9), read).tolist() == [4, 9, 16]
        assert reread(table, 2, 4, (2, 5, 6), read)[-1] == 25
    assert reread(table, 2, 4, (2, 5), "floor").tolist() == [4, 4, 4, 25]
    assert reread(table, 2, 4, (2, 5), "ceil").tolist() == [4, 25, 25, 25]
    assert reread(table, 2, 4, (2, 5), "linear").tolist() == [4, 11, 18, 25]


# One draft after the other, and bounds


def test_a_rejection_as_likely_as_the_limit_is_not_too_likely() -> None:
    view = make_view([[1.0, 0.5, 1.0, 0.5, 1.0]])
    assert KeepAndStop(0.5).plan(view).tolist() == [4]
    assert KeepAndStop(0.49).plan(view).tolist() == [2]
    assert KeepAndStop(0.0).plan(view).tolist() == [2]
    assert KeepAndStop(1.0).plan(view).tolist() == [5]


def test_budgets_are_of_so_many_drafts_a_request() -> None:
    c = np.array([[0.9, 0.9, 0.9], [0.5, 0.5, 0.5], [0.8, 0.1, 0.1]])
    for k, wanted in ((0, [0, 0, 0]), (1, [2, 0, 1]), (2, [3, 2, 1]), (3, [3, 3, 3])):
        assert FixedBudget(k).plan(make_view(c)).tolist() == wanted
        assert Tetris(k).plan(make_view(np.ones((3, 3)), sampled_RG=c)).tolist() == wanted


def test_the_oracles_rate_fades() -> None:
    oracle = Oracle()
    table = 1.0 + 0.25 * np.arange(8)
    for accepted, tokens, seconds in (
        (2, 3.0, 2.0),
        (0, 0.98 * 3 + 1, 0.98 * 2 + 1.5),
        (1, 0.98 * (0.98 * 3 + 1) + 2, 0.98 * (0.98 * 2 + 1.5) + 1.75),
    ):
        view = make_view(
            [[0.5, 0.5]], table=table, fixed_s=0.25, num_accepted_R=np.array([accepted])
        )
        assert oracle.plan(view).tolist() == [accepted]
        assert oracle._tokens == pytest.approx(tokens)
        assert oracle._seconds == pytest.approx(seconds)


# Lookahead and the group


def test_what_was_learned_fades_and_this_step_comes_last() -> None:
    sums, weights = np.zeros((16, 2)), np.zeros((16, 2))
    bins = np.array([[8, 4]])
    for confidence, total, weight in ((0.5, 0.5, 1.0), (0.25, 0.5 * 0.5 + 0.25, 1.5)):
        learn(np.array([[0.5, confidence]]), bins, 0.5, sums, weights)
        assert sums[8].tolist() == [0.0, total]
        assert weights[8].tolist() == [0.0, weight]
    assert sums.sum() == sums[8].sum()
    scheduler = Lookahead(8.0, 0.5)
    scheduler.plan(make_view([[1.0, 0.25], [0.5, 1.0]]))
    assert scheduler._weight_VG[[15, 8], 1].tolist() == [1.0, 1.0]
    assert scheduler._sum_VG[[15, 8], 1].tolist() == [0.25, 1.0]
    assert scheduler._weight_VG.shape == (16, 2)


def test_a_riser_that_only_just_pays_does_not() -> None:
    """One sure request: theta is 1; two drafts behind a riser promise 3 / 3 or 3 / 2.9."""
    for last_s, length in ((3.0, 0), (2.75, 2)):
        view = make_view([[1.0, 1.0]], table=[0, 1, 2.5, last_s])
        scheduler = Lookahead(1e-9, 1.0)
        scheduler.plan(make_view([[1.0, 1.0]] * 4))  # sure blocks stay sure
        assert scheduler.plan(view).tolist() == [length]
        assert Greedy().plan(view).tolist() == [0]


def test_of_equally_good_steps_of_a_group_the_shortest() -> None:
    sure = [np.ones(2), np.ones(2)]
    known = {
        "num_requests_D": [1, 1],
        "base_tokens_D": [1, 1],
        "verify_s_B": np.array([0.0, 1.0, 2.0, 4.0]),
        "fixed_s_D": [0.0, 0.0],
    }
    # 2 / 1, 4 / 2, 6 / 4 tokens a second.
    assert group_budgets(sure, **known).tolist() == [0, 0]
    assert group_theta([0, 0], sure, **known) == group_theta([1, 1], sure, **known) == 2
    assert group_theta([2, 1], sure, **known) == 5 / 4
    known["fixed_s_D"] = [0.0, 1.0]
    assert group_theta([1, 0], sure, **known) == 3 / 2
    assert group_budgets(sure, **known).tolist() == [1, 0]  # 3 / 2, then 4 / 3, 5 / 4, 6 / 5


# Calibration and gating


def test_temperatures_span_an_eighth_to_eight_in_49_equal_ratios() -> None:
    assert len(_TEMPERATURES) == 49
    assert _TEMPERATURES[[0, 24, 48]].tolist() == pytest.approx([0.125, 1.0, 8.0])
    ratios = _TEMPERATURES[1:] / _TEMPERATURES[:-1]
    np.testing.assert_allclose(ratios, 64 ** (1 / 48))
    assert logit(np.array([0.5, 0.0, 1.0])).tolist() == [0.0, -np.inf, np.inf]
    assert scaled(np.array([0.8]), 2.0)[0] == pytest.approx(2 / 3)


def test_only_judged_drafts_are_counted_each_in_its_bin() -> None:
    fit = OnlineTemperatures(3, memory=0.5)
    tiny = 1e-9  # its logit lies far below the last bin
    c = np.array([[0.5, 0.8, 0.9], [0.5, 0.2, 0.5], [1 - tiny, 1.0, tiny], [0.3, 0.0, 0.5]])
    verified, accepted = np.array([3, 3, 3, 1]), np.array([3, 1, 2, 0])
    fit.add(c, verified, accepted)
    # Rows: all three, up to the rejected second, the first and the rejected third (the second is
    # sure), the rejected first. Nothing behind a rejection or a cut.
    assert fit._judged_GV.sum(axis=1).tolist() == [4, 2, 2]
    assert fit._accepted_GV.sum(axis=1).tolist() == [3, 1, 1]
    logits = [2 * 0.0 + _REACH + np.log(3 / 7), np.log(4) - np.log(4), np.log(9) - _REACH]
    np.testing.assert_allclose(fit._logit_GV.sum(axis=1), logits, atol=1e-12)
    assert fit._judged_GV[0, [16, 31]].tolist() == [2, 1]
    assert fit._judged_GV[2, 0] == 1
    assert fit._accepted_GV[2, 0] == 0
    fit.add(c[:0], verified[:0], accepted[:0])
    assert fit._judged_GV.sum(axis=1).tolist() == [2, 1, 1]
    assert fit._accepted_GV.sum(axis=1).tolist() == [1.5, 0.5, 0.5]
    np.testing.assert_allclose(fit._logit_GV.sum(axis=1), np.array(logits) / 2, atol=1e-12)


@pytest.mark.parametrize("count", [63, 64])
def test_a_fit_begins_with_the_64th_judged_draft(count) -> None:
    fit = OnlineTemperatures(1, memory=1.0)
    fit.add(np.full((count, 1), 0.9), np.ones(count, int), np.zeros(count, int))
    fit.refit()
    assert fit.temperature_G.tolist() == ([1.0] if count < 64 else [_TEMPERATURES[48]])


def test_a_position_that_nobody_reached_is_fitted_as_all_are_together() -> None:
    rng = np.random.default_rng(3)
    c = rng.beta(4, 2, (600, 2))
    accepted = (rng.random(600) < scaled(c[:, 0], 2.0)).astype(int)
    fit = OnlineTemperatures(2, memory=1.0)
    fit.add(c, np.ones(600, int), accepted)
    fit.refit()
    assert fit.temperature_G[0] == fit.temperature_G[1] == pytest.approx(2.0, rel=0.3)
    loss = fit._loss_T(0)
    by_hand = [
        -sum(
            np.log(p) if a else np.log1p(-p)
            for p, a in zip(scaled(c[:, 0], t), accepted, strict=True)
        )
        for t in (1.0, 2.0)
    ]
    there = [loss[24], loss[np.argmin(abs(_TEMPERATURES - 2.0))]]
    np.testing.assert_allclose(there, by_hand, rtol=0.02)


def test_a_strong_prior_pulls_every_position_to_the_pooled_fit() -> None:
    rng = np.random.default_rng(4)
    c = rng.beta(4, 2, (800, 2))
    first = rng.random(800) < scaled(c[:, 0], 4.0)
    both = first & (rng.random(800) < scaled(c[:, 1], 0.5))
    found = []
    for prior in (0.0, 1e6):
        fit = OnlineTemperatures(2, memory=1.0, prior=prior)
        fit.add(c, np.full(800, 2), first.astype(int) + both)
        fit.refit()
        found.append(fit.temperature_G)
    assert found[0][0] > 2 > 1 > found[0][1]
    assert found[1][0] == found[1][1]


def calibrated(inner, *, full_rows=0, refit_every=1, distort=1.0):
    return Calibrated(inner, distort, refit_every, full_rows, 1.0)


def test_rows_are_verified_in_full_in_turn() -> None:
    for rows, wanted in (
        (1, [[0], [1], [2], [0]]),
        (2, [[0, 1], [0, 2], [1, 2]]),
        (3, [[0, 1, 2]]),
    ):
        scheduler = calibrated(FixedLength(1), full_rows=rows)
        for full in wanted:
            plan = scheduler.plan(make_view(np.full((3, 4), 0.5)))
            assert np.flatnonzero(plan == 4).tolist() == full
            assert set(plan.tolist()) <= {1, 4}
    never = calibrated(FixedLength(1), full_rows=1, refit_every=0)
    assert never.plan(make_view(np.full((3, 4), 0.5))).tolist() == [1, 1, 1]


@pytest.mark.parametrize(("full_rows", "judged"), [(0, 2 + 1 + 1), (1, 2)])
def test_it_learns_from_full_rows_alone_if_there_are_any(full_rows, judged) -> None:
    scheduler = calibrated(FixedLength(1), full_rows=full_rows)
    scheduler.observe(outcome([1], [1]))  # of a step that it never planned
    c = np.array([[0.6, 0.7], [0.8, 0.9], [0.4, 0.3]])
    scheduler.plan(make_view(c))
    scheduler.observe(outcome([2, 1, 1], [1, 1, 0]))
    assert scheduler._fit._judged_GV.sum() == judged
    deaf = calibrated(FixedLength(1), refit_every=0)
    deaf.plan(make_view(c))
    deaf.observe(outcome([1, 1, 1], [1, 1, 1]))
    assert deaf._fit._judged_GV.sum() == 0


def test_what_is_inside_is_told_what_happened() -> None:
    for wrap in (lambda inner: calibrated(inner, refit_every=0), lambda inner: gate(inner=inner)):
        inner = Goodput(1, 1.0, 0.0, 1.0)
        scheduler = wrap(inner)
        scheduler.plan(make_view([[0.5, 0.5]]))
        scheduler.observe(outcome([2], [0]))
        assert inner._alpha == 0.0


def gate(*, inner=None, margin=0.25, retry=3, memory=0.5, prior=0.0, draft_s=1.0):
    return Gated(inner or FixedLength(2), margin, retry, memory, prior, draft_s)


def test_a_gate_closes_below_and_opens_at_its_margins() -> None:
    """Half width 1/4 around a need of 4: closed below 3, opened from 5 on, tried every 3 steps."""
    scheduler, record = gate(), _Record()
    assert [scheduler._open(record, worth, 4.0, 7) for worth in (3.0, 4.0, 99.0)] == [True] * 3
    assert record.closed_at == -1
    assert not scheduler._open(record, 2.9, 4.0, 7)
    assert record.closed_at == 7
    tried = [scheduler._open(record, 4.9, 4.0, step) for step in range(8, 15)]
    assert tried == [False, False, True, False, False, True, False]
    assert record.closed_at == 7
    assert scheduler._open(record, 5.0, 4.0, 15)
    assert record.closed_at == -1


def test_a_record_fades_and_counts() -> None:
    record = _Record()
    record.add(4, 3, 0.5)
    record.add(2, 1, 0.5)
    assert (record.rounds, record.verified, record.accepted) == (1.5, 4.0, 2.5)
    assert record.squares == 0.5 * 9 + 1


def test_rates_are_smoothed_and_closed_rows_teach_nothing() -> None:
    scheduler = gate()
    scheduler.observe(outcome([2, 2], [1, 0], seconds=0.0))  # a step of no time has no rate
    assert (scheduler._rate, scheduler._drafts) == (0.0, 0.0)
    scheduler.plan(make_view(np.full((2, 2), 0.5), ids=[5, 6]))
    scheduler.observe(outcome([2, 1], [2, 0], seconds=0.5, ids=[5, 6]))
    assert (scheduler._rate, scheduler._drafts) == (8.0, 1.5)
    assert scheduler._all == _Record(1.999, 2 * 0.999 + 1, 2 * 0.999, 4 * 0.999)
    assert scheduler._records[5] == _Record(1.0, 2.0, 2.0, 4.0)
    assert scheduler._records[6] == _Record(1.0, 1.0, 0.0, 0.0)
    scheduler._open_R = np.array([True, False])
    scheduler.observe(outcome([1, 0], [1, 0], seconds=1.0, ids=[5, 6]))
    assert scheduler._rate == pytest.approx(0.9 * 8 + 0.1 * 3)
    assert scheduler._drafts == pytest.approx(0.9 * 1.5 + 0.1 * 0.5)
    assert scheduler._records[5] == _Record(1.5, 2.0, 2.0, 3.0)
    assert scheduler._records[6] == _Record(1.0, 1.0, 0.0, 0.0)


def test_a_gate_charges_what_a_draft_costs_on_average_over_recent_budgets() -> None:
    """Three requests, 1.4 drafts each of late: B = 3 + 4 against B = 3, on a table of stairs."""
    seen = []

    class Watched(Gated):
        def _worth(self, record, token):
            seen.append(token)
            return 0.0

        def _open(self, record, worth, needed, step):
            seen.append(needed)
            return True

    table = [0, 1, 1, 1, 2, 4, 7, 11, 16, 22]
    scheduler = Watched(FixedLength(2), 0.2, 2, 0.5, 0.0, 0.125)
    scheduler._rate, scheduler._drafts = 4.0, 1.4
    scheduler._gate(make_view(np.full((3, 2), 0.5), table=table))
    assert seen == [4 * (11 - 1) / 4, 0.5] * 3
    for drafts, token in ((0.0, 4 * (2 - 1) / 1), (0.5, 4 * (4 - 1) / 2), (9.0, 4 * (22 - 1) / 6)):
        seen.clear()
        scheduler._drafts = drafts
        scheduler._gate(make_view(np.full((3, 2), 0.5), table=table))
        assert seen[0] == token
    seen.clear()
    scheduler._gate(make_view(np.full((3, 2), 0.5), table=table[::-1]))
    assert seen[0] == 0.0  # a falling table charges nothing
    scheduler._rate = 0.0
    assert scheduler._gate(make_view(np.full((3, 2), 0.5))).tolist() == [True] * 3


def test_worth_of_the_unknown() -> None:
    scheduler = gate(prior=0.0)
    assert scheduler._worth(_Record(), 1.0) == np.inf
    scheduler._all = _Record(10.0, 20.0, 10.0, 12.0)
    assert scheduler._worth(_Record(), 1.0) == 0.0  # without a prior, nothing is nothing
    assert scheduler._worth(_Record(4.0, 8.0, 4.0, 8.0), 0.25) == 1 - 0.25 * 2 + np.sqrt(1 / 4)


def test_a_request_is_looked_at_once_a_step_and_masked_where_closed() -> None:
    scheduler = gate(inner=Greedy())
    view = make_view([[0.9, 0.9], [0.9, 0.9]], step=3)
    first = scheduler.drafting(view)
    assert scheduler.drafting(view) is first
    scheduler._open_R = np.array([True, False])
    assert scheduler.plan(view).tolist() == [2, 0]
    assert scheduler.drafting(make_view([[0.9], [0.9]], step=4)).tolist() == [True, True]


def test_a_gate_hands_on_only_what_is_read() -> None:
    """Around a rule that looks at old survivals alone, or at nothing, live ones are not touched."""
    for inner, lag, wanted in ((Stale(1), 1, [2, 0]), (FixedLength(1), 0, [1, 0])):
        scheduler = gate(inner=inner)
        view = BatchView(
            step=0,
            gamma=2,
            request_id_R=np.arange(2),
            base_tokens=2,
            verify_s_B=np.ones(8),
            fixed_s=0.0,
            lagged_survival_RG=np.ones((2, 2)) if lag else None,
        )
        assert scheduler.lag == lag
        scheduler.drafting(view)
        scheduler._open_R = np.array([True, False])
        assert scheduler.plan(view).tolist() == wanted


def test_a_gate_is_told_the_cost_of_a_draft_in_microseconds() -> None:
    inner = {"kind": "fixed", "k": 1}
    made = GatedConfig(kind="gated", inner=inner, draft_us_per_request=25.0).build()
    assert made.draft_s == pytest.approx(25e-6)
