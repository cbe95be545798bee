from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from specsim.errors import SchedulerFault
from specsim.lossless import conformance, leaks, liars
from specsim.lossless.conformance import (
    CHECKS,
    ConformanceError,
    Report,
    ViewRun,
    _name,
    _prefix_message,
    _smaller,
    check_declared,
    check_deterministic,
    check_lengths,
    check_lossless,
    check_prefix_rule,
    check_protocol,
    check_scheduler,
    check_view_untouched,
    counterexample,
    judge,
    parametrize_with_checks,
)
from specsim.lossless.enumerate import enumerate_world
from specsim.lossless.kinds import VARIANTS, shipped
from specsim.lossless.worlds import law
from specsim.schedulers.base import BatchView
from specsim.schedulers.greedy import Greedy
from specsim.schedulers.oracle import Oracle
from specsim.schedulers.static import FixedLength
from specsim.schedulers.topk import AsyncTopK, GlobalSearch

SAFE = {name: factory for name, factory in shipped() if factory().lossless}
CORE = [name for name in SAFE if name.split()[0] in {kind for kind, _ in VARIANTS}]
"""The rest keeps the contract in `tests/lossless/test_policies.py`, under livelier parameters."""
UNSAFE = {name: factory for name, factory in shipped() if not factory().lossless}


@pytest.mark.parametrize("check", CHECKS[:-1], ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CORE)
def test_shipped_schedulers_keep_the_contract(name, check):
    check(SAFE[name])


@pytest.mark.parametrize("name", SAFE)
def test_shipped_schedulers_that_say_so_are_lossless(name):
    verdict = judge(SAFE[name], count=1)
    assert verdict.lossless
    assert verdict.worlds == 7
    assert verdict.leaves > 100


@pytest.mark.slow
@pytest.mark.parametrize("name", SAFE)
def test_shipped_schedulers_on_the_whole_battery(name):
    report = check_scheduler(SAFE[name])
    assert report.lossless, report.failures
    assert report.as_declared


@pytest.mark.parametrize("name", UNSAFE)
def test_shipped_schedulers_that_say_otherwise_leak(name):
    with pytest.raises(ConformanceError, match="total variation of the output law"):
        check_lossless(UNSAFE[name])


@parametrize_with_checks([Greedy, lambda: AsyncTopK(1)])
def test_the_suite_as_an_author_uses_it(factory, check):
    check(factory)


def test_the_parametrisation_names_scheduler_and_check():
    mark = parametrize_with_checks([Greedy, lambda: FixedLength(1)]).mark
    names = [parameters.id for parameters in mark.args[1]]
    assert "Greedy-check_lossless" in names
    assert any(name.startswith("FixedLength(k=1") for name in names)
    assert len(names) == 2 * len(CHECKS)


LIARS = {
    "global": GlobalSearch,
    "tie": liars.TieLast,
    "minimum gain": liars.MinimumGain,
    "tiers": lambda: liars.TierAware((0, 2)),
    "uniform": liars.UniformHysteresis,
    "smoothed": liars.SmoothedBudget,
    "next": liars.PeekNext,
    "batch": liars.BatchGate,
    "cross": liars.CrossPeek,
    "d-cut": liars.DCut,
}


@pytest.mark.parametrize("name", LIARS)
def test_every_liar_is_refuted_with_a_counterexample(name):
    with pytest.raises(ConformanceError) as caught:
        check_lossless(LIARS[name])
    text = str(caught.value)
    assert "outcome A of step" in text
    assert "outcome B of step" in text
    assert "total variation of the output law" in text
    assert len(text.splitlines()) < 45


@pytest.mark.parametrize("name", sorted(set(LIARS) - {"d-cut"}))
def test_the_prefix_rule_sees_liars_in_large_batches_too(name):
    with pytest.raises(ConformanceError, match="changed the plan"):
        check_prefix_rule(LIARS[name])


HONEST = {
    "minimum gain": lambda: liars.MinimumGain(lag=1),
    "tiers": lambda: liars.TierAware((0, 2), lag=1),
    "uniform": lambda: liars.UniformHysteresis(lag=1),
    "smoothed": lambda: liars.SmoothedBudget(first=False),
    "keep": liars.ThresholdKeep,
    "top-k": liars.FixedTopK,
    "d-cut, one share": lambda: liars.DCut((0.5,)),
    "gates": liars.SparseGate,
}


