"""Small worlds in rational numbers: laws, confidences, a cost table and requests that decode.

p = target law, q = draft law. A world is everything that decides what a scheduler sees and what it
does to the output. All laws look at the last `order` tokens, the *tail*: a table maps each tail to
a law, so worlds depend on context and can be followed for several rounds.

Confidences are pre-token (they may read x[<k], as DSpark's head does) or post-token (they read x[k]
too, as a drafter's own probability of the sampled token does).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Rational

from specsim.errors import InputError
from specsim.lossless.rejection import ONE, ZERO, Law, Tokens

LawTable = Mapping[Tokens, Law]
"""A law for every tail."""

ConfidenceTable = Mapping[Tokens, Fraction]
"""A confidence for every tail (pre-token), or for every tail followed by x[k] (post-token)."""


@dataclass(frozen=True)
class Request:
    """One request of a world.

    Attributes:
        request_id: any integer, unique in the world.
        target: p at each tail.
        draft: q of draft k (k = 1..gamma) at each tail, which drafts are drawn from.
        confidence: c of draft k at each tail.
        start: the tail before the first output token.
        joins_at: step in which it starts decoding.
        leaves_after: output tokens after which it leaves, or None to go on for ever.
        believed_draft: q as the verifier computes it; None if it is `draft`, as it must be.
        believed_target: p as the verifier computes it; None if it is `target`.
    """

    request_id: int
    target: LawTable
    draft: tuple[LawTable, ...]
    confidence: tuple[ConfidenceTable, ...]
    start: Tokens
    joins_at: int = 0
    leaves_after: int | None = None
    believed_draft: tuple[LawTable, ...] | None = None
    believed_target: LawTable | None = None

    @property
    def verifier_draft(self) -> tuple[LawTable, ...]:
        """The draft laws that the verifier works with."""
        return self.draft if self.believed_draft is None else self.believed_draft

    @property
    def verifier_target(self) -> LawTable:
        """The target law that the verifier works with."""
        return self.target if self.believed_target is None else self.believed_target


@dataclass(frozen=True)
class World:
    """A closed world that a scheduler can be run through exactly.

    Attributes:
        name: for messages.
        requests: who decodes, in row order.
        gamma: drafts proposed a request and step.
        order: tokens that a law looks back at, at least 0.
        verify_s_B: seconds of a forward at B = 0, 1, .. R (1 + gamma) tokens; index 0 is not used.
        fixed_s: seconds of every step that no plan can trim.
        post_token: whether confidences read x[k] itself.
    """

    name: str
    requests: tuple[Request, ...]
    gamma: int
    order: int
    verify_s_B: tuple[Fraction, ...]
    fixed_s: Fraction = ZERO
    post_token: bool = False

    def __post_init__(self) -> None:
        _check_world(self)

    @property
    def vocabulary(self) -> int:
        """V: tokens are 0..V-1."""
        return len(next(iter(self.requests[0].target.values())))

    def tail(self, tokens: Tokens) -> Tokens:
        """Return what the laws look at after `tokens`."""
        return tokens[len(tokens) - self.order :] if self.order else ()

    def confidences(self, request: Request, tail: Tokens, drafts: Tokens) -> tuple[Fraction, ...]:
        """Return c of each draft of one block."""
        found = []
        for k, token in enumerate(drafts):
            here = self.tail(tail + drafts[:k])
            found.append(request.confidence[k][(*here, token) if self.post_token else here])
        return tuple(found)

    def sampled(self, request: Request, tail: Tokens, drafts: Tokens) -> tuple[Fraction, ...]:
        """Return q of each draft of one block: the probability of the token that was sampled."""
        return tuple(
            request.draft[k][self.tail(tail + drafts[:k])][token] for k, token in enumerate(drafts)
        )

    def draft_mass(self, request: Request, tail: Tokens, drafts: Tokens) -> Fraction:
        """Return the probability that the drafter proposes exactly `drafts`."""
        return math.prod(self.sampled(request, tail, drafts), start=ONE)

    def describe(self) -> str:
        """Return the world in a few lines, for counterexamples."""
        return _describe(self)


def tails(vocabulary: int, order: int) -> list[Tokens]:
    """Return every tail, in order."""
    return list(itertools.product(range(vocabulary), repeat=order))


def everywhere(law: Sequence[Fraction], *, order: int) -> LawTable:
    """Return a table that has the same law at every tail."""
    return dict.fromkeys(tails(len(law), order), tuple(law))


def law(*masses: str | int | Fraction) -> Law:
    """Return a law from numbers such as `"7/10"`.

    Raises:
        InputError: a mass is no number or negative, or they do not sum to one.
    """
    try:
        made = tuple(Fraction(mass) for mass in masses)
    except (ValueError, OverflowError, ZeroDivisionError, TypeError) as error:
        raise InputError(f"law: {error}; give fractions such as 7/10") from error
    _check_law(made, len(made), "law")
    return made


def _show(values: Sequence[Fraction]) -> str:
    return "(" + ", ".join(str(value) for value in values) + ")"


def _check_law(values: Law, vocabulary: int, where: str) -> None:
    if len(values) != vocabulary:
        raise InputError(
            f"{where}: {_show(values)} has {len(values)} masses, but the vocabulary has "
            f"{vocabulary} tokens: give one mass a token, 0 where p or q has no support"
        )
    for token, mass in enumerate(values):
        if not isinstance(mass, Rational):
            raise InputError(
                f"{where}: the mass of token {token} is {mass!r}; enumeration is exact, so it must "
                "be a Fraction or a whole number"
            )
        if mass < 0:
            raise InputError(
                f"{where}: the mass of token {token} is {mass}; masses are at least 0 "
                "(q may be positive where p is 0, and the other way round)"
            )
    if sum(values, ZERO) != 1:
        raise InputError(
            f"{where}: {_show(values)} sums to {sum(values, ZERO)}, a law must sum to exactly 1: "
            "use fractions such as 7/10"
        )


def _check_tables(world: World, request: Request, vocabulary: int) -> None:
    who = f'world "{world.name}", request {request.request_id}'
    all_tails = set(tails(vocabulary, world.order))
    named: list[tuple[str, LawTable]] = [("target p", request.target)]
    named += [(f"draft q, position {k + 1}", table) for k, table in enumerate(request.draft)]
    if request.believed_target is not None:
        named.append(("believed target", request.believed_target))
    believed = request.believed_draft or ()
    named += [(f"believed draft, position {k + 1}", table) for k, table in enumerate(believed)]
    for count, name in (
        (len(request.draft), "draft laws"),
        (len(request.confidence), "confidence tables"),
        (len(request.verifier_draft), "believed draft laws"),
    ):
        if count != world.gamma:
            raise InputError(f"{who}: {count} {name}, one for each of gamma = {world.gamma} is due")
    for name, table in named:
        if missing := sorted(all_tails - set(table)):
            raise InputError(f"{who}, {name}: no law for the tail {missing[0]}")
        for tail, values in table.items():
            _check_law(values, vocabulary, f"{who}, {name}, tail {tail}")
    width = world.order + (1 if world.post_token else 0)
    for k, confidence in enumerate(request.confidence):
        if missing := sorted(set(tails(vocabulary, width)) - set(confidence)):
            raise InputError(f"{who}, confidence {k + 1}: none for {missing[0]}")
        for tail, value in confidence.items():
            if not 0 <= value <= 1:
                raise InputError(
                    f"{who}, confidence {k + 1} at {tail}: {value} is not between 0 and 1"
                )
    if len(request.start) != world.order or any(not 0 <= t < vocabulary for t in request.start):
        raise InputError(
            f"{who}: start {request.start} must be {world.order} tokens of 0..{vocabulary - 1}"
        )
    if request.joins_at < 0 or (request.leaves_after is not None and request.leaves_after < 1):
        raise InputError(
            f"{who}: joins_at {request.joins_at} must be at least 0 and leaves_after "
            f"{request.leaves_after} at least 1"
        )


def _check_world(world: World) -> None:
    if not world.requests:
        raise InputError(f'world "{world.name}" has no requests; give at least one')
    if world.gamma < 1 or world.order < 0:
        raise InputError(
            f'world "{world.name}": gamma {world.gamma} must be at least 1 and order '
            f"{world.order} at least 0"
        )
    ids = [request.request_id for request in world.requests]
    if len(set(ids)) != len(ids):
        raise InputError(f'world "{world.name}": request ids {ids} are not unique')
    for request in world.requests:
        _check_tables(world, request, world.vocabulary)
    needed = len(world.requests) * (1 + world.gamma) + 1
    if len(world.verify_s_B) < needed:
        raise InputError(
            f'world "{world.name}": the step table has {len(world.verify_s_B)} entries (B = 0, 1, '
            f"..), {needed} are needed for {len(world.requests)} requests of gamma {world.gamma}"
        )
    for batch, seconds in enumerate(world.verify_s_B[1:], start=1):
        if not 0 < seconds < math.inf:
            raise InputError(f'world "{world.name}": a forward of {batch} tokens takes {seconds} s')
    if not 0 <= world.fixed_s < math.inf:
        raise InputError(f'world "{world.name}": fixed_s is {world.fixed_s}, at least 0 is legal')


def _describe_table(label: str, table: Mapping[Tokens, object]) -> list[str]:
    def show(value: object) -> str:
        return _show(value) if isinstance(value, tuple) else str(value)

    values = list(table.values())
    if all(value == values[0] for value in values):
        return [f"    {label}: {show(values[0])}"]
    return [f"    {label} after {''.join(map(str, k))}: {show(v)}" for k, v in table.items()]


def _describe(world: World) -> str:
    seconds = ", ".join(str(s) for s in world.verify_s_B[1:])
    lines = [
        f'world "{world.name}": {world.vocabulary} tokens, gamma {world.gamma}, laws look back '
        f"{world.order}, {'post' if world.post_token else 'pre'}-token confidences",
        f"  seconds of 1, 2, .. tokens: {seconds}; fixed {world.fixed_s}",
    ]
    for request in world.requests:
        extra = f", joins at step {request.joins_at}" if request.joins_at else ""
        if request.leaves_after is not None:
            extra += f", leaves after {request.leaves_after} tokens"
        lines.append(f"  request {request.request_id} (starts after {request.start}{extra})")
        lines += _describe_table("p", request.target)
        for k in range(world.gamma):
            lines += _describe_table(f"q of draft {k + 1}", request.draft[k])
            lines += _describe_table(f"c of draft {k + 1}", request.confidence[k])
        if request.believed_draft is not None:
            for k in range(world.gamma):
                lines += _describe_table(f"believed q {k + 1}", request.believed_draft[k])
        if request.believed_target is not None:
            lines += _describe_table("believed p", request.believed_target)
    return "\n".join(lines)
