"""`specsim validate inferencemax --points FILE.csv`: step costs carried to other lengths.

Of each deployment, one (prompt, output) length is fitted and the others are predicted, at every
concurrency, through what is known about a step:

    TPOT(c) = bias + w weights(c) + d (tokens(c) + KV(c, context)) + e prefill(c)

Weights, token flops, KV reads and the prefill work that shares the steps (c isl / osl prompt tokens
a step, nothing where prefill has its own workers) are the roofline's seconds. At one length the
last terms all grow with c alike, so four coefficients cannot be told apart there: they are fitted
in relative least squares with a pull towards the shares of the data-sheet limits that kernels
usually reach (60% for bandwidth, 50% for prefill flops, 2 ms of bias), which were set before any
prediction was looked at. What the fitted length still misses at each concurrency is carried over
as a factor. The baseline carries the measured TPOT itself.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from specsim.cost.roofline import GPUS, Roofline
from specsim.cost.shape import SHAPES
from specsim.errors import InputError
from specsim.interop.silicon import ServedPoint, load_points
from specsim.study.validation import Check, Validation

FloatArray = NDArray[np.float64]

_SHAPE_OF = {
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-v3",
    "moonshotai/Kimi-K2.5": "kimi-k2",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
}
_GPU_OF = {
    "a100_sxm": "a100",
    "h100_sxm": "h100",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "gb200": "b200",
    "b300_sxm": "b300",
    "gb300": "b300",
}
_WEIGHT_BYTES = {"fp8": 1.0, "fp4": 0.5, "int4": 0.5, "": 2.0}

# bias in ms, then multiples of the roofline's seconds: weights, tokens and KV, prefill.
_PRIOR = np.array([2.0, 1 / 0.6, 1 / 0.6, 1 / 0.5])
_PRIOR_WIDTH = np.array([2.0, 0.5, 0.5, 0.5])
_PULL = 0.1
_BOUNDS = (np.array([0.0, 0.8, 0.8, 0.8]), np.array([20.0, 6.0, 6.0, 6.0]))


@dataclass(frozen=True, slots=True)
class Prediction:
    """One served point of a length that was not fitted.

    Attributes:
        point: the measurement.
        fitted_on: (prompt, output) length of the fit.
        predicted_s: TPOT predicted.
        baseline_s: TPOT measured at the fitted length and the same concurrency (interpolated where
            that concurrency was not measured there).
    """

    point: ServedPoint
    fitted_on: tuple[int, int]
    predicted_s: float
    baseline_s: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return abs(self.predicted_s / self.point.tpot_s - 1)

    @property
    def baseline_error(self) -> float:
        """Relative error of the baseline."""
        return abs(self.baseline_s / self.point.tpot_s - 1)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A deployment that could not be judged.

    Attributes:
        group: what names the deployment.
        points: its points in the file.
        reason: why it was left out.
    """

    group: tuple[str, ...]
    points: int
    reason: str