@pytest.mark.parametrize("name", HONEST)
def test_their_safe_forms_are_not(name):
    check_prefix_rule(HONEST[name])
    assert judge(HONEST[name], count=1).lossless


def test_a_lone_joint_leak_is_explained():
    with pytest.raises(ConformanceError) as caught:
        check_lossless(liars.CrossPeek)
    assert "each first token has its law, but P(outputs are" in str(caught.value)


def test_post_token_confidences_turn_a_safe_rule_into_a_leak():
    safe = check_scheduler(liars.FixedTopK)
    assert safe.lossless
    assert safe.as_declared
    report = check_scheduler(liars.FixedTopK, post_token=True)
    assert not report.lossless
    assert not report.as_declared
    assert report.verdict.found.world.post_token


@dataclass
class Custom:
    """A scheduler to break one thing of."""

    reads: frozenset = frozenset({"live"})
    lag: int = 0
    lossless: bool = True

    def plan(self, view: BatchView):
        return np.zeros(view.num_requests, dtype=np.int64)


class Floats(Custom):
    def plan(self, view):
        return np.zeros(view.num_requests)


class Long(Custom):
    def plan(self, view):
        return np.full(view.num_requests, view.gamma + 1)


class Rising(Custom):
    def plan(self, view):
        if view.step == 4:
            raise RuntimeError("tired")
        return super().plan(view)


class Undeclared(Custom):
    def plan(self, view):
        return view.history.rounds_R


class Writes(Custom):
    def plan(self, view):
        view.survival_RG[:] = 1
        return super().plan(view)


class Rebinds(Custom):
    def plan(self, view):
        view.gamma = view.gamma + 0.5
        return super().plan(view)


class Thaws(Custom):
    def plan(self, view):
        view.survival_RG.flags.writeable = True
        view.survival_RG[:, 0] = 0.123
        return super().plan(view)


class Shared(Custom):
    seen = 0

    def plan(self, view):
        Shared.seen += 1
        return np.full(view.num_requests, Shared.seen % 2, dtype=np.int64)


@dataclass
class Rolls(Custom):
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def plan(self, view):
        return self.rng.integers(0, 2, view.num_requests)


class Crowd(Custom):
    """Peeks at the next draft, but only among many."""

    least = 64

    def plan(self, view):
        lengths_R = np.ones(view.num_requests, dtype=np.int64)
        if view.num_requests >= self.least and view.gamma > 1:
            lengths_R[0] = view.confidence_RG[0, 1] > 0.5
        return lengths_R


class Prefilling(Crowd):
    """Peeks only while prompts are prefilled."""

    least = 1

    def plan(self, view):
        if view.base_tokens > view.num_requests:
            return super().plan(view)
        return np.ones(view.num_requests, dtype=np.int64)


class Deaf(Custom):
    """Does not survive what it is told."""

    def __init__(self):
        super().__init__(reads=frozenset({"history"}))

    def observe(self, outcome):
        raise KeyError("duration")


BROKEN = [
    (check_lengths, Floats, "float64"),
    (check_lengths, Long, r"request \d+ .*outside 0\.\."),
    (check_lengths, Rising, "step 4: .*RuntimeError: tired"),
    (check_lengths, Undeclared, 'add "history" to its `reads`'),
    (check_view_untouched, Writes, "read-only"),
    (check_view_untouched, Rebinds, r"plan changed view\.gamma"),
    (check_view_untouched, Thaws, r"plan changed view\.(_survival_RG|survival_RG)"),
    (check_view_untouched, Rebinds, r"batch of requests \["),
    (check_lengths, Deaf, r"step 0: Deaf\.observe raised KeyError: 'duration'"),
    (check_lossless, Deaf, r"step 0: Deaf\.observe raised KeyError: 'duration'"),
    (check_prefix_rule, Crowd, "changed the plan"),
    (check_prefix_rule, Prefilling, "changed the plan"),
    (check_deterministic, Shared, "state is shared between instances"),
    (check_deterministic, Rolls, "randomness is not seeded"),
    (check_protocol, lambda: Custom(lag=1), "a lag of at least 1 goes with reading"),
    (check_protocol, lambda: Custom(reads=frozenset({"lagged"})), "0 with not reading it"),
    (check_protocol, lambda: Custom(reads=frozenset({"future"})), "reads \\['future'\\]"),
    (check_protocol, lambda: Custom(lossless="yes"), "True or False is due"),
    (check_protocol, lambda: Custom(lag=0.0), "0 with not reading it|a lag of at least 1"),
]


