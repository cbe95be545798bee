"""Every metric: its name, its unit, what it means, and the code that computes it.

Vocabulary as in docs/concepts/metrics.md. R is the number of requests decoding in a step; a step
commits `num_accepted + 1` tokens a request; those past the request's end are paid for and not
emitted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specsim.metrics.record import Columns
from specsim.stats.intervals import ratio_interval
from specsim.stats.warmup import mser5

_BINS = 600
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a run that is measured: from the end of its warm-up to its end.

    Attributes:
        steps: rows of the step log that end inside.
        requests: ledger rows of requests that arrived inside and finished.
        start_s: where the warm-up ends.
        end_s: where the run ends.
        waiting_s: seconds that requests spent in queues inside the window, all together.
        ranks: number of ranks.
        gpus_per_rank: accelerators of one rank.
        requests_each: how many requests each row of `requests` stands for.
    """

    steps: Columns
    requests: Columns
    start_s: float
    end_s: float
    waiting_s: float
    ranks: int
    gpus_per_rank: int
    requests_each: float = 1.0

    @property
    def span_s(self) -> float:
        """Length of the window, seconds."""
        return self.end_s - self.start_s

    def total(self, column: str) -> float:
        """Return the sum of a step column."""
        return float(self.steps[column].sum())

    @property
    def num_steps(self) -> float:
        """Steps: rows, or what merged rows are made of."""
        return self.total("steps") if "steps" in self.steps else float(len(self.steps["end_s"]))

    @property
    def rounds(self) -> float:
        """Request-steps: the sum of R over steps."""
        return self.total("num_requests")

    @property
    def request_seconds(self) -> NDArray[np.float64]:
        """R times duration of each step, seconds."""
        if "request_s" in self.steps:
            return self.steps["request_s"]
        seconds: NDArray[np.float64] = self.steps["num_requests"] * self.steps["duration_s"]
        return seconds


@dataclass(frozen=True, slots=True)
class Metric:
    """One number about a run.

    Attributes:
        name: key in summaries; ends in its unit where it has one.
        unit: for people.
        definition: one sentence.
        of: computes it from the measured window; NaN where it does not exist.
    """

    name: str
    unit: str
    definition: str
    of: Callable[[Window], float]


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else float("nan")


def _mean(sample_N: NDArray[np.float64]) -> float:
    return float(np.mean(sample_N)) if len(sample_N) else float("nan")


def _percentile(sample_N: NDArray[np.float64], q: float) -> float:
    return float(np.percentile(sample_N, q)) if len(sample_N) else float("nan")


def weighted_percentile(
    value_N: NDArray[np.float64], weight_N: NDArray[np.int64], q: float
) -> float:
    """Return the smallest value with at least q percent of the weight at or below it."""
    if len(value_N) == 0 or weight_N.sum() == 0:
        return float("nan")
    order = np.argsort(value_N, kind="stable")
    cumulative = np.cumsum(weight_N[order])
    at = int(np.searchsorted(cumulative, q / 100 * cumulative[-1], side="left"))
    return float(value_N[order][min(at, len(order) - 1)])


def _ttft(window: Window) -> NDArray[np.float64]:
    found: NDArray[np.float64] = window.requests["first_token_s"] - window.requests["arrival_s"]
    return found


def _e2e(window: Window) -> NDArray[np.float64]:
    found: NDArray[np.float64] = window.requests["finish_s"] - window.requests["arrival_s"]
    return found


def _speed_e2e(window: Window) -> float:
    e2e = _e2e(window)
    return _mean(window.requests["output_tokens"][e2e > 0] / e2e[e2e > 0])


def _tpot(window: Window) -> NDArray[np.float64]:
    decoded = window.requests["output_tokens"] - 1
    service = window.requests["finish_s"] - window.requests["first_token_s"]
    found: NDArray[np.float64] = service[decoded > 0] / decoded[decoded > 0]
    return found


def _itl_request(window: Window) -> NDArray[np.float64]:
    rounds = window.requests["rounds"]
    service = window.requests["finish_s"] - window.requests["first_token_s"]
    found: NDArray[np.float64] = service[rounds > 0] / rounds[rounds > 0]
    return found


def _latency(
    stem: str, definition: str, sample: Callable[[Window], NDArray[np.float64]]
) -> list[Metric]:
    def at(q: float) -> Callable[[Window], float]:
        return lambda window: _percentile(sample(window), q)

    return [
        Metric(f"{stem}_p{q}_s", "s", f"{definition}, percentile {q} over requests.", at(q))
        for q in PERCENTILES
    ]


