"""SGLang's benchmark results (0.5.23): JSON lines of serving, one_batch and one_batch_server."""

from __future__ import annotations

from specsim.inputs import Node
from specsim.interop.results import (
    BenchResult,
    Requests,
    array,
    gaps_s,
    milliseconds,
    number,
    opened_lines,
    rate,
    whole,
)

_NAMES = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2e_latency": "e2e_s"}


def parse_sglang_bench(text: str, *, where: str) -> list[BenchResult]:
    """Read a result file, whichever of the three tools wrote each line.

    Raises:
        InputError: a line is none of theirs; says which.
    """
    found = []
    for data in opened_lines(text, where):
        if data.has("total_throughput"):
            found.append(_serving(data))
        elif data.has("median_decode_latency"):
            found.append(_one_batch(data))
        elif data.has("last_ttft") or data.has("output_throughput"):
            found.append(_one_batch_server(data))
        else:
            raise data.error(
                "no result of bench_serving, bench_one_batch or bench_one_batch_server; it has "
                f"{', '.join([key for key, _ in data.entries()][:8])}"
            )
    return found


def _serving(data: Node) -> BenchResult:
    requests = None
    ttft_N, output_N = array(data.maybe("ttfts")), array(data.maybe("output_lens"))
    if len(ttft_N) and len(output_N):
        gaps_N = gaps_s(data.maybe("itls"), len(ttft_N))
        e2e_N = ttft_N + gaps_N if len(gaps_N) == len(ttft_N) else gaps_N
        requests = Requests(array(data.maybe("input_lens")), output_N, ttft_N, e2e_N)
        requests.check(data.where)
    return BenchResult(
        source="sglang",
        label=data.get("tag").text() or data.get("backend").text(),
        concurrency=number(data, "max_concurrency"),
        request_rate_per_s=rate(data, "request_rate"),
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


def _one_batch(data: Node) -> BenchResult:
    batch = number(data, "batch_size")
    tpot = number(data, "median_decode_latency")
    return BenchResult(
        source="sglang one_batch",
        label=data.get("run_name").text(),
        concurrency=batch,
        completed=whole(data, "batch_size"),
        output_tok_per_s=number(data, "median_decode_throughput"),
        total_tok_per_s=number(data, "overall_throughput"),
        duration_s=number(data, "total_latency"),
        latency_s={"tpot_s": {"p50": tpot}} if tpot else {},
        notes=("the throughput is that of one median decode step, without prefill",),
    )


def _one_batch_server(data: Node) -> BenchResult:
    return BenchResult(
        source="sglang one_batch_server",
        label=data.get("run_name").text(),
        concurrency=number(data, "batch_size"),
        completed=whole(data, "batch_size"),
        duration_s=number(data, "latency"),
        output_tok_per_s=number(data, "output_throughput"),
        total_tok_per_s=number(data, "overall_throughput"),
        acceptance_length=number(data, "acc_length"),
        notes=("latency is the whole batch's, from the first request to the last token",),
    )