@pytest.mark.parametrize(
    ("check", "factory", "message"), BROKEN, ids=[str(i) for i in range(len(BROKEN))]
)
def test_each_check_catches_what_it_is_for(check, factory, message):
    with pytest.raises((ConformanceError, SchedulerFault), match=message):
        check(factory)


def test_a_peek_in_a_crowd_is_told_in_a_few_lines():
    with pytest.raises(ConformanceError) as caught:
        check_prefix_rule(Crowd)
    lines = str(caught.value).splitlines()
    assert "batch of 64 requests" in lines[0]
    assert lines[1].startswith("  request ")
    before, after = [int(part.split()[0].rstrip(",")) for part in lines[1].split("-> verify ")[1:]]
    assert before != after
    assert len(lines) <= 6


def test_a_learner_must_read_history():
    class Listens(Custom):
        def observe(self, outcome):
            pass

    with pytest.raises(ConformanceError, match='"history" among its `reads`'):
        check_protocol(Listens)
    check_protocol(lambda: Listens(reads=frozenset({"history"})))


def test_missing_parts_are_named():
    class Bare:
        reads = frozenset()
        lag = 0

        def plan(self, view):
            return None

    with pytest.raises(ConformanceError, match="Bare has no `lossless`"):
        check_protocol(Bare)
    report = check_scheduler(Bare)
    assert set(report.failures) == {"check_protocol"}
    assert report.verdict is None
    assert report.declared is None
    assert not report.as_declared


def test_reports_tell_a_declared_leak_from_an_undeclared_one():
    honest = check_scheduler(GlobalSearch)
    assert not honest.lossless
    assert honest.as_declared
    assert honest.declared is False
    check_declared(GlobalSearch)
    check_declared(Greedy)

    class Denies(GlobalSearch):
        lossless = True

    liar = check_scheduler(lambda: Denies(lossless=True))
    assert not liar.lossless
    assert not liar.as_declared
    with pytest.raises(ConformanceError, match="says that it is lossless"):
        check_declared(lambda: Denies(lossless=True))
    broken = check_scheduler(Floats)
    assert not broken.as_declared
    assert {"check_lengths", "check_lossless"} <= set(broken.failures)
    assert broken.verdict is None


def test_an_oracle_cannot_be_judged_and_says_why():
    report = check_scheduler(Oracle)
    assert "reads what verification will accept" in report.failures["check_lossless"]


# What the messages say


def run_of(*steps, prefill=0):
    """A run of views with these ids and confidences."""
    run = ViewRun(np.random.default_rng(0), num_steps=1)
    run.prefill, run.gamma = prefill, len(steps[0][1][0])
    run.steps = [(np.array(ids), np.array(c)) for ids, c in steps]
    return run


def test_a_broken_prefix_rule_is_told_row_by_row():
    own = [[0.5, 0.123456], [0.5, 0.5], [0.25, 0.75]]
    run = run_of(([8], [[0.1, 0.1]]), ([3, 7, 9], own), prefill=37)
    changed = np.array([[0.5, 0.2], [0.5, 0.5], [0.25, 0.125]])
    plan, other = np.array([1, 2, 2]), np.array([1, 2, 0])
    assert _prefix_message(run, plan, other, changed, None).splitlines() == [
        "what lies beyond the admitted drafts of several requests changed the plan of step 1 "
        "(batch of 3 requests, 37 prefill tokens):",
        "  request 9: confidences [0.25, 0.75] -> verify 2, [0.25, 0.125] -> verify 0",
        "  request 3: confidences [0.5, 0.1235] -> verify 1, [0.5, 0.2] -> verify 1",
    ]
    text = _prefix_message(run, plan, other, changed, 0)
    assert "drafts of request 3 changed the plan" in text


