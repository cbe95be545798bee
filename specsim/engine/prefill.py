"""Reading prompts: mixed into decode steps, or on ranks of its own.

Without either, prefill takes no time (docs/decisions/0002). Both read prompts in chunks, first
come first served, under a budget of tokens a step. A forward of C prefill tokens costs what the
table says of C more tokens in its batch; attention over the prompt read so far is not charged
(docs/concepts/model.md).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Literal

import simpy
from simpy.core import Environment

from specsim.engine.clock import Order, after
from specsim.engine.costs import StepCost
from specsim.engine.queue import Queue
from specsim.engine.request import Request
from specsim.metrics.record import Status
from specsim.metrics.steplog import StepLog

FORBIDDEN_S = 1e6
"""What a forward past the step's token budget is said to last, so that no planner goes there."""


@dataclass(frozen=True, slots=True)
class MixedPrefill:
    """Prefill chunks in the forwards of decoding ranks.

    Attributes:
        tokens_per_step: most tokens of one forward: anchors, drafts and prefill together.
        reserve: `full` keeps `1 + gamma` tokens for every decoding request and gives prefill the
            rest, so that at most `tokens_per_step / (1 + gamma)` requests decode together (vLLM);
            `plan` keeps what the step's plan verifies.
    """

    tokens_per_step: int
    reserve: Literal["full", "plan"] = "full"


@dataclass(frozen=True, slots=True)
class DisaggregatedPrefill:
    """Prefill on ranks of its own; the KV is then sent to a decoding rank.

    Attributes:
        ranks: prefill ranks, which share one queue.
        tokens_per_step: most prompt tokens of one forward.
        cost: what their forwards cost.
        transfer_s: seconds of every transfer.
        transfer_s_per_token: seconds more for each token of KV. Transfers share no link.
        first_round: factor on the conditional acceptances of the first decode round after the
            transfer, for engines that send the KV without the drafter's hidden states; 1 for none.
    """

    ranks: int
    tokens_per_step: int
    cost: StepCost
    transfer_s: float
    transfer_s_per_token: float = 0.0
    first_round: float = 1.0


Chunk = tuple[Request, int]
"""A request and how many of its prompt tokens a forward reads."""


def take_chunks(waiting: Sequence[Request], tokens: int) -> list[Chunk]:
    """Share out `tokens` of one forward, first come first served."""
    chunks: list[Chunk] = []
    for request in waiting:
        if tokens <= 0:
            break
        taken = min(tokens, request.to_prefill)
        chunks.append((request, taken))
        tokens -= taken
    return chunks


class PrefillPool:
    """The prefill ranks of a disaggregated cluster: one queue, and a loop of steps a rank.

    Args:
        env: the simulation.
        spec: how many ranks and what they cost.
        queue: where requests wait for them.
        log: gets one row a prefill step; `rank` counts prefill ranks from 0.
        on_prefilled: told of each request that has its first token, to be sent on.
        on_left: told of each request that left during its prefill.
    """

    def __init__(
        self,
        env: Environment,
        spec: DisaggregatedPrefill,
        *,
        queue: Queue,
        log: StepLog,
        on_prefilled: Callable[[Request], None],
        on_left: Callable[[Request], None],
    ) -> None:
        self.env = env
        self.queue = queue
        self.spec = spec
        self._log, self._on_prefilled, self._on_left = log, on_prefilled, on_left
        self._reading: list[list[Request]] = [[] for _ in range(spec.ranks)]
        self._idle: list[simpy.Event | None] = [None] * spec.ranks
        for index in range(spec.ranks):
            env.process(self._serve(index))

    @property
    def num_running(self) -> int:
        """Requests in prefill, on all ranks."""
        return sum(map(len, self._reading))

    def submit(self, request: Request, *, first: bool = False) -> None:
        """Queue `request`, in front if it is `first`, and wake an idle rank."""
        request.queue = self.queue
        request.rank = -1  # it has left the rank that it may have decoded on
        if first:
            self.queue.appendleft(request)
        else:
            self.queue.append(request)
        for index, idle in enumerate(self._idle):
            if idle is not None:
                idle.succeed()
                self._idle[index] = None
                return

    def _serve(self, index: int) -> Generator[simpy.Event, None, None]:
        env, order, cost = self.env, Order.PREFILL + index, self.spec.cost
        reading = self._reading[index]
        while True:
            self._admit(reading)
            if not reading:
                idle = self._idle[index] = simpy.Event(env)
                yield idle
                yield after(env, 0.0, order)
                continue
            chunks = take_chunks(reading, self.spec.tokens_per_step)
            tokens = sum(taken for _, taken in chunks)
            duration_s = float(cost.verify_s_B[tokens]) + cost.fixed_s(0, 0)
            yield after(env, duration_s, order)
            self._log.add(
                end_s=env.now,
                duration_s=duration_s,
                own_s=duration_s,
                rank=index,
                num_requests=0,
                verified=0,
                accepted=0,
                emitted=0,
                waiting=len(self.queue),
                kv_tokens=0,
                charged=tokens,
                prefill_tokens=tokens,
            )
            self._progress(reading, chunks)

    def _admit(self, reading: list[Request]) -> None:
        tokens = self.spec.tokens_per_step - sum(request.to_prefill for request in reading)
        while self.queue and tokens > 0:
            request = self.queue.popleft()
            request.queue = None
            request.status = Status.RUNNING
            if request.admitted_s != request.admitted_s:
                request.admitted_s = self.env.now
            reading.append(request)
            tokens -= request.to_prefill

    def _progress(self, reading: list[Request], chunks: list[Chunk]) -> None:
        for request, taken in chunks:
            request.to_prefill -= taken
            request.prefilled += taken
        for request in [r for r in reading if r.to_prefill == 0 or r.leaving is not None]:
            reading.remove(request)
            if request.leaving is not None:
                self._on_left(request)
            else:
                self._on_prefilled(request)
