"""The paper's Figures 7 and 8 as arrays, and how a simulated frontier is held against them.

Every line relates three numbers of one rank (one GPU): R requests in flight, tok/s/GPU, and
tok/s/user = tok/s/GPU / R. A straight segment in Figure 7's axes (tok/s/user, tok/s/GPU) has
1 / tok_s_user linear in R, so lines are interpolated that way: the figure's own straight lines.

Figure 8 plots throughput over R as well, and its fitted lines disagree with Figure 7's at equal R:
V4-Flash by at most 3 % in speed from R = 10 on (8 % below), V4-Pro's MTP-1 by 5 to 21 % up to
R = 100, its DSpark-5 by 7 % at R = 26 and up to 38 % below. Only Figure 7 is fitted; `figure8_gap`
reports the difference. Figure 8's verification budget has no counterpart in Figure 7 and is used
as it is.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specsim.cost.table import Provenance, StepTable, curve
from specsim.errors import InputError

FloatArray = NDArray[np.float64]
Engine = Literal["V4-Flash", "V4-Pro"]
Arm = Literal["MTP-1", "DSpark-5"]

FITTED_UP_TO = 100.0
"""Numbers were fitted at R up to this many requests a rank; beyond it everything is predicted."""
POINTS = 60
"""Points of the speed error, equally spaced in tok/s/user over the published line."""
SLO_TOK_S_USER: dict[str, tuple[float, float]] = {"V4-Flash": (80.0, 120.0), "V4-Pro": (35.0, 50.0)}


@dataclass(frozen=True, slots=True)
class Line:
    """One arm's frontier, in order of rising load.

    Attributes:
        num_requests_N: R, requests in flight on one rank, increasing; need not be whole.
        tok_s_user_N: tokens a second of one user, tok_s_gpu / R, decreasing.
    """

    num_requests_N: FloatArray
    tok_s_user_N: FloatArray

    @property
    def tok_s_gpu_N(self) -> FloatArray:
        """Tokens a second of the rank."""
        return self.num_requests_N * self.tok_s_user_N

    def user_speed_at(self, num_requests: FloatArray | float) -> FloatArray:
        """Return tok/s/user at loads R; NaN where the line does not reach."""
        wanted = np.asarray(num_requests, dtype=np.float64)
        per_token_s = np.interp(
            wanted, self.num_requests_N, 1 / self.tok_s_user_N, left=np.nan, right=np.nan
        )
        return np.asarray(1 / per_token_s)

    def throughput_at_speed(self, tok_s_user: float) -> float:
        """Return tok/s/GPU where one user gets `tok_s_user`; NaN if the line does not reach."""
        speed_N = self.tok_s_user_N[::-1]
        found = np.interp(tok_s_user, speed_N, self.tok_s_gpu_N[::-1], left=np.nan, right=np.nan)
        return float(found)

    def speed_at_throughput(self, tok_s_gpu: float) -> float:
        """Return tok/s/user where the rank gives `tok_s_gpu`; NaN if the line does not reach.

        If throughput falls again at the highest loads, the lightest such load counts.
        """
        total_N, speed_N = self.tok_s_gpu_N, self.tok_s_user_N
        above = np.flatnonzero(total_N >= tok_s_gpu)
        if len(above) == 0 or (above[0] == 0 and total_N[0] > tok_s_gpu):
            return float("nan")
        right = int(above[0])
        if right == 0:
            return float(speed_N[0])
        share = (tok_s_gpu - total_N[right - 1]) / (total_N[right] - total_N[right - 1])
        return float(speed_N[right - 1] + share * (speed_N[right] - speed_N[right - 1]))


@dataclass(frozen=True, slots=True)
class RangeError:
    """Errors against a published line, apart where numbers were fitted and where predicted.

    Attributes:
        fitted: at R <= FITTED_UP_TO.
        predicted: beyond.
        whole: over all points.
    """

    fitted: float
    predicted: float
    whole: float


def make_line(num_requests: FloatArray, tok_s_user: FloatArray) -> Line:
    """Put points of a frontier in order of rising load.

    Raises:
        InputError: fewer than two points, or one that is not above 0.
    """
    requests_N = np.asarray(num_requests, dtype=np.float64)
    speed_N = np.asarray(tok_s_user, dtype=np.float64)
    if len(requests_N) < 2 or not ((requests_N > 0) & (speed_N > 0)).all():
        raise InputError("a frontier needs two points or more, with R and tok/s/user above 0")
    order_N = np.argsort(requests_N, kind="stable")
    return Line(requests_N[order_N], speed_N[order_N])


def published_line(engine: Engine, arm: Arm, *, folder: Path) -> Line:
    """Return a fitted frontier of Figure 7.

    Args:
        engine: which model.
        arm: which drafter.
        folder: where the published numbers are, `profiles/published`.
    """
    rows = [
        (float(row["tok_s_user"]), float(row["tok_s_gpu"]))
        for row in _rows(folder / "paper_fig7_fitted_frontier.csv")
        if (row["engine"], row["arm"]) == (engine, arm)
    ]
    speed_N, total_N = np.array(rows).T
    return make_line(total_N / speed_N, speed_N)


def figure8_line(engine: Engine, arm: Arm, *, folder: Path) -> Line:
    """Return the throughput line of Figure 8; the point at R = 0 is left out."""
    rows = [
        (float(row["concurrent_requests"]), float(row["tok_s_gpu"]))
        for row in _rows(folder / "paper_fig8_throughput_vs_concurrency_fit.csv")
        if (row["engine"], row["arm"]) == (engine, arm) and float(row["concurrent_requests"]) > 0
    ]
    requests_N, total_N = np.array(rows).T
    return make_line(requests_N, total_N / requests_N)


def published_budget(engine: Engine, *, folder: Path) -> tuple[FloatArray, FloatArray]:
    """Return R and verified tokens a request (anchor included) of Figure 8's DSpark-5 line."""
    rows = [
        (float(row["concurrent_requests"]), float(row["avg_verify_tokens_per_request_incl_anchor"]))
        for row in _rows(folder / "paper_fig8_verification_budget_fit.csv")
        if row["engine"] == engine
    ]
    requests_N, budget_N = np.array(rows).T
    return requests_N, budget_N


