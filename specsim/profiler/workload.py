"""What is timed: cells of a grid over tokens, requests and context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specsim.errors import InputError

TimedPart = Literal["verify", "draft", "sampler"]
StepMode = Literal["graph", "eager"]


@dataclass(frozen=True, slots=True)
class Case:
    """One cell.

    Attributes:
        part: `verify` (target forward), `draft` (a block of a DSpark drafter) or `sampler`.
        widths: tokens of each request in the forward, anchor included; R entries.
        context_tokens: KV tokens that each request already holds.
        mode: replayed from a captured graph, or eager.
    """

    part: TimedPart
    widths: tuple[int, ...]
    context_tokens: int
    mode: StepMode = "eager"

    @property
    def num_requests(self) -> int:
        """R."""
        return len(self.widths)

    @property
    def batch_tokens(self) -> int:
        """B."""
        return sum(self.widths)

    @property
    def is_uniform(self) -> bool:
        """Whether every request has the same width."""
        return len(set(self.widths)) == 1

    @property
    def cache_tokens(self) -> int:
        """KV tokens that all requests hold once the step is done, padded to the longest."""
        return self.num_requests * (self.context_tokens + max(self.widths))

    @property
    def key(self) -> tuple[str, int, int, int, str]:
        """What tells this cell from others in a file of rows."""
        return (self.part, self.batch_tokens, self.num_requests, self.context_tokens, self.mode)


def spread(batch_tokens: int, num_requests: int) -> tuple[int, ...]:
    """Spread B tokens over R requests as evenly as they go, the wider first.

    Raises:
        InputError: fewer tokens than requests (each has at least its anchor).
    """
    if num_requests < 1 or batch_tokens < num_requests:
        raise InputError(
            f"{batch_tokens} tokens for {num_requests} requests: each request has at least its "
            "anchor token"
        )
    width, wider = divmod(batch_tokens, num_requests)
    return (width + 1,) * wider + (width,) * (num_requests - wider)


def default_tokens(most: int) -> list[int]:
    """Token counts of SGLang's default sweep, up to `most`: dense where tables bend."""
    found = [1, 2, 4, 8]
    for start, stop, step in ((16, 64, 8), (64, 128, 16), (128, 256, 32), (256, most + 1, 64)):
        found += range(start, stop, step)
    return sorted({tokens for tokens in found if tokens <= most} | {most})


def grid(
    batch_tokens: Sequence[int],
    requests: Sequence[int],
    contexts: Sequence[int],
    *,
    parts: Sequence[TimedPart] = ("verify",),
    modes: Sequence[StepMode] = ("eager",),
    gamma: int = 7,
    max_width: int | None = None,
    uniform_only: bool = False,
) -> list[Case]:
    """Return every cell that makes sense, smallest first.

    `verify` cells take each B with each R that it can be spread over (R <= B, width at most
    `max_width`); `draft` cells a block of gamma for each R; `sampler` cells each B with the largest
    such R.

    Args:
        batch_tokens: wanted B.
        requests: wanted R.
        contexts: wanted KV tokens a request.
        parts: what to time.
        modes: graph, eager or both; the sampler is always eager.
        gamma: drafts of a block.
        max_width: widest request in a verify cell; gamma + 1 if None.
        uniform_only: for attention that accepts only equal widths.

    Raises:
        InputError: a list is empty or holds values below 1, nothing fits, or `uniform_only` and a
            B that none of its R divides.
    """
    for name, values, least in (
        ("batch tokens", batch_tokens, 1),
        ("requests", requests, 1),
        ("contexts", contexts, 0),
    ):
        if not values or min(values) < least:
            raise InputError(
                f"{name} must be whole numbers of at least {least}, not {list(values)}"
            )
    if "draft" in parts and gamma < 1:
        raise InputError(f"a block of {gamma} drafts cannot be timed; give gamma of at least 1")
    widest = gamma + 1 if max_width is None else max_width
    cases: list[Case] = []
    for tokens in sorted(set(batch_tokens)):
        fitting = [n for n in sorted(set(requests)) if n <= tokens <= n * widest]
        if uniform_only and fitting:
            even = [n for n in fitting if tokens % n == 0]
            if not even:
                raise InputError(
                    f"{tokens} tokens cannot be spread evenly over any of {fitting} requests, and "
                    "only equal widths are accepted; leave that count out"
                )
            fitting = even
        for count in fitting:
            for context in sorted(set(contexts)):
                if "verify" in parts:
                    cases += [
                        Case("verify", spread(tokens, count), context, mode) for mode in modes
                    ]
        if "sampler" in parts and fitting:
            cases.append(Case("sampler", spread(tokens, fitting[-1]), 0, "eager"))
    if "draft" in parts:
        for count in sorted(set(requests)):
            for context in sorted(set(contexts)):
                cases += [Case("draft", (gamma,) * count, context, mode) for mode in modes]
    if not cases:
        raise InputError(
            f"no cell fits: every B of {sorted(set(batch_tokens))} needs an R of "
            f"{sorted(set(requests))} with R <= B <= {widest} R"
        )
    return cases
