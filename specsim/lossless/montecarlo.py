"""Sampling what enumeration cannot reach: many runs of a world at once.

p = target law, q = draft law. Uniforms come from streams named by what they decide (step, request,
draft or acceptance), so that two schedulers or rules on the same seed meet the same luck.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass

import numpy as np

from specsim.errors import InputError
from specsim.lossless.blocks import Blocks, Copies, Flags, Keys, Tables, Verify, tables
from specsim.lossless.enumerate import autoregressive_law
from specsim.lossless.probe import Memory, Planner, Rows, Seen
from specsim.lossless.rejection import Floats, Ints, verify_block, verify_tokens
from specsim.lossless.significance import Distance, distance, g_test
from specsim.lossless.worlds import World
from specsim.rng import stream
from specsim.schedulers.base import LaggedSurvival, SchedulerFactory

CHUNK = 1 << 16
"""Copies stepped together: few enough for the processor's cache. Each chunk has streams of its own,
so any process can run it."""
KERNELS_FROM = 4 * CHUNK
"""Runs from which on the numba kernels pay, the time to load or compile them included."""
COMPRESS_ABOVE = 1 << 40
DENSE_FACTOR = 4
LEAST_DENSE = 1 << 10
HISTORY_LIMIT = 1 << 12
_Past = tuple[tuple[tuple[int, ...], Rows], ...]
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


class _Book:
    """What a planner answered so far: lengths by step and view, and the past that each leads to.

    A past is a node: the views that a scheduler with a memory has met, and the survivals that it
    will see with a lag. Equal pasts are one node; without memory and lag there is only node 0.
    """

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.pasts: list[tuple[tuple[Seen, ...], _Past]] = [((), ())]
        self.node_of: dict[tuple[tuple[Seen, ...], _Past], int] = {((), ()): 0}
        self.known: dict[tuple[int, int], tuple[tuple[int, ...], int]] = {}

    def node(self, path: tuple[Seen, ...], past: _Past) -> int:
        """Return the node of a past, a new one if it was never met."""
        key = (path, past)
        if key not in self.node_of:
            self.node_of[key] = len(self.pasts)
            self.pasts.append(key)
        return self.node_of[key]


class _Batch:
    """Copies of a world, stepped together; those that have put out enough are counted and leave."""

    def __init__(
        self,
        world: World,
        book: _Book,
        all_tables: list[Tables],
        weights: list[Ints],
        *,
        size: int,
        rule: str,
        kernels: bool,
    ) -> None:
        self.world, self.book, self.planner = world, book, book.planner
        self.rule, self.kernels = RULES[rule], kernels and rule == "token"
        self.blocks = [
            Blocks.fresh(t, weight_N, t.tails.index(request.start), size=size)
            for t, weight_N, request in zip(all_tables, weights, world.requests, strict=True)
        ]
        owed = sum(len(weight_N) > 1 for weight_N in weights)
        self.copies = Copies(
            np.arange(size, dtype=np.uint64),
            np.zeros(size, dtype=np.int64),
            np.zeros(size, dtype=np.int64),
            np.full(size, owed, dtype=np.int64),
        )
        self.totals = [np.zeros((3, size), dtype=np.int64) for _ in world.requests]
        self.num_blocks = 0

    def live(self, index: int, step: int) -> Flags:
        """Return the copies in which one request decodes."""
        request = self.world.requests[index]
        if request.leaves_after is None:
            return np.full(len(self.copies.id_S), request.joins_at <= step)
        here_S: Flags = self.blocks[index].count_S < request.leaves_after
        return here_S & (request.joins_at <= step)

    def step(self, step: int, streams: Streams) -> None:
        """Draft, plan, verify and commit one step of every copy."""
        gamma = self.world.gamma
        live = [self.live(i, step) for i in range(len(self.blocks))]
        codes = _Codes(self.copies.node_S, len(self.book.pasts))
        for i, blocks in enumerate(self.blocks):
            draft = blocks.draft if self.kernels else blocks.draft_twin
            draft(self.copies.id_S, live[i], streams.key_numbers(f"draft/{step}/{i}", gamma))
            codes.add(blocks.view_S, blocks.tables.num_views + 1)
            if self.planner.reads_history:
                for total_S in self.totals[i]:
                    codes.add(np.where(live[i], total_S, 0), HISTORY_LIMIT)
        length_RU, group_S = self._plan(step, codes, live)
        for i, blocks in enumerate(self.blocks):
            self.num_blocks += int(np.count_nonzero(live[i]))
            accept_key_G = streams.key_numbers(f"accept/{step}/{i}", gamma)
            pick_key = streams.key_numbers(f"pick/{step}/{i}", 1)[0]
            given = (self.copies, live[i], length_RU[i], group_S, accept_key_G, pick_key)
            if self.kernels:
                blocks.verify(*given)
            else:
                blocks.verify_twin(*given, rule=self.rule)
            if self.planner.reads_history:
                accepted_S = blocks.accepted_S
                gained = np.stack([np.ones_like(accepted_S), length_RU[i][group_S], accepted_S])
                self.totals[i] += np.where(live[i], gained, 0)

    def leave(self, counts_V: Ints) -> int:
        """Count the outcomes of the copies that have put out all that is followed; drop them.

        Returns:
            How many copies are left.
        """
        copies = self.copies
        keep = np.flatnonzero(copies.owed_S)
        if len(keep) < len(copies.id_S):
            done = copies.outcome_S[copies.owed_S == 0]
            counts_V += np.bincount(done, minlength=len(counts_V))
            self.copies = Copies(
                copies.id_S[keep], copies.node_S[keep], copies.outcome_S[keep], copies.owed_S[keep]
            )
            self.blocks = [blocks.kept(keep) for blocks in self.blocks]
            if self.planner.reads_history:
                self.totals = [total[:, keep] for total in self.totals]
        return len(keep)

    def _plan(self, step: int, codes: _Codes, live: list[Flags]) -> tuple[Ints, Ints]:
        """Plan once for each distinct view, and move on to new nodes.

        Returns:
            The lengths of each group of copies, `[R, U]`, and the group of each copy.
        """
        first_U, group_S = codes.groups()
        length_RU = np.zeros((len(live), len(first_U)), dtype=np.int64)
        node_U = np.zeros(len(first_U), dtype=np.int64)
        known = self.book.known
        for group, sample in enumerate(first_U.tolist()):
            key = (step, int(codes.code_S[sample]))
            answer = known.get(key) if codes.lasting else None
            if answer is None:
                answer = self._ask(step, sample, live)
                if codes.lasting:
                    known[key] = answer
            length_RU[:, group], node_U[group] = answer
        if len(self.book.pasts) > 1:
            self.copies.node_S = node_U[group_S]
        return length_RU, group_S

    def _ask(self, step: int, sample: int, live: list[Flags]) -> tuple[tuple[int, ...], int]:
        """Return the plan for one copy's view, a length for each request, and the node after it."""
        world, planner = self.world, self.planner
        path, past = self.book.pasts[int(self.copies.node_S[sample])]
        path = self._told(path, sample)
        rows = [i for i, live_S in enumerate(live) if live_S[sample]]
        lengths = [0] * len(live)
        if rows:
            ids = tuple(world.requests[i].request_id for i in rows)
            blocks = []
            for i in rows:
                mine = self.blocks[i]
                tail = mine.tables.tails[int(mine.tail_S[sample])]
                blocks.append((world.requests[i], tail, tuple(mine.draft_SG[sample].tolist())))
            confidence = tuple(tuple(map(float, world.confidences(*b))) for b in blocks)
            sampled = tuple(tuple(map(float, world.sampled(*b))) for b in blocks)
            lagged = LaggedSurvival(planner.lag)
            for past_ids, survivals in past:
                lagged.push(*planner.arrays(past_ids, survivals))
            history = None
            if planner.reads_history:
                history = tuple(
                    (int(t[0, sample]), int(t[1, sample]), int(t[2, sample]))
                    for t in (self.totals[i] for i in rows)
                )
            record = planner.record(step, ids, confidence, lagged, history, sampled)
            plan = planner.plan(record, path)
            for i, length in zip(rows, plan, strict=True):
                lengths[i] = length
            if planner.remembers:
                path = (*path, Seen(record, plan))
            if planner.lag:
                past = (*past, (ids, planner.survivals(confidence)))[-planner.lag :]
        return tuple(lengths), self.book.node(path, past)

    def _told(self, path: tuple[Seen, ...], sample: int) -> tuple[Seen, ...]:
        """Complete a path's last step with what was then accepted, for a learner."""
        if not (self.planner.learns and path) or path[-1].accepted is not None:
            return path
        ids = [request.request_id for request in self.world.requests]
        rows = [ids.index(request_id) for request_id in path[-1].record.request_ids]
        accepted = tuple(int(self.blocks[row].accepted_S[sample]) for row in rows)
        return (*path[:-1], dataclasses.replace(path[-1], accepted=accepted))


