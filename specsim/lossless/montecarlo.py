"""Sampling what enumeration cannot reach: many runs of a world at once.

p = target law, q = draft law. Uniforms come from streams named by what they decide (step, request,
draft or acceptance), so that two schedulers or rules on the same seed meet the same luck.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.errors import InputError
from specsim.lossless.enumerate import autoregressive_law
from specsim.lossless.probe import Memory, Planner, Rows, Seen
from specsim.lossless.rejection import Floats, Ints, draw, verify_block, verify_tokens
from specsim.lossless.significance import Distance, distance, g_test
from specsim.lossless.worlds import Request, World
from specsim.rng import stream
from specsim.schedulers.base import LaggedSurvival, SchedulerFactory

CHUNK = 500_000
COMPRESS_ABOVE = 1 << 40
Verify = Callable[[Ints, Floats, Floats, Ints, Floats, Floats], tuple[Ints, Ints]]
RULES: dict[str, Verify] = {"token": verify_tokens, "block": verify_block}


@dataclass(frozen=True, slots=True)
class Sampled:
    """Counts of the first output tokens, and how they compare with the target.

    Attributes:
        counts_V: how often each outcome was seen.
        law_V: target probability of each outcome.
        statistic: G.
        df: degrees of freedom of G.
        p_value: chance of a G as large under the target.
        distance: total variation with its interval.
    """

    counts_V: Ints
    law_V: Floats
    statistic: float
    df: int
    p_value: float
    distance: Distance


def judged(counts_V: Ints, law_V: Floats) -> Sampled:
    """Return counts with their test against a law."""
    statistic, df, p_value = g_test(counts_V, law_V)
    return Sampled(counts_V, law_V, statistic, df, p_value, distance(counts_V, law_V))


class _Tables:
    """One request's laws as float arrays over tail codes (base-V numbers)."""

    def __init__(self, world: World, request: Request) -> None:
        keys = list(itertools.product(range(world.vocabulary), repeat=world.order))

        def rows(table: Any) -> Floats:
            return np.array([[float(mass) for mass in table[key]] for key in keys])

        self.p_TV = rows(request.verifier_target)
        self.q_GTV = np.array([rows(table) for table in request.verifier_draft])
        self.drawn_GTV = np.array([rows(table) for table in request.draft])
        self.start = list(request.start)


