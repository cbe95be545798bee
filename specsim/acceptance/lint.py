"""Find what is wrong with a trace or with logged rounds before anything is simulated from it.

Each check knows one mistake that engines and loggers make in the field.
Axes: N blocks, G positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance.trace import DenseTrace


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that looks wrong.

    Attributes:
        check: name of the check.
        error: True if the data are impossible, False if only suspicious.
        message: what was seen, and the likely cause.
    """

    check: str
    error: bool
    message: str


@dataclass(frozen=True, slots=True)
class Rounds:
    """Blocks as they were logged, not yet trusted.

    Attributes:
        confidence_NG: conditional confidences.
        num_accepted_N: accepted drafts, as logged.
        gamma: drafts a block, as the configuration says.
        survival_NG: cumulative survivals if they were logged too.
        committed_N: tokens committed, bonus included, if they were logged too.
    """

    confidence_NG: NDArray[np.floating]
    num_accepted_N: NDArray[np.integer]
    gamma: int
    survival_NG: NDArray[np.floating] | None = None
    committed_N: NDArray[np.integer] | None = None


def rounds_of_trace(trace: DenseTrace, *, gamma: int | None = None) -> Rounds:
    """The whole blocks of a trace; `gamma` is what its drafter was configured with, if known."""
    whole = trace.whole_block_N()
    stated = trace.metadata.get("gamma", trace.gamma) if gamma is None else gamma
    return Rounds(
        trace.confidence_NG[whole].astype(np.float64),
        trace.num_accepted_N[whole].astype(np.int64),
        int(stated),
    )


def conditional_acceptance(num_accepted_N: NDArray[np.integer], gamma: int) -> NDArray[np.float64]:
    """P(draft k accepted | the earlier ones were) for k = 1..gamma; NaN where none got there."""
    reached = np.array([(num_accepted_N >= k).sum() for k in range(gamma + 1)], dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return reached[1:] / reached[:-1]


def _shape(rounds: Rounds) -> str:
    found = rounds.confidence_NG.shape[1]
    if found == rounds.gamma:
        return ""
    return f"{found} confidences a block, but gamma is {rounds.gamma}: a wrong block size"


def _confidence_range(rounds: Rounds) -> str:
    bad = ~((rounds.confidence_NG > 0) & (rounds.confidence_NG < 1))
    if not bad.any():
        return ""
    row, k = (int(i) for i in np.argwhere(bad)[0])
    return (
        f"{int(bad.sum())} confidences are not inside (0, 1), the first is "
        f"{rounds.confidence_NG[row, k]} (block {row}, draft {k + 1}): raw logits, or a sigmoid "
        "that saturated"
    )


def _survival(rounds: Rounds) -> str:
    if rounds.survival_NG is None:
        return ""
    rising = np.diff(rounds.survival_NG, axis=1) > 1e-6
    if not rising.any():
        return ""
    row, k = (int(i) for i in np.argwhere(rising)[0])
    return (
        f"survival rises in {int(rising.any(axis=1).sum())} blocks, first in block {row} from "
        f"draft {k + 1} to {k + 2}: conditional confidences were logged as survivals"
    )


def _beyond(rounds: Rounds) -> str:
    over = rounds.num_accepted_N > rounds.gamma
    if not over.any():
        return ""
    most = int(rounds.num_accepted_N.max())
    return f"{int(over.sum())} blocks accept more than gamma = {rounds.gamma} drafts (up to {most})"


def _bonus_committed(rounds: Rounds) -> str:
    if rounds.committed_N is None:
        return ""
    extra = rounds.committed_N - rounds.num_accepted_N
    wrong = extra != 1
    if not wrong.any():
        return ""
    typical = int(np.median(extra))
    cause = {
        0: "the accepted count holds the bonus token already, or the bonus is missing",
        2: "the bonus token is counted twice",
    }.get(typical, "rounds were cut by a request's end and belong masked")
    return (
        f"committed is not accepted + 1 in {int(wrong.sum())} blocks (typically + {typical}): "
        f"{cause}"
    )


def _bonus_counted(rounds: Rounds) -> str:
    if len(rounds.num_accepted_N) < 100 or (rounds.num_accepted_N == 0).any():
        return ""
    low = int(rounds.num_accepted_N.min())
    said = float(np.mean(rounds.confidence_NG[:, 0]))
    if said > 0.97:
        return ""
    return (
        f"no block accepts fewer than {low} drafts though the head says {said:.2f} for the first: "
        "the bonus token is counted as an accepted draft"
    )


def _slot_shift(rounds: Rounds) -> str:
    gamma = min(rounds.gamma, rounds.confidence_NG.shape[1])
    if gamma < 2 or len(rounds.num_accepted_N) < 200:
        return ""
    rate = conditional_acceptance(rounds.num_accepted_N, gamma)
    said = _mean_said(rounds, gamma)
    second = rate[1]
    if np.isnan(second) or rate[0] < 0.2:
        return ""
    # A block that is read one slot late is right at its first draft and guesses at the second.
    if second < 0.45 * rate[0] and second < 0.6 * said[1]:
        return (
            f"draft 1 is accepted at {rate[0]:.2f} but draft 2 at {second:.2f}, and the head "
            f"expects {said[1]:.2f}: positions are shifted by one slot (the block starts at the "
            "wrong index)"
        )
    return ""


def _collapse(rounds: Rounds) -> str:
    gamma = min(rounds.gamma, rounds.confidence_NG.shape[1])
    reached = np.array([(rounds.num_accepted_N >= k).sum() for k in range(gamma)])
    rate = conditional_acceptance(rounds.num_accepted_N, gamma)
    trusted = np.flatnonzero(reached >= 200)
    if len(trusted) < 3:
        return ""
    last = int(trusted[-1])
    if rate[last] < 0.5 * rate[0] and np.all(np.diff(rate[trusted]) < 0.02):
        return (
            f"conditional acceptance falls from {rate[0]:.2f} at draft 1 to {rate[last]:.2f} at "
            f"draft {last + 1}: no sequential head is applied, or previous tokens are not fed back"
        )
    return ""


def _mean_said(rounds: Rounds, gamma: int) -> NDArray[np.float64]:
    out = np.full(gamma, np.nan)
    for k in range(gamma):
        reached = rounds.num_accepted_N >= k
        if reached.any():
            out[k] = rounds.confidence_NG[reached, k].mean()
    return out


_CHECKS: tuple[tuple[str, bool, Callable[[Rounds], str]], ...] = (
    ("wrong-gamma", True, _shape),
    ("confidence-range", True, _confidence_range),
    ("survival-rising", True, _survival),
    ("accepted-beyond-gamma", True, _beyond),
    ("bonus-committed", True, _bonus_committed),
    ("bonus-counted", True, _bonus_counted),
    ("slot-shift", True, _slot_shift),
    ("acceptance-collapse", False, _collapse),
)


def lint(rounds: Rounds) -> list[Finding]:
    """Run every check; an empty list means that none found anything."""
    found = []
    for name, error, check in _CHECKS:
        message = check(rounds)
        if message:
            found.append(Finding(name, error, message))
    return found
