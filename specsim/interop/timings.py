"""Timings in other tools' files as raw rows: SGLang's `bench_one_batch` JSONL, and plain CSV.

Units stand in the names (`seconds`, `step_ms`) or are defined by the tool; nothing is guessed.
"""

from __future__ import annotations

import math
from typing import Any

from specsim.cost.rows import Row, fewer_tokens
from specsim.cost.telemetry import Telemetry
from specsim.errors import InputError, Problem, ScenarioError, nearest
from specsim.inputs import MOST_TOKENS, csv_rows, json_lines
from specsim.interop.headers import (
    LEAST_S,
    MOST_S,
    implausible,
    plain,
    time_column,
    time_columns,
    told_once,
)

_ONE_BATCH = (
    "run_name",
    "batch_size",
    "input_len",
    "output_len",
    "prefill_latency",
    "prefill_throughput",
    "median_decode_latency",
    "median_decode_throughput",
    "total_latency",
    "overall_throughput",
)
_CSV = ("batch_tokens", "num_requests", "context_tokens", "seconds", *time_columns("step"))
_TELEMETRY = (
    "concurrency",
    *time_columns("tpot", "itl"),
    "acceptance_length",
    "tokens_per_request",
    "context_tokens",
)
_FRONTIER = ("tok_s_user", "tok_s_gpu")


def parse_one_batch(text: str, *, where: str) -> list[Row]:
    """Read SGLang's `bench_one_batch` JSONL: one whole decode step a line, latencies in seconds.

    Context is the prompt plus half of the output, which the median step has seen.

    Raises:
        ScenarioError: every problem, by line and field.
    """
    problems: list[Problem] = []
    rows: list[Row] = []
    for place, data in json_lines(text, where):
        if not isinstance(data, dict):
            problems.append(Problem(place, "", "must be an object"))
            continue
        found = [
            Problem(place, key, "is not a field of bench_one_batch", nearest(key, _ONE_BATCH))
            for key in data
            if key not in _ONE_BATCH
        ]
        numbers = {
            key: _number(data.get(key), place, key, found)
            for key in ("input_len", "output_len", "median_decode_latency")
        }
        size = _whole(data.get("batch_size"), place, "batch_size", found)
        problems += found
        if not found:
            context = int(numbers["input_len"] + numbers["output_len"] / 2)
            rows.append(Row("step", size, size, context, numbers["median_decode_latency"]))
    if problems:
        raise ScenarioError(problems)
    return rows


def parse_csv_rows(text: str, *, where: str, any_step_time: bool = False) -> list[Row]:
    """Read a CSV with `batch_tokens` and either `seconds` or `step_ms` (`step_s`, `step_us`).

    `num_requests` (1 token a request where absent) and `context_tokens` (0 where absent) may stand
    beside.

    Args:
        text: the file's text.
        where: its name in errors.
        any_step_time: whether times are believed that no engine is known to take.

    Raises:
        ScenarioError: every problem, by row and field; unknown columns are listed.
    """
    columns, lines = csv_rows(
        text, where, known=_CSV, needed=("batch_tokens",), blank=False, rename=plain
    )
    timed, scale = time_column(columns, ("step",), where)
    problems: list[Problem] = []
    odd: list[Problem] = []
    rows: list[Row] = []
    for place, line in lines:
        found: list[Problem] = []
        tokens = _whole(line["batch_tokens"], place, "batch_tokens", found)
        requests = (
            _whole(line["num_requests"], place, "num_requests", found)
            if "num_requests" in columns
            else tokens
        )
        context = (
            _whole(line["context_tokens"], place, "context_tokens", found, least=0)
            if "context_tokens" in columns
            else 0
        )
        value = _number(line[timed], place, timed, found)
        if not found and not any_step_time:
            wrong = implausible(value, scale, place, timed)
            odd += [wrong] if wrong is not None else []
        if tokens < requests and not found:
            found.append(Problem(place, "batch_tokens", fewer_tokens(tokens, requests)))
        problems += found
        if not found:
            rows.append(Row("step", tokens, requests, context, value * scale))
    problems += told_once(odd)
    if problems:
        raise ScenarioError(problems)
    return rows