class _Batch:
    """Many copies of a world, stepped together."""

    def __init__(self, world: World, planner: Planner, due: list[int], size: int) -> None:
        self.world, self.planner, self.due, self.size = world, planner, due, size
        self.tables = [_Tables(world, request) for request in world.requests]
        width = max([*due, 1])
        self.out = [np.zeros((size, width), dtype=np.int64) for _ in world.requests]
        self.count = [np.zeros(size, dtype=np.int64) for _ in world.requests]
        self.tail = [np.tile(np.array(t.start, dtype=np.int64), (size, 1)) for t in self.tables]
        self.totals = [np.zeros((3, size), dtype=np.int64) for _ in world.requests]
        # What the scheduler saw so far: its code for grouping, and each step's representative data.
        self.past_code_S = np.zeros(size, dtype=np.int64)
        self.paths: list[tuple[Seen, ...]] = [()]
        self.last_SR = np.zeros((size, len(world.requests)), dtype=np.int64)
        self.pasts: list[tuple[tuple[tuple[int, ...], Rows], ...]] = [()]

    def done(self) -> bool:
        return all(
            bool((count_S >= due).all()) for count_S, due in zip(self.count, self.due, strict=True)
        )

    def active(self, index: int, step: int) -> NDArray[np.bool_]:
        request = self.world.requests[index]
        joined = np.full(self.size, request.joins_at <= step)
        if request.leaves_after is not None:
            joined &= self.count[index] < request.leaves_after
        return joined

    def code(self, tokens_SL: Ints) -> Ints:
        code_S = np.zeros(self.size, dtype=np.int64)
        for column in range(tokens_SL.shape[1]):
            code_S = code_S * self.world.vocabulary + tokens_SL[:, column]
        return code_S

    def step(self, step: int, rngs: dict[str, np.random.Generator], verify: Verify) -> None:
        world, gamma, order = self.world, self.world.gamma, self.world.order
        drafts: list[Ints] = []
        here: list[list[Ints]] = []
        active = [self.active(i, step) for i in range(len(world.requests))]
        group_S = self.past_code_S
        for i, tables in enumerate(self.tables):
            rng = rngs[f"draft/{step}/{i}"]
            pick_SG = rng.random((self.size, gamma))
            sequence = self.tail[i]
            codes = []
            for k in range(gamma):
                code_S = self.code(sequence[:, sequence.shape[1] - order :])
                codes.append(code_S)
                token_S = draw(_gather(tables.drawn_GTV[k], code_S), pick_SG[:, k])
                sequence = np.concatenate([sequence, token_S[:, None]], axis=1)
            codes.append(self.code(sequence[:, sequence.shape[1] - order :]))
            here.append(codes)
            drafts.append(sequence[:, order:])
            seen_S = np.where(active[i], self.code(sequence) + 1, 0)
            group_S = _combine(group_S, seen_S, world.vocabulary ** (order + gamma) + 1)
            if self.planner.reads_history:
                for total_S in self.totals[i]:
                    group_S = _combine(group_S, np.where(active[i], total_S, 0), 1 << 12)
        verify_len_SR, code_S = self._plan(step, group_S, active, drafts)
        for i, tables in enumerate(self.tables):
            rng = rngs[f"accept/{step}/{i}"]
            accept_SG, pick_S = rng.random((self.size, gamma)), rng.random(self.size)
            accepted_S, token_S = verify(
                drafts[i],
                np.stack([_gather(tables.p_TV, code) for code in here[i]], axis=1),
                np.stack([_gather(tables.q_GTV[k], here[i][k]) for k in range(gamma)], axis=1),
                verify_len_SR[:, i],
                accept_SG,
                pick_S,
            )
            self._commit(i, active[i], drafts[i], verify_len_SR[:, i], accepted_S, token_S)
        self.past_code_S = code_S

    def _plan(
        self, step: int, group_S: Ints, active: list[NDArray[np.bool_]], drafts: list[Ints]
    ) -> tuple[Ints, Ints]:
        """Plan once for each distinct view; return lengths `[S, R]` and the new past codes."""
        world = self.world
        _, first, inverse_S = np.unique(group_S, return_index=True, return_inverse=True)
        lengths = np.zeros((len(first), len(world.requests)), dtype=np.int64)
        paths, pasts = [], []
        for group, sample in enumerate(first):
            rows = [i for i in range(len(world.requests)) if active[i][sample]]
            old = int(self.past_code_S[sample])
            path, past = self._told(self.paths[old], int(sample)), self.pasts[old]
            if rows:
                ids = tuple(world.requests[i].request_id for i in rows)
                blocks = [
                    (
                        world.requests[i],
                        tuple(self.tail[i][sample].tolist()),
                        tuple(drafts[i][sample].tolist()),
                    )
                    for i in rows
                ]
                confidence = tuple(tuple(map(float, world.confidences(*b))) for b in blocks)
                sampled = tuple(tuple(map(float, world.sampled(*b))) for b in blocks)
                lagged = LaggedSurvival(self.planner.lag)
                for past_ids, survivals in past:
                    lagged.push(*self.planner.arrays(past_ids, survivals))
                history = None
                if self.planner.reads_history:
                    history = tuple(
                        (int(t[0, sample]), int(t[1, sample]), int(t[2, sample]))
                        for t in (self.totals[i] for i in rows)
                    )
                record = self.planner.record(step, ids, confidence, lagged, history, sampled)
                lengths[group, rows] = self.planner.plan(record, path)
                if self.planner.remembers:
                    path = (*path, Seen(record, tuple(lengths[group, rows].tolist())))
                if lag := self.planner.lag:
                    past = (*past, (ids, self.planner.survivals(confidence)))[-lag:]
            paths.append(path)
            pasts.append(past)
        self.paths, self.pasts = paths, pasts
        return lengths[inverse_S], inverse_S.astype(np.int64)

    def _told(self, path: tuple[Seen, ...], sample: int) -> tuple[Seen, ...]:
        """Complete a path's last step with what was then accepted, for a learner."""
        if not (self.planner.learns and path) or path[-1].accepted is not None:
            return path
        ids = [request.request_id for request in self.world.requests]
        rows = [ids.index(request_id) for request_id in path[-1].record.request_ids]
        accepted = tuple(self.last_SR[sample, rows].tolist())
        return (*path[:-1], dataclasses.replace(path[-1], accepted=accepted))

    def _commit(
        self,
        index: int,
        active_S: NDArray[np.bool_],
        draft_SG: Ints,
        verify_len_S: Ints,
        accepted_S: Ints,
        token_S: Ints,
    ) -> None:
        order, rows_S = self.world.order, np.arange(self.size)
        run = np.concatenate([draft_SG, token_S[:, None]], axis=1)
        run[rows_S, accepted_S] = token_S
        for k in range(run.shape[1]):
            # Token k of the run is committed if it is within it and still of interest.
            at_S = self.count[index] + k
            use_S = active_S & (k <= accepted_S) & (at_S < self.out[index].shape[1])
            self.out[index][rows_S[use_S], at_S[use_S]] = run[use_S, k]
        whole = np.concatenate([self.tail[index], run], axis=1)
        if order:
            columns = (accepted_S + 1)[:, None] + np.arange(order)
            tail = whole[rows_S[:, None], columns]
            self.tail[index] = np.where(active_S[:, None], tail, self.tail[index])
        self.count[index] += np.where(active_S, accepted_S + 1, 0)
        self.last_SR[:, index] = np.where(active_S, accepted_S, 0)
        if self.planner.reads_history:
            gained = np.stack([np.ones_like(accepted_S), verify_len_S, accepted_S])
            self.totals[index] += np.where(active_S, gained, 0)


