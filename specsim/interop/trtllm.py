"""trtllm-bench reports (TensorRT-LLM, August 2026)."""

from __future__ import annotations

from specsim.inputs import Node
from specsim.interop.results import BenchResult, Latency, number, opened, whole


def parse_trtllm_bench(text: str, *, where: str) -> BenchResult:
    """Read a report (`--report_json`).

    Its draft counts assume the same draft length in every step, so under variable verification
    they are wrong; the acceptance rate is taken over with a note and never used for anything.

    Raises:
        InputError: it is no such report.
    """
    data = opened(text, where)
    if not data.has("performance"):
        raise data.error('no trtllm-bench report: it has no "performance"')
    performance = data.get("performance")
    none = Node({}, where)
    world, info, streaming, decoding, engine = (
        data.maybe(key) or none
        for key in ("world_info", "request_info", "streaming_metrics", "decoding_stats", "engine")
    )
    latency: dict[str, Latency] = {}
    for ours, mean, part, key in (
        ("ttft_s", "avg_ttft_ms", streaming, "ttft_percentiles"),
        ("tpot_s", "avg_tpot_ms", streaming, "tpot_percentiles"),
        ("e2e_s", "avg_request_latency_ms", performance, "request_latency_percentiles_ms"),
    ):
        found = _percentiles(part.maybe(key), scale=1e-3)
        average = number(part, mean)
        if average is not None:
            found["mean"] = average * 1e-3
        if found:
            latency[ours] = found
    lengths = _percentiles(decoding.maybe("acceptance_length_percentiles"), scale=1.0)
    rates = _percentiles(decoding.maybe("draft_acceptance_rate_percentiles"), scale=1.0)
    notes: tuple[str, ...] = ()
    if rates or lengths:
        notes = (
            "acceptance is a mean over requests, from draft counts that assume one draft length "
            "for all steps; percentiles are order statistics, not interpolated",
        )
    total_ms = number(performance, "total_latency_ms")
    return BenchResult(
        source="trtllm-bench",
        label=engine.get("model").text(),
        concurrency=number(info, "avg_num_concurrent_requests"),
        gpus=whole(world, "world_size"),
        duration_s=None if total_ms is None else total_ms * 1e-3,
        completed=whole(info, "num_requests"),
        output_tok_per_s=number(performance, "system_output_throughput_tok_s"),
        total_tok_per_s=number(performance, "system_total_throughput_tok_s"),
        requests_per_s=number(performance, "request_throughput_req_s"),
        latency_s=latency,
        tok_s_user=number(performance, "output_throughput_per_user_tok_s"),
        acceptance_length=lengths.get("mean"),
        draft_acceptance_rate=rates.get("mean"),
        notes=notes,
    )


def _percentiles(data: Node | None, *, scale: float) -> Latency:
    if data is None:
        return {}
    names = {"p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "minimum": "min",
             "maximum": "max", "average": "mean"}  # fmt: skip
    return {
        ours: value * scale
        for theirs, ours in names.items()
        if (value := number(data, theirs)) is not None
    }
