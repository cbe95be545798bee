"""Service-level objectives: what must hold, as text, and whether a run's numbers say that it does.

    tok_s_user>=80                      a metric of the catalogue
    tpot_p99<=50ms                      a percentile over requests: at least 99 % at or below 50 ms
    goodput(ttft<=0.5s,tpot<=50ms)>=95% share of requests that meet all limits at once
    mlperf:llama2-70b-interactive       MLPerf Inference's limits of a Server scenario

A percentile is judged by counting, as MLPerf's load generator does: of n requests, k met the limit,
and the exact binomial interval of k / n says whether that settles it. Requests of one run are not
quite independent, so the interval is somewhat too narrow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from specsim.errors import InputError, nearest
from specsim.metrics.catalog import CATALOG
from specsim.metrics.record import Columns, Status
from specsim.stats.intervals import mean_interval

LATENCIES = ("ttft", "tpot", "e2e")
# Server limits of mlcommons/inference loadgen/mlperf.conf (August 2026): TTFT ms, TPOT ms, at p99.
MLPERF: dict[str, tuple[float, float]] = {
    "llama2-70b": (2000, 200),
    "llama2-70b-interactive": (450, 40),
    "mixtral-8x7b": (2000, 200),
    "llama3.1-405b": (6000, 175),
    "llama3.1-405b-interactive": (4500, 80),
    "llama3.1-8b": (2000, 100),
    "llama3.1-8b-interactive": (500, 30),
    "deepseek-r1": (2000, 80),
    "deepseek-r1-interactive": (1500, 15),
    "gpt-oss-120b": (3000, 80),
    "gpt-oss-120b-interactive": (2000, 15),
}
_CALL = re.compile(r"^goodput\((.+)\)>=([\d.]+)(%?)$")
_TERM = re.compile(r"^([a-z0-9_]+)(<=|>=)([\d.eE+-]+)(ms|us|s|%)?$")
_QUANTILE = re.compile(r"^(ttft|tpot|e2e)_p(\d{1,2}(?:\.\d+)?)(?:_s)?$")
_MISSED = 1e3  # times its limit: what a request without an answer counts as; finite, to interpolate
_UNIT = {"ms": 1e-3, "us": 1e-6, "s": 1.0, "%": 1e-2, None: 1.0}


@dataclass(frozen=True, slots=True)
class MetricTerm:
    """A metric of the catalogue on the right side of a limit.

    Attributes:
        metric: its name.
        at_least: whether the limit is the least, else the most.
        limit: in the metric's unit.
    """

    metric: str
    at_least: bool
    limit: float


@dataclass(frozen=True, slots=True)
class ShareTerm:
    """A share of the requests that meets every limit.

    Attributes:
        limits: (latency, most seconds).
        share: least share, 0 to 1.
    """

    limits: tuple[tuple[str, float], ...]
    share: float


Term = MetricTerm | ShareTerm


@dataclass(frozen=True, slots=True)
class Slo:
    """What must hold, all of it.

    Attributes:
        text: as the user wrote it.
        terms: its parts.
    """

    text: str
    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one run says about every term of an SLO.

    Attributes:
        values: for each term, the metric, or the latency at the wanted share; NaN if unknown.
        met: for each term, requests that met it; 0 for a metric.
        counted: for each term, requests counted.
    """

    values: tuple[float, ...]
    met: tuple[int, ...]
    counted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether an SLO holds at one load.

    Attributes:
        holds: by the point estimates.
        settled: whether the 95 % interval of every deciding term is on one side of its limit.
        margin: of the tightest term, (limit - value) / limit or its reverse; above 0 holds. A
            number to interpolate with.
        why: the tightest term in words.
    """

    holds: bool
    settled: bool
    margin: float
    why: str


def parse_slo(texts: Sequence[str]) -> Slo:
    """Read the terms of an SLO.

    Raises:
        InputError: a term is none; says what is legal.
    """
    terms: list[Term] = []
    for text in texts:
        compact = text.replace(" ", "")
        if compact.startswith("mlperf:"):
            terms += _mlperf(compact.removeprefix("mlperf:"))
        elif compact.startswith("goodput("):
            terms.append(_goodput(compact))
        else:
            terms.append(_one(compact))
    if not terms:
        raise InputError(
            "no SLO given; say for example --slo 'tok_s_user>=80' or --slo 'tpot_p99<=50ms'"
        )
    return Slo(" and ".join(texts), tuple(terms))


def _one(text: str) -> Term:
    found = _TERM.match(text)
    names = [metric.name for metric in CATALOG]
    if found is None:
        raise InputError(
            f'"{text}" is no SLO; write metric>=value or metric<=value (units ms, s, %), '
            "goodput(ttft<=500ms,tpot<=50ms)>=95%, or mlperf:MODEL"
        )
    name, sense, value, unit = found.groups()
    limit = _number(value, text) * _UNIT[unit]
    quantile = _QUANTILE.match(name)
    if quantile and sense == "<=":
        return ShareTerm(((quantile[1], limit),), float(quantile[2]) / 100)
    if name not in names:
        close = nearest(name, [*names, *(f"{x}_p99" for x in LATENCIES)])
        raise InputError(
            f'"{text}": no metric "{name}"{"; " + close if close else ""}; legal are '
            f"{', '.join(names)}, and ttft_pN, tpot_pN, e2e_pN"
        )
    return MetricTerm(name, sense == ">=", limit)


def _goodput(text: str) -> ShareTerm:
    found = _CALL.match(text)
    if found is None:
        raise InputError(f'"{text}": write goodput(ttft<=500ms,tpot<=50ms)>=95%')
    limits = []
    for part in found[1].split(","):
        term = _TERM.match(part)
        if term is None or term[1] not in LATENCIES or term[2] != "<=":
            raise InputError(f'"{part}" in "{text}": write one of {", ".join(LATENCIES)} <= a time')
        limits.append((term[1], _number(term[3], text) * _UNIT[term[4]]))
    share = _number(found[2], text) / (100 if found[3] else 1)
    if not 0 < share <= 1:
        raise InputError(f'"{text}": the share is {share:g}; it must lie above 0 and at most at 1')
    return ShareTerm(tuple(limits), share)


def _number(text: str, whole: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise InputError(f'"{whole}": {text} is no number') from error
    if not (np.isfinite(value) and value > 0):
        raise InputError(f'"{whole}": {text} must be a number above 0')
    return value


def _mlperf(model: str) -> list[Term]:
    if model not in MLPERF:
        raise InputError(
            f'no MLPerf limits for "{model}"; {nearest(model, MLPERF)} legal are '
            f"{', '.join(MLPERF)}"
        )
    ttft_ms, tpot_ms = MLPERF[model]
    return [
        ShareTerm((("ttft", ttft_ms * 1e-3),), 0.99),
        ShareTerm((("tpot", tpot_ms * 1e-3),), 0.99),
    ]


def evidence(
    slo: Slo, metrics: Mapping[str, float | None], requests: Columns, *, from_s: float
) -> Evidence:
    """Read what one run says about an SLO.

    A request that timed out or could not be served has missed every limit; one that its user
    cancelled, or that is still open at the end, says nothing.

    Args:
        slo: the terms.
        metrics: of the run's measured window.
        requests: the run's ledger.
        from_s: where the window begins; requests that arrived earlier do not count.
    """
    inside = requests["arrival_s"] >= from_s
    done = inside & np.isfinite(requests["finish_s"])
    lost = int((inside & np.isin(requests["status"], (Status.TIMED_OUT, Status.FAILED))).sum())
    columns = {name: column[done] for name, column in requests.items()}
    values, met, counted = [], [], []
    for term in slo.terms:
        if isinstance(term, MetricTerm):
            value = metrics.get(term.metric)
            values.append(float("nan") if value is None else float(value))
            met.append(0)
            counted.append(0)
            continue
        # The largest ratio of latency to limit is at most 1 exactly if all limits are met.
        ratio_N = np.max([_latency(columns, name) / limit for name, limit in term.limits], axis=0)
        ratio_N = np.append(ratio_N, np.full(lost, _MISSED))
        met.append(int((ratio_N <= 1.0).sum()))
        counted.append(len(ratio_N))
        at = float(np.quantile(ratio_N, term.share)) if len(ratio_N) else float("nan")
        values.append(at * term.limits[0][1])
    return Evidence(tuple(values), tuple(met), tuple(counted))


def _latency(requests: Mapping[str, NDArray[Any]], name: str) -> NDArray[np.float64]:
    if name == "ttft":
        return np.asarray(requests["first_token_s"] - requests["arrival_s"], np.float64)
    if name == "e2e":
        return np.asarray(requests["finish_s"] - requests["arrival_s"], np.float64)
    tokens = requests["output_tokens"] - 1
    decode_s = requests["finish_s"] - requests["first_token_s"]
    # A one-token output has no TPOT; vLLM's goodput counts it as 0, and so do we.
    return np.where(tokens > 0, decode_s / np.maximum(tokens, 1), 0.0)


def judge(slo: Slo, runs: Sequence[Evidence]) -> Judgement:
    """Say whether an SLO holds, from the runs of one load under several seeds."""
    worst: Judgement | None = None
    settled = True
    for n, term in enumerate(slo.terms):
        value_N = np.array([run.values[n] for run in runs])
        value = float(value_N.mean())
        limit = term.limit if isinstance(term, MetricTerm) else term.limits[0][1]
        up = isinstance(term, MetricTerm) and term.at_least
        margin = ((value - limit) if up else (limit - value)) / limit
        if isinstance(term, MetricTerm):
            half = mean_interval(value_N).half_width
            clear = np.isfinite(half) and abs(value - limit) > half
            holds, what = margin >= 0, f"{term.metric} {value:.5g} against {limit:.5g}"
        else:
            met, counted = sum(r.met[n] for r in runs), sum(r.counted[n] for r in runs)
            low, high = binomial_interval(met, counted)
            holds = counted > 0 and met / counted >= term.share
            clear = low >= term.share or high < term.share
            names = ", ".join(f"{name}<={most:g}s" for name, most in term.limits)
            share = met / counted if counted else float("nan")
            what = f"{share:.2%} of {counted} requests with {names}, against {term.share:.2%}"
        if not np.isfinite(margin):
            # No finished request: nothing holds, and there is nothing to interpolate with.
            holds, margin, clear = False, -1.0, False
        # The count decides; the quantile, which interpolates, may be a hair on the other side.
        margin = max(margin, 1e-12) if holds else min(margin, -1e-12)
        settled = settled and bool(clear)
        if worst is None or margin < worst.margin:
            worst = Judgement(bool(holds), bool(clear), float(margin), what)
    assert worst is not None  # an SLO has a term
    return Judgement(
        worst.holds, settled if worst.holds else worst.settled, worst.margin, worst.why
    )


def binomial_interval(met: int, counted: int, *, level: float = 0.95) -> tuple[float, float]:
    """Return the exact (Clopper-Pearson) interval of a share; (0, 1) without observations."""
    if counted == 0:
        return 0.0, 1.0
    tail = (1 - level) / 2
    low = 0.0 if met == 0 else float(stats.beta.ppf(tail, met, counted - met + 1))
    high = 1.0 if met == counted else float(stats.beta.ppf(1 - tail, met + 1, counted - met))
    return low, high
