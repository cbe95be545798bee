"""Requests: what each one is, drawn by index so that every policy serves the same ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specsim.rng import stream

_CHUNK = 4096


class LengthLaw(Protocol):
    """A law of lengths in tokens."""

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Return `size` lengths, int64, at least 1."""
        ...


@dataclass(slots=True)
class Request:
    """One request. Times are simulated seconds; NaN until they happen.

    Attributes:
        index: 0, 1, .. in order of submission; also its id.
        user: closed-loop user that submitted it, -1 otherwise.
        domain: index of its domain.
        sequence_u: fraction in [0, 1) that picks its trace sequence within the domain.
        prompt_tokens: context when decoding starts, the prefill's token included.
        output_tokens: tokens to produce; the first belongs to the prefill, which takes no time
            here, so decoding emits `output_tokens - 1`.
    """

    index: int
    user: int
    domain: int
    sequence_u: float
    prompt_tokens: int
    output_tokens: int
    arrival_s: float
    rank: int = -1
    first_token_s: float = float("nan")
    finish_s: float = float("nan")


class RequestSource:
    """Draws request i's attributes from named streams, the same for every policy of a seed."""

    def __init__(
        self,
        *,
        seed: int,
        prompt: LengthLaw,
        output: LengthLaw,
        domain_weights_D: NDArray[np.float64],
    ) -> None:
        self._prompt, self._output = prompt, output
        self._cumulative_D = np.cumsum(domain_weights_D / domain_weights_D.sum())
        self._streams = {
            name: stream(seed, f"request/{name}")
            for name in ("prompt", "output", "domain", "sequence")
        }
        self._next = 0
        self._domain: list[int] = []
        self._sequence_u: list[float] = []
        self._prompt_tokens: list[int] = []
        self._output_tokens: list[int] = []

    def next(self, *, arrival_s: float, user: int = -1) -> Request:
        """Return the next request, which arrives at `arrival_s`."""
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
        )
        self._next += 1
        return request

    def _draw(self) -> None:
        streams = self._streams
        last = len(self._cumulative_D) - 1
        domain = np.searchsorted(self._cumulative_D, streams["domain"].random(_CHUNK), side="right")
        self._domain = np.minimum(domain, last).tolist()
        self._sequence_u = streams["sequence"].random(_CHUNK).tolist()
        self._prompt_tokens = self._prompt.sample(streams["prompt"], _CHUNK).tolist()
        self._output_tokens = self._output.sample(streams["output"], _CHUNK).tolist()
