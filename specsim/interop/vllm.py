"""vLLM's `bench forward` results as raw rows, and cells as its input file.

The result is a list of cases with their requests and a median in microseconds. It times the target
forward alone: sampling and CPU time are not in it. Fields: vLLM 0.33.0.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from specsim.cost.rows import Mode, Row
from specsim.errors import InputError, Problem, ScenarioError, nearest
from specsim.inputs import Node, is_number, parse_json

_CASE = ("case", "requests", "median_us", "ranks")
_REQUEST = ("query_len", "kv_len", "num_draft_tokens", "chunked", "count")


def parse_bench_forward(text: str, *, where: str, mode: Mode = "graph") -> list[Row]:
    """Read the JSON of `vllm bench forward --output-json`.

    One row a case: B is the sum of the query lengths, R the number of requests, and the context
    the mean of what each held before its queries (`kv_len` counts them too). Where ranks list their
    samples, each sample is a row.

    Args:
        text: the file's text.
        where: the file's name in errors.
        mode: whether steps were replayed from graphs; the file does not say it for a case.

    Raises:
        ScenarioError: every problem, by case and field.
    """
    data = parse_json(text, where)
    if not isinstance(data, list) or not data:
        raise ScenarioError([Problem(where, "", "must be a list of at least one case")])
    problems: list[Problem] = []
    rows: list[Row] = []
    for index, case in enumerate(data):
        found = _case_problems(case, where, f"[{index}]")
        problems += found
        if not found:
            rows += _rows(case, mode)
    if problems:
        raise ScenarioError(problems)
    return rows


def bench_forward_cases(rows: Sequence[Row]) -> str:
    """Return the input file of `vllm bench forward` that times the cells of these rows.

    Widths are spread evenly over the requests; drafts are all tokens but each anchor.
    """
    cases = []
    cells = {(r.batch_tokens, r.num_requests, r.context_tokens) for r in rows if r.part != "draft"}
    for tokens, count, context in sorted(cells):
        width, wider = divmod(tokens, count)
        requests = [
            {
                "query_len": query,
                "kv_len": context + query,
                "num_draft_tokens": query - 1,
                "chunked": False,
                "count": number,
            }
            for query, number in ((width + 1, wider), (width, count - wider))
            if number
        ]
        cases.append({"name": f"b{tokens}_r{count}_c{context}", "requests": requests})
    return json.dumps({"cases": cases}, indent=2) + "\n"


def _rows(case: dict[str, Any], mode: Mode) -> list[Row]:
    counts = [int(request.get("count", 1)) for request in case["requests"]]
    queries = [int(request["query_len"]) for request in case["requests"]]
    held = [int(request["kv_len"]) - int(request["query_len"]) for request in case["requests"]]
    num_requests = sum(counts)
    tokens = sum(count * query for count, query in zip(counts, queries, strict=True))
    context = round(sum(n * kv for n, kv in zip(counts, held, strict=True)) / num_requests)
    # The slowest rank sets the step; its samples are taken where they are listed.
    samples: list[float] = []
    timed = [rank["latency_us"] for rank in case.get("ranks") or [] if rank.get("latency_us")]
    if timed:
        slowest = max(timed, key=lambda latency: float(latency.get("median") or 0.0))
        samples = [float(sample) for sample in slowest.get("samples_us") or []]
    return [
        Row("verify", tokens, num_requests, context, sample * 1e-6, mode, repeat)
        for repeat, sample in enumerate(samples or [float(case["median_us"])])
    ]


def _case_problems(case: Any, where: str, path: str) -> list[Problem]:
    if not isinstance(case, dict):
        return [Problem(where, path, "must be an object")]
    found = [
        Problem(
            where,
            f"{path}.{key}",
            f"is not a field; legal: {', '.join(_CASE)}",
            nearest(key, _CASE),
        )
        for key in case
        if key not in _CASE
    ]
    median = case.get("median_us")
    if median is None or not is_number(median) or median <= 0:
        found.append(
            Problem(where, f"{path}.median_us", f"must be microseconds above 0, not {median!r}")
        )
    requests = case.get("requests")
    if not isinstance(requests, list) or not requests:
        found.append(Problem(where, f"{path}.requests", "must be a list of at least one request"))
        return found
    for number, request in enumerate(requests):
        here = f"{path}.requests[{number}]"
        if not isinstance(request, dict):
            found.append(Problem(where, here, "must be an object"))
            continue
        found += [
            Problem(
                where,
                f"{here}.{key}",
                f"is not a field; legal: {', '.join(_REQUEST)}",
                nearest(key, _REQUEST),
            )
            for key in request
            if key not in _REQUEST
        ]
        read = Node(request, where, here)
        try:
            query = read.get("query_len").whole(least=1)
            kv = read.get("kv_len").whole(least=1)
            if read.has("count"):
                read.get("count").whole(least=1)
            if kv < query:
                raise read.get("kv_len").error(
                    f"{kv} is less than query_len {query}, which it counts"
                )
        except InputError as error:
            found.append(Problem(where, "", str(error).removeprefix(f"{where}: ")))
    try:
        _check_ranks(Node(case, where, path))
    except InputError as error:
        found.append(Problem(where, "", str(error).removeprefix(f"{where}: ")))
    return found


def _check_ranks(case: Node) -> None:
    ranks = case.maybe("ranks")
    for rank in () if ranks is None else ranks.items():
        latency = rank.maybe("latency_us")
        if latency is None:
            continue
        samples = latency.maybe("samples_us")
        for value in (latency.maybe("median"), *(() if samples is None else samples.items())):
            if value is not None and not value.number() > 0:
                raise value.error(f"must be microseconds above 0, not {value.value!r}")
