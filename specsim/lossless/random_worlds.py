"""Random worlds: anything goes, and worlds in which a peek pays.

p = target law, q = draft law. The grids are small on purpose: ties, confidences of exactly 0 and 1,
equal laws, and step tables with shelves must be common.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from specsim.lossless.rejection import ONE, ZERO, Law
from specsim.lossless.worlds import ConfidenceTable, Request, World, tails

Choose = Callable[[int], int]
"""Returns an integer in 0..n-1: a random generator, or a property test's draw."""

_CONFIDENCES = tuple(
    Fraction(x) for x in ("0", "1/4", "2/5", "1/2", "3/5", "3/4", "4/5", "9/10", "1")
)
_TELLING = tuple(Fraction(x) for x in ("0", "1/10", "9/10", "1"))


def _random_law(choose: Choose, vocabulary: int, *, least: int = 0) -> Law:
    weights = [least + choose(5) for _ in range(vocabulary)]
    if not any(weights):
        weights[choose(vocabulary)] = 1
    return tuple(Fraction(weight, sum(weights)) for weight in weights)


def _random_seconds(choose: Choose, tokens: int, anchors: int) -> tuple[Fraction, ...]:
    """Return a flat, linear, jagged, cliff-edged, humped or free-form step table."""
    shape = choose(8)
    if shape == 0:
        return (ZERO, *[ONE] * tokens)
    if shape == 1:
        bias = choose(6)
        return (ZERO, *[Fraction(bias + b, 4) for b in range(1, tokens + 1)])
    if shape == 2:
        width, riser = 1 + choose(3), 1 + choose(4)
        return (ZERO, *[Fraction(2 + riser * (b // width), 2) for b in range(1, tokens + 1)])
    if shape == 3:
        edge = 1 + choose(tokens)
        return (ZERO, *[Fraction(1 if b <= edge else 3) for b in range(1, tokens + 1)])
    if shape >= 5:
        return _humped_seconds(choose, tokens, anchors)
    seconds = [Fraction(1 + choose(4))]
    for _ in range(tokens - 1):
        # Mostly rising; a falling entry makes a shelf behind a hump, as Appendix A has.
        seconds.append(max(seconds[-1] + Fraction(choose(5) - 1, 4), Fraction(1, 4)))
    return (ZERO, *seconds)


def _humped_seconds(choose: Choose, tokens: int, anchors: int) -> tuple[Fraction, ...]:
    """Return a hump just past the anchors, then a cheap shelf.

    Worth climbing only if what lies behind is sure, so that a plan is tempted to look (Appendix A).
    """
    hump, slope = Fraction(15 + choose(10), 10), Fraction(choose(3), 8)
    return (
        ZERO,
        *[ONE if b <= anchors else hump + slope * (b - anchors - 1) for b in range(1, tokens + 1)],
    )


def random_world(
    choose: Choose,
    *,
    num_requests: int | None = None,
    gamma: int | None = None,
    post_token: bool = False,
    max_outcomes: int = 256,
) -> World:
    """Return a random world, its size cut until a step has at most `max_outcomes` draft outcomes.

    Args:
        choose: source of randomness, `n -> 0..n-1`.
        num_requests: R in 1..3; drawn if None.
        gamma: 1..3; drawn if None.
        post_token: whether confidences read x[k].
        max_outcomes: limit on V ** (gamma R).
    """
    requests = num_requests or 1 + choose(3)
    drawn_gamma = gamma or 1 + choose(3)
    vocabulary = 2 + (choose(4) == 0)
    while vocabulary ** (drawn_gamma * requests) > max_outcomes:
        if vocabulary > 2:
            vocabulary -= 1
        elif drawn_gamma > 1 and gamma is None:
            drawn_gamma -= 1
        elif requests > 1 and num_requests is None:
            requests -= 1
        else:
            break
    order = choose(3) if drawn_gamma > 2 else choose(2)
    order = max(order, min(drawn_gamma - 1, 1))
    # Confidences are the true acceptance rates, arbitrary, or telling (they give the token before
    # away): none of that may matter.
    calibrated, telling = choose(4) == 0, choose(2) == 0
    rows = []
    for row in range(requests):
        all_tails = tails(vocabulary, order)
        target = {tail: _random_law(choose, vocabulary) for tail in all_tails}
        draft = tuple(
            {tail: _random_law(choose, vocabulary) for tail in all_tails}
            for _ in range(drawn_gamma)
        )
        confidence: list[ConfidenceTable] = []
        for k in range(drawn_gamma):
            if post_token:
                keys = tails(vocabulary, order + 1)
                confidence.append({key: draft[k][key[:order]][key[order]] for key in keys})
            elif calibrated:
                confidence.append(
                    {t: sum(map(min, target[t], draft[k][t]), ZERO) for t in all_tails}
                )
            else:
                grid = _TELLING if telling and k else _CONFIDENCES
                confidence.append({t: grid[choose(len(grid))] for t in all_tails})
        rows.append(
            Request(
                request_id=10 + row,
                target=target,
                draft=draft,
                confidence=tuple(confidence),
                start=tuple(choose(vocabulary) for _ in range(order)),
                joins_at=choose(4) // 3 if row else 0,
                leaves_after=(None, None, 1, 2)[choose(4)] if requests > 1 else None,
            )
        )
    return World(
        name="random",
        requests=tuple(rows),
        gamma=drawn_gamma,
        order=order,
        verify_s_B=_random_seconds(choose, requests * (1 + drawn_gamma), requests),
        fixed_s=Fraction(choose(3), 2),
        post_token=post_token,
    )


def tempting_world(
    choose: Choose, *, num_requests: int | None = None, post_token: bool = False
) -> World:
    """Return a small world in which looking at a token before admitting it pays.

    Two tokens, full supports, first confidences that often tie, later ones that give the token
    before away, and a humped or flat step table.
    """
    requests = num_requests or 1 + choose(2)
    gamma = 2 + (requests == 1 and choose(2))
    first = (Fraction(4, 5), Fraction(9, 10))
    rows = []
    for row in range(requests):
        target = {tail: _random_law(choose, 2, least=1) for tail in tails(2, 1)}
        draft = {tail: _random_law(choose, 2, least=1) for tail in tails(2, 1)}
        confidence: list[ConfidenceTable] = []
        for k in range(gamma):
            if post_token:
                confidence.append({key: draft[key[:1]][key[1]] for key in tails(2, 2)})
                continue
            grid = _TELLING if k else first
            confidence.append({tail: grid[choose(len(grid))] for tail in tails(2, 1)})
        rows.append(
            Request(
                request_id=10 + row,
                target=target,
                draft=(draft,) * gamma,
                confidence=tuple(confidence),
                start=(choose(2),),
            )
        )
    tokens = requests * (1 + gamma)
    humped = choose(4) > 0
    seconds = _humped_seconds(choose, tokens, requests) if humped else (ZERO, *[ONE] * tokens)
    return World(
        name="tempting",
        requests=tuple(rows),
        gamma=gamma,
        order=1,
        verify_s_B=seconds,
        post_token=post_token,
    )


def chooser(rng: np.random.Generator) -> Choose:
    """Return a `Choose` that draws from a numpy generator."""
    return lambda n: int(rng.integers(n))
