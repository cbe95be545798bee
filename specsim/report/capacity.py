"""A capacity search on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_PLAIN_WIDTH = 120


def print_capacity(found: Mapping[str, Any], *, console: Console | None = None) -> None:
    """Print the largest load of every policy.

    Args:
        found: `study.capacity.capacity`.
        console: where to print; stdout if None.
    """
    if console is None:
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=_PLAIN_WIDTH)
    users = found["load"].startswith("users")
    table = Table(
        title=f"{found['scenario']}: the most {found['load']} with {found['slo']}",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("policy", overflow="fold")
    for head in ("capacity", "95 %\ninterval", "fails\nat", "runs"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("what fails first", overflow="fold")
    for name, one in found["policies"].items():
        low_high = one["ci95"]
        table.add_row(
            name,
            "none" if one["capacity"] is None else _load(one["capacity"], users=users),
            "-" if low_high is None else f"{low_high[0]:.4g} .. {low_high[1]:.4g}",
            "-" if one["fails_at"] is None else _load(one["fails_at"], users=users),
            str(one["runs"]),
            one["why"] + ("" if one["settled"] else " (not settled: more seeds or longer runs)"),
        )
    console.print(table)
    console.print(
        f"{found['seeds']} seeds a load, the same for all loads; looked from "
        f"{found['asked'][0]:g} to {found['asked'][1]:g}."
    )


def _load(value: float, *, users: bool) -> str:
    return f"{value:.0f}" if users else f"{value:.4g}"
