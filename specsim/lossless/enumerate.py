"""The exact law of what a world emits under a scheduler, by enumerating every draft outcome.

p = target law, q = draft law. Everything is `fractions.Fraction`: a bias of zero is zero. Only the
scheduler sees floating point, the same float64 that an engine would hand it.

A state is all that the future can depend on: each request's tail, its first output tokens, the
lagged survivals, the verification history where it is read, and the views seen so far where the
scheduler has a memory of its own (a fresh scheduler then replays them). Equal states are merged.

Why lagged schedulers are exact here: given everything up to step t, the drafts of step t are fresh
and an admission decided by the past is a constant; so each step hands on the target law, and the
steps chain. `tests/lossless/test_lagged.py` checks that for several rounds; a lag of zero breaks
it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from specsim.errors import InputError
from specsim.lossless.peek import Outcome, Peek, find_peek
from specsim.lossless.probe import Memory, Planner, Seen, ViewRecord
from specsim.lossless.rejection import ONE, TOKEN_RULE, ZERO, CommitLaw, Rule, Tokens
from specsim.lossless.worlds import Request, World
from specsim.schedulers.base import LaggedSurvival, SchedulerFactory

OUTPUT_LIMIT = 3
OUTCOME_LIMIT = 20_000
LEAF_LIMIT = 3_000_000

JointLaw = dict[tuple[Tokens, ...], Fraction]
"""Probability of each combination of first output tokens, one run for each watched request."""


@dataclass(frozen=True)
class Enumeration:
    """What enumeration found.

    Attributes:
        world: the world that was run.
        watched: request ids whose output is followed, in the order of the runs in `law`.
        law: exact joint law of their first output tokens.
        target: what it must be: the product of the autoregressive laws.
        peek: the first admission found that anticipates, or None.
        states: distinct states expanded.
        leaves: commit outcomes visited.
        mean_committed: mean tokens committed in step 0 by the first request.
    """

    world: World
    watched: tuple[int, ...]
    law: JointLaw
    target: JointLaw
    peek: Peek | None
    states: int
    leaves: int
    mean_committed: Fraction

    @property
    def bias(self) -> Fraction:
        """Total variation between the joint law and its target; 0 means exactly equal."""
        return sum((abs(self.gap(runs)) for runs in {**self.law, **self.target}), ZERO) / 2

    def gap(self, runs: tuple[Tokens, ...]) -> Fraction:
        """Return law less target of one combination of outputs."""
        return self.law.get(runs, ZERO) - self.target.get(runs, ZERO)

    @property
    def exact(self) -> bool:
        """Whether the output law is the target law."""
        return self.bias == 0

    def marginal(self, request_id: int) -> tuple[dict[Tokens, Fraction], dict[Tokens, Fraction]]:
        """Return the law of one watched request's first tokens, and its target."""
        column = self.watched.index(request_id)
        laws = []
        for joint in (self.law, self.target):
            one: dict[Tokens, Fraction] = {}
            for runs, mass in joint.items():
                one[runs[column]] = one.get(runs[column], ZERO) + mass
            laws.append(dict(sorted(one.items())))
        return laws[0], laws[1]

    def first_token(self, request_id: int) -> tuple[tuple[Fraction, ...], tuple[Fraction, ...]]:
        """Return the law of one watched request's first output token, and its target."""
        rows = []
        for one in self.marginal(request_id):
            masses = [ZERO] * self.world.vocabulary
            for run, mass in one.items():
                masses[run[0]] += mass
            rows.append(tuple(masses))
        return rows[0], rows[1]


@dataclass(frozen=True, slots=True)
class _Row:
    """One request's part of a state; `count` stops growing once nothing depends on it."""

    emitted: Tokens
    count: int
    tail: Tokens
    rounds: int = 0
    verified: int = 0
    accepted: int = 0


_Past = tuple[tuple[tuple[int, ...], tuple[tuple[float, ...], ...]], ...]


@dataclass(frozen=True, slots=True)
class _State:
    rows: tuple[_Row, ...]
    past: _Past = ()
    path: tuple[Seen, ...] = ()


@dataclass(frozen=True, slots=True)
class _Block:
    """What the drafter proposes for one request, with what a scheduler may see of it as float64."""

    drafts: Tokens
    mass: Fraction
    confidence: Outcome
    sampled: Outcome


@dataclass(frozen=True, slots=True)
class _Group:
    """Draft outcomes that one step need not tell apart: same plan, same admitted drafts."""

    lengths: tuple[int, ...]
    kept: tuple[Tokens, ...]
    survivals: tuple[tuple[float, ...], ...]
    record: ViewRecord | None


