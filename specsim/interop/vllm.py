"""vLLM's `bench forward` results as raw rows, and cells as its input file.

The result is a list of cases with their requests and a median in microseconds. It times the target
forward alone: sampling and CPU time are not in it. Fields: vLLM 0.33.0.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from specsim.cost.rows import Mode, Row
from specsim.errors import Problem, ScenarioError, nearest
from specsim.jsontext import read_json

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
    data, problem = read_json(text, where=where)
    if problem is not None:
        raise ScenarioError([problem])
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
    requests = [request for request in case["requests"] for _ in range(request.get("count", 1))]
    tokens = sum(request["query_len"] for request in requests)
    held = [request["kv_len"] - request["query_len"] for request in requests]
    context = round(sum(held) / len(held))
    # The slowest rank sets the step; its samples are taken where they are listed.
    samples: list[float] = []
    ranks = [rank for rank in case.get("ranks", []) if isinstance(rank.get("latency_us"), dict)]
    if ranks:
        slowest = max(ranks, key=lambda rank: float(rank["latency_us"].get("median", 0.0)))
        samples = [float(sample) for sample in slowest["latency_us"].get("samples_us", [])]
    return [
        Row("verify", tokens, len(requests), context, sample * 1e-6, mode, repeat)
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
    if isinstance(median, bool) or not isinstance(median, int | float) or not median > 0:
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
        query, kv = request.get("query_len"), request.get("kv_len")
        for key, value in (
            ("query_len", query),
            ("kv_len", kv),
            ("count", request.get("count", 1)),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                message = f"must be a whole number of at least 1, not {value!r}"
                found.append(Problem(where, f"{here}.{key}", message))
        if isinstance(query, int) and isinstance(kv, int) and kv < query:
            message = f"{kv} is less than query_len {query}, which it counts too"
            found.append(Problem(where, f"{here}.kv_len", message))
    for number, rank in enumerate(case.get("ranks") or []):
        latency = rank.get("latency_us") if isinstance(rank, dict) else None
        samples = latency.get("samples_us", []) if isinstance(latency, dict) else []
        bad = [
            s for s in samples if isinstance(s, bool) or not isinstance(s, int | float) or s <= 0
        ]
        if bad:
            here = f"{path}.ranks[{number}].latency_us.samples_us"
            found.append(Problem(where, here, f"must be microseconds above 0, not {bad[0]!r}"))
    return found