def _itl_pooled(q: float) -> Callable[[Window], float]:
    return lambda w: weighted_percentile(
        w.steps.get("gap_s", w.steps["duration_s"]), w.steps["num_requests"], q
    )


CATALOG: tuple[Metric, ...] = (
    Metric(
        "output_tok_per_s",
        "tok/s",
        "Tokens emitted by decode steps of all ranks, over the window's seconds. The first token "
        "of a request belongs to its prefill and is not counted.",
        lambda w: _ratio(w.total("emitted"), w.span_s),
    ),
    Metric(
        "tok_s_rank",
        "tok/s",
        "output_tok_per_s over the number of ranks.",
        lambda w: _ratio(w.total("emitted"), w.span_s * w.ranks),
    ),
    Metric(
        "tok_s_gpu",
        "tok/s/GPU",
        "output_tok_per_s over all GPUs (the paper's Figure 7, vertical).",
        lambda w: _ratio(w.total("emitted"), w.span_s * w.ranks * w.gpus_per_rank),
    ),
    Metric(
        "tok_s_user",
        "tok/s/user",
        "Tokens emitted over request-seconds in the batch: the mean speed of a running request, "
        "output throughput over mean running requests (the paper's Figure 7, horizontal; vLLM's "
        "tokens per user with max_concurrency = running requests).",
        lambda w: _ratio(w.total("emitted"), float(w.request_seconds.sum())),
    ),
    Metric(
        "tok_s_user_median",
        "tok/s/user",
        "1 / median TPOT over finished requests (InferenceX's interactivity).",
        lambda w: _ratio(1.0, _percentile(_tpot(w), 50)),
    ),
    Metric(
        "tok_s_user_request_mean",
        "tok/s/user",
        "Mean over finished requests of 1 / TPOT (AIPerf's output token throughput per user).",
        lambda w: _mean(1.0 / _tpot(w)),
    ),
    Metric(
        "tok_s_user_e2e_mean",
        "tok/s/user",
        "Mean over finished requests of output tokens over end-to-end seconds (trtllm-bench's "
        "output throughput per user); without requests that take no time, as one token does where "
        "no prefill is modelled.",
        _speed_e2e,
    ),
    Metric(
        "mean_running",
        "requests/rank",
        "Requests decoding on a rank, averaged over time.",
        lambda w: _ratio(float(w.request_seconds.sum()), w.span_s * w.ranks),
    ),
    Metric(
        "mean_waiting",
        "requests",
        "Requests in queues over the whole cluster, averaged over time.",
        lambda w: _ratio(w.waiting_s, w.span_s),
    ),
    Metric(
        "utilisation",
        "share",
        "Share of time that a rank spends in steps.",
        lambda w: _ratio(w.total("duration_s"), w.span_s * w.ranks),
    ),
    Metric(
        "step_mean_s",
        "s",
        "Mean duration of a step.",
        lambda w: _ratio(w.total("duration_s"), w.num_steps),
    ),
    Metric(
        "acceptance_length",
        "tok/step/request",
        "Tokens committed a step and request, accepted drafts plus the bonus token (tau).",
        lambda w: _ratio(w.total("accepted") + w.rounds, w.rounds),
    ),
    Metric(
        "draft_acceptance_rate",
        "share",
        "Accepted drafts over verified drafts, the bonus in neither; NaN without drafts.",
        lambda w: _ratio(w.total("accepted"), w.total("verified")),
    ),
    Metric(
        "verify_efficiency",
        "share",
        "(accepted + 1) / (verified + 1) over request-steps: bonus and anchor in (the paper's "
        "acceptance rate of Figure 5).",
        lambda w: _ratio(w.total("accepted") + w.rounds, w.total("verified") + w.rounds),
    ),
    Metric(
        "budget_tokens",
        "tok/request",
        "Tokens of a request in one target forward, its anchor included (Figure 8).",
        lambda w: _ratio(w.total("verified") + w.rounds, w.rounds),
    ),
    Metric(
        "rejected_share",
        "share",
        "Verified drafts that were rejected, as a share of all tokens in target forwards, anchors "
        "included: 1 - verify_efficiency.",
        lambda w: _ratio(w.total("verified") - w.total("accepted"), w.total("verified") + w.rounds),
    ),
    Metric(
        "overshoot_share",
        "share",
        "Committed tokens past the end of their request: paid for and not emitted.",
        lambda w: 1.0 - _ratio(w.total("emitted"), w.total("accepted") + w.rounds),
    ),
    *_latency(
        "ttft",
        "Arrival to first token; queueing alone where the scenario models no prefill",
        _ttft,
    ),
    *_latency("tpot", "(End to end - TTFT) / (output tokens - 1)", _tpot),
    *_latency("itl_request", "Mean gap between the chunks of one request", _itl_request),
    *(
        Metric(
            f"itl_p{q}_s",
            "s",
            f"Gap between chunks, percentile {q} pooled over all gaps of all requests.",
            _itl_pooled(q),
        )
        for q in PERCENTILES
    ),
    *_latency("e2e", "Arrival to last token", _e2e),
    Metric(
        "requests_finished",
        "requests",
        "Requests that arrived after the warm-up and finished.",
        lambda w: float(round(len(w.requests["request"]) * w.requests_each)),
    ),
    Metric("steps", "steps", "Steps that ended in the window.", lambda w: w.num_steps),
    Metric("warmup_s", "s", "Simulated seconds cut as warm-up (MSER-5).", lambda w: w.start_s),
    Metric("span_s", "s", "Simulated seconds measured.", lambda w: w.span_s),
)


