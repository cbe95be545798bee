"""What each planning rule makes of a measured staircase: plan on a noisy table, pay the clean one.

A table is measured with some noise; the scheduler plans on what was measured, and the hardware
charges the truth. For each draw of survivals the rule chooses K (or a fixed length), and its share
is theta(K) on the clean table over the best theta(K) there. Everything else is equal: same live
survivals, same top-K allocation, one step at a time (a static estimate: no lag, no queue).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from specsim.acceptance.trace import DenseTrace
from specsim.cost.table import StepTable, curve
from specsim.errors import InputError
from specsim.rng import stream
from specsim.schedulers.kernels import NO_PATIENCE_LIMIT, ascending, capacity

FloatArray = NDArray[np.float64]

RULES = ("greedy", "argmax", "monotone_argmax", "linear_fit", "fixed_best", "fixed_all")
"""First descent; global argmax; argmax on the running maximum; argmax on a straight line fitted to
the table; the best fixed length by the noisy table and mean survivals; verify all."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the true optimum reached on one table under one load.

    Attributes:
        table: name of the table.
        num_requests: R.
        survivals: which survivals.
        mean_by_rule: mean share of the optimum, by rule.
        p10_by_rule: 10th percentile over draws, by rule.
        admitted_by_rule: mean K / (R gamma), by rule.
        best_admitted: the same of the true optimum.
    """

    table: str
    num_requests: int
    survivals: str
    mean_by_rule: dict[str, float]
    p10_by_rule: dict[str, float]
    admitted_by_rule: dict[str, float]
    best_admitted: float


def noisy(table: StepTable, noise: float, rng: np.random.Generator) -> StepTable:
    """Return the table as a measurement with relative noise would find it, every probe on its own.

    Args:
        table: the truth.
        noise: standard deviation of the relative error of one probe.
        rng: where the errors come from.
    """
    clean_N = table.verify.seconds_N
    factor_N = np.maximum(0.1, 1.0 + noise * rng.standard_normal(len(clean_N)))
    return StepTable(
        name=table.name,
        provenance=table.provenance,
        verify=curve(table.verify.probes_N, clean_N * factor_N),
        attention=table.attention,
    )


def trace_survivals(trace: DenseTrace, num_requests: int, rng: np.random.Generator) -> FloatArray:
    """Draw R blocks of a trace and return their survivals, `[R, gamma]`."""
    rows_R = rng.integers(trace.num_anchors, size=num_requests)
    confidence_RG = np.asarray(trace.confidence_NG[rows_R], dtype=np.float64)
    return np.asarray(np.cumprod(confidence_RG, axis=1), dtype=np.float64)


def beta_survivals(
    num_requests: int, gamma: int, rng: np.random.Generator, *, a: float = 8.0, b: float = 2.0
) -> FloatArray:
    """Draw independent Beta(a, b) confidences and return their survivals, `[R, gamma]`."""
    confidence_RG = rng.beta(a, b, size=(num_requests, gamma))
    return np.asarray(np.cumprod(confidence_RG, axis=1), dtype=np.float64)


def straight_line(table: StepTable, max_tokens: int) -> FloatArray:
    """Seconds at B = 0 .. max_tokens by a non-negative straight line through the probes up to it.

    Relative least squares, as engines that plan on c0 + c1 tokens fit it.
    """
    probes_N, seconds_N = table.verify.probes_N, table.verify.seconds_N
    used_N = probes_N <= max(max_tokens, int(probes_N[min(1, len(probes_N) - 1)]))
    terms = np.stack([np.ones(used_N.sum()), probes_N[used_N]], axis=1)
    base, slope = nnls(terms / seconds_N[used_N][:, None], np.ones(used_N.sum()))[0]
    return np.asarray(base + slope * np.arange(max_tokens + 1), dtype=np.float64)


def choose(
    rule: str,
    survival_RG: FloatArray,
    table: StepTable,
    plan_s_B: FloatArray,
    fixed_s: float,
) -> tuple[int, float]:
    """Return (tokens verified, expected tokens) of the rule's plan, anchors in both.

    Args:
        rule: one of `RULES`.
        survival_RG: live survivals, `[R, gamma]`.
        table: the table planned on, for the straight line.
        plan_s_B: its linear reading, `[R (gamma + 1) + 1]`.
        fixed_s: seconds that no plan can trim.

    Raises:
        InputError: no such rule.
    """
    num_requests, gamma = survival_RG.shape
    ascending_C = ascending(survival_RG)
    if rule in ("fixed_best", "fixed_all"):
        lengths_L = np.arange(gamma + 1) if rule == "fixed_best" else np.array([gamma])
        tau_L = np.concatenate([[0.0], np.cumsum(survival_RG.sum(axis=0))])[lengths_L]
        theta_L = (num_requests + tau_L) / (plan_s_B[num_requests * (1 + lengths_L)] + fixed_s)
        length = int(lengths_L[np.argmax(theta_L)])
        kept = float(survival_RG[:, :length].sum())
        return num_requests * (1 + length), num_requests + kept
    if rule == "monotone_argmax":
        plan_s_B = np.maximum.accumulate(plan_s_B)
    elif rule == "linear_fit":
        plan_s_B = straight_line(table, len(plan_s_B) - 1)
    elif rule not in ("greedy", "argmax"):
        raise InputError(f'no rule "{rule}"; legal: {", ".join(RULES)}')
    patience = 0 if rule == "greedy" else NO_PATIENCE_LIMIT
    admitted = capacity(ascending_C, num_requests, num_requests, plan_s_B, fixed_s, patience)
    kept = float(ascending_C[len(ascending_C) - admitted :].sum())
    return num_requests + int(admitted), num_requests + kept


def shares(
    table: StepTable,
    *,
    num_requests: int,
    survivals: str,
    trace: DenseTrace,
    context_tokens: int = 1024,
    gamma: int = 7,
    noise: float = 0.02,
    draws: int = 200,
    seed: int = 0,
    rules: Sequence[str] = RULES,
) -> Shares:
    """Average the shares of the optimum over draws of survivals and of measurement noise.

    Args:
        table: the truth, paid.
        num_requests: R.
        survivals: `trace`, or `beta` for Beta(8, 2) confidences.
        trace: the trace to draw from; its gamma is used with `trace`.
        context_tokens: context of every request.
        gamma: drafts a request with `beta`.
        noise: relative standard deviation of one measured probe.
        draws: draws of survivals, each with a fresh measurement of the table.
        seed: of the streams.
        rules: which rules.

    Raises:
        InputError: survivals other than `trace` or `beta`.
    """
    if survivals not in ("trace", "beta"):
        raise InputError(f'survivals must be "trace" or "beta", not "{survivals}"')
    rng = stream(seed, f"staircase/{table.name}/{num_requests}/{survivals}")
    width = trace.gamma if survivals == "trace" else gamma
    most = num_requests * (width + 1)
    fixed_s = _attention_s(table, num_requests, context_tokens)
    pay_s_B = table.dense("linear", most)
    shares_by_rule: dict[str, list[float]] = {rule: [] for rule in rules}
    admitted_by_rule: dict[str, list[float]] = {rule: [] for rule in rules}
    best_admitted = []
    for _ in range(draws):
        if survivals == "trace":
            survival_RG = trace_survivals(trace, num_requests, rng)
        else:
            survival_RG = beta_survivals(num_requests, gamma, rng)
        measured = noisy(table, noise, rng)
        plan_s_B = measured.dense("linear", most)
        best_tokens, best_tau = choose("argmax", survival_RG, table, pay_s_B, fixed_s)
        best_theta = best_tau / (pay_s_B[best_tokens] + fixed_s)
        best_admitted.append((best_tokens - num_requests) / (num_requests * width))
        for rule in rules:
            tokens, tau = choose(rule, survival_RG, measured, plan_s_B, fixed_s)
            theta = tau / (pay_s_B[tokens] + fixed_s)
            shares_by_rule[rule].append(theta / best_theta)
            admitted_by_rule[rule].append((tokens - num_requests) / (num_requests * width))
    return Shares(
        table=table.name,
        num_requests=num_requests,
        survivals=survivals,
        mean_by_rule={rule: float(np.mean(found)) for rule, found in shares_by_rule.items()},
        p10_by_rule={rule: float(np.quantile(v, 0.1)) for rule, v in shares_by_rule.items()},
        admitted_by_rule={rule: float(np.mean(v)) for rule, v in admitted_by_rule.items()},
        best_admitted=float(np.mean(best_admitted)),
    )


def _attention_s(table: StepTable, num_requests: int, context_tokens: int) -> float:
    found = table.attention
    if found is None:
        return 0.0
    row_C = found.dense(num_requests)[:, num_requests]
    return float(np.interp(context_tokens, found.context_tokens_C, row_C))