def enumerate_world(
    world: World,
    factory: SchedulerFactory,
    *,
    num_tokens: int = 1,
    watch: tuple[int, ...] | None = None,
    rule: Rule = TOKEN_RULE,
    stop_at_peek: bool = False,
    max_leaves: int = LEAF_LIMIT,
) -> Enumeration:
    """Return the exact joint law of the first `num_tokens` tokens of the watched requests.

    Args:
        world: the world to run.
        factory: makes a fresh scheduler.
        num_tokens: output tokens followed of each request, 1..3 (fewer if it leaves before).
        watch: request ids to follow; all of them if None.
        rule: how drafts are verified.
        stop_at_peek: return as soon as an anticipating admission is found; the laws are then
            of the steps done so far and only `peek` is meaningful.
        max_leaves: how many outcomes may be visited.

    Raises:
        InputError: the world is too large, or the arguments are out of range.
        SchedulerFault: the scheduler raised or returned something illegal.
    """
    if not 1 <= num_tokens <= OUTPUT_LIMIT:
        raise InputError(f"num_tokens is {num_tokens}; enumeration follows 1..{OUTPUT_LIMIT}")
    known = tuple(request.request_id for request in world.requests)
    watched = known if watch is None else watch
    for request_id in watched:
        if request_id not in known:
            raise InputError(f'watch: world "{world.name}" has no request {request_id}: {known}')
    outcomes = world.vocabulary ** (world.gamma * len(world.requests))
    if outcomes > OUTCOME_LIMIT:
        raise InputError(
            f'world "{world.name}" has {world.vocabulary} ** ({world.gamma} * '
            f"{len(world.requests)}) = {outcomes} draft outcomes a step, more than "
            f"{OUTCOME_LIMIT}: use fewer tokens, drafts or requests, or Monte Carlo"
        )
    planner = Planner(world, factory)
    while True:
        try:
            return _Run(world, planner, num_tokens, watched, rule, max_leaves).go(
                stop_at_peek=stop_at_peek
            )
        except Memory:
            # The scheduler changed while planning: start over, keeping what each path has seen.
            planner = Planner(world, factory, remembers=True)


