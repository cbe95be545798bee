"""Worlds made to show a leak, each the smallest we know: the paper's Appendix A and its relatives.

p = target law, q = draft law. Tokens are A = 0 and B = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from specsim.lossless.rejection import ONE, ZERO, Law, to_bfloat16
from specsim.lossless.worlds import (
    ConfidenceTable,
    LawTable,
    Request,
    World,
    everywhere,
    law,
    tails,
)

A, B = 0, 1


def _request(
    request_id: int,
    target: Law,
    draft: Law,
    confidence: Sequence[ConfidenceTable],
    *,
    order: int = 1,
    believed_draft: Law | None = None,
    believed_target: Law | None = None,
) -> Request:
    """Return a request whose p and q are the same everywhere."""
    gamma = len(confidence)
    return Request(
        request_id=request_id,
        target=everywhere(target, order=order),
        draft=tuple(everywhere(draft, order=order) for _ in range(gamma)),
        confidence=tuple(confidence),
        start=(0,) * order,
        believed_draft=(
            None
            if believed_draft is None
            else tuple(everywhere(believed_draft, order=order) for _ in range(gamma))
        ),
        believed_target=(
            None if believed_target is None else everywhere(believed_target, order=order)
        ),
    )


def _constant(value: str, vocabulary: int = 2, order: int = 1) -> ConfidenceTable:
    return dict.fromkeys(tails(vocabulary, order), Fraction(value))


def _after(if_a: str, if_b: str) -> ConfidenceTable:
    """Return a confidence that reads the token just before."""
    return {(A,): Fraction(if_a), (B,): Fraction(if_b)}


def _flat(tokens: int) -> tuple[Fraction, ...]:
    return (ZERO, *[ONE] * tokens)


SPS_APPENDIX_A = (Fraction(1), Fraction(1, 2), Fraction(9, 20))


def appendix_a() -> World:
    """Return the world of the paper's Appendix A.

    p = (7/10, 3/10), q = (1/2, 1/2), so c1 = 4/5; c2 = 9/10 after A and 0 after B; steps a second
    1, 1/2, 9/20. theta is 1, 9/10, and 567/500 after A or 81/100 after B: only A makes it worth
    looking behind the first shelf.
    """
    return World(
        name="appendix-a",
        requests=(
            _request(
                1, law("7/10", "3/10"), law("1/2", "1/2"), [_constant("4/5"), _after("9/10", "0")]
            ),
        ),
        gamma=2,
        order=1,
        verify_s_B=(ZERO, *[1 / sps for sps in SPS_APPENDIX_A]),
    )


def tie() -> World:
    """Return two requests that tie when x1 = A gives a confidence of exactly 1.

    Request 1 has survivals (4/5, 4/5 after A or 2/5 after B), request 2 always (4/5, 4/5). With one
    slot, an order that puts later positions first verifies request 1 exactly when x1 = A.
    """
    return World(
        name="tie",
        requests=(
            _request(
                1, law("7/10", "3/10"), law("1/2", "1/2"), [_constant("4/5"), _after("1", "1/2")]
            ),
            _request(2, law("7/10", "3/10"), law("1/2", "1/2"), [_constant("4/5"), _constant("1")]),
        ),
        gamma=2,
        order=1,
        verify_s_B=_flat(6),
    )


def deep() -> World:
    """Return gamma 4, where only the fourth draft makes more than one worth its time.

    Whether it does shows in c3, which names draft 2: for plans that look several drafts ahead.
    """
    confidence = [_constant("9/10"), _constant("9/10"), _after("1", "0"), _constant("1")]
    return World(
        name="deep",
        requests=(_request(1, law("7/10", "3/10"), law("1/2", "1/2"), confidence),),
        gamma=4,
        order=1,
        verify_s_B=(ZERO, ONE, ONE, Fraction(2), Fraction(3), Fraction(16, 5)),
    )


def cross() -> World:
    """Return two requests whose second confidences name their first drafts (A: 1, B: 0)."""
    rows = [
        _request(i, law("7/10", "3/10"), law("1/2", "1/2"), [_constant("4/5"), _after("1", "0")])
        for i in (1, 2)
    ]
    return World(name="cross", requests=tuple(rows), gamma=2, order=1, verify_s_B=_flat(6))


def post_token() -> World:
    """Return one request whose confidence is the draft's own probability of the sampled token."""
    draft = law("3/5", "2/5")
    return World(
        name="post-token",
        requests=(
            _request(1, law("1/2", "1/2"), draft, [{(t,): draft[t] for t in (A, B)}], order=0),
        ),
        gamma=1,
        order=0,
        verify_s_B=_flat(2),
        post_token=True,
    )


def tetris(*, num_requests: int = 2) -> World:
    """Return requests ranked by q of the sampled token; the rival's score is always 1/2."""
    draft, rival = law("9/10", "1/10"), law("1/2", "1/2")
    rows = [_request(1, law("7/10", "3/10"), draft, [{(t,): draft[t] for t in (A, B)}], order=0)]
    rows += [
        _request(1 + i, rival, rival, [{(t,): rival[t] for t in (A, B)}], order=0)
        for i in range(1, num_requests)
    ]
    return World(
        name="tetris",
        requests=tuple(rows),
        gamma=1,
        order=0,
        verify_s_B=_flat(2 * num_requests),
        post_token=True,
    )


