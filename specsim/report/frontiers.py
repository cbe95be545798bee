"""A drawn frontier on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_PLAIN_WIDTH = 120


def print_frontier(
    result: Mapping[str, Any], *, files: Sequence[Path], console: Console | None = None
) -> None:
    """Print the cuts of every line.

    Args:
        result: `pareto.json`.
        files: what was written.
        console: where to print; stdout if None.
    """
    if console is None:
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=_PLAIN_WIDTH)
    slos = list(dict.fromkeys(r["slo_tok_s_user"] for r in result["at_slo"]))
    at = {(r["policy"], r["slo_tok_s_user"]): r["tok_s_gpu"] for r in result["at_slo"]}
    faster = {r["candidate"]: r for r in result["comparison"]}
    table = Table(title=result["scenario"], title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy", overflow="fold")
    for slo in slos:
        table.add_column(f"tok/s/GPU\nat {slo:g}", justify="right")
        table.add_column("ratio", justify="right")
        table.add_column("speed-up", justify="right")
    table.add_column("hypervolume\nratio", justify="right")
    for name, line in result["lines"].items():
        cells = []
        for slo in slos:
            one = faster.get(name, {})
            key = f"{slo:g}"
            cells += [
                _number(at[name, slo], ",.0f"),
                _number(one.get("throughput_ratio_at_slo", {}).get(key), ".2f"),
                _number(one.get("speedup_at_equal_throughput", {}).get(key), ".2f"),
            ]
        table.add_row(name, *cells, _number(line["hypervolume_ratio"], ".2f"))
    console.print(table)
    console.print(f"x: {result['axes']['x']}", markup=False)
    console.print(f"y: {result['axes']['y']}", markup=False)
    if result["axes"]["note"]:
        console.print(result["axes"]["note"], markup=False)
    for line in result["published"]:
        console.print(f"under it: {line['name']}", markup=False)
    for path in files:
        console.print(f"written: {path}", markup=False, soft_wrap=True)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