@pytest.mark.parametrize(("count", "more"), [(4, None), (5, "and 1 more"), (9, "and 5 more")])
def test_of_many_rows_four_are_shown(count, more):
    run = run_of((list(range(count)), [[0.5, 0.5]] * count))
    changed, plan = np.full((count, 2), 0.25), np.ones(count, dtype=np.int64)
    lines = _prefix_message(run, plan, plan * 0, changed, None).splitlines()
    assert len(lines) == 1 + 4 + bool(more)
    assert [line.startswith("  request ") for line in lines[1:5]] == [True] * 4
    if more:
        assert lines[5] == f"  {more} requests with other confidences"


def test_counterexamples_are_told_from_world_to_law():
    found = enumerate_world(leaks.cross(), liars.CrossPeek)
    text = counterexample(found)
    assert text.startswith(leaks.cross().describe() + "\n" + found.peek.describe() + "\n")
    assert text.splitlines()[-2:] == [
        "  each first token has its law, but P(outputs are [[0], [0]]) = 41/80, target 49/100",
        "  total variation of the output law: 9/200 = 0.045",
    ]
    bent = enumerate_world(leaks.appendix_a(), GlobalSearch)
    assert counterexample(bent).splitlines()[-2:] == [
        "  first token of request 1: law (17/20, 3/20), target (7/10, 3/10)",
        "  total variation of the output law: 3/20 = 0.15",
    ]
    # A peek that this world's laws do not show: verified or not, the one token comes out.
    sure = leaks.plain(law(1, 0), law("1/2", "1/2"), name="sure")
    peek = replace(bent.peek, world=sure)
    exact = replace(enumerate_world(sure, lambda: FixedLength(0)), peek=peek)
    assert counterexample(exact).splitlines()[-1] == (
        "  the output law of this world is not bent, but the same plan bends another's"
    )
    unexplained = replace(bent, peek=None)
    assert "outcome A" not in counterexample(unexplained)


def test_the_smaller_of_two_leaks_is_shown():
    bent = enumerate_world(leaks.appendix_a(), GlobalSearch)
    joint = enumerate_world(leaks.cross(), liars.CrossPeek)
    nested = enumerate_world(leaks.nested(), lambda: AsyncTopK(0), num_tokens=3)
    exact = replace(bent, law=bent.target)
    late = replace(bent, peek=replace(bent.peek, step=1))
    unseen = replace(bent, peek=None)
    ordered = [bent, late, unseen, nested, joint, exact]
    for first, second in itertools.combinations(ordered, 2):
        assert _smaller(first, second)
        assert not _smaller(second, first)
    assert not _smaller(bent, bent)


def test_a_verdict_counts_what_was_enumerated():
    whole, short = judge(GlobalSearch, count=2), judge(GlobalSearch, count=2, stop_at_leak=True)
    assert (whole.worlds, short.worlds) == (5 + 2 + 2, 1)
    assert 1 < whole.biased < whole.worlds
    assert short.biased == 1
    assert short.leaves == enumerate_world(leaks.appendix_a(), GlobalSearch, num_tokens=3).leaves
    assert not whole.lossless
    assert whole.found.world.name == "appendix-a"
    clean = judge(Greedy, count=1)
    assert (clean.lossless, clean.found, clean.biased, clean.worlds) == (True, None, 0, 7)
    assert judge(Greedy, count=1, post_token=True).worlds == 3 + 2
    assert judge(Greedy, count=1) == judge(Greedy, count=1, seed=20_260_705)
    assert judge(Greedy, count=3, seed=1).leaves != judge(Greedy, count=3, seed=2).leaves


