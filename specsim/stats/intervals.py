"""Confidence intervals from one run: batch means of a ratio."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with a two-sided confidence interval.

    Attributes:
        mean: the point estimate.
        half_width: half the interval's width; NaN where there are too few batches.
        level: coverage, such as 0.95.
    """

    mean: float
    half_width: float
    level: float

    def covers(self, value: float) -> bool:
        """Say whether `value` lies inside."""
        return abs(value - self.mean) <= self.half_width


def mean_interval(sample_N: NDArray[np.float64], *, level: float = 0.95) -> Interval:
    """Return the t interval for the mean of independent observations `[N]`."""
    count = len(sample_N)
    mean = float(np.mean(sample_N)) if count else float("nan")
    if count < 2:
        return Interval(mean, float("nan"), level)
    error = float(np.std(sample_N, ddof=1)) / np.sqrt(count)
    return Interval(mean, _student(count - 1, level) * error, level)


def ratio_interval(
    numerator_T: NDArray[np.float64],
    denominator_T: NDArray[np.float64],
    *,
    batches: int = 20,
    level: float = 0.95,
) -> Interval:
    """Return sum(numerator) / sum(denominator) with a batch-means interval.

    The observations are cut into `batches` runs of equal length; the error of the ratio comes from
    the batch sums by linearisation, so that autocorrelation within a batch does no harm.

    Args:
        numerator_T: such as tokens by time bin, `[T]`.
        denominator_T: such as seconds by time bin, `[T]`.
        batches: number of batches, at least 2.
        level: coverage.
    """
    total = float(denominator_T.sum())
    ratio = float(numerator_T.sum()) / total if total else float("nan")
    size = len(numerator_T) // batches
    if size == 0 or not total:
        return Interval(ratio, float("nan"), level)
    used = size * batches
    top_N = numerator_T[:used].reshape(batches, size).sum(axis=1)
    bottom_N = denominator_T[:used].reshape(batches, size).sum(axis=1)
    residual_N = top_N - ratio * bottom_N
    error = float(np.std(residual_N, ddof=1)) / np.sqrt(batches) / float(bottom_N.mean())
    return Interval(ratio, _student(batches - 1, level) * error, level)


def _student(df: int, level: float) -> float:
    """Return how many standard errors a two-sided interval of that level is wide."""
    from scipy.special import stdtrit  # slow to import, and a run starts without it

    return float(stdtrit(df, (1 + level) / 2))