def summarise(window: Window) -> dict[str, float | None]:
    """Return every metric of `CATALOG`, None where it does not exist, and the 95 % half-widths.

    Half-widths (`tok_s_gpu_ci95`, `tok_s_user_ci95`, `budget_tokens_ci95`,
    `acceptance_length_ci95`) come from 20 batch means of the window's steps.
    """
    found: dict[str, float | None] = {}
    for metric in CATALOG:
        value = metric.of(window)
        found[metric.name] = value if np.isfinite(value) else None
    names = ("num_requests", "emitted", "verified", "accepted")
    steps = {name: window.steps[name].astype(np.float64) for name in names}
    rounds = steps["num_requests"]
    per_gpu = window.ranks * window.gpus_per_rank
    binned = _by_time(window, steps["emitted"])
    seconds = np.full(len(binned), window.span_s / max(len(binned), 1) * per_gpu)
    for name, top, bottom in (
        ("tok_s_gpu", binned, seconds),
        ("tok_s_user", steps["emitted"], window.request_seconds),
        ("budget_tokens", steps["verified"] + rounds, rounds),
        ("acceptance_length", steps["accepted"] + rounds, rounds),
    ):
        half_width = ratio_interval(top, bottom).half_width
        found[f"{name}_ci95"] = half_width if np.isfinite(half_width) else None
    return found


def _by_time(window: Window, weight_T: NDArray[np.float64]) -> NDArray[np.float64]:
    """Add up `weight_T` of the steps by equal time bins of the window."""
    bins = min(_BINS, len(weight_T))
    if bins == 0 or window.span_s <= 0:
        return np.zeros(0)
    summed, _ = np.histogram(
        window.steps["end_s"], bins=bins, range=(window.start_s, window.end_s), weights=weight_T
    )
    return summed


def measure(
    *,
    steps: Columns,
    requests: Columns,
    end_s: float,
    ranks: int,
    gpus_per_rank: int,
    cut_warmup: bool,
    requests_each: float = 1.0,
) -> Window:
    """Cut the warm-up off a run and return what is left to measure.

    The warm-up is found by MSER-5 on emitted tokens by time bin.

    Args:
        steps: the whole step log.
        requests: the whole ledger, or a sample of it.
        end_s: where the run ended.
        ranks: number of ranks.
        gpus_per_rank: accelerators of one rank.
        cut_warmup: False measures from time 0 (an offline batch has no steady state).
        requests_each: how many requests each row of `requests` stands for.
    """
    start_s = 0.0
    whole = Window(steps, requests, 0.0, end_s, 0.0, ranks, gpus_per_rank)
    if cut_warmup:
        binned = _by_time(whole, steps["emitted"].astype(np.float64))
        if len(binned):
            start_s = mser5(binned) * end_s / len(binned)
    first = int(np.searchsorted(steps["end_s"], start_s, side="right"))
    done = (requests["arrival_s"] >= start_s) & np.isfinite(requests["finish_s"])
    # Queues of prefill count, prefill itself and the way to a decoding rank do not.
    admitted_s = requests.get("admitted_s", requests["first_token_s"])
    gone_s = requests.get("closed_s", np.full(len(admitted_s), end_s))
    admitted_s = np.fmin(np.where(np.isfinite(admitted_s), admitted_s, end_s), gone_s)
    waiting_s = np.clip(admitted_s, start_s, end_s) - np.clip(requests["arrival_s"], start_s, end_s)
    return Window(
        steps={name: column[first:] for name, column in steps.items()},
        requests={name: column[done] for name, column in requests.items()},
        start_s=start_s,
        end_s=end_s,
        waiting_s=float(waiting_s.sum()) * requests_each,
        ranks=ranks,
        gpus_per_rank=gpus_per_rank,
        requests_each=requests_each,
    )
