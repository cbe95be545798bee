"""What is odd about a step table: its knee and risers, and what an engine would stumble over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from specsim.cost.table import Curve, StepTable

Kind = Literal["flat", "non_monotone", "fall_inside_wave", "cliff", "sparse"]

FLAT_SHARE = 0.01
"""A curve that rises by less than this over its range is flat: every plan costs the same."""
CLIFF_RATIO = 2.0
"""One probe that costs this many times the probe before it, with less than twice the tokens."""
KNEE_RATIO = 1.25
"""A step that costs this many times the smallest one is past the knee."""
RISER_SHARE = 0.03
"""A rise between neighbouring probes that counts as a riser if it also beats the trend."""
FALL_SHARE = 0.02
"""A fall inside a wave that is worth a word; smaller ones are noise."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth knowing about a table.

    Attributes:
        kind: what kind.
        refuse: whether a table with it should not be used at all.
        message: where, how much, and what it does.
    """

    kind: Kind
    refuse: bool
    message: str


@dataclass(frozen=True, slots=True)
class Riser:
    """A step of the staircase.

    Attributes:
        before_tokens: last probe before it.
        after_tokens: first probe after it.
        rise_s: seconds between the two.
    """

    before_tokens: int
    after_tokens: int
    rise_s: float


def knee_tokens(verify: Curve) -> int:
    """Return the last probe before a step costs a quarter more than the first one.

    Up to there tokens are nearly free: the forward waits for its weights, not for its arithmetic.
    """
    dear_N = np.flatnonzero(verify.seconds_N > KNEE_RATIO * verify.seconds_N[0])
    return int(verify.probes_N[max(0, dear_N[0] - 1)]) if len(dear_N) else verify.last


def risers(verify: Curve) -> list[Riser]:
    """Return the risers: rises of 3% or more that are also three times the curve's mean slope."""
    x_N, y_N = verify.probes_N, verify.seconds_N
    if len(x_N) < 3:
        return []
    trend = max(0.0, float(y_N[-1] - y_N[0]) / float(x_N[-1] - x_N[0]))
    rise_N, width_N = np.diff(y_N), np.diff(x_N)
    steep_N = (rise_N > RISER_SHARE * y_N[:-1]) & (rise_N > 3 * trend * width_N)
    return [Riser(int(x_N[i]), int(x_N[i + 1]), float(rise_N[i])) for i in np.flatnonzero(steep_N)]


def findings(table: StepTable) -> list[Finding]:
    """Return everything odd about a table, refusals first."""
    found = [*_flat(table), *_cliff(table), *_falls(table), *_sparse(table)]
    return sorted(found, key=lambda finding: not finding.refuse)


def _flat(table: StepTable) -> list[Finding]:
    seconds_N = table.verify.seconds_N
    if len(seconds_N) > 1 and seconds_N.max() / seconds_N.min() - 1 >= FLAT_SHARE:
        return []
    message = (
        f"every probe from {table.verify.probes_N[0]} to {table.verify.last} tokens costs the same "
        f"within {FLAT_SHARE:.0%}: a planner that trusts it verifies everything; measure a wider "
        "range, and check that the profiled widths were not ignored"
    )
    return [Finding("flat", True, message)]


def _cliff(table: StepTable) -> list[Finding]:
    found = []
    x, y = table.verify.probes_N.tolist(), table.verify.seconds_N.tolist()
    if table.past_limit is not None and table.graph_limit_tokens is not None:
        ratio = float(table.past_limit.seconds_N[0]) / y[-1]
        if ratio > CLIFF_RATIO:
            message = (
                f"past the graph limit of {table.graph_limit_tokens} tokens a step costs "
                f"{ratio:.1f} times as much ({table.past_limit.seconds_N[0] * 1e3:.3g} ms after "
                f"{y[-1] * 1e3:.3g} ms): the eager cliff; keep R (1 + longest plan) below it"
            )
            found.append(Finding("cliff", False, message))
    for before, after, low, high in zip(x, x[1:], y, y[1:], strict=False):
        if high > CLIFF_RATIO * low and after < 2 * before:
            message = (
                f"from {before} to {after} tokens a step goes from {low * 1e3:.3g} to "
                f"{high * 1e3:.3g} ms: a cliff inside the curve; if graphs end there, say so with "
                "graph_limit_tokens, or readings blend the two sides"
            )
            found.append(Finding("cliff", False, message))
    return found


def _falls(table: StepTable) -> list[Finding]:
    x_N, y_N = table.verify.probes_N, table.verify.seconds_N
    fall_N = 1.0 - y_N[1:] / y_N[:-1]
    falling_N = np.flatnonzero(fall_N > 0)
    found = []
    if len(falling_N):
        worst = int(np.argmax(fall_N))
        message = (
            f"{len(falling_N)} of {len(fall_N)} neighbouring probes fall; the largest is "
            f"{fall_N[worst]:.1%}, from {x_N[worst]} to {x_N[worst + 1]} tokens "
            f"({y_N[worst] * 1e3:.4g} to {y_N[worst + 1] * 1e3:.4g} ms); read it with running_max, "
            "or measure again"
        )
        found.append(Finding("non_monotone", False, message))
    # Waves: the stretches between risers, where a step should cost about the same.
    edges = {riser.after_tokens for riser in risers(table.verify)}
    top, top_at = float(y_N[0]), int(x_N[0])
    for tokens, seconds in zip(x_N.tolist(), y_N.tolist(), strict=True):
        if tokens in edges or seconds > top:
            top, top_at = seconds, tokens
        elif seconds < (1 - FALL_SHARE) * top:
            message = (
                f"inside one wave the step falls from {top * 1e3:.4g} ms at {top_at} tokens to "
                f"{seconds * 1e3:.4g} ms at {tokens}: usually another kernel is chosen there, so "
                "more tokens really are cheaper; a noisy probe otherwise"
            )
            found.append(Finding("fall_inside_wave", False, message))
            top, top_at = seconds, tokens
    return found


def _sparse(table: StepTable) -> list[Finding]:
    x_N = table.verify.probes_N
    if len(x_N) >= 8 or table.last_tokens < 64:
        return []
    message = (
        f"{len(x_N)} probes over {x_N[0]}..{x_N[-1]} tokens: between them the reading decides the "
        "cost (see the three readings of `profile show`)"
    )
    return [Finding("sparse", False, message)]
