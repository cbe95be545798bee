"""What a page of a study says: each shown metric over what was varied, and every row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specsim.report.loads import at_loads
from specsim.report.page import Choice, Page, Section, number
from specsim.report.svg import Chart, Series, line_chart

_MOST_LINES = 16
Row = Mapping[str, Any]


def page_of_study(
    summary: Mapping[str, Any], manifest: Mapping[str, Any], *, directory: Path
) -> Page:
    """Lay out the page of a study.

    Args:
        summary: `study.sweep.summary_of`.
        manifest: of the study.
        directory: where it is stored.
    """
    rows: list[Row] = list(summary["rows"])
    sections = [_charts(summary, rows, across) for across in _across(summary, rows)]
    sections.append(_table(summary, rows))
    groups = _groups(summary, rows, "concurrency")
    return Page(
        title=summary["study"],
        description=summary["description"],
        answer=_answers(summary, rows),
        tiles=[
            (str(summary["points"]), "points", f"of {summary['scenario_file']}"),
            (str(len(rows)), "rows", "after averaging over seeds"),
            (str(summary["failed"]), "failed", "see below" if summary["failed"] else "none"),
        ],
        warnings=[
            *summary["warnings"],
            *(f"{f['points']} points failed: {f['error']}" for f in summary["failures"]),
        ],
        policies=[(name, "") for name in groups][:_MOST_LINES],
        sections=[s for s in sections if s.choices or s.table],
        rerun=[
            ("command", f"specsim sweep {manifest.get('study', 'study.yaml')}"),
            ("redraw this page", f"specsim report {directory}"),
            ("specsim", str(manifest.get("specsim", "unknown"))),
            ("content", str(summary.get("hash", ""))[:12]),
        ],
        source=json.dumps(manifest.get("config", {}), indent=1),
        small_print=["Intervals are 95 % t intervals over the seeds of a row."],
    )


def _across(summary: Mapping[str, Any], rows: list[Row]) -> list[str]:
    """Pick what goes along an x axis: everything numeric that takes two values or more."""
    found = []
    for key in [*summary["axes"], "concurrency"]:
        values = {row[key] for row in rows if row[key] is not None}
        if len(values) > 1 and all(isinstance(v, int | float) for v in values):
            found.append(key)
    return found


def _groups(summary: Mapping[str, Any], rows: list[Row], across: str) -> dict[str, list[Row]]:
    """Group rows into lines: what they share besides what goes along the axis."""
    keys = [k for k in [*summary["axes"], "policy", "concurrency"] if k != across]
    keys = [k for k in keys if len({json.dumps(row[k]) for row in rows}) > 1]
    groups: dict[str, list[Row]] = {}
    for row in rows:
        name = ", ".join(
            str(row[k]) if k == "policy" else f"{k.rsplit('.', 1)[-1]} {row[k]}" for k in keys
        )
        groups.setdefault(name or "all", []).append(row)
    return groups


def _charts(summary: Mapping[str, Any], rows: list[Row], across: str) -> Section:
    groups = _groups(summary, rows, across)
    shown = dict(list(groups.items())[:_MOST_LINES])
    choices = []
    for metric in summary["metrics"]:
        series = []
        for index, (name, members) in enumerate(shown.items()):
            points = sorted(
                (r for r in members if r[metric] is not None), key=lambda r: r[across] or 0
            )
            half = [r[f"{metric}_ci95"] or 0.0 for r in points]
            y = [r[metric] for r in points]
            tips = [
                f"{name}|{across.rsplit('.', 1)[-1]} {r[across]}|{metric} {number(r[metric])}"
                + (f" ± {number(h)}" if h else "")
                for r, h in zip(points, half, strict=True)
            ]
            low = [v - h for v, h in zip(y, half, strict=True)]
            high = [v + h for v, h in zip(y, half, strict=True)]
            series.append(Series(index, [r[across] for r in points], y, tips, "line", low, high))
        svg = line_chart(
            Chart(f"{metric} over {across}", across, metric, series, y_format=lambda v: f"{v:,g}")
        )
        # Lines of two charts stand for different things, so the buttons steer the first alone.
        if svg and across != "concurrency":
            svg = svg.replace("data-policy", "data-line")
        keys = list(enumerate(shown)) if across != "concurrency" and len(shown) > 1 else []
        if svg:
            choices.append(Choice(metric, svg, "", keys))
    more = len(groups) - len(shown)
    return Section(
        f"over-{across.replace('.', '-')}",
        f"Over {across}",
        "Bands are the intervals over seeds."
        + (f" The first {_MOST_LINES} of {len(groups)} lines are drawn." if more > 0 else ""),
        choices,
        menu="metric",
    )


def _table(summary: Mapping[str, Any], rows: list[Row]) -> Section:
    keys = [*summary["axes"], "policy", "concurrency", "seeds"]
    head = [key.rsplit(".", 1)[-1] if key in summary["axes"] else key for key in keys]
    cells = []
    for row in rows:
        line: list[tuple[str, Any]] = [
            ("-" if row[k] is None else str(row[k]), row[k]) for k in keys
        ]
        for metric in summary["metrics"]:
            half = row[f"{metric}_ci95"]
            text = number(row[metric]) + (f" ± {number(half, '.2g')}" if half else "")
            line.append((text, row[metric]))
        cells.append(line)
    return Section(
        "rows",
        "Every row",
        "Means over seeds; click a heading to sort.",
        table=([*head, *summary["metrics"]], cells),
        folded=len(cells) > 40,
    )


def _answers(summary: Mapping[str, Any], rows: list[Row]) -> list[str]:
    metric = next(iter(summary["metrics"]), None)
    good = [r for r in rows if metric is not None and r[metric] is not None]
    if metric is None or not good:
        return ["No point gave a number."]
    best = max(good, key=lambda r: r[metric])
    where = ", ".join(
        f"{key.rsplit('.', 1)[-1]} {best[key]}" for key in summary["axes"] if best[key] is not None
    )
    load = f" {at}" if (at := at_loads([best["concurrency"]])) else ""
    return [
        f"The largest {metric} is {number(best[metric])}: {best['policy']}{load}"
        + (f" with {where}." if where else ".")
    ]
