"""SGLang's benchmark results (0.5.23): JSON lines of serving, one_batch and one_batch_server."""

from __future__ import annotations

from typing import Any

import numpy as np

from specsim.errors import InputError
from specsim.interop.results import (
    BenchResult,
    Requests,
    array,
    json_lines,
    milliseconds,
    number,
    whole,
)

_NAMES = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2e_latency": "e2e_s"}


def parse_sglang_bench(text: str, *, where: str) -> list[BenchResult]:
    """Read a result file, whichever of the three tools wrote each line.

    Raises:
        InputError: a line is none of theirs; says which.
    """
    found = []
    for line, data in enumerate(json_lines(text, where), start=1):
        if not isinstance(data, dict):
            raise InputError(f"{where}:{line}: must be an object")
        if "total_throughput" in data:
            found.append(_serving(data))
        elif "median_decode_latency" in data:
            found.append(_one_batch(data))
        elif "last_ttft" in data or "output_throughput" in data:
            found.append(_one_batch_server(data))
        else:
            raise InputError(
                f"{where}:{line}: no result of bench_serving, bench_one_batch or "
                f"bench_one_batch_server; it has {', '.join(list(data)[:8])}"
            )
    return found


def _serving(data: dict[str, Any]) -> BenchResult:
    requests = None
    if data.get("ttfts") and data.get("output_lens"):
        ttft_N = array(data["ttfts"])
        gaps = data.get("itls") or [[]] * len(ttft_N)
        e2e_N = ttft_N + np.array([float(sum(gap)) for gap in gaps])
        requests = Requests(
            array(data.get("input_lens")), array(data["output_lens"]), ttft_N, e2e_N
        )
    return BenchResult(
        source="sglang",
        label=str(data.get("tag") or data.get("backend") or ""),
        concurrency=number(data, "max_concurrency"),
        request_rate_per_s=number(data, "request_rate"),
        duration_s=number(data, "duration"),
        completed=whole(data, "completed"),
        output_tok_per_s=number(data, "output_throughput"),
        total_tok_per_s=number(data, "total_throughput"),
        requests_per_s=number(data, "request_throughput"),
        latency_s={
            ours: found for theirs, ours in _NAMES.items() if (found := milliseconds(data, theirs))
        },
        acceptance_length=number(data, "accept_length"),
        requests=requests,
    )


def _one_batch(data: dict[str, Any]) -> BenchResult:
    batch = number(data, "batch_size")
    tpot = number(data, "median_decode_latency")
    return BenchResult(
        source="sglang one_batch",
        label=str(data.get("run_name") or ""),
        concurrency=batch,
        completed=whole(data, "batch_size"),
        output_tok_per_s=number(data, "median_decode_throughput"),
        total_tok_per_s=number(data, "overall_throughput"),
        duration_s=number(data, "total_latency"),
        latency_s={"tpot_s": {"p50": tpot}} if tpot else {},
        notes=("the throughput is that of one median decode step, without prefill",),
    )


def _one_batch_server(data: dict[str, Any]) -> BenchResult:
    return BenchResult(
        source="sglang one_batch_server",
        label=str(data.get("run_name") or ""),
        concurrency=number(data, "batch_size"),
        completed=whole(data, "batch_size"),
        duration_s=number(data, "latency"),
        output_tok_per_s=number(data, "output_throughput"),
        total_tok_per_s=number(data, "overall_throughput"),
        acceptance_length=number(data, "acc_length"),
        notes=("latency is the whole batch's, from the first request to the last token",),
    )
