"""What every scheduler must keep, as checks that any author can run.

In a test file of your own::

    from specsim.lossless.conformance import parametrize_with_checks

    @parametrize_with_checks([MyScheduler])
    def test_scheduler(factory, check):
        check(factory)

or `specsim lossless my_module:MyScheduler` on the command line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specsim.errors import SchedulerFault
from specsim.lossless.battery import ViewRun, confidences, tokens_for, view_runs, worlds
from specsim.lossless.enumerate import Enumeration, enumerate_world
from specsim.lossless.probe import ask
from specsim.lossless.worlds import World
from specsim.rng import stream
from specsim.schedulers.base import (
    BatchView,
    IntArray,
    Learner,
    Scheduler,
    SchedulerFactory,
    StepOutcome,
    checked_observe,
)

if TYPE_CHECKING:
    import pytest

SEED = 20_260_705
WORLDS = 24
VIEWS = 160
ROWS_SHOWN = 4
LEGAL_READS = ("live", "lagged", "history", "sampled", "oracle")


class ConformanceError(AssertionError):
    """A scheduler broke a rule of the suite; the message shows where, as small as we found it."""


Check = Callable[[SchedulerFactory], None]


def check_protocol(factory: SchedulerFactory) -> None:
    """`reads`, `lag` and `lossless` are there, legal, and fit together."""
    scheduler = factory()
    for name in ("reads", "lag", "lossless", "plan"):
        if not hasattr(scheduler, name):
            raise ConformanceError(f"{type(scheduler).__name__} has no `{name}`")
    if unknown := sorted(set(scheduler.reads) - set(LEGAL_READS)):
        raise ConformanceError(f"reads {unknown}: legal are {', '.join(LEGAL_READS)}")
    if not isinstance(scheduler.lossless, bool):
        raise ConformanceError(f"lossless is {scheduler.lossless!r}, True or False is due")
    if not isinstance(scheduler.lag, int) or (scheduler.lag > 0) != ("lagged" in scheduler.reads):
        raise ConformanceError(
            f"lag is {scheduler.lag!r} and reads {sorted(scheduler.reads)}: a lag of at least 1 "
            'goes with reading "lagged", and 0 with not reading it'
        )
    if isinstance(scheduler, Learner) and "history" not in scheduler.reads:
        raise ConformanceError('a scheduler with `observe` must have "history" among its `reads`')


def _run(scheduler: Scheduler, views: Sequence[BatchView]) -> list[IntArray]:
    """Plan a run of views, telling a learner plausible outcomes; return the plans."""
    plans = []
    for view in views:
        plans.append(ask(scheduler, view))
        if isinstance(scheduler, Learner):
            checked_observe(
                scheduler,
                StepOutcome(
                    step=view.step,
                    request_id_R=view.request_id_R,
                    verify_len_R=plans[-1],
                    num_accepted_R=plans[-1] // 2,
                    duration_s=float(view.verify_s_B[view.base_tokens + int(plans[-1].sum())]),
                ),
            )
    return plans


def check_lengths(factory: SchedulerFactory) -> None:
    """Every plan is int64 `[R]` within 0..gamma, and reads only what is declared."""
    scheduler = factory()
    for run in view_runs(seed=SEED, count=VIEWS):
        try:
            _run(factory(), run.views(scheduler.reads, scheduler.lag))
        except SchedulerFault as fault:
            raise ConformanceError(str(fault)) from fault


def check_view_untouched(factory: SchedulerFactory) -> None:
    """The view, which other schedulers read too, is as it was."""
    scheduler = factory()
    for run in view_runs(seed=SEED, count=VIEWS // 4):
        views = run.views(scheduler.reads, scheduler.lag)
        names = [name for name in BatchView.__slots__ if not name.startswith("_history")]
        before = [[np.copy(getattr(view, name)) for name in names] for view in views]
        try:
            _run(factory(), views)
        except SchedulerFault as fault:
            raise ConformanceError(str(fault)) from fault
        for view, kept in zip(views, before, strict=True):
            for name, value in zip(names, kept, strict=True):
                if not np.array_equal(value, np.asarray(getattr(view, name))):
                    raise ConformanceError(
                        f"step {view.step}: plan changed view.{name} (batch of requests "
                        f"{view.request_id_R.tolist()})"
                    )


def check_deterministic(factory: SchedulerFactory) -> None:
    """Fresh schedulers plan the same run alike, whatever others did before."""
    scheduler = factory()
    runs = list(view_runs(seed=SEED, count=VIEWS // 4))
    for run, other in zip(runs, runs[1:] + runs[:1], strict=True):
        views = run.views(scheduler.reads, scheduler.lag)
        first = _run(factory(), views)
        _run(factory(), other.views(scheduler.reads, scheduler.lag))
        again = _run(factory(), run.views(scheduler.reads, scheduler.lag))
        for view, one, two in zip(views, first, again, strict=True):
            if not np.array_equal(one, two):
                raise ConformanceError(
                    f"step {view.step}: two fresh schedulers planned {one.tolist()} and "
                    f"{two.tolist()} for the same run of views: state is shared between instances, "
                    "or randomness is not seeded"
                )


def check_prefix_rule(factory: SchedulerFactory) -> None:
    """A plan that verifies l drafts of a request may have looked at c[1..l + 1], not further.

    Confidences beyond the first left-out draft (and the draft law's masses from that draft on) are
    replaced, of one request and then of all at once; the plan must stay. Covers batches too large
    to enumerate.
    """
    scheduler = factory()
    if not scheduler.reads & {"live", "sampled"}:
        return
    rng = stream(SEED, "lossless/prefix")
    for run in view_runs(seed=SEED + 1, count=VIEWS):
        ids, own_RG = run.steps[-1]
        views = run.views(scheduler.reads, scheduler.lag)
        plan_R = _run(factory(), views)[-1]
        unseen_RG = np.arange(run.gamma) > plan_R[:, None]
        for rows in (*([row] for row in range(len(ids))), list(range(len(ids)))):
            changed_RG = own_RG.copy()
            fresh_RG = confidences(rng, len(ids), run.gamma)
            changed_RG[rows] = np.where(unseen_RG[rows], fresh_RG[rows], own_RG[rows])
            mass_RG = run.sampled[-1].copy()
            left_out_RG = np.arange(run.gamma) >= plan_R[:, None]
            mass_RG[rows] = np.where(left_out_RG[rows], fresh_RG[rows], mass_RG[rows])
            changed = run.views(
                scheduler.reads, scheduler.lag, last=changed_RG, last_sampled=mass_RG
            )
            other_R = _run(factory(), changed)[-1]
            broken = rows[0] if len(rows) == 1 else None
            same = (
                np.array_equal(plan_R, other_R)
                if broken is None
                else plan_R[broken] == other_R[broken]
            )
            if not same:
                raise ConformanceError(_prefix_message(run, plan_R, other_R, changed_RG, broken))


def _prefix_message(
    run: ViewRun,
    plan_R: IntArray,
    other_R: IntArray,
    changed_RG: np.ndarray[tuple[int, ...], np.dtype[np.floating]],
    row: int | None,
) -> str:
    ids, own_RG = run.steps[-1]
    whose = "several requests" if row is None else f"request {int(ids[row])}"
    told_R = (own_RG != changed_RG).any(axis=1) | (plan_R != other_R)
    # The rows whose plan changed come first: they are what there is to see.
    rows = sorted(np.flatnonzero(told_R).tolist(), key=lambda at: plan_R[at] == other_R[at])
    lines = [
        f"what lies beyond the admitted drafts of {whose} changed the plan of step "
        f"{len(run.steps) - 1} (batch of {len(ids)} requests, {run.prefill} prefill tokens):"
    ]
    lines += [
        f"  request {int(ids[at])}: confidences {own_RG[at].round(4).tolist()} -> verify "
        f"{int(plan_R[at])}, {changed_RG[at].round(4).tolist()} -> verify {int(other_R[at])}"
        for at in rows[:ROWS_SHOWN]
    ]
    if len(rows) > ROWS_SHOWN:
        lines.append(f"  and {len(rows) - ROWS_SHOWN} more requests with other confidences")
    return "\n".join(lines)


def counterexample(found: Enumeration) -> str:
    """Return a leak in a form that can be read: world, outcomes, admissions, laws."""
    lines = [found.world.describe()]
    if found.peek:
        lines.append(found.peek.describe())
    if found.exact:
        lines.append(
            "  the output law of this world is not bent, but the same plan bends another's"
        )
        return "\n".join(lines)
    for request_id in found.watched:
        law, target = found.first_token(request_id)
        if law != target:
            lines.append(
                f"  first token of request {request_id}: law ({', '.join(map(str, law))}), target "
                f"({', '.join(map(str, target))})"
            )
    if all(law == target for law, target in map(found.first_token, found.watched)):
        worst = max({**found.law, **found.target}, key=lambda runs: abs(found.gap(runs)))
        lines.append(
            f"  each first token has its law, but P(outputs are {list(map(list, worst))}) = "
            f"{found.law.get(worst, 0)}, target {found.target.get(worst, 0)}"
        )
    lines.append(f"  total variation of the output law: {found.bias} = {float(found.bias):.4g}")
    return "\n".join(lines)


@dataclass(frozen=True)
class Verdict:
    """What the battery says about one scheduler.

    Attributes:
        lossless: no anticipating admission and no bias in any world.
        worlds: worlds enumerated.
        leaves: outcomes visited.
        found: the smallest leak found, or None.
        biased: worlds whose output law differs from the target.
    """

    lossless: bool
    worlds: int
    leaves: int
    found: Enumeration | None
    biased: int


def judge(
    factory: SchedulerFactory,
    *,
    seed: int = SEED,
    count: int = WORLDS,
    post_token: bool = False,
    stop_at_leak: bool = False,
) -> Verdict:
    """Enumerate the battery's worlds under a scheduler.

    Args:
        factory: makes a fresh scheduler.
        seed: of the random worlds.
        count: how many tempting and random worlds each.
        post_token: use confidences that read the sampled token.
        stop_at_leak: stop at the first world with a bent output law.

    Raises:
        SchedulerFault: the scheduler broke its contract.
    """
    tried = leaves = biased = 0
    found: Enumeration | None = None
    for world in worlds(seed=seed, count=count, post_token=post_token):
        seen = enumerate_world(world, factory, num_tokens=tokens_for(world))
        tried, leaves = tried + 1, leaves + seen.leaves
        biased += not seen.exact
        if seen.peek or not seen.exact:
            found = seen if found is None or _smaller(seen, found) else found
            if stop_at_leak and not seen.exact:
                break
    return Verdict(found is None, tried, leaves, found, biased)


def _smaller(one: Enumeration, other: Enumeration) -> bool:
    """Prefer a bent law, then few requests, drafts and steps."""

    def size(found: Enumeration) -> tuple[bool, int, int, int, int]:
        world: World = found.world
        step = found.peek.step if found.peek else 9
        return (found.exact, len(world.requests), world.gamma, step, world.vocabulary)

    return size(one) < size(other)


def check_lossless(factory: SchedulerFactory) -> None:
    """No admission anticipates and no output law is bent, in any world of the battery."""
    verdict = judge(factory, stop_at_leak=True)
    if verdict.found is not None:
        raise ConformanceError(counterexample(verdict.found))


def check_declared(factory: SchedulerFactory) -> None:
    """What the scheduler says of itself is not refuted. Not among `CHECKS`: it implies one."""
    if factory().lossless:
        verdict = judge(factory, stop_at_leak=True)
        if verdict.found is not None:
            raise ConformanceError(
                "it says that it is lossless, but\n" + counterexample(verdict.found)
            )


CHECKS: tuple[Check, ...] = (
    check_protocol,
    check_lengths,
    check_view_untouched,
    check_deterministic,
    check_prefix_rule,
    check_lossless,
)
"""Every check, in the order in which a failure is easiest to understand."""

LEAK_CHECKS = frozenset({"check_prefix_rule", "check_lossless"})
"""The checks that an honestly declared leak (`lossless = False`) may fail."""


@dataclass(frozen=True)
class Report:
    """Results of all checks on one scheduler.

    Attributes:
        failures: message of each check that failed, by name.
        verdict: what enumeration found; None if the scheduler is too broken to enumerate.
        declared: what the scheduler says of itself.
        faults: the checks that failed because the scheduler did, not because of what it planned.
    """

    failures: dict[str, str]
    verdict: Verdict | None
    declared: bool | None
    faults: frozenset[str] = frozenset()

    @property
    def lossless(self) -> bool:
        """Whether every check passed."""
        return not self.failures

    @property
    def as_declared(self) -> bool:
        """Whether it is sound, and lossless if it says so."""
        broken = set(self.failures) - LEAK_CHECKS
        return not broken and (self.lossless or self.declared is False)


def check_scheduler(factory: SchedulerFactory, *, post_token: bool = False) -> Report:
    """Run every check and return all results; raises nothing that a scheduler can cause.

    Args:
        factory: makes a fresh scheduler; a class without required arguments is one.
        post_token: enumerate with confidences that read the sampled token.
    """
    failures: dict[str, str] = {}
    faults: set[str] = set()
    verdict: Verdict | None = None
    for check in CHECKS[:-1]:
        try:
            check(factory)
        except (ConformanceError, SchedulerFault) as error:
            failures[check.__name__] = str(error)
            if isinstance(error, SchedulerFault):
                faults.add(check.__name__)
            if check is check_protocol:
                return Report(failures, None, getattr(factory(), "lossless", None))
    try:
        verdict = judge(factory, post_token=post_token)
    except SchedulerFault as fault:
        failures["check_lossless"] = str(fault)
        faults.add("check_lossless")
    if verdict is not None and verdict.found is not None:
        failures["check_lossless"] = counterexample(verdict.found)
    return Report(failures, verdict, bool(factory().lossless), frozenset(faults))


def parametrize_with_checks(factories: Sequence[SchedulerFactory]) -> pytest.MarkDecorator:
    """Return a pytest decorator: one test for each scheduler and check (`factory`, `check`)."""
    import pytest

    cases = [
        pytest.param(factory, check, id=f"{_name(factory)}-{check.__name__}")
        for factory in factories
        for check in CHECKS
    ]
    return pytest.mark.parametrize(("factory", "check"), cases)


def _name(factory: SchedulerFactory) -> str:
    name = getattr(factory, "__name__", "")
    if name and name != "<lambda>":
        return name
    made = factory()
    if not dataclasses.is_dataclass(made):
        return type(made).__name__
    # Not repr: the order of a frozenset changes from process to process.
    told = {f.name: getattr(made, f.name) for f in dataclasses.fields(made)}
    said = ", ".join(f"{k}={v!r}" for k, v in told.items() if k not in ("reads", "lossless"))
    return f"{type(made).__name__}({said})"
