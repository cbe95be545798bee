"""A study on the terminal: one table, what failed, and where the rest lies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_PLAIN_WIDTH = 120
_MOST_ROWS = 60


def print_study(
    summary: Mapping[str, Any], *, directory: Path, ran: int, console: Console | None = None
) -> None:
    """Print a study's rows.

    Args:
        summary: of the study (`study.sweep.summary_of`).
        directory: where it is stored.
        ran: points that were run now.
        console: where to print; stdout if None.
    """
    if console is None:
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=_PLAIN_WIDTH)
    keys = [*summary["axes"], "policy", "concurrency"]
    # A path is told by its end; the whole of it stands in the summary.
    short = [key.rsplit(".", 1)[-1] for key in keys]
    heads = [s if short.count(s) == 1 else k for s, k in zip(short, keys, strict=True)]
    table = Table(title=summary["study"], title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold")
    for metric in summary["metrics"]:
        table.add_column(metric, justify="right")
    for row in summary["rows"][:_MOST_ROWS]:
        cells = ["-" if row[key] is None else str(row[key]) for key in keys]
        table.add_row(*cells, *(_with_interval(row, metric) for metric in summary["metrics"]))
    console.print(table)
    left = len(summary["rows"]) - _MOST_ROWS
    if left > 0:
        console.print(f"and {left} rows more, in table.csv")
    for warning in summary["warnings"]:
        console.print(f"beware: {warning}", markup=False)
    for failure in summary["failures"]:
        console.print(f"{failure['points']} failed: {failure['error']}", markup=False)
    console.print(
        f"{summary['points']} points, {ran} run now, {summary['failed']} failed; stored in "
        f"{directory}",
        markup=False,
        soft_wrap=True,
    )


def _with_interval(row: Mapping[str, Any], metric: str) -> str:
    value, half = row[metric], row[f"{metric}_ci95"]
    if value is None:
        return "-"
    return f"{value:.5g}" + ("" if half is None else f" ±{half:.2g}")
