"""`specsim validate vllm_b300`: the measured step tables against the measured throughput sweep.

Source of the sweep: the vLLM project's draft of its adaptive-verification blog (July 2026),
DeepSeek-V4-Flash-0731, TP4 on B300, SPEED-Bench qualitative prompts, T = 1; read off its figure.

Fitted on the no-speculation arm only (`scripts/fit_vllm_b300.py`, `profiles/fits/vllm_b300.json`):
host(R), and the spread of the output lengths (their mean is hardly visible there). From each fixed
arm's c = 1 comes its acceptance length, and nothing else. The other 26 points are predicted.

The adaptive arm's confidence law, frozen before it was scored: conditional acceptance a at the
first draft and r at every later one, a from the k = 1 arm and r by least squares from the fixed
arms' c = 1 acceptance lengths; logits normal with equal spread between requests and between
drafts, the spread set so that the area under the ROC curve over all reached drafts is 0.839, what
vLLM's authors report for this model's trained head (vllm-project/vllm pull request 52228); the
head calibrated. The planner is vLLM's own: budget one step old, split live, no host time in theta.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import rankdata

from specsim.acceptance.parametric import ParametricConfig
from specsim.acceptance.trace import DenseTrace
from specsim.cost.table import StepTable, load_table
from specsim.scenario.locate import shipped
from specsim.schedulers.base import Scheduler
from specsim.schedulers.static import FixedLength
from specsim.study.validation import Check, Validation
from specsim.study.vllm_b300 import (
    STEP_TOKENS,
    Lengths,
    Outcome,
    VllmPlanner,
    host_curve,
    simulate,
    step_s,
)

FIXED = (1, 3, 5, 7)
LOADS = (1, 16, 32, 64, 128, 256)
COLLAPSES = ((3, 256), (5, 256), (7, 128), (7, 256))
ADAPTIVE = "adaptive_k7"
AUC = 0.839


@dataclass(frozen=True, slots=True)
class Point:
    """One measured and simulated point.

    Attributes:
        arm: `no_spec`, `fixed_k1` .. `fixed_k7`, `adaptive_k7`.
        concurrency: c.
        measured_tok_s: published 1 / median TPOT.
        measured_aggregate: published output tokens/s.
        simulated: what the simulator says.
    """

    arm: str
    concurrency: int
    measured_tok_s: float
    measured_aggregate: float
    simulated: Outcome

    @property
    def error(self) -> float:
        """Relative error of one user's speed, with sign."""
        return self.simulated.user_tok_s / self.measured_tok_s - 1

    @property
    def aggregate_error(self) -> float:
        """Relative error of the aggregate throughput, with sign."""
        return self.simulated.aggregate_tok_s / self.measured_aggregate - 1

    @property
    def is_scored(self) -> bool:
        """Whether the point counts: not fitted, and not read for an acceptance length."""
        read = self.arm.startswith("fixed") and self.concurrency == 1
        return self.arm != "no_spec" and not read


def measured() -> dict[tuple[str, int], tuple[float, float]]:
    """Return (1 / median TPOT, aggregate tokens/s) by (arm, concurrency), as published."""
    name = "vllm_blogdraft_v4flash0731_tp4_b300_pareto.csv"
    with (shipped("profiles") / "published" / name).open(newline="", encoding="utf-8") as file:
        return {
            (row["arm"], int(row["concurrency"])): (
                float(row["per_user_tok_s_1_over_median_tpot"]),
                float(row["aggregate_tok_s"]),
            )
            for row in csv.DictReader(file)
        }


def b300_table() -> StepTable:
    """Return the measured step table."""
    return load_table(shipped("profiles") / "steps" / "vllm" / "v4_flash_tp4_b300.json")


def load_fit() -> tuple[Lengths, tuple[float, ...], dict[str, Any]]:
    """Return the lengths, the host seconds at `LOADS`, and the whole fit file."""
    path = shipped("profiles") / "fits" / "vllm_b300.json"
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    chosen = data["chosen"]
    lengths = Lengths(data["prompt_tokens"], chosen["output_mean"], chosen["output_cv"])
    return lengths, tuple(chosen["host_s"]), data


def acceptance_lengths(
    table: StepTable, published: Mapping[tuple[str, int], tuple[float, float]], host_s: float
) -> dict[int, float]:
    """Read each fixed arm's acceptance length off c = 1: speed times the time of a step."""
    return {k: published[f"fixed_k{k}", 1][0] * step_s(table, k, host_s) for k in FIXED}


def fixed_trace(first: float, length: float, k: int, *, seed: int = 0) -> DenseTrace:
    """Return independent blocks of k drafts with that first acceptance and acceptance length."""
    return _constant(first, _later(first, length, k), spread=0.0, gamma=k, seed=seed)


def _later(first: float, length: float, k: int) -> float:
    """Solve 1 + first (1 + r + .. + r^(k-1)) = length for r."""
    if k == 1:
        return first

    def gap(r: float) -> float:
        return 1.0 + first * float(sum(r**i for i in range(k))) - length

    return float(brentq(gap, 1e-6, 1 - 1e-6))


