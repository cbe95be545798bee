"""What users hand in: text, JSON, JSON lines and CSV, every fault with its place."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specsim.errors import InputError, Problem, ScenarioError, nearest
from specsim.jsontext import read_json

_SHOWN = 20
MOST_TOKENS = 10**9
"""Largest count of tokens or requests that is believed; more is a mistake of units."""


def read_text(path: Path) -> str:
    """Return the text of a file; the mark that Excel puts in front is taken off.

    Raises:
        ScenarioError: it cannot be read, is no UTF-8, or is a Git LFS pointer.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError([Problem(str(path), "", f"cannot be read: {why(error)}")]) from error
    if text.startswith("version https://git-lfs"):
        message = "is a Git LFS pointer, not the data itself"
        raise ScenarioError([Problem(str(path), "", message, "fetch it with `git lfs pull`")])
    return text


def why(error: OSError | UnicodeDecodeError) -> str:
    """Say why a file cannot be read, in words and without the system's numbers."""
    if isinstance(error, OSError):
        return (error.strerror or type(error).__name__).lower()
    return f"it is no UTF-8 text (byte {error.start})"


def parse_json(text: str, where: str, *, line: int = 0) -> Any:
    """Return the value of a JSON text.

    Args:
        text: the text.
        where: the file's name in errors.
        line: line of the file that this is, if it is one.

    Raises:
        ScenarioError: it is none, is nested too deep, or holds what no file can hold.
    """
    value, problem = read_json(text, where=where, line=line)
    if problem is not None:
        raise ScenarioError([problem])
    return value


def json_lines(text: str, where: str) -> list[tuple[str, Any]]:
    """Return the value of each line that is not blank, with its place (`file:line`).

    Raises:
        ScenarioError: there is none, or lines are not JSON; names all of them.
    """
    found: list[tuple[str, Any]] = []
    problems: list[Problem] = []
    # Not splitlines(): it also splits at U+2028 and U+0085, which are legal inside JSON texts.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            found.append((f"{where}:{number}", parse_json(line, where, line=number)))
        except ScenarioError as error:
            problems += error.problems
        if len(problems) == _SHOWN:
            problems.append(Problem(where, "", "and maybe more: reading stopped here"))
            break
    if not found and not problems:
        problems.append(Problem(where, "", "has no rows"))
    if problems:
        raise ScenarioError(problems)
    return found


def csv_rows(
    text: str,
    where: str,
    *,
    known: Sequence[str] | None = None,
    needed: Sequence[str] = (),
    blank: bool = True,
    rename: Callable[[str], str] | None = None,
) -> tuple[list[str], list[tuple[str, dict[str, str]]]]:
    """Return the columns of a CSV text and its rows, each with its place (`file:line`).

    Args:
        text: the text; blank lines are passed over.
        where: the file's name in errors.
        known: the columns that may stand there; any if None.
        needed: the columns that must.
        blank: whether there may be no rows at all.
        rename: makes a known name of a column's, where that is plain; what is not known after it
            stays as it was.

    Raises:
        ScenarioError: columns are unknown, missing or given twice, a row has too many or too few
            cells, or it is no CSV; names all of it.
    """
    reader = csv.reader(io.StringIO(text, newline=""))
    rows: list[tuple[str, list[str]]] = []
    try:
        rows += ((f"{where}:{reader.line_num}", cells) for cells in reader if any(cells))
    except csv.Error as error:
        raise ScenarioError([Problem(f"{where}:{reader.line_num}", "", str(error))]) from error
    columns = [name.strip() for name in rows.pop(0)[1]] if rows else []
    if known is not None and len(columns) == 1 and columns[0] not in known:
        for separator, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
            if separator in columns[0]:
                message = f"the columns are separated by {name}"
                hint = "separate them by commas, and write decimals with a point"
                raise ScenarioError([Problem(f"{where}:1", "", message, hint)])
    if rename is not None and known is not None:
        columns = [new if (new := rename(name)) in known else name for name in columns]
    problems = _column_problems(columns, f"{where}:1", known, needed)
    if not problems and not rows and not blank:
        problems.append(Problem(where, "", "has no rows"))
    if not problems:
        problems = [
            Problem(
                place,
                columns[len(cells)] if len(cells) < len(columns) else "",
                f"the row has {len(cells)} cells for {len(columns)} columns",
            )
            for place, cells in rows
            if len(cells) != len(columns)
        ]
    if problems:
        raise ScenarioError(problems)
    return columns, [
        (place, {c: cell.strip() for c, cell in zip(columns, cells, strict=True)})
        for place, cells in rows
    ]