def parse_telemetry(text: str, *, where: str, any_step_time: bool = False) -> list[Telemetry]:
    """Read a CSV of what a running engine showed at several loads.

    Columns: `concurrency`, `tpot_ms` (or `tpot_s`, `tpot_us`; without speculation `itl_ms`), where
    it speculates `acceptance_length` and `tokens_per_request` (both 1 where absent), and
    `context_tokens` if known.

    Args:
        text: the file's text.
        where: its name in errors.
        any_step_time: whether times are believed that no engine is known to take.

    Raises:
        ScenarioError: every problem, by row and field.
    """
    columns, lines = csv_rows(
        text, where, known=_TELEMETRY, needed=("concurrency",), blank=False, rename=plain
    )
    timed, scale = time_column(columns, ("tpot", "itl"), where)
    if timed.startswith("itl") and "acceptance_length" in columns:
        message = "is the time between chunks, which hold several tokens where an engine speculates"
        raise ScenarioError([Problem(f"{where}:1", timed, message, "give tpot_ms")])
    problems: list[Problem] = []
    odd: list[Problem] = []
    points: list[Telemetry] = []
    for place, line in lines:
        found: list[Problem] = []
        value = {
            name: _number(line[name], place, name, found) if name in columns else default
            for name, default in (
                ("concurrency", 0.0),
                (timed, 0.0),
                ("acceptance_length", 1.0),
                ("tokens_per_request", 1.0),
                ("context_tokens", 0.0),
            )
        }
        if not found and not any_step_time:
            wrong = implausible(value[timed], scale, place, timed)
            odd += [wrong] if wrong is not None else []
        if not found:
            try:
                points.append(
                    Telemetry(
                        value["concurrency"],
                        value[timed] * scale,
                        value["acceptance_length"],
                        value["tokens_per_request"],
                        value["context_tokens"],
                    )
                )
            except InputError as error:
                found.append(Problem(place, "", str(error)))
        problems += found
    problems += told_once(odd)
    if problems:
        raise ScenarioError(problems)
    return points


def parse_frontier(
    text: str, *, where: str, any_step_time: bool = False
) -> tuple[list[float], list[float]]:
    """Read a CSV of a throughput-interactivity line: `tok_s_user`, `tok_s_gpu`.

    Raises:
        ScenarioError: every problem, by row and field.
    """
    _, lines = csv_rows(text, where, known=_FRONTIER, needed=_FRONTIER, blank=False, rename=plain)
    problems: list[Problem] = []
    speeds = [_number(x["tok_s_user"], place, "tok_s_user", problems) for place, x in lines]
    gpus = [_number(x["tok_s_gpu"], place, "tok_s_gpu", problems) for place, x in lines]
    if not problems and not any_step_time:
        problems = [
            Problem(
                place, "tok_s_user", f"{speed:g} tok/s a user is a TPOT of {1e3 / speed:.3g} ms, "
                "which no engine is believed to have", "if it is right, say --any-step-time",
            )
            for (place, _), speed in zip(lines, speeds, strict=True)
            if not LEAST_S <= 1 / speed <= MOST_S
        ]  # fmt: skip
        problems = told_once(problems)
    if problems:
        raise ScenarioError(problems)
    return speeds, gpus


def _number(value: Any, place: str, field: str, problems: list[Problem]) -> float:
    """Read a number above 0 (at least 0 for lengths of context)."""
    least_is_legal = field == "context_tokens"
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not 0 <= found <= MOST_TOKENS or (found == 0 and not least_is_legal):
        wanted = "from 0" if least_is_legal else "above 0"
        message = f"must be a number {wanted} up to {MOST_TOKENS:g}, not {value!r}"
        problems.append(Problem(place, field, message))
        return 1.0
    return found


def _whole(value: Any, place: str, field: str, problems: list[Problem], *, least: int = 1) -> int:
    text = str(value).strip()
    found = int(text) if text.isdecimal() and len(text) < 20 else -1
    if not least <= found <= MOST_TOKENS:
        message = f"must be a whole number from {least} to {MOST_TOKENS:g}, not {value!r}"
        problems.append(Problem(place, field, message))
        return max(1, least)
    return found