def adaptive_law(lengths_by_k: Mapping[int, float]) -> tuple[float, float]:
    """Return (a, r): acceptance of the first draft and of every later one."""
    first = lengths_by_k[1] - 1.0

    def misfit(r: float) -> float:
        return sum(
            (1.0 + first * sum(r**i for i in range(k)) - length) ** 2
            for k, length in lengths_by_k.items()
        )

    return first, float(minimize_scalar(misfit, bounds=(0.01, 0.99), method="bounded").x)


def adaptive_trace(first: float, later: float, *, auc: float = AUC, seed: int = 0) -> DenseTrace:
    """Return blocks of 7 drafts whose calibrated confidences reach that area under the curve."""

    def gap(spread: float) -> float:
        small = _constant(first, later, spread=spread, gamma=7, seed=seed, sequences=128)
        return area_under_curve(small) - auc

    spread = float(brentq(gap, 0.3, 2.5, xtol=1e-3))
    return _constant(first, later, spread=spread, gamma=7, seed=seed)


def area_under_curve(trace: DenseTrace) -> float:
    """Return how well confidences tell accepted from rejected drafts, over all that are reached."""
    position_G = np.arange(trace.gamma)
    accepted_N = trace.num_accepted_N.astype(np.int64)[:, None]
    reached_NG = position_G <= accepted_N
    rank = rankdata(trace.confidence_NG[reached_NG])
    good = (position_G < accepted_N)[reached_NG]
    ones = int(good.sum())
    return float((rank[good].sum() - ones * (ones + 1) / 2) / (ones * (len(good) - ones)))


def _constant(
    first: float, later: float, *, spread: float, gamma: int, seed: int, sequences: int = 512
) -> DenseTrace:
    config = ParametricConfig(
        kind="parametric",
        calibration="constant",
        conditional_acceptance=(first, later),
        difficulty_sd=spread,
        noise_sd=spread,
        sequences=sequences,
        anchors=512,
        label="fitted",
        source="c = 1 of the published fixed arms",
    )
    return config.build(seed=seed, gamma=gamma, locate=lambda group, name: Path(name))


def points(lengths: Lengths, host_at_loads: tuple[float, ...], *, seed: int = 0) -> list[Point]:
    """Simulate all 36 points."""
    table, published = b300_table(), measured()
    host_s_R = host_curve(LOADS, host_at_loads)
    tau = acceptance_lengths(table, published, host_at_loads[0])
    first, later = adaptive_law(tau)
    arms: list[tuple[str, int, DenseTrace]] = [("no_spec", 0, fixed_trace(0.5, 1.5, 1))]
    arms += [(f"fixed_k{k}", k, fixed_trace(tau[1] - 1, tau[k], k, seed=seed)) for k in FIXED]
    arms.append((ADAPTIVE, 7, adaptive_trace(first, later, seed=seed)))
    found = []
    for arm, gamma, trace in arms:
        for load in LOADS:

            def planner(arm: str = arm, gamma: int = gamma, load: int = load) -> Scheduler:
                if arm == ADAPTIVE:
                    return VllmPlanner(table, load * (1 + gamma) + STEP_TOKENS)
                return FixedLength(gamma)

            outcome = simulate(
                table,
                trace,
                gamma=gamma,
                scheduler=planner,
                concurrency=load,
                host_s_R=host_s_R,
                lengths=lengths,
                seed=seed,
            )
            found.append(Point(arm, load, *published[arm, load], outcome))
    return found


def best_arm_losses(found: list[Point]) -> dict[int, float]:
    """Measured throughput lost at each concurrency by trusting the simulator's best arm.

    0 where the arm that it calls best is the best measured one.
    """
    losses = {}
    for load in LOADS:
        here = [point for point in found if point.concurrency == load]
        chosen = max(here, key=lambda point: point.simulated.user_tok_s)
        best = max(point.measured_tok_s for point in here)
        losses[load] = 1 - chosen.measured_tok_s / best
    return losses


def validate() -> Validation:
    """Simulate the sweep and judge the 26 scored points."""
    lengths, host_at_loads, _ = load_fit()
    found = points(lengths, host_at_loads)
    scored = [point for point in found if point.is_scored]
    errors = np.abs([point.error for point in scored])
    checks = [
        Check("scored_points", float(len(scored)), low=26, high=26),
        Check("median_error", float(np.median(errors)), high=0.08),
        Check("p90_error", float(np.quantile(errors, 0.9))),
        Check("largest_error", float(errors.max())),
    ]
    at = {(point.arm, point.concurrency): point for point in found}
    for k, load in COLLAPSES:
        error = at[f"fixed_k{k}", load].error
        checks.append(Check(f"collapse_k{k}_c{load}_error", abs(error), high=0.30))
    losses = best_arm_losses(found)
    checks += [Check(f"best_arm_loss_c{load}", losses[load], high=0.03) for load in LOADS]
    checks += [Check(f"error_{point.arm}_c{point.concurrency}", point.error) for point in found]
    aggregate = np.abs([point.aggregate_error for point in scored])
    checks.append(Check("aggregate_median_error", float(np.median(aggregate))))
    return Validation(
        name="vllm_b300",
        checks=checks,
        fitted_on="no_spec arm: host time at its 6 loads, mean and spread of output lengths; c = 1 "
        "of each fixed arm: its acceptance length",
        predicted="one user's speed (1 / median TPOT) at the other 26 points: fixed k = 1, 3, 5, 7 "
        "at c = 16..256, adaptive at c = 1..256",
    )