class _Codes:
    """One number for all that tells copies apart, built factor by factor.

    Attributes:
        code_S: the numbers, below `bound`.
        lasting: whether equal numbers mean the same in every batch; compressed ones do not.
    """

    def __init__(self, code_S: Ints, bound: int) -> None:
        self.code_S, self.bound, self.lasting = code_S, bound, True

    def add(self, more_S: Ints, size: int) -> None:
        """Tell copies apart by `more_S`, in 0..size - 1, too; compress what has grown too large."""
        if self.bound > COMPRESS_ABOVE // size:
            distinct, self.code_S = np.unique(self.code_S, return_inverse=True)
            self.bound, self.lasting = len(distinct), False
        self.code_S = self.code_S * size + more_S
        self.bound *= size

    def groups(self) -> tuple[Ints, Ints]:
        """Return the first copy of each distinct number, in their order, and each copy's group."""
        size = len(self.code_S)
        if self.bound > DENSE_FACTOR * size + LEAST_DENSE:
            _, first, group_S = np.unique(self.code_S, return_index=True, return_inverse=True)
            return first, group_S
        first_B = np.full(self.bound, -1, dtype=np.int64)
        # Of equal indices the last assignment stays: the first copy.
        first_B[self.code_S[::-1]] = np.arange(size - 1, -1, -1)
        met_B = first_B >= 0
        return first_B[met_B], (np.cumsum(met_B) - 1)[self.code_S]