def test_learners_hear_what_could_have_happened():
    heard = []

    class Listening(Custom):
        def __init__(self):
            super().__init__(reads=frozenset({"history"}))

        def plan(self, view):
            heard.append(view)
            return np.full(view.num_requests, view.gamma, dtype=np.int64)

        def observe(self, outcome):
            heard.append(outcome)

    check_lengths(Listening)
    views, outcomes = heard[::2], heard[1::2]
    assert len(views) == len(outcomes) > 400
    for view, outcome in zip(views, outcomes, strict=True):
        assert outcome.step == view.step
        assert outcome.request_id_R.tolist() == view.request_id_R.tolist()
        assert outcome.verify_len_R.tolist() == [view.gamma] * view.num_requests
        assert (outcome.num_accepted_R >= 0).all()
        assert (outcome.num_accepted_R <= outcome.verify_len_R).all()
        tokens = view.base_tokens + view.gamma * view.num_requests
        assert outcome.duration_s == view.verify_s_B[tokens]
    assert any((o.num_accepted_R > 0).any() for o in outcomes)


def test_checks_look_at_so_many_runs():
    """Fewer would see less, more would take longer."""

    def runs_of(check):
        made = []

        class Counted(Custom):
            def __init__(self):
                super().__init__()
                made.append(self)

        check(Counted)
        return len(made)

    assert runs_of(check_lengths) == 1 + 160
    assert runs_of(check_view_untouched) == 1 + 40
    assert runs_of(check_deterministic) == 1 + 3 * 40
    assert runs_of(check_prefix_rule) > 1 + 160 * 3
    assert runs_of(check_protocol) == 1


def test_rules_that_read_nothing_live_have_no_prefix_to_keep():
    class Raises(Custom):
        def plan(self, view):
            raise AssertionError

    check_prefix_rule(lambda: Raises(reads=frozenset({"history"})))
    check_prefix_rule(lambda: Raises(reads=frozenset({"lagged"}), lag=1))
    for reads in ({"live"}, {"sampled"}, {"live", "history"}):
        with pytest.raises((SchedulerFault, AssertionError)):
            check_prefix_rule(lambda reads=reads: Raises(reads=frozenset(reads)))


class OwnMass(Custom):
    """Admits a draft for its own mass under q."""

    def __init__(self):
        super().__init__(reads=frozenset({"sampled"}))

    def plan(self, view):
        return (view.sampled_RG[:, 0] > 0.5).astype(np.int64)


class MassBefore(OwnMass):
    """Admits all if the first draft, which is always admitted, has mass enough."""

    def plan(self, view):
        return np.where(view.sampled_RG[:, 0] > 0.5, view.gamma, 1)


def test_a_draft_may_be_judged_by_the_mass_of_admitted_ones_and_not_by_its_own():
    check_prefix_rule(MassBefore)
    with pytest.raises(ConformanceError, match="changed the plan"):
        check_prefix_rule(OwnMass)


def test_a_report_is_as_declared_if_only_a_leak_is_found_and_admitted():
    for failures, declared, good in (
        ({}, True, True),
        ({}, False, True),
        ({}, None, True),
        ({"check_lossless": "x", "check_prefix_rule": "y"}, False, True),
        ({"check_lossless": "x"}, True, False),
        ({"check_lossless": "x"}, None, False),
        ({"check_lengths": "x"}, False, False),
        ({"check_lossless": "x", "check_deterministic": "y"}, False, False),
    ):
        report = Report(failures, None, declared)
        assert report.as_declared is good
        assert report.lossless is (not failures)


def test_names_of_factories_can_be_told_apart():
    class Plain:
        pass

    assert _name(Greedy) == "Greedy"
    assert _name(lambda: FixedLength(1)) == "FixedLength(k=1, lag=0)"
    assert _name(lambda: AsyncTopK(2)) == "AsyncTopK(lag=2)"
    assert _name(lambda: Plain()) == "Plain"


def test_a_peek_that_bends_no_law_here_is_a_leak_all_the_same(monkeypatch):
    exact = enumerate_world(leaks.appendix_a(), Greedy)
    peek = enumerate_world(leaks.appendix_a(), GlobalSearch).peek
    monkeypatch.setattr(
        conformance, "enumerate_world", lambda *given, **more: replace(exact, peek=peek)
    )
    verdict = judge(Greedy, count=1)
    assert not verdict.lossless
    assert (verdict.biased, verdict.found.peek) == (0, peek)
