"""Throughput against interactivity: frontier lines, and what they say at an SLO.

Axes as in the DSpark paper's Figure 7: x is the speed of one user (`tok_s_user`), y the output
throughput of one GPU (`tok_s_gpu`). A line joins the non-dominated points of one policy and is
straight between them in these axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

X_METRIC = "tok_s_user"
Y_METRIC = "tok_s_gpu"

Row = Mapping[str, Any]
"""One point of one policy: metrics by name, None where one does not exist."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a line is at a given speed or throughput.

    Attributes:
        value: the other coordinate there; None if the line does not get there.
        reason: why not, in one sentence; empty otherwise.
        at_least: where the loads asked end before the cut, the value that is held for certain.
        low: the line's point before the cut.
        high: the line's point after it.
        weight: how far from `low` to `high`, 0 to 1.
    """

    value: float | None
    reason: str = ""
    at_least: float | None = None
    low: int = 0
    high: int = 0
    weight: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """The non-dominated points of one policy by increasing speed.

    Attributes:
        name: the policy.
        speed_P: tok/s/user, strictly increasing, `[P]`.
        throughput_P: tok/s/GPU, strictly decreasing, `[P]`.
        rows: the points themselves, P of them.
    """

    name: str
    speed_P: NDArray[np.float64]
    throughput_P: NDArray[np.float64]
    rows: tuple[Row, ...]

    def throughput_at(self, speed: float) -> Cut:
        """Cut the line at a user speed (tok/s/user) and read its throughput."""
        if len(self.rows) == 0:
            return Cut(None, f"{self.name} has no measured point")
        if speed > self.speed_P[-1]:
            return Cut(
                None,
                f"{self.name} never reaches {speed:g} tok/s/user; its fastest point has "
                f"{_short(self.speed_P[-1])}",
            )
        if speed < self.speed_P[0]:
            return Cut(
                None,
                f"{self.name} is faster than {speed:g} tok/s/user under every load asked; its "
                f"slowest point has {_short(self.speed_P[0])}: ask for more users",
                at_least=float(self.throughput_P[0]),
            )
        return _cut(self.speed_P, self.throughput_P, speed)

    def speed_at(self, throughput: float) -> Cut:
        """Cut the line at a throughput (tok/s/GPU) and read the user's speed."""
        if len(self.rows) == 0:
            return Cut(None, f"{self.name} has no measured point")
        if throughput > self.throughput_P[0]:
            return Cut(
                None,
                f"{self.name} never reaches {_short(throughput)} tok/s/GPU; its largest is "
                f"{_short(self.throughput_P[0])}",
            )
        if throughput < self.throughput_P[-1]:
            return Cut(
                None,
                f"{self.name} has more than {_short(throughput)} tok/s/GPU under every load asked; "
                f"its smallest is {_short(self.throughput_P[-1])}: ask for fewer users",
                at_least=float(self.speed_P[-1]),
            )
        found = _cut(self.throughput_P[::-1], self.speed_P[::-1], throughput)
        last = len(self.rows) - 1
        return Cut(found.value, low=last - found.low, high=last - found.high, weight=found.weight)

    def read(self, metric: str, cut: Cut) -> float | None:
        """Interpolate any metric of the points at a cut; None if a neighbour lacks it."""
        if cut.value is None:
            return None
        low, high = self.rows[cut.low].get(metric), self.rows[cut.high].get(metric)
        if low is None or high is None:
            return None
        return float(low) + cut.weight * (float(high) - float(low))


def frontier(name: str, rows: Sequence[Row]) -> Frontier:
    """Keep the points that no other point of the policy beats in both speed and throughput.

    Args:
        name: the policy.
        rows: its points in any order; those without a speed or a throughput are left out.
    """
    points = [
        row for row in rows if row.get(X_METRIC) is not None and row.get(Y_METRIC) is not None
    ]
    points.sort(key=lambda row: (-row[X_METRIC], -row[Y_METRIC]))
    kept: list[Row] = []
    for row in points:
        if not kept or row[Y_METRIC] > kept[-1][Y_METRIC]:
            kept.append(row)
    kept.reverse()
    return Frontier(
        name,
        np.array([row[X_METRIC] for row in kept], dtype=np.float64),
        np.array([row[Y_METRIC] for row in kept], dtype=np.float64),
        tuple(kept),
    )


def comparison(
    frontiers: Mapping[str, Frontier], *, baseline: str, slos: Sequence[float]
) -> list[dict[str, Any]]:
    """Compare every policy with the baseline at every SLO.

    Args:
        frontiers: lines by policy name, the baseline's among them.
        baseline: the policy to compare with.
        slos: user speeds, tok/s/user.

    Returns:
        One record a policy: `throughput_ratio_at_slo` is its throughput over the baseline's at
        that speed (a vertical cut), `speedup_at_equal_throughput` its speed over the SLO at the
        throughput that the baseline has at that SLO (a horizontal cut). Both are keyed by SLO;
        None where a line does not get there, with a sentence or two why in `reasons`.
    """
    base = frontiers[baseline]
    records = []
    for name, line in frontiers.items():
        if name == baseline:
            continue
        ratio: dict[str, float | None] = {}
        speedup: dict[str, float | None] = {}
        reasons: dict[str, list[str]] = {}
        for slo in slos:
            key = f"{slo:g}"
            held = base.throughput_at(slo)
            own = line.throughput_at(slo)
            if held.value is None:
                ratio[key] = speedup[key] = None
                reasons[key] = [held.reason]
                continue
            faster = line.speed_at(held.value)
            ratio[key] = None if own.value is None else own.value / held.value
            speedup[key] = None if faster.value is None else faster.value / slo
            said = [cut.reason for cut in (own, faster) if cut.reason]
            if said:
                reasons[key] = said
        records.append(
            {
                "candidate": name,
                "baseline": baseline,
                "throughput_ratio_at_slo": ratio,
                "speedup_at_equal_throughput": speedup,
                "reasons": reasons,
            }
        )
    return records


def _cut(along_P: NDArray[np.float64], across_P: NDArray[np.float64], at: float) -> Cut:
    """Interpolate `across_P` at `at`, which lies inside the increasing `along_P`."""
    high = int(np.searchsorted(along_P, at, side="left"))
    if along_P[high] == at:
        return Cut(float(across_P[high]), low=high, high=high)
    low = high - 1
    weight = float((at - along_P[low]) / (along_P[high] - along_P[low]))
    value = float(across_P[low] + weight * (across_P[high] - across_P[low]))
    return Cut(value, low=low, high=high, weight=weight)


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"