def figure8_gap(engine: Engine, arm: Arm, *, folder: Path) -> tuple[float, float]:
    """Return the least and largest of Figure 8's speed over Figure 7's, minus 1, at equal R."""
    seven = published_line(engine, arm, folder=folder)
    eight = figure8_line(engine, arm, folder=folder)
    gap_N = eight.tok_s_user_N / seven.user_speed_at(eight.num_requests_N) - 1
    gap_N = gap_N[np.isfinite(gap_N)]
    return float(gap_N.min()), float(gap_N.max())


def speed_points(published: Line) -> tuple[FloatArray, FloatArray]:
    """Return R and tok/s/user at POINTS points equally spaced in tok/s/user, load rising."""
    slow, fast = float(published.tok_s_user_N[-1]), float(published.tok_s_user_N[0])
    speed_N = np.linspace(fast, slow, POINTS)
    total_N = np.array([published.throughput_at_speed(float(speed)) for speed in speed_N])
    return total_N / speed_N, speed_N


def speed_error(simulated: Line, published: Line) -> RangeError:
    """Return the rms of log tok/s/user at equal R over the published line's `speed_points`.

    NaN if the simulated loads do not cover the published ones.
    """
    requests_N, speed_N = speed_points(published)
    error_N = np.log(simulated.user_speed_at(requests_N) / speed_N)
    fitted_N = requests_N <= FITTED_UP_TO
    return RangeError(_rms(error_N[fitted_N]), _rms(error_N[~fitted_N]), _rms(error_N))


def budget_error(
    num_requests: FloatArray, budget: FloatArray, published: tuple[FloatArray, FloatArray]
) -> RangeError:
    """Return the largest distance between simulated and published budget, tokens a request.

    Args:
        num_requests: simulated R, increasing, `[N]`.
        budget: verified tokens a request there, anchor included, `[N]`.
        published: R and budget of the published line; points outside the simulated R give NaN.
    """
    requests_P, budget_P = published
    error_P = np.abs(
        np.interp(requests_P, num_requests, budget, left=np.nan, right=np.nan) - budget_P
    )
    fitted_P = requests_P <= FITTED_UP_TO
    return RangeError(
        float(error_P[fitted_P].max()), float(error_P[~fitted_P].max()), float(error_P.max())
    )


