"""From what a running engine reports to step costs: telemetry, frontier lines, and host time.

A user's TPOT times the tokens that a step commits is the time of a step: step = TPOT x acceptance
length. Concurrency is R, and B = R x tokens verified a request, anchor included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from specsim.cost.rows import Row
from specsim.cost.table import Provenance, Read, StepTable, Term, check_table, curve, surface
from specsim.errors import InputError
from specsim.inputs import MOST_TOKENS

FloatArray = NDArray[np.float64]

TERMS = ("bias", "per_request", "per_token", "per_kv_token")
"""Terms of the linear form, in seconds: 1, R, B and R x context."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What one load showed.

    Attributes:
        concurrency: requests in the batch, R.
        tpot_s: seconds per output token of a user.
        acceptance_length: tokens that a step commits for a request; 1 without speculation.
        tokens_per_request: tokens verified a request, anchor included; 1 without speculation.
        context_tokens: mean context of a request; 0 where it is not known.
    """

    concurrency: float
    tpot_s: float
    acceptance_length: float
    tokens_per_request: float
    context_tokens: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (
            ("concurrency", 0.0),
            ("tpot_s", 0.0),
            ("acceptance_length", 1.0),
            ("tokens_per_request", 1.0),
        ):
            value = getattr(self, name)
            if not least <= value <= MOST_TOKENS or value == 0:
                raise InputError(
                    f"{name} must be a number {'of at least 1' if least else 'above 0'}, up to "
                    f"{MOST_TOKENS:g}, not {value}"
                )
        if self.acceptance_length > self.tokens_per_request + 1e-9:
            raise InputError(
                f"acceptance_length {self.acceptance_length} exceeds the "
                f"{self.tokens_per_request} tokens verified a request; both count the anchor or "
                "bonus token"
            )

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.tpot_s * self.acceptance_length

    @property
    def batch_tokens(self) -> float:
        """B of a step."""
        return self.concurrency * self.tokens_per_request


def telemetry_rows(points: Sequence[Telemetry]) -> list[Row]:
    """Return whole-step rows, for `cost/fit.py`; B and R are rounded to whole numbers."""
    return [
        Row(
            part="step",
            batch_tokens=max(1, round(point.batch_tokens)),
            num_requests=max(1, round(point.concurrency)),
            context_tokens=round(point.context_tokens),
            seconds=point.step_s,
        )
        for point in points
    ]


def frontier_telemetry(
    tok_s_user: Sequence[float],
    tok_s_gpu: Sequence[float],
    *,
    acceptance_length: float,
    tokens_per_request: float,
) -> list[Telemetry]:
    """Read telemetry off a throughput-interactivity line of a fixed-length policy.

    R = tok_s_gpu / tok_s_user on each GPU, and a step commits `acceptance_length` tokens a request.

    Args:
        tok_s_user: speed of one user, tokens/s.
        tok_s_gpu: output throughput of one GPU, tokens/s.
        acceptance_length: tokens that a step commits for a request.
        tokens_per_request: tokens verified a request, anchor included.

    Raises:
        InputError: lists of different length, or values that make no sense.
    """
    if len(tok_s_user) != len(tok_s_gpu):
        raise InputError(
            f"{len(tok_s_user)} speeds for {len(tok_s_gpu)} throughputs; give one for each"
        )
    return [
        Telemetry(gpu / user, 1.0 / user, acceptance_length, tokens_per_request)
        for user, gpu in sorted(zip(tok_s_user, tok_s_gpu, strict=True), reverse=True)
        if user > 0
    ]


@dataclass(frozen=True, slots=True)
class LinearFit:
    """Step time as a sum of non-negative terms.

    Attributes:
        coefficients: seconds of each of `TERMS`.
        intervals: 95% jackknife interval of each coefficient, cut at 0.
        leave_one_out: relative error of each point predicted without it, sorted.
    """

    coefficients: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    leave_one_out: tuple[float, ...]

    def step_s(self, point: Telemetry) -> float:
        """Seconds that the fit gives a step under the load of `point`."""
        return float(_terms([point])[0] @ np.array(list(self.coefficients.values())))


def fit_linear(points: Sequence[Telemetry]) -> LinearFit:
    """Fit bias + alpha R + theta B + kappa R context in relative least squares, none below 0.

    Raises:
        InputError: fewer points than terms that vary, or a flat series.
    """
    terms_P4 = _terms(points)
    step_P = np.array([point.step_s for point in points])
    varied = int(np.linalg.matrix_rank(terms_P4))
    if len(points) <= varied:
        raise InputError(
            f"{len(points)} points for {varied} terms that vary: give at least {varied + 1}, so "
            "that a point can be predicted from the others"
        )
    if step_P.max() / step_P.min() - 1 < 0.01:
        raise InputError(
            f"refused: every load has the same step time ({step_P.mean() * 1e3:.4g} ms within 1%); "
            "a planner that trusts it verifies everything"
        )
    whole_4 = _solve(terms_P4, step_P)
    without_P4 = np.stack(
        [_solve(np.delete(terms_P4, i, 0), np.delete(step_P, i)) for i in range(len(points))]
    )
    predicted_P = (terms_P4 * without_P4).sum(axis=1)
    count = len(points)
    spread_4 = np.sqrt((count - 1) / count * ((without_P4 - without_P4.mean(0)) ** 2).sum(0))
    return LinearFit(
        coefficients=dict(zip(TERMS, whole_4.tolist(), strict=True)),
        intervals={
            name: (max(0.0, float(value - 1.96 * sd)), float(value + 1.96 * sd))
            for name, value, sd in zip(TERMS, whole_4, spread_4, strict=True)
        },
        leave_one_out=tuple(sorted(np.abs(predicted_P / step_P - 1).tolist())),
    )


@dataclass(frozen=True, slots=True)
class HostFit:
    """Host time of a step, what the table does not cover: base + per_request x R.

    Attributes:
        base_s: seconds a step.
        per_request_s: seconds more for each request.
        errors: relative error of the step time of each point under that line, with sign.
        left_s: what the table leaves of each point's step, at least 0: the curve itself.
    """

    base_s: float
    per_request_s: float
    errors: tuple[float, ...]
    left_s: tuple[float, ...]


def fit_host(
    table: StepTable,
    points: Sequence[Telemetry],
    *,
    read: Read,
    running_max: bool = False,
    prefill_tokens_per_step: Sequence[float] | None = None,
) -> HostFit:
    """Fit what is left of the step times of a no-speculation arm after the table's verify curve.

    Args:
        table: the table; its verify curve is charged at B = R + prefill tokens of the step.
        points: telemetry of arms that draft nothing.
        read: how the engine reads the table.
        running_max: whether it installs the running maximum.
        prefill_tokens_per_step: mean prompt tokens that share each point's steps; 0 if None.

    Raises:
        InputError: a point speculates, or fewer than two points.
    """
    loads = [point.concurrency for point in points]
    if len(points) < 2 or len(set(loads)) < len(loads):
        raise InputError(
            "host time needs two loads or more, each once, not "
            f"{', '.join(f'{n:g}' for n in loads) or 'none'}"
        )
    for point in points:
        if point.tokens_per_request != 1 or point.acceptance_length != 1:
            raise InputError(
                f"the point at concurrency {point.concurrency:g} speculates "
                f"({point.tokens_per_request:g} tokens a request): fit host time on arms that "
                "verify one token a request"
            )
    prefill = list(prefill_tokens_per_step or [0.0] * len(points))
    most = round(max(p.concurrency + extra for p, extra in zip(points, prefill, strict=True)))
    verify_s_B = table.dense(read, most + 1, running_max=running_max)
    batch_P = np.array([p.concurrency + extra for p, extra in zip(points, prefill, strict=True)])
    verify_P = np.interp(batch_P, np.arange(len(verify_s_B)), verify_s_B)
    step_P = np.array([point.step_s for point in points])
    terms_P2 = np.stack([np.ones(len(points)), [p.concurrency for p in points]], axis=1)
    aims_P = (step_P - verify_P) / step_P
    found = lsq_linear(terms_P2 / step_P[:, None], aims_P, bounds=(0.0, np.inf)).x
    fitted_P = verify_P + terms_P2 @ found
    return HostFit(
        base_s=float(found[0]),
        per_request_s=float(found[1]),
        errors=tuple((fitted_P / step_P - 1).tolist()),
        left_s=tuple(np.maximum(0.0, step_P - verify_P).tolist()),
    )


def _terms(points: Sequence[Telemetry]) -> FloatArray:
    return np.array(
        [[1.0, p.concurrency, p.batch_tokens, p.concurrency * p.context_tokens] for p in points]
    )


def _solve(terms_P4: FloatArray, step_P: FloatArray) -> FloatArray:
    scale_4 = np.maximum(np.abs(terms_P4).max(axis=0), 1e-300)
    rows = terms_P4 / scale_4 / step_P[:, None]
    found = lsq_linear(rows, np.ones(len(step_P)), bounds=(0.0, np.inf)).x
    return np.asarray(found / scale_4, dtype=np.float64)


def linear_table(
    fit: LinearFit, points: Sequence[Telemetry], *, name: str, provenance: Provenance
) -> StepTable:
    """Write a linear fit as a step table: bias and tokens in verify, requests and KV in attention.

    The verify curve has the probes of the telemetry, the attention surface its loads and contexts;
    draft and host time are inside. Without any request-dependent term there is no attention curve.

    Raises:
        InputError: bias and token term are both 0, so that a step of few tokens would be free.
    """
    bias, per_request, per_token, per_kv = (fit.coefficients[term] for term in TERMS)
    probes = sorted({max(1, round(point.batch_tokens)) for point in points})
    if bias + per_token * probes[0] <= 0:
        raise InputError(
            "refused: the fit leaves nothing for the tokens of a step; the loads do not tell "
            "tokens and requests apart (give points with several tokens a request)"
        )
    loads = sorted({max(1, round(point.concurrency)) for point in points})
    contexts = sorted({max(1, round(point.context_tokens)) for point in points})
    attention = None
    if per_request > 0 or per_kv > 0:
        attention = surface(
            loads, contexts, [[n * (per_request + per_kv * c) for n in loads] for c in contexts]
        )
    inside: set[Term] = {"draft", "host"}
    if attention is None:
        inside.add("attention")
    made = StepTable(
        name=name,
        provenance=provenance,
        verify=curve(probes, [bias + per_token * probe for probe in probes]),
        attention=attention,
        includes=frozenset(inside),
    )
    return check_table(made)
