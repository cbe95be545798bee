from __future__ import annotations

import importlib
from dataclasses import dataclass, field, replace
from enum import Enum
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
enumerate_module = importlib.import_module("specsim.lossless.enumerate")


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


def test_limits_are_the_last_legal_numbers(monkeypatch):
    world = leaks.appendix_a()
    assert enumerate_world(world, lambda: FixedLength(1), max_leaves=5).leaves == 5
    with pytest.raises(InputError, match="stopped after 4 outcomes in step 0"):
        enumerate_world(world, lambda: FixedLength(1), max_leaves=4)
    assert (enumerate_module.OUTCOME_LIMIT, enumerate_module.LEAF_LIMIT) == (20_000, 3_000_000)
    monkeypatch.setattr(enumerate_module, "OUTCOME_LIMIT", 4)
    assert enumerate_world(world, lambda: FixedLength(1)).exact  # 2 ** 2 outcomes a step
    monkeypatch.setattr(enumerate_module, "OUTCOME_LIMIT", 3)
    with pytest.raises(InputError, match="= 4 draft outcomes a step, more than 3"):
        enumerate_world(world, lambda: FixedLength(1))
    for tokens in (1, 3):
        monkeypatch.setattr(enumerate_module, "OUTCOME_LIMIT", 4)
        assert enumerate_world(world, lambda: FixedLength(1), num_tokens=tokens).exact


def test_equal_states_are_one_state_and_old_drafts_tell_them_apart():
    world = leaks.appendix_a()
    # Step 0 leaves A, AA or BA unfinished (A is never rejected); A goes on to AA.
    assert enumerate_world(world, lambda: FixedLength(2), num_tokens=3).states == 1 + 3 + 1
    assert enumerate_world(world, lambda: FixedLength(0), num_tokens=2).states == 1 + 2
    # With a lag the survivals after a drafted A or B are remembered beside the token.
    for lag, states in ((1, 1 + 4), (2, 1 + 4)):
        late = enumerate_world(world, lambda lag=lag: Reads({"lagged"}, 0, lag=lag), num_tokens=2)
        assert late.states == states
        assert late.exact
    # Three steps of nothing verified: one step's drafts are kept with lag 1, two steps' with 2.
    for lag, states in ((1, 1 + 4 + 8), (2, 1 + 4 + 16)):
        late = enumerate_world(world, lambda lag=lag: Reads({"lagged"}, 0, lag=lag), num_tokens=3)
        assert late.states == states


class Reads:
    lossless = True

    def __init__(self, reads, length, lag=0):
        self.reads, self.length, self.lag = frozenset(reads), length, lag

    def plan(self, view):
        return np.full(view.num_requests, self.length, dtype=np.int64)


def test_the_mean_of_step_0_is_of_the_first_request_if_it_decodes_then():
    world = leaks.cross()
    one, two = world.requests
    assert enumerate_world(world, lambda: FixedLength(1)).mean_committed == F(9, 5)
    late = replace(world, requests=(replace(one, joins_at=1), two))
    assert enumerate_world(late, lambda: FixedLength(1)).mean_committed == 0
    after = enumerate_world(replace(world, requests=(one, replace(two, joins_at=1))), Counting)
    assert after.mean_committed == 1


def test_a_request_that_is_not_watched_is_not_followed():
    world = leaks.cross()
    found = enumerate_world(world, lambda: FixedLength(1), num_tokens=2, watch=(2,))
    assert found.target == {((a, b),): x * y for a, x in enumerate(LAW) for b, y in enumerate(LAW)}
    both = enumerate_world(world, lambda: FixedLength(1), num_tokens=2, watch=(2, 1))
    assert both.watched == (2, 1)
    assert both.marginal(1)[0] == {
        (a, b): x * y for a, x in enumerate(LAW) for b, y in enumerate(LAW)
    }
    assert both.leaves > found.leaves


LAW = law("7/10", "3/10")