def _column_problems(
    columns: Sequence[str], place: str, known: Sequence[str] | None, needed: Sequence[str]
) -> list[Problem]:
    found = [
        Problem(
            place, name, f"column is not known; legal: {', '.join(known)}", nearest(name, known)
        )
        for name in columns
        if known is not None and name not in known
    ]
    found += [Problem(place, name, "column is missing") for name in needed if name not in columns]
    twice = sorted({name for name in columns if columns.count(name) > 1})
    return found + [Problem(place, name, "column is there twice", "keep one") for name in twice]


@dataclass(frozen=True, slots=True)
class Node:
    """A value inside another tool's file, with its place; reading it as something else is an error.

    Attributes:
        value: what JSON made of it; None where it is absent.
        where: the file's name.
        path: dotted path inside the file.
    """

    value: Any
    where: str
    path: str = ""

    def get(self, key: str) -> Node:
        """Return a value of an object; the value None if it is not there."""
        return Node(self._as(dict, "an object").get(key), self.where, self._inside(key))

    def maybe(self, key: str) -> Node | None:
        """Return a value of an object, or None if it is not there or null."""
        found = self.get(key)
        return None if found.value is None else found

    def has(self, key: str) -> bool:
        """Say whether this is an object with that key."""
        return isinstance(self.value, dict) and key in self.value

    def entries(self) -> Iterator[tuple[str, Node]]:
        """Yield keys and values of an object."""
        return ((key, self.get(key)) for key in self._as(dict, "an object"))

    def items(self) -> list[Node]:
        """Return the values of a list."""
        values = self._as(list, "a list")
        return [Node(v, self.where, f"{self.path}[{i}]") for i, v in enumerate(values)]

    def number(self, *, least: float = -math.inf, most: float = math.inf) -> float:
        """Return a finite number."""
        value = self.value
        if not is_number(value) or not least <= value <= most:
            self._fail(f"a number{_range(least, most)}")
        return float(value)

    def whole(self, *, least: int = 0, most: int = MOST_TOKENS) -> int:
        """Return a whole number; 3.0 is one."""
        value = self.value
        if not is_number(value) or int(value) != value or not least <= value <= most:
            self._fail(f"a whole number{_range(least, most)}")
        return int(value)

    def text(self) -> str:
        """Return a text; empty where it is absent."""
        return "" if self.value is None else str(self._as(str, "a text"))

    def error(self, message: str) -> InputError:
        """Return an error about this place."""
        return InputError(f"{self.where}: {self.path}: {message}" if self.path else
                          f"{self.where}: {message}")  # fmt: skip

    def _as(self, kind: type, name: str) -> Any:
        if not isinstance(self.value, kind):
            self._fail(name)
        return self.value

    def _inside(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _fail(self, wanted: str) -> None:
        if self.value is None:
            raise self.error(f"is missing; {wanted} is needed")
        shown = repr(self.value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        raise self.error(f"must be {wanted}, not {shown}")


def is_number(value: Any) -> bool:
    """Say whether a value is a finite number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -1e300 < value < 1e300


def _range(least: float, most: float) -> str:
    low = f" of at least {least:g}" if least > -math.inf else ""
    high = f" up to {most:g}" if most < math.inf else ""
    return low + high
