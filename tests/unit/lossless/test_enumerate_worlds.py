from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import pytest

from specsim.errors import InputError, SchedulerFault
from specsim.lossless import leaks, liars
from specsim.lossless.enumerate import autoregressive_law, enumerate_world
from specsim.lossless.peek import find_peek
from specsim.lossless.probe import Memory, Planner, Seen, ViewRecord, fingerprint, state_of
from specsim.lossless.worlds import law
from specsim.schedulers.base import LaggedSurvival
from specsim.schedulers.static import FixedLength
from specsim.schedulers.topk import AsyncTopK, GlobalSearch

F = Fraction


def test_no_drafts_is_the_autoregressive_law():
    world = leaks.nested()
    found = enumerate_world(world, lambda: FixedLength(0), num_tokens=3)
    assert found.exact
    assert found.law == found.target
    assert found.target[((0, 1, 1),)] == F(7, 10) * F(3, 10) * F(3, 5)
    assert autoregressive_law(world, world.requests[0], 2) == {
        (0, 0): F(49, 100),
        (0, 1): F(21, 100),
        (1, 0): F(12, 100),
        (1, 1): F(18, 100),
    }
    assert found.leaves == 2 + 4 + 8
    assert found.states == 1 + 2 + 4
    assert found.mean_committed == 1


def test_counts_and_means_by_hand():
    # q = (1/2, 1/2), p = (7/10, 3/10): A is always kept, B with 3/5.
    found = enumerate_world(leaks.appendix_a(), lambda: FixedLength(1))
    assert found.mean_committed == 1 + F(1, 2) + F(1, 2) * F(3, 5)
    assert found.states == 1
    # One group a draft; A commits AA, AB; B commits A, BA, BB.
    assert found.leaves == 5


def test_the_laws_of_a_leak():
    found = enumerate_world(leaks.appendix_a(), GlobalSearch)
    assert found.first_token(1) == (law("17/20", "3/20"), law("7/10", "3/10"))
    assert found.marginal(1)[0] == {(0,): F(17, 20), (1,): F(3, 20)}
    assert found.bias == F(3, 20)
    assert found.gap(((0,),)) == F(3, 20)
    assert found.gap(((1,),)) == F(-3, 20)
    assert not found.exact
    assert found.peek.kind == "own"
    assert (found.peek.request_id, found.peek.position, found.peek.step) == (1, 1, 0)
    assert "draft 1 of request 1 is admitted in one and not in the other" in found.peek.describe()


def test_joint_law_sees_what_marginals_do_not():
    found = enumerate_world(leaks.cross(), liars.CrossPeek)
    for request_id in (1, 2):
        assert found.first_token(request_id)[0] == law("7/10", "3/10")
    assert found.law[((0,), (0,))] == F(41, 80)
    assert found.target[((0,), (0,))] == F(49, 100)
    assert found.peek.kind == "joint"
    assert "correlates their outputs" in found.peek.describe()
    alone = enumerate_world(leaks.cross(), liars.CrossPeek, watch=(2,))
    assert alone.exact
    assert alone.watched == (2,)


def test_bad_arguments():
    world = leaks.appendix_a()
    for tokens in (0, 4):
        with pytest.raises(InputError, match=f"num_tokens is {tokens}"):
            enumerate_world(world, GlobalSearch, num_tokens=tokens)
    with pytest.raises(InputError, match="no request 9"):
        enumerate_world(world, GlobalSearch, watch=(9,))
    with pytest.raises(InputError, match="stopped after 3 outcomes in step 0"):
        enumerate_world(world, lambda: FixedLength(2), max_leaves=3)


def test_too_large_worlds_are_refused_with_the_number():
    wide = leaks.plain(law(*["1/8"] * 8), law(*["1/8"] * 8), name="wide", gamma=5)
    with pytest.raises(InputError, match=r"8 \*\* \(5 \* 1\) = 32768 draft outcomes"):
        enumerate_world(wide, lambda: FixedLength(1))


def test_stop_at_peek_stops():
    found = enumerate_world(leaks.appendix_a(), GlobalSearch, num_tokens=3, stop_at_peek=True)
    full = enumerate_world(leaks.appendix_a(), GlobalSearch, num_tokens=3)
    assert found.peek is not None
    assert found.leaves < full.leaves


