"""Raw timings, one JSON object a line: what a profiler collects and a fit reads.

Every row is one timed repeat of one cell of the grid. Units are in the names; nothing is guessed.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from specsim.errors import Problem, ScenarioError, nearest
from specsim.inputs import MOST_TOKENS, json_lines, read_text

Part = Literal["verify", "draft", "sampler", "step"]
Mode = Literal["graph", "eager"]
MOST_SECONDS = 1e6
"""Longest step that is believed; more is a mistake of units."""


@dataclass(frozen=True, slots=True)
class Row:
    """One timed repeat.

    Attributes:
        part: `verify` (target forward), `draft`, `sampler`, or `step` (a whole step of an engine).
        batch_tokens: tokens in the forward, anchors included; for `draft` those it proposes.
        num_requests: requests in the step.
        context_tokens: KV tokens that each request holds.
        seconds: time it took.
        mode: `graph` if replayed from a captured graph, else `eager`.
        repeat: which repeat, from 0.
    """

    part: Part
    batch_tokens: int
    num_requests: int
    context_tokens: int
    seconds: float
    mode: Mode = "eager"
    repeat: int = 0

    def to_json(self) -> str:
        """Return the row's line."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Cell:
    """All repeats of one cell.

    Attributes:
        part, batch_tokens, num_requests, context_tokens, mode: as in `Row`.
        median_s: median over the repeats.
        low_s, high_s: 95% interval of the median from order statistics; least and most where
            there are fewer than 6 repeats (then it covers less).
        repeats: how many.
    """

    part: Part
    batch_tokens: int
    num_requests: int
    context_tokens: int
    mode: Mode
    median_s: float
    low_s: float
    high_s: float
    repeats: int


_FIELDS = tuple(field.name for field in fields(Row))
_REQUIRED = _FIELDS[:5]


def parse_rows(text: str, *, where: str) -> list[Row]:
    """Read raw rows; blank lines are skipped.

    Args:
        text: JSON lines.
        where: the file's name in errors.

    Raises:
        ScenarioError: every problem, by file, line and field.
    """
    problems: list[Problem] = []
    rows: list[Row] = []
    for place, data in json_lines(text, where):
        found = _row_problems(data, place)
        problems += found
        if not found:
            rows.append(Row(**data))
    if problems:
        raise ScenarioError(problems)
    return rows


def load_rows(path: Path) -> list[Row]:
    """Read a file of raw rows.

    Raises:
        ScenarioError: unreadable or wrong; see `parse_rows`.
    """
    return parse_rows(read_text(path), where=str(path))


def cells(rows: Iterable[Row], part: Part) -> list[Cell]:
    """Gather the repeats of every cell of one part, ordered by tokens, requests, context."""
    groups: dict[tuple[int, int, int, Mode], list[float]] = defaultdict(list)
    for row in rows:
        if row.part == part:
            key = (row.batch_tokens, row.num_requests, row.context_tokens, row.mode)
            groups[key].append(row.seconds)
    return [
        Cell(part, *key, float(np.median(seconds)), *_median_interval(seconds), len(seconds))
        for key, seconds in sorted(groups.items())
    ]


def _median_interval(seconds: Sequence[float]) -> tuple[float, float]:
    """95% interval of the median from order statistics (normal approximation of the binomial)."""
    ordered = sorted(seconds)
    count = len(ordered)
    if count < 6:
        return ordered[0], ordered[-1]
    reach = 1.96 * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - reach))
    high = min(count - 1, math.ceil(count / 2 + reach))
    return ordered[low], ordered[high]


def fewer_tokens(tokens: int, requests: int) -> str:
    """Say what is wrong with a step of fewer tokens than requests."""
    return f"{tokens} tokens for {requests} requests; each has at least its anchor token"


def _row_problems(data: Any, place: str) -> list[Problem]:
    if not isinstance(data, dict):
        return [Problem(place, "", f"must be an object, not {str(data)[:40]!r}")]
    found = [
        Problem(place, key, f"is not a field; legal: {', '.join(_FIELDS)}", nearest(key, _FIELDS))
        for key in data
        if key not in _FIELDS
    ]
    found += [Problem(place, key, "is missing") for key in _REQUIRED if key not in data]
    for key, legal in (("part", get_args(Part)), ("mode", get_args(Mode))):
        if key in data and data[key] not in legal:
            found.append(
                Problem(place, key, f"must be one of {', '.join(legal)}, not {data[key]!r}")
            )
    for key, least in (
        ("batch_tokens", 1),
        ("num_requests", 1),
        ("context_tokens", 0),
        ("repeat", 0),
    ):
        value = data.get(key, least)
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or not least <= value <= MOST_TOKENS
        ):
            message = f"must be a whole number from {least} to {MOST_TOKENS:g}, not {value!r}"
            found.append(Problem(place, key, message))
    if not found and data["batch_tokens"] < data["num_requests"]:
        message = fewer_tokens(data["batch_tokens"], data["num_requests"])
        found.append(Problem(place, "batch_tokens", message))
    seconds = data.get("seconds", 1.0)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        found.append(Problem(place, "seconds", f"must be a number, not {seconds!r}"))
    elif not 0 < seconds <= MOST_SECONDS:
        message = f"must be a number above 0 up to {MOST_SECONDS:g}, not {seconds!r}"
        found.append(Problem(place, "seconds", message))
    return found
