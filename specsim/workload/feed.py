"""What a workload hands to the engine: requests in the order of their arrival.

Every kind of arrival that is not a fixed number of users comes down to this: an iterator of
`Arrival`. A session is one `Arrival` that carries its later turns; each follows the answer to the
turn before it, so that only the engine knows when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specsim.rng import stream

_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class Turn:
    """A later turn of a session.

    Attributes:
        think_s: seconds from the end of the answer before it.
        new_tokens: what the user adds to the context, at least 1.
        output_tokens: tokens to produce, at least 1.
    """

    think_s: float
    new_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request to come.

    Attributes:
        at_s: simulated time of arrival, seconds; never falls along a feed.
        prompt_tokens: tokens of the prompt, `context_tokens` among them; at least 1.
        output_tokens: tokens to produce, at least 1; the first belongs to the prefill.
        session: which session it belongs to, for routing; -1 for none.
        turn: 0 for the first request of a session.
        context_tokens: leading tokens of the prompt that the session's earlier turns left.
        block_tokens: tokens of a prefix block; 0 if `blocks` says nothing of sizes.
        blocks: ids of the prompt's blocks; equal ids hold equal content.
        then: turns of the session that are still to come.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    session: int = -1
    turn: int = 0
    context_tokens: int = 0
    block_tokens: int = 0
    blocks: tuple[int, ...] = ()
    then: tuple[Turn, ...] = ()

    def follow_up(self, finish_s: float) -> Arrival | None:
        """Return the session's next turn when this one was answered at `finish_s`, or None."""
        if not self.then:
            return None
        turn = self.then[0]
        context_tokens = self.prompt_tokens + self.output_tokens
        return replace(
            self,
            at_s=finish_s + turn.think_s,
            prompt_tokens=context_tokens + turn.new_tokens,
            output_tokens=turn.output_tokens,
            turn=self.turn + 1,
            context_tokens=context_tokens,
            blocks=(),
            block_tokens=0,
            then=self.then[1:],
        )


class LengthLaw(Protocol):
    """A law of lengths in tokens."""

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Return `size` lengths, int64, at least 1."""
        ...


class PairLaw(Protocol):
    """A joint law of prompt and output lengths."""

    def sample(
        self, rng: np.random.Generator, size: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return `size` prompt lengths and the output lengths that belong to them."""
        ...


LengthPairs = Iterator[tuple[int, int]]
"""Prompt and output tokens of request 0, 1, .., without end."""


def independent_lengths(prompt: LengthLaw, output: LengthLaw, *, seed: int) -> LengthPairs:
    """Yield lengths by index from the streams that the engine draws them from.

    Request i has the same lengths whatever brings it: users, a stream or a batch.
    """
    prompt_rng, output_rng = stream(seed, "request/prompt"), stream(seed, "request/output")
    while True:
        drawn = prompt.sample(prompt_rng, _CHUNK), output.sample(output_rng, _CHUNK)
        yield from zip(drawn[0].tolist(), drawn[1].tolist(), strict=True)


def joint_lengths(law: PairLaw, *, seed: int) -> LengthPairs:
    """Yield lengths by index from a joint law."""
    rng = stream(seed, "request/lengths")
    while True:
        prompt_N, output_N = law.sample(rng, _CHUNK)
        yield from zip(prompt_N.tolist(), output_N.tolist(), strict=True)


def with_lengths(times_s: Iterable[float], lengths: LengthPairs) -> Iterator[Arrival]:
    """Yield an arrival at each time, with the next lengths."""
    for at_s, (prompt_tokens, output_tokens) in zip(times_s, lengths, strict=False):
        yield Arrival(at_s, prompt_tokens, output_tokens)


FeedFactory = Callable[[int], Iterator[Arrival]]
"""Makes a fresh feed from a seed; the same seed gives the same feed."""