def test_requests_join_and_leave():
    world = leaks.cross()
    one, two = world.requests
    world = replace(world, requests=(replace(one, leaves_after=1), replace(two, joins_at=1)))
    seen = []

    @dataclass(frozen=True)
    class Watching:
        reads = frozenset({"lagged"})
        lag = 1
        lossless = True

        def plan(self, view):
            seen.append((view.step, view.request_id_R.tolist(), view.base_tokens))
            return np.full(view.num_requests, 2)

    found = enumerate_world(world, Watching, num_tokens=2)
    assert found.exact
    assert {runs[0][:1] for runs in found.law} == {(0,), (1,)}
    assert all(len(runs[0]) == 1 and len(runs[1]) == 2 for runs in found.law)
    assert (0, [1], 1) in seen
    assert (1, [2], 1) in seen
    assert all(len(ids) == 1 for _, ids, _ in seen)


def test_an_empty_step_is_skipped():
    world = leaks.appendix_a()
    world = replace(world, requests=(replace(world.requests[0], joins_at=2),))
    found = enumerate_world(world, lambda: FixedLength(2), num_tokens=2)
    assert found.exact
    assert sum(found.law.values()) == 1


@dataclass
class Counting:
    """Has a memory: verifies 0, 1, 2, .. drafts as it goes."""

    reads = frozenset()
    lag = 0
    lossless = True
    calls: int = 0

    def plan(self, view):
        self.calls += 1
        assert view.step == self.calls - 1, "another path's steps were seen"
        return np.full(view.num_requests, min(self.calls - 1, view.gamma))


def test_schedulers_with_a_memory_are_replayed_on_each_path():
    found = enumerate_world(leaks.nested(), Counting, num_tokens=3)
    assert found.exact
    assert found.mean_committed == 1


@dataclass
class Learning:
    """Learns from outcomes: one draft more after a step that accepted anything."""

    reads = frozenset({"history"})
    lag = 0
    lossless = True
    length: int = 1
    told: list = field(default_factory=list)

    def plan(self, view):
        if self.told:
            last = self.told[-1]
            total = sum(int(o.num_accepted_R.sum()) for o in self.told)
            assert total == int(view.history.accepted_R.sum())
            assert last.step == view.step - 1
        assert view.history.rounds_R.tolist() == [view.step] * view.num_requests
        return np.full(view.num_requests, min(self.length, view.gamma))

    def observe(self, outcome):
        self.told.append(outcome)
        if outcome.num_accepted_R.sum() > 0:
            self.length += 1


def test_learners_are_told_what_each_path_showed():
    found = enumerate_world(leaks.nested(), Learning, num_tokens=3)
    assert found.exact
    assert found.peek is None


def test_history_counts_verified_and_accepted():
    seen = set()

    @dataclass(frozen=True)
    class Reading:
        reads = frozenset({"history"})
        lag = 0
        lossless = True

        def plan(self, view):
            history = view.history
            seen.add((view.step, int(history.verified_R[0]), int(history.accepted_R[0])))
            return np.full(view.num_requests, 2)

    assert enumerate_world(leaks.appendix_a(), Reading, num_tokens=3).exact
    assert (0, 0, 0) in seen
    assert (1, 2, 0) in seen
    assert (2, 4, 0) in seen
    assert (1, 2, 1) in seen
    assert (1, 2, 2) not in seen, "three tokens were committed, so the run was over"


class Returning:
    reads = frozenset({"live"})
    lag = 0
    lossless = True

    def __init__(self, what):
        self.what = what

    def plan(self, view):
        return self.what(view)