class _Run:
    """One forward pass over merged states."""

    def __init__(
        self,
        world: World,
        planner: Planner,
        num_tokens: int,
        watched: tuple[int, ...],
        rule: Rule,
        max_leaves: int,
    ) -> None:
        self.world, self.planner, self.rule = world, planner, rule
        self.num_tokens, self.watched, self.max_leaves = num_tokens, watched, max_leaves
        self.due = tuple(
            min(num_tokens, request.leaves_after or num_tokens)
            if request.request_id in watched
            else 0
            for request in world.requests
        )
        self.commits: dict[tuple[int, Tokens, Tokens], CommitLaw] = {}
        self.states = self.leaves = 0
        self.peek: Peek | None = None
        self.committed = ZERO

    def go(self, *, stop_at_peek: bool) -> Enumeration:
        rows = tuple(_Row((), 0, request.start) for request in self.world.requests)
        frontier: dict[_State, Fraction] = {_State(rows): ONE}
        law: JointLaw = {}
        step = 0
        while frontier:
            following: dict[_State, Fraction] = {}
            for state, mass in frontier.items():
                for after, share in self._expand(state, step, mass):
                    if self._done(after):
                        runs = self._runs(after)
                        law[runs] = law.get(runs, ZERO) + share
                    else:
                        following[after] = following.get(after, ZERO) + share
                if stop_at_peek and self.peek:
                    following = {}
                    break
            frontier = following
            step += 1
        return Enumeration(
            world=self.world,
            watched=self.watched,
            law=dict(sorted(law.items())),
            target=self._target(),
            peek=self.peek,
            states=self.states,
            leaves=self.leaves,
            mean_committed=self.committed,
        )

    def _done(self, state: _State) -> bool:
        return all(len(row.emitted) >= due for row, due in zip(state.rows, self.due, strict=True))

    def _runs(self, state: _State) -> tuple[Tokens, ...]:
        emitted = {
            request.request_id: row.emitted
            for request, row in zip(self.world.requests, state.rows, strict=True)
        }
        return tuple(emitted[request_id] for request_id in self.watched)

    def _active(self, state: _State, step: int) -> list[int]:
        return [
            index
            for index, (request, row) in enumerate(
                zip(self.world.requests, state.rows, strict=True)
            )
            if request.joins_at <= step
            and (request.leaves_after is None or row.count < request.leaves_after)
        ]

    def _blocks(self, request: Request, tail: Tokens) -> list[_Block]:
        """Return every block the drafter can propose."""
        blocks = []
        for drafts in itertools.product(range(self.world.vocabulary), repeat=self.world.gamma):
            if mass := self.world.draft_mass(request, tail, drafts):
                confidence = self.world.confidences(request, tail, drafts)
                sampled = self.world.sampled(request, tail, drafts)
                blocks.append(
                    _Block(drafts, mass, tuple(map(float, confidence)), tuple(map(float, sampled)))
                )
        return blocks

    def _expand(
        self, state: _State, step: int, mass: Fraction
    ) -> Iterator[tuple[_State, Fraction]]:
        """Yield each state that one step can lead to, with its share of `mass`."""
        self.states += 1
        active = self._active(state, step)
        if not active:
            yield state, mass
            return
        world, lag = self.world, self.planner.lag
        ids = tuple(world.requests[index].request_id for index in active)
        lagged = LaggedSurvival(lag)
        for past_ids, survivals in state.past:
            lagged.push(*self.planner.arrays(past_ids, survivals))
        blocks = [self._blocks(world.requests[i], state.rows[i].tail) for i in active]
        history = (
            tuple(
                (state.rows[i].rounds, state.rows[i].verified, state.rows[i].accepted)
                for i in active
            )
            if self.planner.reads_history
            else None
        )
        plans: dict[tuple[Tokens, ...], tuple[int, ...]] = {}
        groups: dict[_Group, Fraction] = {}
        confidences: dict[tuple[Tokens, ...], tuple[Outcome, ...]] = {}
        for joint in itertools.product(*blocks):
            drafts = tuple(block.drafts for block in joint)
            share = mass
            for block in joint:
                share *= block.mass
            confidence = tuple(block.confidence for block in joint)
            sampled = tuple(block.sampled for block in joint)
            record = self.planner.record(step, ids, confidence, lagged, history, sampled)
            lengths = self.planner.plan(record, state.path)
            plans[drafts] = lengths
            confidences[drafts] = confidence
            survivals = self.planner.survivals(confidence) if lag else ()
            group = _Group(
                lengths,
                tuple(x[:n] for x, n in zip(drafts, lengths, strict=True)),
                survivals,
                record if self.planner.remembers else None,
            )
            groups[group] = groups.get(group, ZERO) + share
        if self.peek is None:
            self.peek = find_peek(world, step, ids, plans, confidences)
        for group, share in groups.items():
            past = (*state.past, (ids, group.survivals))[-lag:] if lag else ()
            yield from self._commit(state, active, group, share, past, step)

    def _commit(
        self,
        state: _State,
        active: list[int],
        group: _Group,
        mass: Fraction,
        past: _Past,
        step: int,
    ) -> Iterator[tuple[_State, Fraction]]:
        """Yield the states after verification of a group's admitted drafts."""
        laws = [
            self._commit_law(i, state.rows[i].tail, x)
            for i, x in zip(active, group.kept, strict=True)
        ]
        if step == 0 and active[0] == 0:
            for run, share in laws[0].items():
                self.committed += mass * share * len(run)
        for joint in itertools.product(*(law.items() for law in laws)):
            self.leaves += 1
            if self.leaves > self.max_leaves:
                raise InputError(
                    f'world "{self.world.name}" was stopped after {self.max_leaves} outcomes in '
                    f"step {step}: follow fewer tokens, or use a smaller world or Monte Carlo"
                )
            share = mass
            rows = list(state.rows)
            for index, length, (run, run_mass) in zip(active, group.lengths, joint, strict=True):
                share *= run_mass
                rows[index] = self._advance(index, rows[index], run, length)
            path: tuple[Seen, ...] = ()
            if group.record:
                accepted = tuple(len(run) - 1 for run, _ in joint) if self.planner.learns else None
                path = (*state.path, Seen(group.record, group.lengths, accepted))
            yield _State(tuple(rows), past, path), share

    def _commit_law(self, index: int, tail: Tokens, drafts: Tokens) -> CommitLaw:
        key = (index, tail, drafts)
        if key not in self.commits:
            request, world = self.world.requests[index], self.world
            here = [world.tail(tail + drafts[:k]) for k in range(len(drafts) + 1)]
            self.commits[key] = self.rule.commit_law(
                drafts,
                [request.verifier_target[at] for at in here],
                [request.verifier_draft[k][at] for k, at in enumerate(here[:-1])],
            )
        return self.commits[key]

    def _advance(self, index: int, row: _Row, run: Tokens, length: int) -> _Row:
        request = self.world.requests[index]
        counted = max(self.due[index], request.leaves_after or 0)
        history = self.planner.reads_history
        return _Row(
            emitted=(row.emitted + run)[: self.due[index]],
            count=min(row.count + len(run), counted),
            tail=self.world.tail(row.tail + run),
            rounds=row.rounds + 1 if history else 0,
            verified=row.verified + length if history else 0,
            accepted=row.accepted + len(run) - 1 if history else 0,
        )

    def _target(self) -> JointLaw:
        """Return the product of the watched requests' autoregressive laws."""
        by_id = {
            request.request_id: (request, due)
            for request, due in zip(self.world.requests, self.due, strict=True)
        }
        joint: JointLaw = {(): ONE}
        for request_id in self.watched:
            request, due = by_id[request_id]
            runs = autoregressive_law(self.world, request, due)
            joint = {(*a, b): m * n for a, m in joint.items() for b, n in runs.items()}
        return dict(sorted(joint.items()))


def autoregressive_law(world: World, request: Request, num_tokens: int) -> dict[Tokens, Fraction]:
    """Return the target law of a request's first tokens, without any drafting."""
    runs: dict[Tokens, Fraction] = {(): ONE}
    for _ in range(num_tokens):
        longer: dict[Tokens, Fraction] = {}
        for run, mass in runs.items():
            for token, p in enumerate(request.target[world.tail(request.start + run)]):
                if p:
                    longer[(*run, token)] = mass * p
        runs = longer
    return runs
