"""The public traces' own formats, each read as its publisher wrote it.

| format | rows | what is special |
|---|---|---|
| azure_llm_2023 | CSV: TIMESTAMP, ContextTokens, GeneratedTokens | dates with 7 decimals, CRLF |
| mooncake | JSONL: timestamp (ms), input_length, output_length, hash_ids | blocks of 512 tokens |
| burstgpt | CSV, v1 or v2 by its header | 0 response tokens is a failed request; v2 has sessions |
| ragpulse | JSONL: as Mooncake, timestamp a string (s) | not in order; sizes of blocks unknown |
| qwen_bailian | JSONL: chat_id, parent_chat_id, timestamp (s) .. | turns; blocks of 16 tokens |
| csv | any header with an arrival and two lengths | columns named, or known by their names |

Facts: the publishers' own descriptions, as `SOURCE.md` beside the data has them.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specsim.errors import InputError, Problem, ScenarioError, nearest
from specsim.jsontext import read_json
from specsim.workload.trace_file import (
    BadRows,
    Refused,
    Row,
    RowError,
    RowReport,
    TraceTable,
    block_ids,
    collect,
    elapsed_ns,
    keys_of,
    numbered_lines,
    tokens,
    whole,
)

Format = Literal["azure_llm_2023", "mooncake", "burstgpt", "ragpulse", "qwen_bailian", "csv"]

MOONCAKE_BLOCK = 512
BAILIAN_BLOCK = 16
_NO_PROMPT, _NO_OUTPUT = "with 0 prompt tokens", "with 0 output tokens"
_DATE = re.compile(
    r"^(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?$", re.ASCII
)
_RAG_PARTS = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")

_KNOWN: Mapping[str, tuple[str, ...]] = {
    "arrival_s": ("arrival_s", "arrived_at", "arrival_timestamp", "arrival_time", "timestamp"),
    "prompt_tokens": ("prompt_tokens", "num_prefill_tokens", "prompt_size", "input_length"),
    "output_tokens": ("output_tokens", "num_decode_tokens", "token_size", "output_length"),
    "session": ("session", "session_id"),
}
"""Column names of a plain CSV that need no telling: specsim's own, Vidur's, splitwise-sim's."""


def load_trace(
    path: Path,
    form: Format,
    *,
    columns: Mapping[str, str] | None = None,
    bad_rows: BadRows = "error",
) -> TraceTable:
    """Read a trace file.

    Args:
        path: the file.
        form: its format.
        columns: for `csv`, the header's names of arrival_s, prompt_tokens, output_tokens and
            session, where they are not known ones.
        bad_rows: stop at rows that make no sense, or leave them out and count them.

    Raises:
        ScenarioError: rows that make no sense, with file, line and field.
        InputError: the file cannot be read, has another header, or holds no request.
    """
    report = RowReport()
    if form in _JSONL:
        make, block_tokens = _JSONL[form]
        read = make()
        return collect(
            path,
            numbered_lines(path, report),
            lambda line, text, r: read(line, _json(text), r),
            report=report,
            block_tokens=block_tokens,
            bad_rows=bad_rows,
        )
    table = open_csv(path, report)
    reader: Callable[[int, Mapping[str, str], RowReport], Row]
    if form == "azure_llm_2023":
        table.needs("TIMESTAMP", "ContextTokens", "GeneratedTokens")
        reader = _azure
    elif form == "burstgpt":
        table.needs("Timestamp", "Model", "Request tokens", "Response tokens", "Log Type")
        reader = _burstgpt
    else:
        reader = _plain(table, columns or {})
    return collect(
        path,
        table.rows,
        lambda line, text, r: reader(line, table.named(text), r),
        report=report,
        bad_rows=bad_rows,
    )


# CSV


@dataclass(frozen=True, slots=True)
class CsvTable:
    """A CSV file with a header.

    Attributes:
        path: the file.
        header: its column names.
        rows: the other rows with their lines.
    """

    path: Path
    header: tuple[str, ...]
    rows: Iterator[tuple[int, str]] = field(repr=False)

    def needs(self, *names: str) -> None:
        """Check that the header has all of `names`.

        Raises:
            InputError: it has not.
        """
        for name in names:
            if name not in self.header:
                close = nearest(name, self.header)
                raise InputError(
                    f'{self.path}:1: no column "{name}"; the header has '
                    f"{', '.join(self.header)}{' (' + close + ')' if close else ''}"
                )

    def named(self, text: str) -> Mapping[str, str]:
        """Return one row by column name.

        Raises:
            RowError: it is no CSV row, or has another number of cells than the header.
        """
        cells = _cells(text)
        if len(cells) != len(self.header):
            raise RowError(
                "",
                f"has {len(cells)} cells, the header {len(self.header)}; the row is cut short "
                "or a comma is amiss",
            )
        return dict(zip(self.header, cells, strict=True))