def _gather(table_TV: Floats, code_S: Ints) -> Floats:
    """Return each sample's row; one row for all where laws do not depend on the tail."""
    return table_TV if len(table_TV) == 1 else table_TV[code_S]


def _combine(code_S: Ints, more_S: Ints, size: int) -> Ints:
    """Return one code for each pair, compressed when it grows."""
    if int(code_S.max(initial=0)) + 1 > COMPRESS_ABOVE // size:
        code_S = np.unique(code_S, return_inverse=True)[1].astype(np.int64)
    return code_S * size + more_S


class Streams(dict[str, np.random.Generator]):
    """Named generators, made when first asked for."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def __missing__(self, name: str) -> np.random.Generator:
        made = self[name] = stream(self.seed, f"lossless/{name}")
        return made


def sample_world(
    world: World,
    factory: SchedulerFactory,
    *,
    num_samples: int,
    seed: int = 0,
    num_tokens: int = 1,
    watch: tuple[int, ...] | None = None,
    rule: str = "token",
) -> Sampled:
    """Sample the first tokens of the watched requests and test them against the target.

    Args:
        world: the world to run.
        factory: makes a fresh scheduler.
        num_samples: independent runs.
        seed: of the named streams.
        num_tokens: output tokens followed of each request.
        watch: request ids whose joint outcome is counted; the first request if None.
        rule: `token` or `block`.

    Raises:
        InputError: an unknown rule or request, or no samples.
        SchedulerFault: the scheduler raised or returned something illegal.
    """
    sampler = Sampler(world, factory, seed=seed, num_tokens=num_tokens, watch=watch, rule=rule)
    return judged(sampler.counts(num_samples), sampler.law_V)


class Sampler:
    """Draws batch after batch from one world, each with new numbers of the same streams.

    Attributes:
        law_V: target probability of each outcome that `counts` counts.
    """

    def __init__(
        self,
        world: World,
        factory: SchedulerFactory,
        *,
        seed: int = 0,
        num_tokens: int = 1,
        watch: tuple[int, ...] | None = None,
        rule: str = "token",
    ) -> None:
        if rule not in RULES:
            raise InputError(f'rule "{rule}" is not one of {", ".join(RULES)}')
        ids = [request.request_id for request in world.requests]
        watched = watch or (ids[0],)
        for request_id in watched:
            if request_id not in ids:
                raise InputError(f'world "{world.name}" has no request {request_id}, it has {ids}')
        self.world, self.factory, self.verify = world, factory, RULES[rule]
        self.watched = [ids.index(request_id) for request_id in watched]
        self.due = [
            min(num_tokens, request.leaves_after or num_tokens) if i in self.watched else 0
            for i, request in enumerate(world.requests)
        ]
        self.seed = seed
        self._streams = Streams(seed)
        self._fresh = True
        self._planner = Planner(world, factory)
        law_V = np.ones(1)
        for index in self.watched:
            runs = autoregressive_law(world, world.requests[index], self.due[index])
            keys = itertools.product(range(world.vocabulary), repeat=self.due[index])
            law_V = np.outer(law_V, [float(runs.get(key, 0)) for key in keys]).ravel()
        self.law_V: Floats = law_V

    def counts(self, num_samples: int) -> Ints:
        """Return counts `[V ** tokens]` of `num_samples` new independent runs."""
        if num_samples < 1:
            raise InputError(f"samples is {num_samples}; at least 1 is needed")
        total_V = np.zeros(len(self.law_V), dtype=np.int64)
        for start in range(0, num_samples, CHUNK):
            size = min(CHUNK, num_samples - start)
            total_V += self._chunk(size)
        return total_V

    def _chunk(self, size: int) -> Ints:
        while True:
            # A scheduler found to have a memory is run again from the start of the chunk, which was
            # not counted yet; the first chunk meets the same luck as with any other scheduler.
            batch = _Batch(self.world, self._planner, self.due, size)
            try:
                step = 0
                while not batch.done():
                    batch.step(step, self._streams, self.verify)
                    step += 1
                self._fresh = False
                break
            except Memory:
                if self._fresh:
                    self._streams = Streams(self.seed)
                self._planner = Planner(self.world, self.factory, remembers=True)
        code_S = np.zeros(size, dtype=np.int64)
        for index in self.watched:
            for column in range(self.due[index]):
                code_S = code_S * self.world.vocabulary + batch.out[index][:, column]
        counts_V: Ints = np.bincount(code_S, minlength=len(self.law_V))
        return counts_V