def test_learners_are_told_the_time_of_their_step():
    world = replace(leaks.appendix_a(), fixed_s=F(1, 2))
    planner = Planner(world, lambda: Reads({"history"}, 1))
    record = planner.record(3, (1,), ((0.8, 0.9),), LaggedSurvival(0), ((5, 4, 3),))
    view = planner.view(record)
    assert (view.step, view.gamma, view.fixed_s) == (3, 2, 0.5)
    history = view.history
    assert [x.tolist() for x in (history.rounds_R, history.verified_R, history.accepted_R)] == [
        [5],
        [4],
        [3],
    ]
    told = planner.outcome(Seen(record, (2,), (1,)))
    assert (told.step, told.duration_s) == (3, 20 / 9 + 0.5)
    assert told.request_id_R.tolist() == [1]
    assert planner.outcome(Seen(record, (0,))).duration_s == 1.5
    assert planner.outcome(Seen(record, (1,), (0,))).duration_s == float(world.verify_s_B[2]) + 0.5
    assert not planner.learns
    assert not planner.remembers
    assert Planner(world, Learning).remembers
    assert Planner(world, lambda: Reads({"live"}, 1), remembers=True).remembers


def test_a_second_path_is_planned_anew_and_a_known_view_is_not():
    calls = []

    class Watching(Reads):
        def plan(self, view):
            calls.append(view.step)
            return super().plan(view)

    planner = Planner(leaks.appendix_a(), lambda: Watching({"live"}, 1))
    record = planner.record(0, (1,), ((0.8, 0.9),), LaggedSurvival(0), None)
    assert planner.plan(record, ()) == planner.plan(record, ()) == (1,)
    assert calls == [0]
    calls.clear()
    replaying = Planner(leaks.appendix_a(), lambda: Watching({"live"}, 1), remembers=True)
    assert replaying.plan(record, (Seen(record, (1,)), Seen(record, (1,)))) == (1,)
    assert calls == [0, 0, 0]
    changing = Planner(leaks.appendix_a(), Counting)
    with pytest.raises(Memory):
        changing.plan(changing.record(0, (1,), ((0.8, 0.9),), LaggedSurvival(0), None), ())


def test_only_what_a_scheduler_reads_is_in_its_record():
    confidence, sampled = ((0.8, 0.9),), ((0.5, 0.5),)

    def record(*reads, lag=0):
        planner = Planner(leaks.appendix_a(), lambda: Reads(reads, 1, lag=lag))
        assert planner.lag == lag
        return planner.record(2, (1,), confidence, LaggedSurvival(lag), None, sampled)

    assert record() == ViewRecord(2, (1,), None, None, None, None)
    assert record("live") == ViewRecord(2, (1,), confidence, None, None, None)
    assert record("sampled") == ViewRecord(2, (1,), None, None, None, sampled)
    assert record("lagged", lag=1) == ViewRecord(2, (1,), None, ((1.0, 1.0),), None, None)
    view = Planner(leaks.appendix_a(), lambda: Reads({"sampled"}, 1)).view(record("sampled"))
    assert view.sampled_RG.tolist() == [[0.5, 0.5]]
    with pytest.raises(SchedulerFault, match="survival_RG"):
        _ = view.survival_RG


class Colour(Enum):
    RED = 1


def test_everything_that_can_be_compared_has_a_fingerprint():
    values = [
        None,
        True,
        0,
        "a",
        b"a",
        F(1, 2),
        Colour.RED,
        np.float32(1),
        np.float64(1),
        np.arange(2),
        np.arange(2, dtype=np.int32),
        (1, 2),
        [1, 2],
        {1: 2},
        {1, 2},
        len,
        test_an_empty_step_is_skipped,
        Colour,
    ]
    prints = [fingerprint(value) for value in values]
    assert len(set(map(repr, prints))) == len(values)
    for value, known in zip(values, prints, strict=True):
        assert fingerprint(value) == known
    for opaque in (object(), iter(()), [1, (2, {3: object()})]):
        with pytest.raises(Memory):
            fingerprint(opaque)


def test_the_state_is_of_slots_and_attributes_of_every_base():
    class Low:
        __slots__ = ("a", "unset")

    class Named(Low):
        __slots__ = "b"

    class High(Named):
        pass

    made = High()
    made.a, made.b, made.c = 1, 2, 3
    whole = {("a", 1), ("b", 2), ("c", 3)}
    assert set(state_of(made)) == whole
    made.b = 5
    assert set(state_of(made)) == whole - {("b", 2)} | {("b", 5)}