def open_csv(path: Path, report: RowReport) -> CsvTable:
    """Open a CSV file and read its header.

    Raises:
        InputError: the file cannot be read, is empty or has columns of the same name.
    """
    rows = numbered_lines(path, report)
    try:
        line, text = next(rows)
    except StopIteration:
        raise InputError(f"{path}: has no header, only blank lines") from None
    try:
        header = [name.strip() for name in _cells(text)]
    except RowError as error:
        raise InputError(f"{path}:{line}: {error}") from error
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise InputError(f'{path}:1: the header names column "{twice[0]}" more than once')
    return CsvTable(path, tuple(header), rows)


def _cells(text: str) -> list[str]:
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as error:
        raise RowError("", f"is no CSV row: {error}") from error


def _azure(line: int, row: Mapping[str, str], report: RowReport) -> Row:
    return Row(
        line=line,
        at_ns=_date_ns("TIMESTAMP", row["TIMESTAMP"]),
        prompt_tokens=tokens("ContextTokens", row["ContextTokens"], zero=_NO_PROMPT),
        output_tokens=tokens("GeneratedTokens", row["GeneratedTokens"], zero=_NO_OUTPUT),
    )


def _date_ns(name: str, text: str) -> int:
    """Return a date and time in nanoseconds from 1970; Python's own dates stop at microseconds."""
    found = _DATE.match(text.strip())
    if not found:
        what = "is missing" if not text.strip() else f'is "{text[:40]}"'
        raise RowError(name, f"{what}; 2023-11-16 18:17:03.9799600 is the form")
    *parts, fraction, zone = found.groups()
    try:
        moment = datetime(*(int(part) for part in parts), tzinfo=UTC)  # type: ignore[misc,arg-type]
    except ValueError as error:
        raise RowError(name, f'is "{text}", which is no date: {error}') from error
    if zone and zone != "Z":
        sign = -1 if zone[0] == "-" else 1
        moment -= sign * timedelta(hours=int(zone[1:3]), minutes=int(zone[4:6]))
    seconds = round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    return seconds * 10**9 + int((fraction or "0").ljust(9, "0"))


def _burstgpt(line: int, row: Mapping[str, str], report: RowReport) -> Row:
    session = row.get("Session ID", "").strip() or None
    return Row(
        line=line,
        at_ns=elapsed_ns("Timestamp", row["Timestamp"]),
        prompt_tokens=tokens("Request tokens", row["Request tokens"], zero=_NO_PROMPT),
        output_tokens=tokens(
            "Response tokens", row["Response tokens"], zero="failed (0 response tokens)"
        ),
        session=session,
    )


def _plain(
    table: CsvTable, columns: Mapping[str, str]
) -> Callable[[int, Mapping[str, str], RowReport], Row]:
    found: dict[str, str] = {}
    for role, known in _KNOWN.items():
        if role in columns:
            table.needs(columns[role])
            found[role] = columns[role]
            continue
        there = [name for name in known if name in table.header]
        if there:
            found[role] = there[0]
        elif role != "session":
            raise InputError(
                f"{table.path}:1: no column for {role}: the header has "
                f"{', '.join(table.header)}; known names are {', '.join(known)}; name another "
                f"with columns: {{{role}: ...}}"
            )

    def read(line: int, row: Mapping[str, str], report: RowReport) -> Row:
        return Row(
            line=line,
            at_ns=elapsed_ns(found["arrival_s"], row[found["arrival_s"]]),
            prompt_tokens=tokens(
                found["prompt_tokens"], row[found["prompt_tokens"]], zero=_NO_PROMPT
            ),
            output_tokens=tokens(
                found["output_tokens"], row[found["output_tokens"]], zero=_NO_OUTPUT
            ),
            session=(row[found["session"]].strip() or None) if "session" in found else None,
        )

    return read


