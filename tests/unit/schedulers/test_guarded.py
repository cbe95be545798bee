"""Minimum gain, tiers, uniform length, D-Cut and the engines' planners, on hand-worked steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from specsim.cost.table import load_table
from specsim.schedulers.base import checked_plan
from specsim.schedulers.engines import EnginePlanner, SglangConfig, TrtllmConfig, VllmConfig
from specsim.schedulers.guarded import (
    DCutConfig,
    MinimumGainConfig,
    TierAwareConfig,
    UniformConfig,
)
from specsim.schedulers.kernels import allocate_twin
from specsim.schedulers.per_request import SpecDecPlusConfig, TetrisConfig
from specsim.schedulers.promise import reread, theta_by_budget, theta_by_length
from specsim.schedulers.topk import AsyncTopK
from tests.scheduler_views import make_view


@st.composite
def steps(draw):
    count, gamma = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    grid = st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9, 0.97, 1.0])
    rows = st.lists(st.lists(grid, min_size=gamma, max_size=gamma), min_size=count, max_size=count)
    rise = st.sampled_from([0.0, 0.0, 0.05, 0.4])
    table = 1 + np.cumsum(draw(st.lists(rise, min_size=40, max_size=40)))
    lagged = np.cumprod(np.array(draw(rows)), axis=1)
    return make_view(draw(rows), lagged=lagged, table=table, fixed_s=draw(st.sampled_from([0, 1])))


def test_theta_by_budget_and_by_length_by_hand() -> None:
    view = make_view([[0.5, 0.5], [0.8, 0.5]], table=np.arange(9) + 1.0, fixed_s=1.0)
    # Survivals .5 .25 .8 .4; B = 2 + K takes 3 + K + 1 seconds.
    np.testing.assert_allclose(
        theta_by_budget(view, view.survival_RG), [2 / 4, 2.8 / 5, 3.3 / 6, 3.7 / 7, 3.95 / 8]
    )
    np.testing.assert_allclose(theta_by_length(view, view.survival_RG), [2 / 4, 3.3 / 6, 3.95 / 8])


def test_readings_of_a_planners_own_probes() -> None:
    table = np.arange(12.0)
    read = {r: reread(table, 1, 10, (2, 5, 9), r).tolist() for r in ("floor", "linear", "ceil")}
    assert read["floor"] == [2, 2, 2, 2, 5, 5, 5, 5, 9, 10]
    assert read["ceil"] == [2, 2, 5, 5, 5, 9, 9, 9, 9, 10]
    assert read["linear"] == [2, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert reread(table, 3, 2, (), "floor").tolist() == [3, 4]


@settings(max_examples=80, deadline=None)
@given(steps(), st.sampled_from([0.0, 0.04, 0.5]))
def test_a_minimum_gain_of_nothing_is_the_argmax_unless_everything_is_as_good(view, gain) -> None:
    plan = checked_plan(MinimumGainConfig(kind="min_gain", gain=gain).build(), view)
    theta = theta_by_budget(view, view.lagged_survival_RG)
    if theta.max() > (1 + gain) * theta[-1]:
        assert plan.tolist() == AsyncTopK(2).plan(view).tolist()
    else:
        assert plan.tolist() == [view.gamma] * view.num_requests


def test_noise_of_a_percent_does_not_trim() -> None:
    """A tiny slope with noise: the argmax trims at a loss, the guard verifies everything."""
    table = 1 + 4e-3 * np.arange(20)
    view = make_view(np.full((2, 4), 0.3), table=table)
    assert AsyncTopK(2).plan(view).sum() < 8
    assert MinimumGainConfig(kind="min_gain").build().plan(view).tolist() == [4, 4]


def test_tiers_fill_what_is_paid_for() -> None:
    table = np.array([0, 1, 1, 1, 2, 2, 2, 2, 5, 5, 5, 5.0])
    view = make_view([[0.9, 0.9, 0.1], [0.9, 0.9, 0.1]], table=table)
    shelves = TierAwareConfig(kind="tiers").build()
    # Shelves end at B = 3 and 7. theta: K 0: 2 | 1: 2.9 | 5: 5.34 / 2 ... | 6: 5.8 / 5.
    assert shelves.plan(view).sum() == 1
    told = TierAwareConfig(kind="tiers", tiers=(4, 7)).build()
    assert told.plan(view).sum() == 5
    flat = make_view([[0.9, 0.9, 0.0], [0.9, 0.9, 0.0]])
    assert shelves.plan(flat).tolist() == [2, 2]  # ties to the larger; survival 0 is never verified
    with pytest.raises(ValidationError, match="strictly rising"):
        TierAwareConfig(kind="tiers", tiers=(4, 4))


@settings(max_examples=80, deadline=None)
@given(steps())
def test_tiers_are_the_best_of_the_shelf_ends(view) -> None:
    plan = checked_plan(TierAwareConfig(kind="tiers").build(), view)
    theta = theta_by_budget(view, view.lagged_survival_RG)
    base = view.base_tokens
    ends = [
        k
        for k in range(len(theta))
        if k in (0, len(theta) - 1) or view.verify_s_B[base + k + 1] > view.verify_s_B[base + k]
    ]
    best = max(ends, key=lambda k: (theta[k], k))
    assert plan.tolist() == allocate_twin(view.survival_RG, best).tolist()


def test_a_uniform_length_has_hysteresis() -> None:
    scheduler = UniformConfig(kind="uniform", margin=0.05, lag=1).build()
    table = 1 + 0.3 * np.arange(12)

    def plan(confidence: float) -> int:
        found = scheduler.plan(make_view(np.full((1, 4), confidence), table=table))
        assert len(set(found.tolist())) == 1
        return int(found[0])

    def theta(confidence: float) -> np.ndarray:
        view = make_view(np.full((1, 4), confidence), table=table)
        return theta_by_length(view, view.survival_RG)

    assert plan(0.9) == int(np.argmax(theta(0.9))) == 4
    assert int(np.argmax(theta(0.75))) == 3
    assert theta(0.75)[3] < 1.05 * theta(0.75)[4]
    assert plan(0.75) == 4  # better elsewhere, but by less than the margin
    assert plan(0.3) == int(np.argmax(theta(0.3)))
    eager = UniformConfig(kind="uniform", margin=0.0, lag=1).build()
    assert int(eager.plan(make_view(np.full((1, 4), 0.75), table=table))[0]) == 3


def test_dcut_scores_leave_out_the_own_token() -> None:
    # Scores 1, .2 and 1, .9: half of four drafts are the two first ones.
    view = make_view([[0.2, 0.9], [0.9, 0.9]])
    half = DCutConfig(kind="dcut", shares=(0.5,), lag=1).build()
    assert half.plan(view).tolist() == [1, 1]
    three = DCutConfig(kind="dcut", shares=(0.75,), lag=1).build()
    assert three.plan(view).tolist() == [1, 2]
    steep = make_view([[0.2, 0.9], [0.9, 0.9]], table=[1, 1, 1, 1, 1, 1.5, 9, 9])
    assert DCutConfig(kind="dcut", lag=1).build().plan(steep).sum() == 2
    with pytest.raises(ValidationError, match="strictly rising"):
        DCutConfig(kind="dcut", shares=(0.5, 0.25))


# The engines' planners


@settings(max_examples=100, deadline=None)
@given(steps())
def test_vllm_is_the_argmax_up_to_ties(view) -> None:
    plan = checked_plan(VllmConfig(kind="vllm").build(), view)
    plain = AsyncTopK(1).plan(view)
    assert plan.sum() == plain.sum()
    flat = view.survival_RG.ravel()
    k = int(plan.sum())
    top = np.argsort(-flat, kind="stable")[:k] // view.gamma
    assert plan.tolist() == np.bincount(top, minlength=view.num_requests).tolist()


@settings(max_examples=100, deadline=None)
@given(steps())
def test_sglang_is_the_asynchronous_topk(view) -> None:
    plan = checked_plan(SglangConfig(kind="sglang").build(), view)
    assert plan.tolist() == AsyncTopK(2).plan(view).tolist()


def test_ties_of_survivals_differ_between_engines() -> None:
    c = np.ones((2, 2))
    view = make_view(c, table=[1, 1, 1, 1, 1, 1, 9, 9, 9])
    assert view.base_tokens + 3 == 5  # room for three drafts
    assert SglangConfig(kind="sglang").build().plan(view).tolist() == [2, 1]
    two = make_view(c, table=[1, 1, 1, 1, 1, 9, 9, 9, 9])
    assert SglangConfig(kind="sglang").build().plan(two).tolist() == [1, 1]
    assert VllmConfig(kind="vllm").build().plan(two).tolist() == [2, 0]


def test_sglang_reads_floors_and_fills_tiers() -> None:
    table = np.array([0, 1, 1, 2, 3, 4, 5, 6, 7.0])
    view = make_view(np.full((2, 3), 0.9), table=table)
    assert SglangConfig(kind="sglang").build().plan(view).sum() == 0
    # Probes at 2 and 6: everything up to B = 5 looks as cheap as 2.
    floor = SglangConfig(kind="sglang", probe_tokens=(2, 6)).build()
    assert floor.plan(view).sum() == 3
    ceil = VllmConfig(kind="vllm", probe_tokens=(2, 6)).build()
    assert ceil.plan(view).sum() == 0
    assert SglangConfig(kind="sglang", tiers=(4, 8)).build().plan(view).sum() == 2


def test_a_flat_table_verifies_everything_that_may_survive() -> None:
    faint = make_view([[0.5, 1e-9], [0.5, 0.5]])
    assert VllmConfig(kind="vllm").build().plan(faint).tolist() == [2, 2]
    assert SglangConfig(kind="sglang").build().plan(faint).tolist() == [1, 2]  # eps 1e-6
    assert TrtllmConfig(kind="trtllm").build().plan(faint).tolist() == [2, 2]


def test_trtllm_verifies_at_least_one_and_trims_for_a_gain() -> None:
    dear = make_view(np.full((3, 3), 0.01), table=1.0 + np.arange(20.0))
    assert TrtllmConfig(kind="trtllm").build().plan(dear).tolist() == [1, 1, 1]
    assert SglangConfig(kind="sglang").build().plan(dear).sum() == 0
    nearly = make_view(np.full((2, 4), 0.3), table=1 + 4e-3 * np.arange(20))
    assert TrtllmConfig(kind="trtllm").build().plan(nearly).tolist() == [4, 4]
    keen = TrtllmConfig(kind="trtllm", min_gain=1e-6).build()
    assert keen.plan(nearly).sum() < 8


def test_trtllm_counts_the_floors_survival() -> None:
    """R = 1: theta(0) = (1 + a1) / T(2); leaving a1 out would trim less."""
    table = np.array([0, 1, 1, 1.5, 1.5, 9, 9])
    view = make_view([[0.9, 0.5, 0.1]], table=table)
    plan = TrtllmConfig(kind="trtllm", min_gain=1e-9).build().plan(view)
    by_hand = [1.9 / 1, (1.9 + 0.45) / 1.5, (1.9 + 0.45 + 0.045) / 1.5]
    assert int(plan[0]) == 1 + int(np.argmax(by_hand)) == 1
    without = [1.0 / 1, 1.45 / 1.5, 1.495 / 1.5]
    assert int(np.argmax(without)) == 0  # the same here; with a dearer floor they part:
    table = np.array([0, 1, 1, 1.3, 1.3, 9, 9])
    view = make_view([[0.9, 0.5, 0.1]], table=table)
    assert (1.9 + 0.45) / 1.3 < 1.9 < 1.9 / 0.9
    assert int(TrtllmConfig(kind="trtllm", min_gain=1e-9).build().plan(view)[0]) == 1
    assert 1.45 / 1.3 > 1.0  # without the floor's survival in tau it would verify more


def test_trtllm_keeps_to_captured_lengths_and_the_larger_of_equals() -> None:
    table = np.array([0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2.0])
    view = make_view(np.full((2, 4), 0.9), table=table)
    free = TrtllmConfig(kind="trtllm").build().plan(view)
    assert free.sum() == 4
    captured = TrtllmConfig(kind="trtllm", lengths=(1, 3)).build().plan(view)
    # 3.8 tokens at budget 0 (one draft each is sure), 6.88 / 2 s at 4, 8.19 / 2 s at 6: all of it.
    assert captured.tolist() == [4, 4]
    dear = make_view(np.full((2, 4), 0.9), table=np.where(np.arange(11) <= 6, 1.0, 3.0))
    assert TrtllmConfig(kind="trtllm", lengths=(1, 3)).build().plan(dear).tolist() == [1, 1]
    shelf = make_view(np.full((2, 4), 0.9), table=np.where(np.arange(11) <= 8, 1.0, 9.0))
    assert TrtllmConfig(kind="trtllm", lengths=(1, 3)).build().plan(shelf).tolist() == [3, 3]
    assert TrtllmConfig(kind="trtllm", lengths=(1, 2)).build().plan(shelf).tolist() == [2, 2]
    equal = make_view([[1.0, 0.0, 0.0]], table=[0, 1, 1, 1, 9, 9])
    planner = EnginePlanner(lag=1, gain=0.04, larger=True)
    assert planner.plan(equal).tolist() == [1]  # the largest budget; survival 0 is not verified


@pytest.mark.parametrize(
    "config",
    [
        VllmConfig(kind="vllm"),
        SglangConfig(kind="sglang"),
        TrtllmConfig(kind="trtllm"),
        TierAwareConfig(kind="tiers"),
        MinimumGainConfig(kind="min_gain"),
    ],
    ids=lambda config: config.kind,
)
def test_nobody_steps_over_the_eager_cliff(config) -> None:
    """V4-Flash on B300: past 1,024 tokens a step takes five times as long."""
    path = Path(__file__).parents[3] / "profiles" / "steps" / "vllm" / "v4_flash_tp4_b300.json"
    table = load_table(path).dense("ceil", 1700)
    view = make_view(np.full((200, 7), 0.97), table=table, fixed_s=2e-3)
    plan = checked_plan(config.build(), view)
    assert 600 < plan.sum() <= 1024 - 200


# One draft after the other


def test_specdec_keeps_the_draft_that_triggers() -> None:
    scheduler = SpecDecPlusConfig(kind="specdec_pp", stop=0.3).build()
    # Survivals .9 .72 .36 ..: 1 - .72 = .28 goes on, 1 - .36 stops, kept.
    assert scheduler.plan(make_view([[0.9, 0.8, 0.5, 0.9]])).tolist() == [3]
    assert scheduler.plan(make_view([[0.1, 0.9, 0.9, 0.9]])).tolist() == [1]
    assert scheduler.plan(make_view([[1.0, 1.0, 1.0, 1.0]])).tolist() == [4]


def test_tetris_ranks_by_the_sampled_tokens() -> None:
    confidence = [[0.9, 0.9], [0.1, 0.1]]
    sampled = np.array([[0.2, 0.9], [0.8, 0.7]])
    rule = TetrisConfig(kind="tetris", k=1).build()
    assert rule.plan(make_view(confidence, sampled_RG=sampled)).tolist() == [0, 2]
    fair = TetrisConfig(kind="tetris", k=1, score="confidence").build()
    assert fair.plan(make_view(confidence)).tolist() == [2, 0]
    assert not rule.lossless
    assert fair.lossless