FAULTS = {
    "floats": (lambda v: np.full(v.num_requests, 1.0), r"step 0: .*float64 array of shape \(1,\)"),
    "list": (lambda v: [1], "step 0: .*returned list"),
    "shape": (lambda v: np.zeros((1, 1), np.int64), r"shape \(1, 1\).* \(1,\) is needed"),
    "long": (
        lambda v: np.array([3]),
        r"step 0, request 1 \(row 0\): verify length 3 is outside 0..2",
    ),
    "negative": (lambda v: np.array([-1]), "request 1 .*-1 is outside 0..2"),
    "raises": (
        lambda v: np.array([1]) // v.nothing,
        "plan raised AttributeError.*requests \\[1\\]",
    ),
    "writes": (
        lambda v: v.survival_RG.__setitem__((0, 0), 1.0),
        "read-only: copy before changing",
    ),
    "undeclared": (lambda v: v.lagged_survival_RG, 'add "lagged" to its `reads`'),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_named(name):
    what, message = FAULTS[name]
    with pytest.raises(SchedulerFault, match=message):
        enumerate_world(leaks.appendix_a(), lambda: Returning(what))


def test_peeks_in_a_table_of_plans():
    world = leaks.cross()

    def find(plan):
        outcomes = [
            ((a, b), (c, d)) for a in (0, 1) for b in (0, 1) for c in (0, 1) for d in (0, 1)
        ]
        plans = {x: plan(x) for x in outcomes}
        return find_peek(world, 0, (1, 2), plans, dict.fromkeys(outcomes, ((0.5, 0.5),) * 2))

    assert find(lambda x: (1, 1)) is None
    # Admitting draft 2 by draft 1 is what a pre-token confidence is for.
    assert find(lambda x: (1 + (x[0][0] == 0), 1)) is None
    # One request may be judged by another's admitted draft ..
    assert find(lambda x: (1, 1 + (x[0][0] == 0))) is None
    # .. but not by its own, and not by drafts of the other that stay unverified on both sides.
    own = find(lambda x: (int(x[0][0] == 0), 1))
    assert (own.kind, own.request_id, own.position) == ("own", 1, 1)
    later = find(lambda x: (1, 1 + (x[1][1] == 0)))
    assert (later.kind, later.request_id, later.position) == ("own", 2, 2)
    joint = find(lambda x: (int(x[1][0] == 0), int(x[0][0] == 0)))
    assert (joint.kind, joint.position) == ("joint", 1)
    assert joint.lengths[0] != joint.lengths[1]


def test_fingerprints_change_with_what_they_are_of():
    arrays = [np.array([1.0, 2.0]), np.array([1.0, 2.5]), np.array([[1.0, 2.0]])]
    assert fingerprint(arrays[0]) == fingerprint(arrays[0].copy())
    assert len({fingerprint(a) for a in arrays}) == 3
    assert fingerprint({"a": [1, (2,)]}) == fingerprint({"a": [1, (2,)]})
    assert fingerprint({"a": [1, (2,)]}) != fingerprint({"a": [1, [2]]})
    assert fingerprint({1, 2}) == fingerprint({2, 1})
    assert fingerprint(np.float64(1)) != fingerprint(np.float64(2))
    with pytest.raises(Memory):
        fingerprint(np.random.default_rng(0))
    one = liars.UniformHysteresis()
    before = state_of(one)
    one._length = 2
    assert state_of(one) != before
    counting = Counting()
    before = state_of(counting)
    counting.calls = 3
    assert state_of(counting) != before


def test_the_planner_shows_only_what_is_declared():
    world = leaks.appendix_a()
    lagged = LaggedSurvival(1)
    confidence = ((0.8, 0.9),)
    stale = Planner(world, lambda: AsyncTopK(1))
    record = stale.record(0, (1,), confidence, lagged, None)
    assert record == ViewRecord(0, (1,), confidence, ((1.0, 1.0),), None)
    blind = Planner(world, lambda: FixedLength(1))
    assert blind.record(0, (1,), confidence, lagged, None) == ViewRecord(0, (1,), None, None, None)
    view = stale.view(record)
    assert view.survival_RG.tolist() == [[0.8, 0.8 * 0.9]]
    assert view.verify_s_B.tolist() == [0.0, 1.0, 2.0, 20 / 9]
    assert view.base_tokens == 1
    for array in (view.survival_RG, view.confidence_RG, view.lagged_survival_RG, view.verify_s_B):
        assert not array.flags.writeable
    outcome = stale.outcome(Seen(record, (2,), (1,)))
    assert outcome.duration_s == pytest.approx(20 / 9)
    assert outcome.verify_len_R.tolist() == [2]
    assert outcome.num_accepted_R.tolist() == [1]


def test_rules_that_rank_by_the_sampled_token_see_its_draft_mass():
    seen = set()

    @dataclass(frozen=True)
    class Ranking:
        reads = frozenset({"sampled"})
        lag = 0
        lossless = False

        def plan(self, view):
            seen.update(view.sampled_RG.ravel().tolist())
            assert not view.sampled_RG.flags.writeable
            with pytest.raises(SchedulerFault, match='add "live"'):
                _ = view.survival_RG
            best = np.argmax(view.sampled_RG[:, 0])
            return (np.arange(view.num_requests) == best).astype(np.int64)

    found = enumerate_world(leaks.tetris(), Ranking)
    assert seen == {0.9, 0.1, 0.5}
    assert found.first_token(1)[0] == law("77/100", "23/100")
    with pytest.raises(SchedulerFault, match='add "sampled"'):
        enumerate_world(leaks.tetris(), lambda: Returning(lambda v: v.sampled_RG))