def read_columns(path: Path, names: tuple[str, ...]) -> tuple[NDArray[np.int64], ...]:
    """Return columns of lengths of a CSV file, int64 `[N]` each, at least 1 token.

    Rows with a 0 in any of them are left out, in all of them.

    Raises:
        ScenarioError: rows that make no sense, with line and field.
        InputError: the file cannot be read, lacks a column, or holds no lengths.
    """
    report = RowReport()
    table = open_csv(path, report)
    table.needs(*names)
    found: list[tuple[int, ...]] = []
    problems: list[Problem] = []
    for line, text in table.rows:
        try:
            row = table.named(text)
            found.append(tuple(tokens(name, row[name], zero=name) for name in names))
        except RowError as error:
            problems.append(Problem(f"{path}:{line}", error.name, str(error)))
        except Refused:
            continue
    if problems:
        raise ScenarioError(problems[:20])
    if not found:
        raise InputError(f"{path}: no row has lengths of at least 1 token")
    return tuple(np.array(found, dtype=np.int64).T)


# JSON lines


def _json(text: str) -> Any:
    value, problem = read_json(text, where="")
    if problem is not None:
        raise RowError("", problem.message)
    return value


def _mooncake(line: int, value: Any, report: RowReport) -> Row:
    row = keys_of(value, ("timestamp", "input_length", "output_length", "hash_ids"))
    prompt_tokens = tokens("input_length", row["input_length"], zero=_NO_PROMPT)
    blocks = block_ids("hash_ids", row["hash_ids"])
    _count_blocks(prompt_tokens, blocks, MOONCAKE_BLOCK, report)
    return Row(
        line=line,
        at_ns=elapsed_ns("timestamp", row["timestamp"], unit_s=1e-3),
        prompt_tokens=prompt_tokens,
        output_tokens=tokens("output_length", row["output_length"], zero=_NO_OUTPUT),
        blocks=blocks,
    )


def _count_blocks(
    prompt_tokens: int, blocks: tuple[int, ...], size: int, report: RowReport
) -> None:
    if len(blocks) != -(-prompt_tokens // size):
        report.mended[f"rows whose block ids do not cover the prompt in {size}s (kept)"] += 1


def _ragpulse(line: int, value: Any, report: RowReport) -> Row:
    row = keys_of(value, ("timestamp", "input_length", "output_length", "hash_ids", "session_id"))
    parts = keys_of(row["hash_ids"], _RAG_PARTS)
    session = row["session_id"]
    if not isinstance(session, str) or not session:
        raise RowError("session_id", f"is {session!r}; a text is needed")
    return Row(
        line=line,
        at_ns=elapsed_ns("timestamp", row["timestamp"]),
        prompt_tokens=tokens("input_length", row["input_length"], zero=_NO_PROMPT),
        output_tokens=tokens("output_length", row["output_length"], zero=_NO_OUTPUT),
        session=session,
        blocks=tuple(
            block for part in _RAG_PARTS for block in block_ids(f"hash_ids.{part}", parts[part])
        ),
    )


def _qwen_bailian() -> Callable[[int, Any, RowReport], Row]:
    first_of: dict[int, int] = {}

    def read(line: int, value: Any, report: RowReport) -> Row:
        row = keys_of(
            value,
            ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "turn"),
        )
        chat, turn = whole("chat_id", row["chat_id"]), whole("turn", row["turn"])
        parent = whole("parent_chat_id", row["parent_chat_id"])
        if turn < 1:
            raise RowError("turn", f"is {turn}; turns count from 1")
        if parent < -1:
            raise RowError("parent_chat_id", f"is {parent}; -1 (none) or a chat_id is legal")
        # A session goes by its first chat; one that is not in the file lends its id all the same.
        first_of[chat] = chat if parent == -1 else first_of.get(parent, parent)
        if parent != -1 and parent not in first_of:
            report.mended["follow-ups whose parent is not in the file before them (kept)"] += 1
        prompt_tokens = tokens("input_length", row["input_length"], zero=_NO_PROMPT)
        blocks = block_ids("hash_ids", row.get("hash_ids", []))
        _count_blocks(prompt_tokens, blocks, BAILIAN_BLOCK, report)
        return Row(
            line=line,
            at_ns=elapsed_ns("timestamp", row["timestamp"]),
            prompt_tokens=prompt_tokens,
            output_tokens=tokens("output_length", row["output_length"], zero=_NO_OUTPUT),
            session=first_of[chat],
            turn=turn - 1,
            blocks=blocks,
        )

    return read


_JSONL: Mapping[str, tuple[Callable[[], Callable[[int, Any, RowReport], Row]], int]] = {
    "mooncake": (lambda: _mooncake, MOONCAKE_BLOCK),
    "ragpulse": (lambda: _ragpulse, 0),
    "qwen_bailian": (_qwen_bailian, BAILIAN_BLOCK),
}
"""Each format's reader, made afresh for every file, and the size of its blocks."""
