"""Measured or published lines to lay under a frontier."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specsim.errors import InputError, nearest
from specsim.inputs import csv_rows, read_text
from specsim.report.figures import PublishedLine
from specsim.scenario.locate import shipped

_X, _Y = "tok_s_user", "tok_s_gpu"


def published_for(summary: Mapping[str, Any]) -> list[PublishedLine]:
    """Return the published lines that belong to a run's cost table, if any are shipped.

    `profiles/published/overlays.json` names them by cost table.
    """
    index = shipped("profiles") / "published" / "overlays.json"
    if not index.is_file():
        return []
    known: dict[str, dict[str, Any]] = json.loads(index.read_text(encoding="utf-8"))
    tables = {policy["cost_table"] for policy in summary["policies"].values()}
    entry = known.get(next(iter(tables))) if len(tables) == 1 else None
    if entry is None:
        return []
    lines = measured_lines(index.parent / entry["file"], where=entry["where"], by=entry["line"])
    return [
        PublishedLine(f"{line.name}, {entry['source']}", line.speed_P, line.throughput_P)
        for line in lines
    ]


def measured_lines(
    path: Path, *, where: Mapping[str, str] | None = None, by: str | None = None
) -> list[PublishedLine]:
    """Read points from a CSV with columns tok_s_user and tok_s_gpu, one line a value of `by`.

    Args:
        path: the file.
        where: keep rows with these values.
        by: column that names the line; `policy` or `arm` if there is one, else all are one line.

    Raises:
        InputError: no such file, a column is missing, or a number is none.
    """
    columns, rows = csv_rows(read_text(path), str(path))
    for needed in (_X, _Y, *([by] if by else ()), *(where or ())):
        if needed not in columns:
            raise InputError(
                f'{path}: has no column "{needed}"; it has {", ".join(columns) or "none"} '
                f"{nearest(needed, columns)}"
            )
    by = by or next((name for name in ("policy", "arm") if name in columns), None)
    groups: dict[str, list[tuple[float, float]]] = {}
    for place, row in rows:
        if any(row[key] != value for key, value in (where or {}).items()):
            continue
        try:
            point = (float(row[_X]), float(row[_Y]))
        except ValueError:
            point = (math.nan, math.nan)
        if not all(0 <= value < math.inf for value in point):
            raise InputError(
                f"{place}: {_X} and {_Y} must be numbers of at least 0, not {row[_X]!r} and "
                f"{row[_Y]!r}"
            )
        groups.setdefault(row[by] if by else path.stem, []).append(point)
    if not groups:
        raise InputError(f"{path}: no row is left after {dict(where or {})}")
    return [_line(name, points) for name, points in groups.items()]


def _line(name: str, points: Sequence[tuple[float, float]]) -> PublishedLine:
    speed_P, throughput_P = np.array(sorted(points)).T
    return PublishedLine(name, speed_P, throughput_P)
