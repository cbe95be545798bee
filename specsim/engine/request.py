"""Requests: what each one is, drawn by index so that every policy serves the same ones."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specsim.engine.queue import Queue
from specsim.metrics.record import Status
from specsim.rng import stream
from specsim.workload.feed import Arrival, PairLaw

_CHUNK = 4096
_NEVER = float("nan")


class LengthLaw(Protocol):
    """A law of lengths in tokens."""

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Return `size` lengths, int64, at least 1."""
        ...


@dataclass(slots=True, eq=False)
class Request:
    """One request. Times are simulated seconds; NaN until they happen.

    Attributes:
        index: 0, 1, .. in order of submission; also its id.
        user: closed-loop user that submitted it, -1 otherwise.
        domain: index of its domain.
        sequence_u: fraction in [0, 1) that picks its trace sequence within the domain.
        prompt_tokens: context when decoding starts, the prefill's token included.
        output_tokens: tokens to produce; the first belongs to the prefill, so decoding emits
            `output_tokens - 1`.
        arrival_s: when it was submitted.
        arrival: what a feed said about it; None for users, streams and batches.
        session: what a session-affine router keeps together; -1 for nothing.
        priority: its class; 0 goes first.
        first_round_u: draw in [0, 1) for a degraded first round after a transfer.
        rank: where it decodes or did last; -1 before, and on ranks of prefill alone.
        admitted_s: when a rank (of prefill or decode) first took it from a queue.
        first_token_s, finish_s, closed_s: first token, last token, and when it left the system
            for whatever reason.
        status: where it stands.
        leaving: as what it leaves at the end of the step that holds it, if it must.
        queue: the queue that holds it, if one does.
        to_prefill: prompt (and, after a preemption, output) tokens that no forward has read yet.
        prefilled, cached: tokens that prefill computed, and that a prefix cache spared it.
        preemptions, reroutes: how often it was put back, and moved off a dead rank.
        saved: its slot while it is not in a batch but has decoded already, int64 `[len(Slot)]`.
        swapped: whether its KV waits in host memory.
        transferred: whether it comes from another rank's prefill and has not decoded since.
        kv_private, kv_shared, kv_keys: KV blocks held alone, through the prefix cache, and the
            cache's keys of the latter.
    """

    index: int
    user: int
    domain: int
    sequence_u: float
    prompt_tokens: int
    output_tokens: int
    arrival_s: float
    arrival: Arrival | None = None
    session: int = -1
    priority: int = 0
    first_round_u: float = 0.0
    rank: int = -1
    admitted_s: float = _NEVER
    first_token_s: float = _NEVER
    finish_s: float = _NEVER
    closed_s: float = _NEVER
    status: Status = Status.WAITING
    leaving: Status | None = None
    queue: Queue | None = None
    to_prefill: int = 0
    prefilled: int = 0
    cached: int = 0
    preemptions: int = 0
    reroutes: int = 0
    saved: NDArray[np.int64] | None = None
    swapped: bool = False
    transferred: bool = False
    kv_private: int = 0
    kv_shared: int = 0
    kv_keys: tuple[Hashable, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Attributes of the next requests, in order; see `Request`.

    Attributes:
        domain, priority: int64 `[N]`.
        sequence_u, first_round_u: float64 `[N]`.
        prompt_tokens, output_tokens: int64 `[N]`.
    """

    domain: NDArray[np.int64]
    sequence_u: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    priority: NDArray[np.int64]
    first_round_u: NDArray[np.float64]


class RequestSource:
    """Draws request i's attributes from named streams, the same for every policy of a seed.

    Args:
        seed: all randomness.
        prompt: law of prompt lengths.
        output: law of output lengths.
        domain_weights_D: how often a request belongs to each domain.
        priority_shares_C: share of each priority class; empty for one class.
        pairs: joint law of prompt and output lengths, in place of the two laws.
    """

    def __init__(
        self,
        *,
        seed: int,
        prompt: LengthLaw,
        output: LengthLaw,
        domain_weights_D: NDArray[np.float64],
        priority_shares_C: Sequence[float] = (),
        pairs: PairLaw | None = None,
    ) -> None:
        self._prompt, self._output, self._pairs = prompt, output, pairs
        self._cumulative_D = np.cumsum(domain_weights_D / domain_weights_D.sum())
        shares_C = np.asarray(priority_shares_C, dtype=np.float64)
        self._cumulative_C = np.cumsum(shares_C / shares_C.sum()) if len(shares_C) else shares_C
        self._streams = {
            name: stream(seed, f"request/{name}")
            for name in (
                "prompt",
                "output",
                "lengths",
                "domain",
                "sequence",
                "priority",
                "first_round",
            )
        }
        self._next = 0
        self._domain: list[int] = []
        self._sequence_u: list[float] = []
        self._prompt_tokens: list[int] = []
        self._output_tokens: list[int] = []
        self._priority: list[int] = []
        self._first_round_u: list[float] = []

    def next(self, *, arrival_s: float, user: int = -1, arrival: Arrival | None = None) -> Request:
        """Return the next request, which arrives at `arrival_s`; a feed brings its own lengths."""
        at = self._next % _CHUNK
        if at == 0:
            self._draw()
        request = Request(
            index=self._next,
            user=user,
            domain=self._domain[at],
            sequence_u=self._sequence_u[at],
            prompt_tokens=self._prompt_tokens[at],
            output_tokens=self._output_tokens[at],
            arrival_s=arrival_s,
            arrival=arrival,
            session=user,
            priority=self._priority[at],
            first_round_u=self._first_round_u[at],
        )
        if arrival is not None:
            request.prompt_tokens = arrival.prompt_tokens
            request.output_tokens = arrival.output_tokens
            request.session = arrival.session
        self._next += 1
        return request

    def _draw(self) -> None:
        chunk = self.chunk()
        self._domain = chunk.domain.tolist()
        self._sequence_u = chunk.sequence_u.tolist()
        self._prompt_tokens = chunk.prompt_tokens.tolist()
        self._output_tokens = chunk.output_tokens.tolist()
        self._priority = chunk.priority.tolist()
        self._first_round_u = chunk.first_round_u.tolist()

    def chunk(self) -> Chunk:
        """Draw the attributes of the next requests, those of `next` if it were called instead."""
        streams = self._streams
        domain = _picked(self._cumulative_D, streams["domain"])
        sequence_u = streams["sequence"].random(_CHUNK)
        if self._pairs is not None:
            prompt_tokens, output_tokens = self._pairs.sample(streams["lengths"], _CHUNK)
        else:
            prompt_tokens = self._prompt.sample(streams["prompt"], _CHUNK)
            output_tokens = self._output.sample(streams["output"], _CHUNK)
        return Chunk(
            domain=domain,
            sequence_u=sequence_u,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            priority=_picked(self._cumulative_C, streams["priority"]),
            first_round_u=streams["first_round"].random(_CHUNK),
        )


def _picked(cumulative: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    if len(cumulative) == 0:
        return np.zeros(_CHUNK, dtype=np.int64)
    picked = np.searchsorted(cumulative, rng.random(_CHUNK), side="right")
    return np.minimum(picked, len(cumulative) - 1)
