"""Capacity and allocation against their twins, with ties and saturated survivals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from specsim.schedulers.base import BatchView, IntArray, first_outside
from specsim.schedulers.greedy import Greedy, PatientGreedy
from specsim.schedulers.kernels import (
    DIGITS,
    NO_PATIENCE_LIMIT,
    Rule,
    RuleKind,
    allocate,
    allocate_twin,
    ascending,
    capacity,
    capacity_twin,
    sort_survivals,
    walk,
)
from specsim.schedulers.static import FixedLength
from specsim.schedulers.threshold import Threshold
from specsim.schedulers.topk import AsyncTopK, GlobalSearch
from tests.scheduler_views import make_view

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


@pytest.mark.parametrize("count", [0, 1, 2, 5, 47, 48, 49, 50, 300])
def test_survivals_are_sorted_by_their_bits(count) -> None:
    rng = np.random.default_rng(count)
    for kind in range(4):
        survival_X = (rng.random(count) ** (1, 30, 1, 1)[kind]).astype(np.float32)
        if kind == 2:
            survival_X = rng.choice(np.float32([0, 1e-45, 0.5, 1]), count)
        if kind == 3:  # the same upper digits, or the same lower ones
            survival_X = (np.arange(count)[::-1] * 2.0 ** rng.integers(-24, -9)).astype(np.float32)
            survival_X = np.minimum(survival_X, np.float32(1))
        spare = np.float32(0.25) * np.ones(3, np.float32)
        key_X = np.concatenate([survival_X, spare]).view(np.uint32)
        before = key_X.copy()
        out_X = np.full(count + 3, 7, np.uint32)
        scratch_X, digit_W = np.zeros(count, np.uint32), np.full(DIGITS, 9, np.uint32)
        sort_survivals(key_X, count, out_X, scratch_X, digit_W)
        assert out_X[:count].view(np.float32).tolist() == np.sort(survival_X).tolist()
        assert out_X[count:].tolist() == [7, 7, 7]
        assert (key_X == before).all()


@settings(max_examples=200, deadline=None)
@given(survivals(), tables(), st.sampled_from([0, 1, 3, NO_PATIENCE_LIMIT]), st.data())
def test_a_walk_over_a_changed_list_is_one_over_the_list_as_it_is_now(
    a, table, patience, data
) -> None:
    rows = ascending(a)
    gone = data.draw(st.lists(st.integers(0, max(len(rows) - 1, 0)), unique=True))
    gone = sorted(gone) if len(rows) else []
    come = data.draw(st.integers(0, 5))
    now = np.concatenate([np.delete(rows, gone), np.ones(come, rows.dtype)])
    args = (len(a), len(a) + 2, table, 0.3, patience)
    padded = np.concatenate([rows, np.ones(2, rows.dtype)])  # what lies behind is not looked at
    assert walk(padded, len(rows), rows[gone], come, *args) == capacity(np.sort(now), *args)


def plan_of(rule: Rule, view: BatchView) -> IntArray:
    """What a rule says, in plain numpy."""
    if rule.kind is RuleKind.FIXED:
        return np.full(view.num_requests, min(rule.k, view.gamma))
    if rule.kind is RuleKind.THRESHOLD:
        score = view.confidence_RG if rule.conditional else view.survival_RG
        sure = (score >= rule.threshold) & (view.survival_RG > 0)
        return np.cumprod(sure, axis=1).sum(axis=1)
    walked = view.lagged_survival_RG if rule.lag else view.survival_RG
    k = capacity_twin(
        ascending(walked),
        view.num_requests,
        view.base_tokens,
        view.verify_s_B,
        view.fixed_s,
        rule.patience,
    )
    return allocate_twin(view.survival_RG, k)


BOTH = frozenset({"live", "lagged"})
FUSIBLE = {
    "none": (FixedLength(0), Rule(RuleKind.FIXED)),
    "fixed": (FixedLength(2), Rule(RuleKind.FIXED, k=2)),
    "conditional": (
        Threshold(0.5, "conditional"),
        Rule(RuleKind.THRESHOLD, threshold=0.5, conditional=True),
    ),
    "cumulative": (Threshold(0.5, "cumulative"), Rule(RuleKind.THRESHOLD, threshold=0.5)),
    "greedy": (Greedy(), Rule(RuleKind.WALK)),
    "patient": (
        PatientGreedy(2, 1, BOTH, lossless=True),
        Rule(RuleKind.WALK, lag=1, patience=2),
    ),
    "async": (AsyncTopK(3), Rule(RuleKind.WALK, lag=3, patience=NO_PATIENCE_LIMIT)),
    "global": (GlobalSearch(), Rule(RuleKind.WALK, patience=NO_PATIENCE_LIMIT)),
}


@pytest.mark.parametrize("name", FUSIBLE)
@settings(max_examples=60, deadline=None)
@given(survivals(), survivals(), tables())
def test_a_rule_is_the_plan_in_numbers(name, c, old, table) -> None:
    scheduler, rule = FUSIBLE[name]
    assert scheduler.rule() == rule
    if c.shape[1] == 0:
        return
    lagged = np.ones(c.shape)
    count, gamma = min(len(c), len(old)), min(c.shape[1], old.shape[1])
    lagged[:count, :gamma] = old[:count, :gamma]
    lagged = np.minimum.accumulate(lagged, axis=1)
    view = make_view(c, lagged=lagged, table=table, fixed_s=0.2)
    assert scheduler.plan(view).tolist() == plan_of(rule, view).tolist()


def test_kinds_of_rules_are_told_apart_and_say_nothing_that_is_not_theirs() -> None:
    assert len(RuleKind) == 3
    assert Rule(RuleKind.FIXED) == Rule(
        RuleKind.FIXED, k=0, threshold=0.0, conditional=False, lag=0, patience=0
    )


def test_the_first_length_that_is_out_of_range_is_found() -> None:
    for lengths, row in (([0, 3, 1], -1), ([], -1), ([0, 4, -1], 1), ([-1, 4], 0), ([3, 3, -1], 2)):
        assert first_outside(np.array(lengths, dtype=np.int64), 3) == row


def test_a_threshold_keeps_what_reaches_it_and_never_what_cannot_survive() -> None:
    c = [[0.5, 0.5, 0.49], [0.0, 0.9, 0.9], [0.9, 0.0, 0.9]]
    assert Threshold(0.5, "conditional").plan(make_view(c)).tolist() == [2, 0, 1]
    assert Threshold(0.25, "cumulative").plan(make_view(c)).tolist() == [2, 0, 1]
    assert Threshold(0.0, "conditional").plan(make_view(c)).tolist() == [3, 0, 1]


def test_one_live_and_one_old_survival_decide_who_and_how_many() -> None:
    """Patience on old survivals: K from them, who gets it from the live ones."""
    table = [0, 1, 1, 1.9, 1.9, 2.0, 9.0]
    live, old = [[0.1, 0.1], [0.9, 0.9]], np.array([[0.9, 0.9], [0.8, 0.1]])
    for patience, wanted in ((0, [0, 0]), (1, [0, 0]), (2, [1, 2])):
        rule = PatientGreedy(patience, 1, BOTH, lossless=True)
        view = make_view(live, lagged=old, table=table)
        theta = [2, 2.9 / 1.9, 3.8 / 1.9, 4.6 / 2.0, 4.7 / 9]
        assert theta[3] == max(theta)
        assert rule.plan(view).tolist() == wanted


def test_what_is_crossed_out_is_walked_around() -> None:
    """Of .2 .5 .5 .8 .9 the second .5 and .9 are gone and one sure draft has come: 1 .8 .5 .2."""
    ascending_C = np.array([0.2, 0.5, 0.5, 0.8, 0.9])
    gone, now = np.array([0.5, 0.9]), np.array([0.2, 0.5, 0.8, 1.0])
    for free in range(5):  # the first `free` drafts cost nothing, the others much
        table = np.where(np.arange(12) <= 3 + free, 1.0, 9.0)
        args = (3, 3, table, 0.0, NO_PATIENCE_LIMIT)
        assert walk(ascending_C, 5, gone, 1, *args) == capacity(now, *args) == free
    # Two requests: 2, 3, 3.8, 4.3 and 4.5 tokens; the last 0.2 must pay 4.3 a second.
    for last_s, k in ((1.046, 4), (1.047, 3)):
        table = np.array([1, 1, 1, 1, 1, 1, last_s])
        args = (2, 2, table, 0.0, NO_PATIENCE_LIMIT)
        assert walk(ascending_C, 5, gone, 1, *args) == k
