"""A comparison of two runs: on the terminal, and as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from specsim.report.loads import load_name
from specsim.report.page import Choice, Page, Section, number
from specsim.report.svg import Chart, Series, line_chart

_PLAIN_WIDTH = 120
_HEAD = ("policy", "users a rank", "metric", "A", "B", "B - A", "95 %", "B / A", "")


def print_comparison(found: Mapping[str, Any], *, console: Console | None = None) -> None:
    """Print every difference.

    Args:
        found: `study.compare.compare`.
        console: where to print; stdout if None.
    """
    if console is None:
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=_PLAIN_WIDTH)
    console.print(f"A: {found['a']}", markup=False)
    console.print(f"B: {found['b']}; paired by {found['paired_by']}", markup=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for n, head in enumerate(_HEAD):
        table.add_column(head, justify="left" if n in (0, 2, 8) else "right", overflow="fold")
    for row in found["rows"]:
        table.add_row(*_cells(row), style=None if row["clear"] else "dim")
    console.print(table)
    for line in (*found["notes"], _SMALL):
        console.print(line, markup=False)


_SMALL = (
    "clear: the 95 % interval of the difference leaves 0 out. With many rows, one in twenty of "
    "those without a difference will be called clear."
)


def _cells(row: Mapping[str, Any]) -> list[str]:
    half = row["ci95"]
    return [
        row["policy"],
        "-" if row["concurrency"] is None else str(row["concurrency"]),
        row["metric"],
        number(row["a"]),
        number(row["b"]),
        f"{row['difference']:+.4g}",
        "-" if half is None else f"±{half:.2g}",
        number(row["ratio"], ".3f"),
        "clear" if row["clear"] else "",
    ]


def page_of_comparison(found: Mapping[str, Any]) -> Page:
    """Lay out a comparison as a page."""
    rows = found["rows"]
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    choices = []
    for metric in dict.fromkeys(row["metric"] for row in rows):
        series = []
        for index, name in enumerate(policies):
            own = [
                r for r in rows
                if (r["policy"], r["metric"]) == (name, metric) and r["concurrency"] and r["ratio"]
            ]  # fmt: skip
            change = [(r["ratio"] - 1) * 100 for r in own]
            half = [(r["ci95"] or 0.0) / abs(r["a"]) * 100 for r in own]
            tips = [
                f"{name}|{load_name(r['concurrency'])}|{metric} {number(r['a'])} to "
                f"{number(r['b'])}|{c:+.2f} % ± {h:.2f}"
                for r, c, h in zip(own, change, half, strict=True)
            ]
            low = [c - h for c, h in zip(change, half, strict=True)]
            high = [c + h for c, h in zip(change, half, strict=True)]
            x = [r["concurrency"] for r in own]
            series.append(Series(index, x, change, tips, "line", low, high))
        if any(len(s.x) > 1 for s in series):
            chart = Chart(
                f"Change of {metric}", "users a rank", f"change of {metric}, %", series,
                x_log=True, y_from_zero=False, y_format=lambda v: f"{v:+g}",
            )  # fmt: skip
            choices.append(Choice(metric, line_chart(chart)))
    clear = sum(row["clear"] for row in rows)
    cells = []
    for row in rows:
        keys = (
            row["policy"], row["concurrency"], row["metric"], row["a"], row["b"],
            row["difference"], row["ci95"], row["ratio"], "clear" if row["clear"] else "",
        )  # fmt: skip
        cells.append(list(zip(_cells(row), keys, strict=True)))
    sections = [
        Section(
            "changes",
            "Change from A to B",
            "Bands are 95 % intervals of the difference.",
            choices,
            menu="metric",
        ),
        Section("rows", "Every difference", _SMALL, table=(_HEAD, cells), policy_column=0),
    ]
    return Page(
        title=f"{found['a']} against {found['b']}",
        description=f"A is {found['a']}, B is {found['b']}; paired by {found['paired_by']}.",
        answer=[f"{clear} of {len(rows)} differences are clear of chance."],
        tiles=[],
        warnings=found["notes"],
        policies=[(name, "") for name in policies],
        sections=[s for s in sections if s.choices or s.table],
        rerun=[("command", f"specsim compare {found['a']} {found['b']}")],
    )