def throughput_ratio(candidate: Line, baseline: Line, tok_s_user: float) -> float:
    """Return candidate over baseline tok/s/GPU where each gives a user `tok_s_user`."""
    return candidate.throughput_at_speed(tok_s_user) / baseline.throughput_at_speed(tok_s_user)


def equal_throughput_speedup(candidate: Line, baseline: Line, tok_s_user: float) -> float:
    """Return the candidate's speed over `tok_s_user` at the throughput the baseline has there."""
    total = baseline.throughput_at_speed(tok_s_user)
    return candidate.speed_at_throughput(total) / tok_s_user


def mtp_step_s(published: Line, p1: float, batch_tokens: FloatArray) -> FloatArray:
    """Return MTP-1's step time at B tokens: (1 + p1) / tok_s_user at R = B / 2.

    Linear between the line's points (which is the figure's own straight line) and outside them by
    the first and last segments.

    Args:
        published: Figure 7's MTP-1 line.
        p1: how often MTP-1's one draft is accepted.
        batch_tokens: B, anchors and drafts.
    """
    requests_N, per_token_N = published.num_requests_N, 1 / published.tok_s_user_N
    wanted = np.asarray(batch_tokens, dtype=np.float64) / 2
    per_token = np.interp(wanted, requests_N, per_token_N)
    for end, inner in ((0, 1), (-1, -2)):
        slope = (per_token_N[end] - per_token_N[inner]) / (requests_N[end] - requests_N[inner])
        outside = wanted < requests_N[0] if end == 0 else wanted > requests_N[-1]
        beyond = per_token_N[end] + slope * (wanted - requests_N[end])
        per_token = np.where(outside, beyond, per_token)
    return np.asarray((1 + p1) * per_token)


def mtp_step_table(engine: Engine, p1: float, *, folder: Path, day: date) -> StepTable:
    """Return the step table that Figure 7's MTP-1 line implies; draft, attention, host inside.

    Args:
        engine: which model.
        p1: fitted acceptance of MTP-1's draft.
        folder: where the published numbers are.
        day: day of the derivation.
    """
    published = published_line(engine, "MTP-1", folder=folder)
    last = int(2 * published.num_requests_N[-1])
    knots = np.rint(2 * published.num_requests_N).astype(np.int64)
    probes_N = np.unique(
        np.concatenate(
            [np.arange(1, 33), np.arange(32, 257, 8), np.arange(256, last, 32), knots, [last]]
        )
    )
    probes_N = probes_N[probes_N <= last]
    first = float(2 * published.num_requests_N[0])
    return StepTable(
        name=f"{engine.lower().replace('-', '_')}/fig7_mtp1",
        provenance=Provenance(
            status="fitted",
            source="DSpark paper, arXiv 2607.05147, Figure 7, MTP-1 line: step time at B = 2R is "
            f"(1 + p1) / tok_s_user, R = tok_s_gpu / tok_s_user, with p1 = {p1:.4f} fitted "
            "(scripts/fit_fig7.py)",
            date=day.isoformat(),
            licence="facts read off a published figure",
            left_out=[
                f"B below {first:.1f}: the line says nothing there, its first segment goes on",
                f"B above {last}: the line ends there",
                "what attention saves when the same B holds fewer requests than MTP-1's B / 2",
            ],
            notes="Only the scale 1 + p1 is fitted. One rank is one GPU. Straight segments of the "
            "figure are linear in B, so read it linearly; the points between the figure's own are "
            "on those segments. Draft is MTP-1's; a policy with another drafter adds the "
            "difference.",
        ),
        verify=curve(probes_N, mtp_step_s(published, p1, probes_N.astype(np.float64))),
        includes=frozenset({"draft", "attention", "host"}),
    )


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise InputError(f"{path}: the published numbers are missing; the repository ships them")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _rms(error_N: FloatArray) -> float:
    return float(np.sqrt(np.mean(error_N**2)))
