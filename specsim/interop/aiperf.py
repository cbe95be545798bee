"""AIPerf 0.13 results (and GenAI-Perf's, whose shape it keeps): read, and written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from specsim.errors import InputError
from specsim.inputs import Node
from specsim.interop.results import (
    BenchResult,
    FloatArray,
    Latency,
    Requests,
    number,
    opened,
    opened_lines,
    whole,
)

SCHEMA = "1.4"
STATISTICS = ("unit", "avg", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "min",
              "max", "std", "count", "sum")  # fmt: skip
TOP = ("schema_version", "aiperf_version", "benchmark_id", "input_config", "run_info",
       "was_cancelled", "is_complete", "start_time", "end_time", "error_summary")  # fmt: skip
_SECONDS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9, "milliseconds": 1e-3,
            "seconds": 1.0}  # fmt: skip
_NAMES = {
    "time_to_first_token": "ttft_s",
    # TPOT, with a divisor of OSL minus the tokens of the first content chunk.
    "inter_token_latency": "tpot_s",
    "inter_chunk_latency": "itl_s",
    "request_latency": "e2e_s",
}


def parse_aiperf_summary(text: str, *, where: str) -> BenchResult:
    """Read `profile_export_aiperf.json` (or GenAI-Perf's summary).

    Raises:
        InputError: it is no such file, or a latency has no known unit.
    """
    data = opened(text, where)
    if not data.has("output_token_throughput"):
        raise data.error(
            'no AIPerf summary: it has no "output_token_throughput"; pass '
            "profile_export_aiperf.json"
        )

    def average(tag: str) -> float | None:
        found = data.maybe(tag)
        return None if found is None else number(found, "avg")

    # The pooled length weighs steps equally, the plain one requests; ours is the pooled.
    pooled = average("spec_decode_token_weighted_acceptance_length")
    per_request = average("spec_decode_acceptance_length")
    notes = []
    if pooled is None and per_request is not None:
        notes.append("acceptance_length is a mean over requests; the file has no pooled one")
    rate = average("spec_decode_overall_draft_acceptance_rate")
    if rate is None:
        rate = average("spec_decode_draft_acceptance_rate")
    histogram = data.maybe("pooled_spec_decode_acceptance_histogram")
    config = data.maybe("input_config")
    return BenchResult(
        source="aiperf",
        label=data.get("benchmark_id").text(),
        concurrency=None if config is None else _concurrency(config),
        duration_s=average("benchmark_duration"),
        completed=None if (n := average("request_count")) is None else round(n),
        output_tok_per_s=average("output_token_throughput"),
        total_tok_per_s=average("total_token_throughput"),
        requests_per_s=average("request_throughput"),
        latency_s={
            ours: _latency(found)
            for tag, ours in _NAMES.items()
            if (found := data.maybe(tag)) is not None
        },
        tok_s_user=average("output_token_throughput_per_user"),
        acceptance_length=per_request if pooled is None else pooled,
        draft_acceptance_rate=None if rate is None else rate / 100,
        survival_G=() if histogram is None else _survival(histogram),
        notes=tuple(notes),
    )


def _concurrency(config: Node) -> float | None:
    for part in (config, config.maybe("loadgen"), config.maybe("load_generator")):
        if part is not None and (found := number(part, "concurrency")) is not None:
            return found
    return None


def _scale(found: Node) -> float:
    """Seconds of the unit that a latency is in."""
    unit = found.get("unit")
    scale = _SECONDS.get(str(unit.value))
    if scale is None:
        raise unit.error(f'unit "{unit.value}"; legal are {", ".join(_SECONDS)}')
    return scale


def _latency(data: Node) -> Latency:
    scale = _scale(data)
    found = {}
    for key in STATISTICS[1:]:
        if key not in ("count", "sum") and (value := number(data, key)) is not None:
            found["mean" if key == "avg" else key] = value * scale
    return found


def _survival(histogram: Node) -> tuple[float, ...]:
    """Turn counts of steps by accepted drafts into the share that accepted at least k."""
    count = {}
    for key, value in histogram.entries():
        if not key.isdecimal() or int(key) > 64:
            raise value.error("must stand at a number of accepted drafts up to 64")
        count[int(key)] = value.whole()
    total = sum(count.values())
    if total == 0:
        return ()
    return tuple(
        sum(v for k, v in count.items() if k >= at) / total for at in range(1, max(count) + 1)
    )


def parse_aiperf_records(text: str, *, where: str) -> BenchResult:
    """Read `profile_export.jsonl`: single requests, with their speculation where it is there.

    The draft acceptance rate of a record is a fraction there, where the summary has percent; here
    it is counted anew. Cancelled and failed records are left out and counted in a note.

    Raises:
        InputError: no record is usable.
    """
    rows, left_out = [], 0
    steps = accepted = drafted = 0
    for record in opened_lines(text, where):
        metadata, metrics = record.maybe("metadata"), record.maybe("metrics")
        cancelled = metadata is not None and metadata.get("was_cancelled").value
        if cancelled or record.get("error").value or metrics is None:
            left_out += 1
            continue
        rows.append(
            [
                _value(metrics, "input_sequence_length"),
                _value(metrics, "output_sequence_length"),
                _seconds(metrics, "time_to_first_token"),
                _seconds(metrics, "request_latency"),
            ]
        )
        found = record.maybe("spec_decode_acceptance")
        if found is not None:
            steps += whole(found, "num_spec_steps") or 0
            accepted += whole(found, "num_accepted_draft_tokens") or 0
            drafted += whole(found, "num_draft_tokens") or 0
    if not rows:
        raise InputError(f"{where}: no finished request among {left_out} records")
    columns = np.array(rows, dtype=np.float64).T
    requests = Requests(columns[0], columns[1], columns[2], columns[3])
    return BenchResult(
        source="aiperf records",
        completed=len(rows),
        acceptance_length=1 + accepted / steps if steps else None,
        draft_acceptance_rate=accepted / drafted if drafted else None,
        requests=requests,
        notes=(f"{left_out} cancelled or failed requests left out",) if left_out else (),
    )


def _value(metrics: Node, tag: str) -> float:
    found = metrics.maybe(tag)
    value = None if found is None else number(found, "value")
    return float("nan") if value is None else value


def _seconds(metrics: Node, tag: str) -> float:
    found = metrics.maybe(tag)
    return float("nan") if found is None else _value(metrics, tag) * _scale(found)


def aiperf_json(
    *,
    label: str,
    concurrency: int | None,
    duration_s: float,
    requests: Mapping[str, np.ndarray[Any, Any]],
    version: str,
) -> dict[str, Any]:
    """Write a simulated run in the shape of AIPerf's summary.

    Args:
        label: becomes the benchmark's id.
        concurrency: users; None for an open rate.
        duration_s: simulated seconds.
        requests: ledger columns of finished requests.
        version: specsim's.
    """
    output_N, input_N = requests["output_tokens"], requests["prompt_tokens"]
    ttft_N = requests["first_token_s"] - requests["arrival_s"]
    e2e_N = requests["finish_s"] - requests["arrival_s"]
    many = output_N > 1
    tpot_N = (e2e_N - ttft_N)[many] / (output_N[many] - 1)
    rounds_N, verified_N, accepted_N = (requests[k] for k in ("rounds", "verified", "accepted"))
    drafting = verified_N > 0
    data: dict[str, Any] = dict.fromkeys(TOP)
    data |= {
        "schema_version": SCHEMA,
        "benchmark_id": label,
        "input_config": {"loadgen": {"concurrency": concurrency}, "specsim_version": version},
        "was_cancelled": False,
        "is_complete": True,
        "error_summary": [],
    }
    samples: dict[str, tuple[str, FloatArray]] = {
        "time_to_first_token": ("ms", ttft_N * 1e3),
        "request_latency": ("ms", e2e_N * 1e3),
        "inter_token_latency": ("ms", tpot_N * 1e3),
        "output_token_throughput_per_user": ("tokens/sec/user", 1 / tpot_N),
        "e2e_output_token_throughput": ("tokens/sec/user", output_N / e2e_N),
        "input_sequence_length": ("tokens", input_N.astype(np.float64)),
        "output_sequence_length": ("tokens", output_N.astype(np.float64)),
    }
    if drafting.any():
        r, v, a = (x[drafting].astype(np.float64) for x in (rounds_N, verified_N, accepted_N))
        samples |= {
            "spec_decode_acceptance_length": ("tokens/step", 1 + a / r),
            "spec_decode_draft_acceptance_rate": ("%", 100 * a / v),
            "spec_decode_accepted_per_verified": ("ratio", (a + r) / (v + r)),
            "spec_decode_steps": ("steps", r),
            "spec_decode_accepted_draft_tokens": ("tokens", a),
            "spec_decode_draft_tokens": ("tokens", v),
        }
        data |= {
            "spec_decode_token_weighted_acceptance_length": _single(
                "tokens/step", 1 + a.sum() / r.sum()
            ),
            "spec_decode_overall_draft_acceptance_rate": _single("%", 100 * a.sum() / v.sum()),
        }
    data |= {tag: _statistics(unit, sample) for tag, (unit, sample) in samples.items()}
    data |= {
        "request_throughput": _single("requests/sec", len(output_N) / duration_s),
        "request_count": _single("requests", len(output_N)),
        "output_token_throughput": _single("tokens/sec", output_N.sum() / duration_s),
        "total_token_throughput": _single(
            "tokens/sec", (output_N.sum() + input_N.sum()) / duration_s
        ),
        "total_isl": _single("tokens", input_N.sum()),
        "total_osl": _single("tokens", output_N.sum()),
        "benchmark_duration": _single("sec", duration_s),
        "error_request_count": _single("requests", 0),
    }
    return data


def _single(unit: str, value: float) -> dict[str, Any]:
    return {"unit": unit, "avg": float(value)}


def _statistics(unit: str, sample_N: FloatArray) -> dict[str, Any]:
    if len(sample_N) == 0:
        return dict.fromkeys(STATISTICS) | {"unit": unit, "count": 0}
    found = {f"p{q}": float(np.percentile(sample_N, q)) for q in (1, 5, 10, 25, 50, 75, 90, 95, 99)}
    return {
        "unit": unit,
        "avg": float(sample_N.mean()),
        **found,
        "min": float(sample_N.min()),
        "max": float(sample_N.max()),
        "std": float(sample_N.std()),
        "count": len(sample_N),
        "sum": float(sample_N.sum()),
    }