def terms(point: ServedPoint, concurrency: float | None = None) -> FloatArray:
    """Roofline terms of one decode step: 1 ms, weights, tokens + KV, prefill; seconds, `[4]`.

    Args:
        point: a deployment and its lengths.
        concurrency: requests in flight over the deployment; the point's own if None.
    """
    shape, gpu = SHAPES[_SHAPE_OF[point.model]], GPUS[_GPU_OF[point.system]]
    weight_bytes = _WEIGHT_BYTES[point.precision]
    roofline = Roofline(shape, gpu, point.num_gpus, weight_bytes)
    requests = (concurrency or point.concurrency) / point.decode_workers
    # Attention under data parallelism is replicated: each rank reads the projections again.
    copies = (point.attention_dp - 1) * shape.layers * shape.attention_weights()
    weights_s = roofline.weights_s(requests) + (
        copies * weight_bytes / (gpu.bytes_per_s * point.num_gpus)
    )
    # KV of one rank is split over its GPUs by KV heads; a latent cache cannot be split.
    ranks_gpus = max(1, point.num_gpus // point.attention_dp)
    split = 1 if shape.latent_kv else min(ranks_gpus, shape.kv_heads)
    kv_tokens = requests / point.attention_dp * (point.isl_tokens + point.osl_tokens / 2)
    kv_s = kv_tokens * shape.kv_per_token() * 2 / (gpu.bytes_per_s * split)
    prompt = 0.0 if point.disaggregated else requests * point.isl_tokens / point.osl_tokens
    return np.array([1e-3, weights_s, roofline.flops_s(requests) + kv_s, roofline.flops_s(prompt)])


def predict_group(
    points: Sequence[ServedPoint],
) -> tuple[list[Prediction], str]:
    """Fit one length of a deployment and predict the others.

    Returns:
        The predictions, and why there are none if there are none.
    """
    by_length: dict[tuple[int, int], dict[float, list[ServedPoint]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for point in points:
        by_length[point.isl_tokens, point.osl_tokens][point.concurrency].append(point)
    if len(by_length) < 2:
        return [], "one length only"
    # Most concurrencies first; of equals the shortest prompt, then the shortest output.
    fitted_on = min(by_length, key=lambda length: (-len(by_length[length]), length))
    fit = by_length[fitted_on]
    if len(fit) < 2:
        return [], "no length with two concurrencies"
    concurrency_F = np.array(sorted(fit))
    tpot_F = np.array(
        [statistics.median(p.tpot_s for p in fit[value]) for value in concurrency_F.tolist()]
    )
    terms_F4 = np.stack([terms(fit[value][0]) for value in concurrency_F.tolist()])
    coefficient_4 = _fit(terms_F4, tpot_F)
    factor_F = tpot_F / (terms_F4 @ coefficient_4)
    found = []
    for point in points:
        if (point.isl_tokens, point.osl_tokens) == fitted_on:
            continue
        place = np.log(point.concurrency)
        factor = np.exp(np.interp(place, np.log(concurrency_F), np.log(factor_F)))
        found.append(
            Prediction(
                point,
                fitted_on,
                float(terms(point) @ coefficient_4 * factor),
                float(np.interp(point.concurrency, concurrency_F, tpot_F)),
            )
        )
    return found, ""


def _fit(terms_F4: FloatArray, tpot_F: FloatArray) -> FloatArray:
    """Coefficients by relative least squares within bounds, pulled towards the prior."""
    rows = np.vstack([terms_F4 / tpot_F[:, None], _PULL * np.diag(1 / _PRIOR_WIDTH)])
    aims = np.concatenate([np.ones(len(tpot_F)), _PULL * _PRIOR / _PRIOR_WIDTH])
    return np.asarray(lsq_linear(rows, aims, bounds=_BOUNDS).x, dtype=np.float64)


def predict(points: Iterable[ServedPoint]) -> tuple[list[Prediction], list[Skipped]]:
    """Predict every deployment that has a length to fit and another to judge."""
    groups: dict[tuple[str, ...], list[ServedPoint]] = defaultdict(list)
    for point in points:
        groups[point.group].append(point)
    predictions: list[Prediction] = []
    skipped: list[Skipped] = []
    for group, members in groups.items():
        first = members[0]
        if first.model not in _SHAPE_OF:
            skipped.append(Skipped(group, len(members), f"no dimensions of {first.model} known"))
            continue
        if first.system not in _GPU_OF or first.precision not in _WEIGHT_BYTES:
            reason = f"system {first.system} or precision {first.precision} is not known"
            skipped.append(Skipped(group, len(members), reason))
            continue
        found, reason = predict_group(members)
        predictions += found
        if reason:
            skipped.append(Skipped(group, len(members), reason))
    return predictions, skipped


def errors_of(predictions: Sequence[Prediction]) -> dict[str, float]:
    """Median and 90th percentile of the relative errors, and of the baseline's."""
    ours = np.array([found.error for found in predictions])
    base = np.array([found.baseline_error for found in predictions])
    return {
        "points": float(len(predictions)),
        "median_error": float(np.median(ours)),
        "p90_error": float(np.quantile(ours, 0.9)),
        "baseline_median_error": float(np.median(base)),
        "baseline_p90_error": float(np.quantile(base, 0.9)),
    }


def by_deployment(predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Errors of each deployment, for the report."""
    groups: dict[tuple[str, ...], list[Prediction]] = defaultdict(list)
    for found in predictions:
        groups[found.point.group].append(found)
    return [
        {
            "group": " ".join(part for part in group if part),
            "fitted_on": "{}x{}".format(*members[0].fitted_on),
            **errors_of(members),
        }
        for group, members in sorted(groups.items())
    ]


def validate(points: Path | None = None) -> Validation:
    """Judge the predictions of a file of served points.

    Args:
        points: a file in the form of aiconfigurator's `silicon_sample.csv`.

    Raises:
        InputError: no file is given, or nothing in it can be judged.
        ScenarioError: the file is wrong.
    """
    if points is None:
        raise InputError(
            "validate inferencemax needs the served points: --points FILE.csv, in the form of "
            "aiconfigurator's silicon_sample.csv (github.com/ai-dynamo/aiconfigurator)"
        )
    predictions, skipped = predict(load_points(points))
    if not predictions:
        raise InputError(
            f"{points}: no deployment has a length with two concurrencies and another length"
        )
    total = errors_of(predictions)
    long = [p for p in predictions if p.fitted_on[0] < p.point.isl_tokens]
    mixed = [p for p in predictions if not p.point.disaggregated]
    apart = [p for p in predictions if p.point.disaggregated]
    checks = [
        Check("median_error", total["median_error"], high=0.15),
        Check(
            "median_error_over_baseline",
            total["median_error"] / max(total["baseline_median_error"], 1e-12),
            high=1.0,
        ),
        *(Check(name, value) for name, value in total.items() if name != "median_error"),
        Check("deployments_judged", float(len({p.point.group for p in predictions}))),
        Check("deployments_skipped", float(len(skipped))),
        Check("points_skipped", float(sum(group.points for group in skipped))),
    ]
    for label, part in (("longer_prompt", long), ("aggregated", mixed), ("disaggregated", apart)):
        if part:
            checks += [Check(f"{label}_{name}", value) for name, value in errors_of(part).items()]
    return Validation(
        name="inferencemax",
        checks=checks,
        fitted_on="one (prompt, output) length of each deployment, the one measured at most "
        "concurrencies: bias and three shares of the roofline, pulled towards 60% and 50%",
        predicted="TPOT of the same deployment at its other lengths",
    )
