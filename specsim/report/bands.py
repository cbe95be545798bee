"""What several seeds say about a frontier line, and how much of the plane it commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specsim.report.pareto import Frontier
from specsim.stats.intervals import mean_interval

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """A line's mean and 95 % t interval over seeds, at speeds that every seed's line reaches.

    Attributes:
        name: the policy.
        speed_P: tok/s/user, `[P]`.
        mean_P, low_P, high_P: tok/s/GPU there, `[P]`.
    """

    name: str
    speed_P: FloatArray
    mean_P: FloatArray
    low_P: FloatArray
    high_P: FloatArray


def band(lines: Sequence[Frontier], *, points: int = 80) -> Band | None:
    """Return the band of one policy's lines under several seeds; None if they share no speed.

    Args:
        lines: one a seed, at least two.
        points: speeds to take.
    """
    if len(lines) < 2 or any(len(line.rows) == 0 for line in lines):
        return None
    low = max(float(line.speed_P[0]) for line in lines)
    high = min(float(line.speed_P[-1]) for line in lines)
    if low >= high:
        return None
    speed_P = np.linspace(low, high, points)
    at_SP = np.array([np.interp(speed_P, line.speed_P, line.throughput_P) for line in lines])
    half_P = np.array([mean_interval(at_S).half_width for at_S in at_SP.T])
    mean_P = at_SP.mean(axis=0)
    return Band(lines[0].name, speed_P, mean_P, mean_P - half_P, mean_P + half_P)


def hypervolume(line: Frontier, *, speed: float = 0.0, throughput: float = 0.0) -> float:
    """Return the area that a line's points dominate, over a reference point.

    The staircase of the points counts, not the straight line between them: between two loads
    nothing was simulated.

    Args:
        line: non-dominated points.
        speed, throughput: the reference point, tok/s/user and tok/s/GPU.
    """
    area, before = 0.0, speed
    for x, y in zip(line.speed_P, line.throughput_P, strict=True):
        if x > before and y > throughput:
            area += float(x - before) * float(y - throughput)
            before = float(x)
    return area