def nested() -> World:
    """Return an Appendix A that goes on: every law and confidence depends on the last token.

    Three drafts a block, so a block has an unverified suffix for lagged schedulers to remember.
    """
    target: LawTable = {(A,): law("7/10", "3/10"), (B,): law("2/5", "3/5")}
    draft: LawTable = {(A,): law("1/2", "1/2"), (B,): law("4/5", "1/5")}
    confidence = (_after("4/5", "3/5"), _after("9/10", "0"), _after("1", "1/10"))
    seconds = ("1", "2", "20/9", "12/5")
    return World(
        name="nested",
        requests=(
            Request(
                request_id=1,
                target=target,
                draft=(draft, draft, draft),
                confidence=confidence,
                start=(A,),
            ),
        ),
        gamma=3,
        order=1,
        verify_s_B=(ZERO, *map(Fraction, seconds)),
    )


def plain(
    target: Law,
    draft: Law,
    *,
    name: str,
    gamma: int = 1,
    believed_draft: Law | None = None,
    believed_target: Law | None = None,
) -> World:
    """Return one request of constant laws for judging verification rules.

    Args:
        target: p.
        draft: q that drafts are drawn from.
        name: the world's name.
        gamma: drafts a block.
        believed_draft: q as the verifier computes it, if not `draft`.
        believed_target: p as the verifier computes it, if not `target`.
    """
    confidence = [_constant("1", len(target), 0)] * gamma
    return World(
        name=name,
        requests=(
            _request(
                1,
                target,
                draft,
                confidence,
                order=0,
                believed_draft=believed_draft,
                believed_target=believed_target,
            ),
        ),
        gamma=gamma,
        order=0,
        verify_s_B=_flat(1 + gamma),
    )


def block_world() -> World:
    """Return gamma 2 with laws that depend on the first draft, where block beats token."""
    target: LawTable = {(A,): law("1/3", "2/3"), (B,): law("2/3", "1/3")}
    draft: LawTable = {(A,): law("2/3", "1/3"), (B,): law("1/3", "2/3")}
    return World(
        name="block",
        requests=(
            Request(1, target, (draft, draft), (_constant("1"), _constant("1")), start=(A,)),
        ),
        gamma=2,
        order=1,
        verify_s_B=_flat(3),
    )


def block_residual_world() -> World:
    """Return three tokens and gamma 2, where the block rule's residual differs from the token's."""
    return plain(law("1/2", "1/4", "1/4"), law("1/5", "1/5", "3/5"), name="block-residual", gamma=2)


def float32_law(values: Sequence[float]) -> tuple[Fraction, ...]:
    """Return the exact rationals of float32 numbers (they need not sum to one)."""
    return tuple(Fraction(float(np.float32(value))) for value in values)


def normalised(masses: Sequence[Fraction]) -> Law:
    """Return masses divided by their sum, exactly."""
    total = sum(masses, ZERO)
    return tuple(mass / total for mass in masses)


BFLOAT16_DRAFT = (0.5019, 0.2511, 0.1256, 0.1214)
BFLOAT16_TARGET = ("1/2", "1/4", "3/20", "1/10")


def bfloat16() -> World:
    """Return drafts drawn from q rounded to bfloat16 and accepted with q in float32.

    Sampling normalises the rounded weights, as a categorical sampler does. The masses lie close to
    the middle between two bfloat16 numbers, so that this is near the worst that rounding can do.
    """
    exact = np.asarray(BFLOAT16_DRAFT, dtype=np.float32)
    rounded = [float(value) for value in to_bfloat16(exact)]
    return plain(
        law(*BFLOAT16_TARGET),
        normalised(float32_law(rounded)),
        name="bfloat16",
        believed_draft=normalised(float32_law([float(v) for v in exact])),
    )


def tempered(values: Law, power: int) -> Law:
    """Return the law with every mass raised to `power` (temperature 1/power), normalised."""
    return normalised([value**power for value in values])


def nucleus(values: Law, top_p: str) -> Law:
    """Return the law cut to the smallest set of likeliest tokens with mass at least `top_p`."""
    kept: set[int] = set()
    mass = ZERO
    for token in sorted(range(len(values)), key=lambda t: (-values[t], t)):
        if mass >= Fraction(top_p):
            break
        kept.add(token)
        mass += values[token]
    return normalised([value if t in kept else ZERO for t, value in enumerate(values)])


def dcut() -> World:
    """Return one request of gamma 3 with scores q(x[k]), where D-Cut's choice of budget leaks.

    s = (1, q(x1), q(x1) q(x2)) excludes each draft's own token, yet whether three drafts pay more
    than one depends on x2, and so then does the admission of x2.
    """
    draft = law("9/10", "1/10")
    score: ConfidenceTable = {(t,): draft[t] for t in (A, B)}
    return World(
        name="dcut",
        requests=(_request(1, law("7/10", "3/10"), draft, [score] * 3, order=0),),
        gamma=3,
        order=0,
        verify_s_B=(ZERO, ONE, ONE, Fraction(2), Fraction(13, 5)),
        post_token=True,
    )