class Streams(dict[str, np.random.Generator]):
    """Named generators of one chunk, made when first asked for."""

    def __init__(self, seed: int, chunk: int = 0) -> None:
        super().__init__()
        self.seed, self.chunk = seed, chunk

    def __missing__(self, name: str) -> np.random.Generator:
        made = self[name] = stream(self.seed, f"lossless/{self.chunk}/{name}")
        return made

    def key_numbers(self, name: str, count: int) -> Keys:
        """Return the first `count` keys of a name, to count uniforms under."""
        return stream(self.seed, f"lossless/{self.chunk}/{name}").integers(
            0, 1 << 64, size=count, dtype=np.uint64
        )


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
    sampler = Sampler(
        world,
        factory,
        seed=seed,
        num_tokens=num_tokens,
        watch=watch,
        rule=rule,
        kernels=num_samples >= KERNELS_FROM,
    )
    return judged(sampler.counts(num_samples), sampler.law_V)


class Sampler:
    """Draws chunk after chunk from one world, each with streams of its own.

    With `kernels` the token rule runs in numba, with the same counts; else in plain numpy.

    Attributes:
        law_V: target probability of each outcome that `counts` counts.
        num_blocks: draft-verify rounds done so far, over all requests.
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
        kernels: bool = False,
    ) -> None:
        if rule not in RULES:
            raise InputError(f'rule "{rule}" is not one of {", ".join(RULES)}')
        ids = [request.request_id for request in world.requests]
        watched = watch or (ids[0],)
        for request_id in watched:
            if request_id not in ids:
                raise InputError(f'world "{world.name}" has no request {request_id}, it has {ids}')
        self.world, self.factory, self.rule, self.kernels = world, factory, rule, kernels
        followed = [ids.index(request_id) for request_id in watched]
        due = {i: min(num_tokens, world.requests[i].leaves_after or num_tokens) for i in followed}
        self.seed, self.num_blocks = seed, 0
        self._next_chunk = 0
        self._book = _Book(Planner(world, factory))
        planner = self._book.planner
        self._tables = [
            tables(
                world,
                request,
                confidence=planner.reads_live or planner.lag > 0,
                sampled=planner.reads_sampled,
            )
            for request in world.requests
        ]
        if (views := max(t.num_views for t in self._tables)) > COMPRESS_ABOVE:
            raise InputError(
                f'world "{world.name}": {views} views of one block could differ, more than '
                f"{COMPRESS_ABOVE}: use fewer tokens or drafts, or `sample_models`"
            )
        law_V = np.ones(1)
        self._weights = [np.zeros(1, dtype=np.int64) for _ in world.requests]
        for index in followed:
            runs = autoregressive_law(world, world.requests[index], due[index])
            keys = itertools.product(range(world.vocabulary), repeat=due[index])
            law_V = np.outer(law_V, [float(runs.get(key, 0)) for key in keys]).ravel()
        place = len(law_V)
        for index in followed:
            weight_N = np.zeros(due[index] + 1, dtype=np.int64)
            for column in range(due[index]):
                place //= world.vocabulary
                weight_N[column] = place
            self._weights[index] = weight_N
        self.law_V: Floats = law_V

    def counts(self, num_samples: int) -> Ints:
        """Return counts `[V ** tokens]` of `num_samples` new independent runs."""
        total_V = np.zeros(len(self.law_V), dtype=np.int64)
        for size in chunk_sizes(num_samples):
            total_V += self.chunk_counts(self._next_chunk, size)
            self._next_chunk += 1
        return total_V

    def chunk_counts(self, chunk: int, size: int) -> Ints:
        """Return counts of chunk number `chunk` with `size` runs; the same in any process."""
        while True:
            batch = _Batch(
                self.world,
                self._book,
                self._tables,
                self._weights,
                size=size,
                rule=self.rule,
                kernels=self.kernels,
            )
            counts_V = np.zeros(len(self.law_V), dtype=np.int64)
            streams, step, left = Streams(self.seed, chunk), 0, size
            try:
                while left:
                    batch.step(step, streams)
                    left = batch.leave(counts_V)
                    step += 1
                self.num_blocks += batch.num_blocks
                return counts_V
            except Memory:
                # Nothing of the chunk was counted yet: start over, keeping what each path has seen.
                self._book = _Book(Planner(self.world, self.factory, remembers=True))


def chunk_sizes(num_samples: int) -> list[int]:
    """Return the sizes of the chunks that `num_samples` runs are made in."""
    if num_samples < 1:
        raise InputError(f"samples is {num_samples}; at least 1 is needed")
    whole, rest = divmod(num_samples, CHUNK)
    return [CHUNK] * whole + ([rest] if rest else [])
