"""From what a running engine reports to step costs: telemetry, frontier lines, and host time.

A user's TPOT times the tokens that a step commits is the time of a step: step = TPOT x acceptance
length. Concurrency is R, and B = R x tokens verified a request, anchor included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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

_ORDER = (0, 2, 1, 3)  # bias, tokens, requests, context: what an open slope is put on, first first
_SAME = 0.01


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
class OpenSplit:
    """A slope that the loads give, and its split between requests and tokens, that they do not.

    Attributes:
        tokens_per_request: tokens verified a request under every load, anchor included.
        slope_s: seconds more for each request with its tokens.
        interval_s: 95% jackknife interval of the slope.
        per_request_share: share of the slope that is put on requests, the rest on their tokens.
        told: whether a user gave that share.
    """

    tokens_per_request: float
    slope_s: float
    interval_s: tuple[float, float]
    per_request_share: float
    told: bool


@dataclass(frozen=True, slots=True)
class LinearFit:
    """Step time as a sum of non-negative terms.

    Attributes:
        coefficients: seconds of each of `TERMS`.
        intervals: 95% jackknife interval of each coefficient, cut at 0; None for a term that the
            loads do not tell from others, or that is 0 in all of them.
        leave_one_out: relative error of each point predicted without it, sorted.
        open_terms: terms that the loads do not tell from each other.
        split: what is known where requests and tokens are among them; None if they are not.
    """

    coefficients: dict[str, float]
    intervals: dict[str, tuple[float, float] | None]
    leave_one_out: tuple[float, ...]
    open_terms: tuple[str, ...] = ()
    split: OpenSplit | None = None

    def step_s(self, point: Telemetry) -> float:
        """Seconds that the fit gives a step under the load of `point`."""
        return float(_terms([point])[0] @ np.array(list(self.coefficients.values())))

    def beware(self) -> str:
        """Say what the loads leave open, what was chosen and how to settle it; empty if nothing."""
        if self.split is None:
            if not self.open_terms:
                return ""
            return (
                f"the loads do not tell {' and '.join(self.open_terms)} apart; give loads in which "
                "they vary by themselves"
            )
        split = self.split
        if split.told:
            why = f"{split.per_request_share:.0%} of it is put on requests, as told"
        else:
            why = (
                "all of it is put on tokens, which makes a token as dear as it can be: policies "
                "that verify more tokens gain at least what a run says"
            )
        what = "what a request costs and what a token costs"
        if "per_kv_token" in self.open_terms:
            what = "what a request costs, what a token costs and what its context costs"
        return (
            f"{what} are not identified, only their sum: every "
            f"load verified {_width(split.tokens_per_request)} a request; {why}. "
            "To settle it, add a load with another number of tokens a request than "
            f"{split.tokens_per_request:g} (speculation on, or a longer forward), or say "
            "--per-request-share; 0 and 1 give the range"
        )


def _width(tokens: float) -> str:
    return f"{tokens:g} token{'' if tokens == 1 else 's'}"


def speculates(points: Sequence[Telemetry]) -> bool:
    """Say whether an engine drafts under any of these loads: only then its steps hold a draft."""
    return any(point.tokens_per_request > 1 or point.acceptance_length > 1 for point in points)


def fit_linear(points: Sequence[Telemetry], *, per_request_share: float | None = None) -> LinearFit:
    """Fit bias + alpha R + theta B + kappa R context in relative least squares, none below 0.

    A term that the loads do not tell from those before it (bias, tokens, requests, context) is 0.

    Args:
        points: the loads.
        per_request_share: where requests and tokens are not told apart, the share of their slope
            that is put on requests; 0 if None.

    Raises:
        InputError: fewer points than terms that vary, a flat series, or a share of a slope that is
            split by the loads already.
    """
    terms_P4 = _terms(points)
    step_P = np.array([point.step_s for point in points])
    kept, open_terms = _told_apart(terms_P4 / step_P[:, None])
    if len(points) <= sum(kept):
        raise InputError(
            f"{len(points)} points for {sum(kept)} terms that vary: give at least "
            f"{sum(kept) + 1}, so that a point can be predicted from the others"
        )
    if step_P.max() / step_P.min() - 1 < 0.01:
        raise InputError(
            f"refused: every load has the same step time ({step_P.mean() * 1e3:.4g} ms within 1%); "
            "a planner that trusts it verifies everything"
        )
    whole_4 = _solve(terms_P4, step_P, kept)
    without_P4 = np.stack(
        [_solve(np.delete(terms_P4, i, 0), np.delete(step_P, i), kept) for i in range(len(points))]
    )
    predicted_P = (terms_P4 * without_P4).sum(axis=1)
    count = len(points)
    spread_4 = np.sqrt((count - 1) / count * ((without_P4 - without_P4.mean(0)) ** 2).sum(0))
    coefficients = dict(zip(TERMS, whole_4.tolist(), strict=True))
    intervals = {
        name: (max(0.0, float(value - 1.96 * sd)), float(value + 1.96 * sd))
        for name, value, sd in zip(TERMS, whole_4, spread_4, strict=True)
    }
    split: OpenSplit | None = None
    fitted = {name for name, kept_4 in zip(TERMS, kept, strict=True) if kept_4}
    # Of the two only tokens were fitted: what requests cost is in their slope.
    shared = {"per_request", "per_token"} <= set(open_terms)
    if shared and "per_token" in fitted and "per_request" not in fitted:
        split = _split(points, coefficients, intervals["per_token"], per_request_share)
    elif per_request_share is not None:
        raise InputError(
            "the loads tell requests and tokens apart, so there is no share to give; leave "
            "per_request_share out"
        )
    return LinearFit(
        coefficients=coefficients,
        intervals={
            name: found if name in fitted and name not in open_terms else None
            for name, found in intervals.items()
        },
        leave_one_out=tuple(sorted(np.abs(predicted_P / step_P - 1).tolist())),
        open_terms=open_terms,
        split=split,
    )


def _split(
    points: Sequence[Telemetry],
    coefficients: dict[str, float],
    interval: tuple[float, float],
    share: float | None,
) -> OpenSplit:
    """Share out the slope, which the solution has on tokens; changes `coefficients`."""
    width = sum(p.batch_tokens for p in points) / sum(p.concurrency for p in points)
    slope_s = coefficients["per_token"] * width
    part = 0.0 if share is None else share
    coefficients["per_request"] = part * slope_s
    coefficients["per_token"] *= 1 - part
    edges = (interval[0] * width, interval[1] * width)
    return OpenSplit(width, slope_s, edges, part, share is not None)


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


def _told_apart(weighted_P4: FloatArray) -> tuple[list[bool], tuple[str, ...]]:
    """Say which terms are kept, and which of all the loads do not tell from each other.

    A column that those before it give to within 1% of its length says nothing of its own.
    """
    kept: list[int] = []
    open_terms: set[int] = set()
    for term in _ORDER:
        column_P = weighted_P4[:, term]
        length = float(np.linalg.norm(column_P))
        if length == 0:
            continue
        if kept:
            base = weighted_P4[:, kept]
            found = np.linalg.lstsq(base, column_P, rcond=None)[0]
            if np.linalg.norm(column_P - base @ found) < _SAME * length:
                parts = np.abs(found) * np.linalg.norm(base, axis=0)
                open_terms |= {term, *(k for k, x in zip(kept, parts, strict=True)
                                       if x > _SAME * length)}  # fmt: skip
                continue
        kept.append(term)
    names = tuple(name for index, name in enumerate(TERMS) if index in open_terms)
    return [index in kept for index in range(len(TERMS))], names


def _solve(terms_P4: FloatArray, step_P: FloatArray, kept: Sequence[bool]) -> FloatArray:
    terms = terms_P4[:, kept]
    scale = np.maximum(np.abs(terms).max(axis=0), 1e-300)
    found = lsq_linear(
        terms / scale / step_P[:, None], np.ones(len(step_P)), bounds=(0.0, np.inf)
    ).x
    whole_4 = np.zeros(len(TERMS))
    whole_4[np.array(kept)] = found / scale
    return whole_4


def linear_table(
    fit: LinearFit, points: Sequence[Telemetry], *, name: str, provenance: Provenance
) -> StepTable:
    """Write a linear fit as a step table: bias and tokens in verify, requests and KV in attention.

    The verify curve has the probes of the telemetry, the attention surface its loads and contexts;
    host time is inside, and draft time if any load speculated. Without any request-dependent term
    there is no attention curve. What the loads leave open is kept in the provenance.

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
    inside: set[Term] = {"host"}
    if speculates(points):
        inside.add("draft")
    if attention is None:
        inside.add("attention")
    if beware := fit.beware():
        update: dict[str, Any] = {"notes": f"{provenance.notes} {beware}".strip()}
        if fit.split is not None:
            update["split_open_at"] = round(fit.split.tokens_per_request, 6)
        provenance = provenance.model_copy(update=update)
    made = StepTable(
        name=name,
        provenance=provenance,
        verify=curve(probes, [bias + per_token * probe for probe in probes]),
        attention=attention,
        includes=frozenset(inside),
    )
    return check_table(made)
