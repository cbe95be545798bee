"""Facts beside the laws: calibration reorders requests, and ranks that differ a little disagree."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from specsim.lossless.probe import frozen_array, survival
from specsim.schedulers.base import BatchView, Scheduler
from specsim.schedulers.topk import GlobalSearch


@dataclass(frozen=True, slots=True)
class Reordering:
    """Products of two requests' confidences before and after temperatures by position."""

    before: tuple[float, float]
    after: tuple[float, float]

    @property
    def preserved(self) -> bool:
        """Whether the order is the same."""
        return (self.before[0] < self.before[1]) == (self.after[0] < self.after[1])


def sts_reordering() -> Reordering:
    """Return the counter-example to "temperature scaling preserves order" across requests.

    c = (.9, .5) and (.5, .95), T = (1, 2): each position keeps its order, the products swap.
    """
    rows = ((0.9, 0.5), (0.5, 0.95))
    temperatures = (1.0, 2.0)

    def scaled(c: float, t: float) -> float:
        return 1 / (1 + math.exp(-math.log(c / (1 - c)) / t))

    return Reordering(
        before=(math.prod(rows[0]), math.prod(rows[1])),
        after=(
            math.prod(map(scaled, rows[0], temperatures)),
            math.prod(map(scaled, rows[1], temperatures)),
        ),
    )


def rank_disagreement(
    scheduler: Scheduler | None = None, *, shift: float = 1e-3
) -> tuple[list[int], list[int]]:
    """Return the lengths that two tensor-parallel ranks plan if one sees `shift` less confidence.

    Eight requests of gamma 4 with two nearly equal survivals at the edge of the budget: the ranks
    cut at other places, so one rank must decide for all (sglang issue 33614).
    """
    confidence_RG = np.full((8, 4), 0.6)
    confidence_RG[0] = 0.6005
    table_B = frozen_array([1.0] * 13 + [9.0] * 40, np.float64)

    def view(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> BatchView:
        frozen = frozen_array(values, np.float64)
        return BatchView(
            step=0,
            gamma=4,
            request_id_R=frozen_array(range(8), np.int64),
            base_tokens=8,
            verify_s_B=table_B,
            fixed_s=0.0,
            confidence_RG=frozen,
            survival_RG=survival(frozen),
        )

    judged = scheduler or GlobalSearch()
    shifted_RG = confidence_RG.copy()
    shifted_RG[0] -= shift
    return judged.plan(view(confidence_RG)).tolist(), judged.plan(view(shifted_RG)).tolist()
