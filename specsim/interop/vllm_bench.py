"""vLLM's benchmark results (`vllm bench serve`, 0.33.0): read, and written in the same shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specsim.errors import InputError, ScenarioError
from specsim.inputs import Node
from specsim.interop.results import (
    BenchResult,
    Requests,
    array,
    gaps_s,
    milliseconds,
    number,
    opened,
    opened_lines,
    rate,
    shares,
    whole,
)

HEAD = (
    "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts",
    "request_rate", "burstiness", "max_concurrency",
)  # fmt: skip
RESULTS = (
    "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
    "request_throughput", "request_goodput", "output_throughput", "total_token_throughput",
    "max_output_tokens_per_s", "max_concurrent_requests", "rtfx",
)  # fmt: skip
SPECULATIVE = (
    "spec_decode_acceptance_rate", "spec_decode_acceptance_length", "spec_decode_num_drafts",
    "spec_decode_draft_tokens", "spec_decode_accepted_tokens",
    "spec_decode_per_position_acceptance_rates",
)  # fmt: skip
DETAILS = (
    "input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times",
    "generated_texts", "errors",
)  # fmt: skip
_NAMES = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2el": "e2e_s"}


def parse_vllm_bench(text: str, *, where: str) -> list[BenchResult]:
    """Read a result file: one object, a list of them, or JSON lines (`--append-result`).

    Raises:
        InputError: it is no such file.
    """
    try:
        data = opened(text, where)
        records = data.items() if isinstance(data.value, list) else [data]
    except ScenarioError:
        records = opened_lines(text, where)
    if not records:
        raise InputError(f"{where}: holds no results")
    return [_one(record) for record in records]


def _one(data: Node) -> BenchResult:
    if not data.has("output_throughput"):
        raise data.error(
            'no result of vllm bench serve: it has no "output_throughput"; pass the file that '
            "--save-result wrote"
        )
    notes = []
    said = number(data, "spec_decode_acceptance_rate")
    drafts = number(data, "spec_decode_draft_tokens")
    accepted = number(data, "spec_decode_accepted_tokens")
    if drafts and accepted is not None:
        # Counted, so that percent or fraction is no question.
        fraction: float | None = accepted / drafts
        if said is not None and abs(said * drafts - accepted) < abs(said / 100 * drafts - accepted):
            notes.append("spec_decode_acceptance_rate is a fraction here; vLLM writes percent")
    else:
        fraction = None if said is None else said / 100
    return BenchResult(
        source="vllm",
        label=data.get("label").text() or data.get("backend").text(),
        concurrency=number(data, "max_concurrency"),
        request_rate_per_s=rate(data, "request_rate"),
        duration_s=number(data, "duration"),
        completed=whole(data, "completed"),
        output_tok_per_s=number(data, "output_throughput"),
        total_tok_per_s=number(data, "total_token_throughput"),
        requests_per_s=number(data, "request_throughput"),
        latency_s={
            ours: found for theirs, ours in _NAMES.items() if (found := milliseconds(data, theirs))
        },
        acceptance_length=number(data, "spec_decode_acceptance_length"),
        draft_acceptance_rate=fraction,
        survival_G=shares(data.maybe("spec_decode_per_position_acceptance_rates")),
        requests=_details(data),
        notes=tuple(notes),
    )


def _details(data: Node) -> Requests | None:
    ttft_N = array(data.maybe("ttfts"))
    output_N = array(data.maybe("output_lens"))
    if not len(ttft_N) or not len(output_N):
        return None
    e2e_N = array(data.maybe("latencies"))
    if not len(e2e_N):
        gaps_N = gaps_s(data.maybe("itls"), len(ttft_N))
        e2e_N = ttft_N + gaps_N if len(gaps_N) == len(ttft_N) else gaps_N
    found = Requests(array(data.maybe("input_lens")), output_N, ttft_N, e2e_N)
    return found.check(data.where)


@dataclass(frozen=True, slots=True)
class SpecMetrics:
    """Speculation of single requests (`--per-request-spec-decode-metrics`).

    Attributes:
        steps_N, accepted_N, drafted_N: of each request: verification steps, accepted and verified
            drafts, `[N]`.
        histogram_G: steps that accepted 0, 1, .. drafts, over all requests.
    """

    steps_N: np.ndarray[Any, np.dtype[np.int64]]
    accepted_N: np.ndarray[Any, np.dtype[np.int64]]
    drafted_N: np.ndarray[Any, np.dtype[np.int64]]
    histogram_G: np.ndarray[Any, np.dtype[np.int64]]

    @property
    def pooled_acceptance_length(self) -> float:
        """Tokens a step over all steps, bonus in."""
        return 1.0 + float(self.accepted_N.sum()) / float(self.steps_N.sum())

    @property
    def mean_acceptance_length(self) -> float:
        """Mean over requests of their own tokens a step: a short request counts as a long one."""
        return float(np.mean(1.0 + self.accepted_N / self.steps_N))


def parse_spec_metrics(responses: Sequence[Mapping[str, Any]], *, where: str) -> SpecMetrics:
    """Read `metrics.speculative_decoding` of responses; those without a step are left out.

    Raises:
        InputError: none has it, or the counts contradict each other.
    """
    rows = []
    width = 0
    for n, response in enumerate(responses):
        metrics = Node(response, where, f"response {n}").maybe("metrics")
        found = None if metrics is None else metrics.maybe("speculative_decoding")
        steps = 0 if found is None else whole(found, "num_spec_steps")
        if found is None or not steps:
            continue
        histogram = [value.whole() for value in found.get("acceptance_histogram").items()]
        accepted = found.get("num_accepted_draft_tokens").whole()
        counted = sum(k * v for k, v in enumerate(histogram))
        if sum(histogram) != steps or counted != accepted:
            raise InputError(
                f"{where}: response {n}: the histogram counts {sum(histogram)} steps and {counted} "
                f"accepted drafts, the totals say {steps} and {accepted}"
            )
        width = max(width, len(histogram))
        rows.append((steps, accepted, found.get("num_draft_tokens").whole(), histogram))
    if not rows:
        raise InputError(f"{where}: no response has metrics.speculative_decoding with a step")
    total = np.zeros(width, dtype=np.int64)
    for _, _, _, histogram in rows:
        total[: len(histogram)] += histogram
    columns = [np.array([row[i] for row in rows], dtype=np.int64) for i in range(3)]
    return SpecMetrics(columns[0], columns[1], columns[2], total)


def vllm_bench_json(
    *,
    label: str,
    concurrency: int | None,
    duration_s: float,
    requests: Mapping[str, np.ndarray[Any, Any]],
    rounds: float,
    verified: float,
    accepted: float,
    position_acceptance: Sequence[float] | None = None,
    detailed: bool = False,
) -> dict[str, Any]:
    """Write a simulated run in the shape of `vllm bench serve`.

    Counts and throughputs follow vLLM: output tokens include each request's first, TPOT is
    (latency - TTFT) / (output tokens - 1), the acceptance rate is percent. What a simulation has
    no value for is null.

    Args:
        label: of the run.
        concurrency: users; None for an open rate.
        duration_s: simulated seconds from the first arrival to the last finish.
        requests: ledger columns of finished requests.
        rounds, verified, accepted: request-steps, verified and accepted drafts.
        position_acceptance: share of request-steps that accepted at least 1, 2, .. drafts.
        detailed: add the long lists of --save-detailed.
    """
    output_N, input_N = requests["output_tokens"], requests["prompt_tokens"]
    ttft_N = requests["first_token_s"] - requests["arrival_s"]
    e2e_N = requests["finish_s"] - requests["arrival_s"]
    decode_N = e2e_N - ttft_N
    tpot_N = decode_N[output_N > 1] / (output_N[output_N > 1] - 1)
    itl_N = np.repeat(
        decode_N / np.maximum(requests["rounds"], 1), np.maximum(requests["rounds"], 0)
    )
    count = len(output_N)
    data: dict[str, Any] = dict.fromkeys(HEAD)
    data |= {
        "endpoint_type": "specsim",
        "backend": "specsim",
        "label": label,
        "num_prompts": count,
        "request_rate": "inf",
        "max_concurrency": concurrency,
    }
    data |= dict.fromkeys(RESULTS)
    data |= {
        "duration": duration_s,
        "completed": count,
        "failed": 0,
        "total_input_tokens": int(input_N.sum()),
        "total_output_tokens": int(output_N.sum()),
        "request_throughput": count / duration_s,
        "output_throughput": float(output_N.sum()) / duration_s,
        "total_token_throughput": float((output_N + input_N).sum()) / duration_s,
    }
    for name, sample in (("ttft", ttft_N), ("tpot", tpot_N), ("itl", itl_N), ("e2el", e2e_N)):
        data |= _statistics(name, sample)
    data |= dict.fromkeys(SPECULATIVE)
    if verified:
        data |= {
            "spec_decode_acceptance_rate": 100.0 * accepted / verified,
            "spec_decode_acceptance_length": 1.0 + accepted / rounds,
            "spec_decode_num_drafts": int(rounds),
            "spec_decode_draft_tokens": int(verified),
            "spec_decode_accepted_tokens": int(accepted),
            "spec_decode_per_position_acceptance_rates": position_acceptance,
        }
    if detailed:
        data |= dict.fromkeys(DETAILS)
        data |= {
            "input_lens": input_N.tolist(),
            "output_lens": output_N.tolist(),
            "ttfts": ttft_N.tolist(),
            "latencies": e2e_N.tolist(),
            "start_times": requests["arrival_s"].tolist(),
            "itls": [
                [gap / max(int(n), 1)] * int(n)
                for gap, n in zip(decode_N.tolist(), requests["rounds"], strict=True)
            ],
            "errors": [""] * count,
        }
    return data


def _statistics(name: str, sample_N: np.ndarray[Any, Any]) -> dict[str, float | None]:
    keys = [f"{head}_{name}_ms" for head in ("mean", "median", "std", "p50", "p90", "p99")]
    if len(sample_N) == 0:
        return dict.fromkeys(keys)
    ms_N = sample_N * 1e3
    values = [ms_N.mean(), np.median(ms_N), ms_N.std(), *np.percentile(ms_N, (50, 90, 99))]
    return dict(zip(keys, map(float, values), strict=True))
