"""One recorded trace, row by row: what a row may say, and an account of every row that did not.

A reader hands over `Row`s with their line; `collect` shifts them to start at 0, sorts them, counts
what it refused or mended, and stops at rows that make no sense (or leaves them out, if told to).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specsim.errors import InputError, Problem, ScenarioError

MAX_TOKENS = 10_000_000
_SHOWN = 20
_DECIMAL = re.compile(r"^[+-]?\d+(\.\d*)?([eE][+-]?\d+)?$", re.ASCII)
_INTEGER = re.compile(r"^[+-]?\d{1,18}$", re.ASCII)

BadRows = Literal["error", "drop"]


class RowError(Exception):
    """A row makes no sense; carries the field and what is wrong with it."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class Refused(Exception):
    """A row is understood and left out as its format says; carries the reason."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a trace.

    Attributes:
        line: its line in the file, from 1.
        at_ns: time stamp, nanoseconds from the format's own zero.
        prompt_tokens: at least 1.
        output_tokens: at least 1.
        session: the format's own name of its session, or None.
        turn: turn within the session, 0 if the format does not say.
        blocks: prefix block ids.
    """

    line: int
    at_ns: int
    prompt_tokens: int
    output_tokens: int
    session: str | int | None = None
    turn: int = 0
    blocks: tuple[int, ...] = ()


