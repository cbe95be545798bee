"""Where a simulation's start-up ends: MSER-5 (White, Cobb and Spratt 2000)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BATCH = 5


def mser5(series_T: NDArray[np.float64]) -> int:
    """Return how many leading observations of `series_T` to cut.

    Means of five observations are taken; the cut minimises the squared standard error of the mean
    of what is left, and is at most half of the series (a later minimum says that the run is too
    short, and the half is what is cut).

    Args:
        series_T: equally spaced observations, such as throughput by time bin, `[T]`.
    """
    count = len(series_T) // _BATCH
    if count < 4:
        return 0
    means_N = series_T[: count * _BATCH].reshape(count, _BATCH).mean(axis=1)
    # Sums over means_N[d:] for every cut d, from the right.
    left_N = np.arange(count, 0, -1, dtype=np.float64)
    sums_N = np.cumsum(means_N[::-1])[::-1]
    squares_N = np.cumsum(means_N[::-1] ** 2)[::-1]
    spread_N = np.maximum(squares_N - sums_N**2 / left_N, 0.0)
    error_N = spread_N / left_N**2
    return int(np.argmin(error_N[: count // 2 + 1])) * _BATCH