def test_a_scheduler_of_opaque_parts_is_replayed():
    class Opaque(Reads):
        def __init__(self):
            super().__init__({"live"}, 1)
            self.rng = np.random.default_rng(0)

    assert Planner(leaks.appendix_a(), Opaque).remembers
    assert enumerate_world(leaks.appendix_a(), Opaque).exact


def test_a_fault_that_is_no_write_has_no_hint_about_writing():
    with pytest.raises(SchedulerFault) as caught:
        enumerate_world(leaks.appendix_a(), lambda: Returning(lambda v: [1]))
    assert "read-only" not in str(caught.value)
    assert str(caught.value).endswith("(batch of requests [1])")


def test_a_peek_is_told_with_both_outcomes():
    found = enumerate_world(leaks.cross(), liars.CrossPeek)
    assert found.peek.describe().splitlines() == [
        "  outcome A of step 0:",
        "    request 1: drafts [0, 0], confidences (0.8, 1) -> verify 0",
        "    request 2: drafts [1, 0], confidences (0.8, 0) -> verify 1",
        "  outcome B of step 0:",
        "    request 1: drafts [1, 0], confidences (0.8, 0) -> verify 0",
        "    request 2: drafts [1, 0], confidences (0.8, 0) -> verify 0",
        "  the outcomes agree on every draft that A admits, but the plans differ at request 2: the "
        "plan depends on unverified drafts of several requests at once, which correlates their "
        "outputs",
    ]
    peek = found.peek
    assert (peek.kind, peek.request_id, peek.position, peek.step) == ("joint", 2, 1, 0)
    assert peek.lengths == ((0, 1), (0, 0))


def test_the_first_place_where_plans_differ_is_named():
    world = leaks.cross()
    outcomes = [((a, b), (c, d)) for a in (0, 1) for b in (0, 1) for c in (0, 1) for d in (0, 1)]
    confidences = dict.fromkeys(outcomes, ((0.5, 0.5),) * 2)

    def find(plan):
        return find_peek(world, 4, (1, 2), {x: plan(x) for x in outcomes}, confidences)

    # The second draft of each is judged by the other's second, which may go unverified.
    later = find(lambda x: (1 + (x[1][1] == 0), 1 + (x[0][1] == 0)))
    assert (later.kind, later.request_id, later.position, later.step) == ("joint", 2, 2, 4)
    assert later.lengths == ((1, 2), (1, 1))
    assert later.confidences == (((0.5, 0.5),) * 2,) * 2
    second = find(lambda x: (2, int(x[1][0] == 0)))
    assert (second.kind, second.request_id, second.position) == ("own", 2, 1)
    assert second.drafts == (((0, 0), (0, 0)), ((0, 0), (1, 0)))


def test_a_description_says_only_what_there_is():
    text = leaks.appendix_a().describe()
    assert text.splitlines() == [
        'world "appendix-a": 2 tokens, gamma 2, laws look back 1, pre-token confidences',
        "  seconds of 1, 2, .. tokens: 1, 2, 20/9; fixed 0",
        "  request 1 (starts after (0,))",
        "    p: (7/10, 3/10)",
        "    q of draft 1: (1/2, 1/2)",
        "    c of draft 1: 4/5",
        "    q of draft 2: (1/2, 1/2)",
        "    c of draft 2 after 0: 9/10",
        "    c of draft 2 after 1: 0",
    ]
    believed = leaks.plain(
        law("1/2", "1/2"),
        law("1/4", "3/4"),
        name="b",
        gamma=2,
        believed_draft=law(0, 1),
        believed_target=law("1/3", "2/3"),
    ).describe()
    assert believed.splitlines()[-3:] == [
        "    believed q 1: (0, 1)",
        "    believed q 2: (0, 1)",
        "    believed p: (1/3, 2/3)",
    ]
    later = replace(leaks.appendix_a().requests[0], joins_at=3)
    told = replace(leaks.appendix_a(), requests=(later,)).describe()
    assert "  request 1 (starts after (0,), joins at step 3)\n" in told
    nested = leaks.nested().describe()
    assert "    p after 0: (7/10, 3/10)\n    p after 1: (2/5, 3/5)\n" in nested