@dataclass(slots=True)
class RowReport:
    """What became of a file's rows: `rows = kept + refused`, summed over reasons.

    Attributes:
        rows: data rows read, blank lines and headers not among them.
        kept: rows that became requests.
        refused: rows left out, by reason.
        mended: rows (or lines) put right or passed over, by what was done; kept ones among them.
        notes: what a reader of the numbers should know besides.
    """

    rows: int = 0
    kept: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    mended: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the account in words, one line a count."""
        found = [f"{self.rows} rows: {self.kept} kept, {sum(self.refused.values())} refused"]
        found += [f"refused: {count} {reason}" for reason, count in sorted(self.refused.items())]
        found += [f"mended: {count} {what}" for what, count in sorted(self.mended.items())]
        return found + [f"note: {note}" for note in self.notes]


@dataclass(frozen=True, slots=True, eq=False)
class TraceTable:
    """A whole trace in columns, in the order of arrival, the first at 0.

    Attributes:
        at_s_N: arrival, seconds, float64 `[N]`, not falling.
        prompt_tokens_N: int64 `[N]`, at least 1.
        output_tokens_N: int64 `[N]`, at least 1.
        session_N: index of the session in order of first arrival, -1 for none, int64 `[N]`.
        turn_N: turn within the session, int64 `[N]`.
        blocks_N: prefix block ids of each, or () for all.
        block_tokens: tokens of a block; 0 if the format does not say.
        report: what became of the rows.
    """

    at_s_N: NDArray[np.float64]
    prompt_tokens_N: NDArray[np.int64]
    output_tokens_N: NDArray[np.int64]
    session_N: NDArray[np.int64]
    turn_N: NDArray[np.int64]
    blocks_N: tuple[tuple[int, ...], ...]
    block_tokens: int
    report: RowReport

    def __len__(self) -> int:
        return len(self.at_s_N)

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return float(self.at_s_N[-1])


def collect(
    path: Path,
    numbered: Iterable[tuple[int, Any]],
    read: Callable[[int, Any, RowReport], Row],
    *,
    report: RowReport,
    block_tokens: int = 0,
    bad_rows: BadRows = "error",
) -> TraceTable:
    """Read every raw row with `read` and lay the rows out.

    Args:
        path: the file, for messages.
        numbered: raw rows with their lines.
        read: makes a `Row`; raises `RowError` or `Refused`, may count what it mended.
        report: counts that the reader has made so far.
        block_tokens: tokens of a prefix block.
        bad_rows: what to do with rows that make no sense: stop with all of them (`error`), or
            leave them out and count them (`drop`).

    Raises:
        ScenarioError: rows that make no sense, with line and field.
        InputError: no row is left.
    """
    rows: list[Row] = []
    problems: list[Problem] = []
    num_bad = 0
    for line, raw in numbered:
        report.rows += 1
        try:
            rows.append(read(line, raw, report))
        except Refused as reason:
            report.refused[str(reason)] += 1
        except RowError as error:
            num_bad += 1
            report.refused[f"bad {error.name}"] += 1
            if len(problems) < _SHOWN:
                problems.append(Problem(f"{path}:{line}", error.name, str(error)))
    if num_bad and bad_rows == "error":
        if num_bad > len(problems):
            problems.append(Problem(str(path), "", f"and {num_bad - len(problems)} more bad rows"))
        raise ScenarioError(problems)
    if not rows:
        raise InputError(f"{path}: no request is left of {report.rows} rows: {_account(report)}")
    report.kept = len(rows)
    steps_back_ns = [row.at_ns - after.at_ns for row, after in pairwise(rows)]
    out_of_order = sum(step > 0 for step in steps_back_ns)
    if out_of_order:
        report.mended["rows earlier than the row before them (sorted, ties as in the file)"] += (
            out_of_order
        )
        # A step back of the whole span means that two recordings were put end to end.
        report.notes.append(f"the largest step back in time is {max(steps_back_ns) / 1e9:g} s")
        rows.sort(key=lambda row: row.at_ns)
    return _table(rows, block_tokens, report)


def _account(report: RowReport) -> str:
    return "; ".join(report.lines()[1:]) or "the file holds none"


def _table(rows: list[Row], block_tokens: int, report: RowReport) -> TraceTable:
    first_ns = rows[0].at_ns
    index: dict[str | int, int] = {}
    session_N = [
        -1 if row.session is None else index.setdefault(row.session, len(index)) for row in rows
    ]
    blocks_N = tuple(row.blocks for row in rows)
    return TraceTable(
        at_s_N=np.array([row.at_ns - first_ns for row in rows], dtype=np.float64) / 1e9,
        prompt_tokens_N=np.array([row.prompt_tokens for row in rows], dtype=np.int64),
        output_tokens_N=np.array([row.output_tokens for row in rows], dtype=np.int64),
        session_N=np.array(session_N, dtype=np.int64),
        turn_N=np.array([row.turn for row in rows], dtype=np.int64),
        blocks_N=blocks_N if any(blocks_N) else (),
        block_tokens=block_tokens,
        report=report,
    )


# What one field may say


def elapsed_ns(name: str, value: Any, *, unit_s: float = 1.0) -> int:
    """Return an elapsed time, given as a number or a string of one, in nanoseconds.

    Raises:
        RowError: missing, not a finite number, negative, or beyond 30 years.
    """
    number = _number(name, value)
    seconds = number * unit_s
    if not 0 <= seconds <= 1e9:
        raise RowError(name, f"is {value}; 0 .. 1e9 seconds from the start are legal")
    return round(seconds * 1e9)


def tokens(name: str, value: Any, *, zero: str) -> int:
    """Return a whole number of tokens, at least 1.

    Args:
        name: the field.
        value: what the file holds.
        zero: why a row with 0 is refused.

    Raises:
        RowError: missing, not a whole number, negative or absurdly large.
        Refused: it is 0.
    """
    number = _number(name, value)
    if number != math.floor(number):
        raise RowError(name, f"is {value}; a whole number of tokens is needed")
    if not 0 <= number <= MAX_TOKENS:
        raise RowError(name, f"is {value}; 0 .. {MAX_TOKENS} tokens are legal")
    if number == 0:
        raise Refused(zero)
    return int(number)


def whole(name: str, value: Any) -> int:
    """Return an integer.

    Raises:
        RowError: missing or no integer.
    """
    if isinstance(value, str) and _INTEGER.match(value.strip()):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise RowError(name, f"is {_shown(value)}; an integer is needed")


def block_ids(name: str, value: Any) -> tuple[int, ...]:
    """Return a list of block ids.

    Raises:
        RowError: no list of non-negative integers.
    """
    if not isinstance(value, list):
        raise RowError(name, f"is {_shown(value)}; a list of block ids is needed")
    for item in value:
        if not isinstance(item, int) or isinstance(item, bool) or item < 0:
            raise RowError(name, f"holds {_shown(item)}; block ids are integers from 0 up")
    return tuple(value)


def _number(name: str, value: Any) -> float:
    if value is None or value == "":
        raise RowError(name, "is missing")
    if isinstance(value, str):
        if not _DECIMAL.match(value.strip()):
            raise RowError(name, f"is {_shown(value)}; a number is needed")
        value = float(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise RowError(name, f"is {_shown(value)}; a number is needed")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RowError(name, f"is {_shown(value)}; a finite number is needed")
    return number


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def keys_of(value: Any, needed: Iterable[str]) -> Mapping[str, Any]:
    """Return a JSON object that has all of `needed`.

    Raises:
        RowError: it is none, or lacks one.
    """
    if not isinstance(value, dict):
        raise RowError("", f"is {_shown(value)}; a JSON object is needed")
    for name in needed:
        if name not in value:
            raise RowError(name, f"is missing; the row has {', '.join(map(str, value)) or 'none'}")
    return value


def numbered_lines(path: Path, report: RowReport) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file that are not blank, counting the blank ones.

    Raises:
        InputError: the file cannot be read, is no UTF-8 text, is a Git LFS pointer, or is empty.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            number = 0
            for number, line in enumerate(file, start=1):
                if number == 1 and line.startswith("version https://git-lfs"):
                    raise InputError(
                        f"{path}: a Git LFS pointer, not the data; run `git lfs pull` where it "
                        "came from"
                    )
                text = line.rstrip("\r\n")
                if line.endswith("\r\n"):
                    report.mended["lines that end in CRLF"] += 1
                if text.strip():
                    yield number, text
                else:
                    report.mended["blank lines (passed over)"] += 1
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}:{number + 1}: no UTF-8 text (byte {error.start} of a block); if it is "
            "compressed, unpack it first"
        ) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if number == 0:
        raise InputError(f"{path}: is empty")
