"""The answer on the terminal: one table, what to beware of, and where the rest lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specsim.report.loads import load_name
from specsim.report.pareto import X_METRIC, Y_METRIC, Cut, Frontier, frontier
from specsim.study.validation import Validation

_PLAIN_WIDTH = 120
_ABSENT = "-"
_WIDE = 1000


def print_answer(
    summary: Mapping[str, Any], *, directory: Path, console: Console | None = None
) -> None:
    """Print the answer to a scenario's question.

    Args:
        summary: what the run gave (`study.answer.summary_of`).
        directory: where the run is stored.
        console: where to print; stdout if None.
    """
    console = console or _console()
    asks_frontier = summary["question"]["kind"] == "frontier"
    console.print(_fitting(frontier_table if asks_frontier else point_table, summary, console))
    if asks_frontier:
        console.print(verdict(summary), style="bold", markup=False)
    for line in _reasons(summary):
        console.print(f"note: {line}", markup=False)
    for line in summary["warnings"]:
        console.print(f"beware: {line}", markup=False)
    for line in _acceptances(summary):
        console.print(f"acceptance: {line}", markup=False)
    if "kv_memory" in summary:
        console.print(f"KV memory: {summary['kv_memory']}", markup=False)
    console.print(f"stored in {directory}", markup=False, soft_wrap=True)


def _acceptances(summary: Mapping[str, Any]) -> list[str]:
    """Say whose drafts are accepted: another model's would be otherwise."""
    found = []
    for policy in summary["policies"].values():
        said = policy.get("acceptance", {})
        model = said.get("target") or said.get("model")
        if not policy["gamma"] or model is None:
            continue
        if model == "parametric":
            model = f"a parametric model ({said.get('source', 'no source')})"
        found.append(f"{said.get('status', 'of unknown status')}, of {model}")
    return list(dict.fromkeys(found))


def _console() -> Console:
    """Return stdout; wide enough for whole sentences where nobody watches."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PLAIN_WIDTH)


def _fitting(
    make: Callable[[Mapping[str, Any], int], Table], summary: Mapping[str, Any], console: Console
) -> Table:
    """Leave out columns from the right until the table fits: names and marks must stay whole."""
    left_out = 0
    while True:
        table = make(summary, left_out)
        lines = console.render_lines(table, console.options.update(width=_WIDE), pad=False)
        needed = max(sum(segment.cell_length for segment in line) for line in lines)
        if needed <= console.width or len(table.columns) <= 2:
            if left_out:
                columns = "column" if left_out == 1 else "columns"
                table.title = f"{table.title} ({left_out} {columns} left out, for want of width)"
            return table
        left_out += 1


def frontier_table(summary: Mapping[str, Any], left_out: int = 0) -> Table:
    """Make the table of a frontier question: what each policy holds at the headline SLO.

    Args:
        summary: what the run gave.
        left_out: columns to leave out from the right.
    """
    question = summary["question"]
    headline, baseline = question["headline_slo"], question["baseline"]
    others = [slo for slo in question["slo_tok_s_user"] if slo != headline]
    record = {(r["policy"], r["slo_tok_s_user"]): r for r in summary["answer"]}
    speedup = {
        r["candidate"]: r["speedup_at_equal_throughput"] for r in summary.get("comparison", ())
    }
    shared = _shared_marks(summary)
    table = _table(
        f"{summary['scenario']}: what each policy holds at {headline:g} tok/s/user",
        _caption(_FRONTIER_CAPTION.format(baseline=baseline), shared),
        (
            "output\ntok/s/GPU",
            "users\nper GPU",
            "verified\ntok/request",
            "wasted",
            f"x {baseline}",
            "speed-up",
            *(f"tok/s/GPU\nat {slo:g}" for slo in others),
        ),
        left_out,
    )
    best, lines = _best(summary), _lines(summary)
    for name, policy in summary["policies"].items():
        at = record[name, headline]
        cells = [
            _held(lines[name], headline),
            _number(at["users_per_gpu"], ",.1f"),
            _number(at["budget_tokens"], ".2f"),
            _number(at["rejected_share"], ".1%"),
            _number(at["ratio_to_baseline"], ".2f"),
            _number(speedup.get(name, {}).get(f"{headline:g}"), ".2f"),
            *(_held(lines[name], slo) for slo in others),
        ]
        shown = cells[: len(table.columns) - 1]
        table.add_row(_marked(name, policy, shared), *shown, style="bold" if name == best else None)
    return table


_TOKENS = (
    "verified tok/request: tokens of a request in one target forward, its anchor included. "
    "wasted: share of the tokens in target forwards that are rejected drafts. "
)
_FRONTIER_CAPTION = _TOKENS + (
    "x {baseline}: throughput over that of {baseline} at this speed. speed-up: user speed over the "
    "SLO at the throughput that {baseline} has there. Interpolated linearly between loads; 95 % "
    "intervals of each load are in summary.json."
)


def point_table(summary: Mapping[str, Any], left_out: int = 0) -> Table:
    """Make the table of a point question: every policy under the one load.

    Args:
        summary: what the run gave.
        left_out: columns to leave out from the right.
    """
    rows = {name: (p["points"] or [{}])[0] for name, p in summary["policies"].items()}
    batch = any(row.get("makespan_s") is not None for row in rows.values())
    users = summary["question"]["concurrency"]
    load = load_name(users) if users else "one batch" if batch else "open arrivals"
    columns = [
        ("output\ntok/s/GPU", "tok_s_gpu", ",.1f"),
        ("output\ntok/s/user", "tok_s_user", ",.1f"),
        ("running\nper rank", "mean_running", ".1f"),
        ("verified\ntok/request", "budget_tokens", ".2f"),
        ("wasted", "rejected_share", ".1%"),
        ("TPOT ms\np50", "tpot_p50_s", "ms"),
        ("TPOT ms\np99", "tpot_p99_s", "ms"),
    ]
    if batch:
        columns.insert(0, ("makespan\ns", "makespan_s", ",.2f"))
    columns = columns[: len(columns) - left_out]
    titles = [title for title, _, _ in columns]
    shared = _shared_marks(summary)
    table = _table(f"{summary['scenario']}: {load}", _caption(_POINT_CAPTION, shared), titles)
    for name, policy in summary["policies"].items():
        cells = [_number(rows[name].get(metric), form) for _, metric, form in columns]
        table.add_row(_marked(name, policy, shared), *cells)
    return table


_POINT_CAPTION = _TOKENS + (
    "TPOT: (end to end - TTFT) / (output tokens - 1). 95 % intervals are in summary.json."
)


def _table(title: str, caption: str, columns: Sequence[str], left_out: int = 0) -> Table:
    """Start a table with a row a policy and numbers in `columns` but the last `left_out`."""
    table = Table(
        title=title,
        title_justify="left",
        caption=caption,
        caption_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("policy", no_wrap=True)
    for column in columns[: len(columns) - left_out]:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _shared_marks(summary: Mapping[str, Any]) -> list[str]:
    """Return the marks that every policy bears; they are said once, under the table."""
    policies = list(summary["policies"].values())
    return [m for m in policies[0]["labels"] if all(m in p["labels"] for p in policies)]


def _marked(name: str, policy: Mapping[str, Any], shared: Sequence[str]) -> Text:
    """Write a policy's name with its own marks under it, where no narrow terminal loses them."""
    return Text("\n  ".join([name, *(m for m in policy["labels"] if m not in shared)]))


def _caption(text: str, shared: Sequence[str]) -> str:
    return f"every policy: {', '.join(shared)}. {text}" if shared else text


def verdict(summary: Mapping[str, Any]) -> str:
    """Say in a sentence which lossless policy holds the most throughput at the headline SLO."""
    slo, baseline = summary["question"]["headline_slo"], summary["question"]["baseline"]
    best = _best(summary)
    if best is None:
        return f"No lossless policy reaches {slo:g} tok/s/user under any of the loads asked."
    cut = _lines(summary)[best].throughput_at(slo)
    if cut.value is None:
        return (
            f"At {slo:g} tok/s/user {best} holds the most of what was asked, at least "
            f"{cut.at_least:,.0f} tok/s/GPU: its line ends there, so ask for more users."
        )
    base = _lines(summary)[baseline].throughput_at(slo).value
    if best == baseline:
        against = "no other lossless policy is known to hold more"
    elif base is None:
        against = f"{baseline} has no value there"
    else:
        against = f"{cut.value / base:.2f} times {baseline}"
    error = _error(summary, best)
    within = f" ± {error / cut.value:.1%}" if error is not None else ""
    return (
        f"At {slo:g} tok/s/user {best} holds the most: {cut.value:,.0f}{within} tok/s/GPU with "
        f"{cut.value / slo:.1f} users a GPU, {against}{_ties(summary, best, cut.value, error)}"
        f"{_unfinished(summary)}."
    )


def _error(summary: Mapping[str, Any], name: str) -> float | None:
    """Return how far the throughput at the headline SLO moves with its points' 95 % intervals.

    At a fixed load speed and throughput rise and fall together, so every point moves along both;
    None where a point has no interval.
    """
    points = [
        row
        for row in summary["policies"][name]["points"]
        if row.get(X_METRIC) is not None and row.get(Y_METRIC) is not None
    ]
    if any(row.get(f"{m}_ci95") is None for row in points for m in (X_METRIC, Y_METRIC)):
        return None
    cuts = []
    for sign in (-1.0, 1.0):
        rows = [
            {m: row[m] + sign * row[f"{m}_ci95"] for m in (X_METRIC, Y_METRIC)} for row in points
        ]
        cuts.append(frontier(name, rows).throughput_at(summary["question"]["headline_slo"]).value)
    low, high = cuts
    return None if low is None or high is None else (high - low) / 2


def _ties(summary: Mapping[str, Any], best: str, most: float, error: float | None) -> str:
    """Name the lossless policies whose throughput is within the best one's error."""
    near = []
    for name, line in _lines(summary).items():
        value = line.throughput_at(summary["question"]["headline_slo"]).value
        if name == best or value is None or not summary["policies"][name]["lossless"]:
            continue
        if error is not None and most - value <= error:
            near.append(f"{name} ({value / most - 1:.1%})")
    return f"; within that error: {', '.join(near)}" if near else ""


def _unfinished(summary: Mapping[str, Any]) -> str:
    """Name the lossless policies that are faster than the SLO under every load asked."""
    cuts = {
        name: line.throughput_at(summary["question"]["headline_slo"])
        for name, line in _lines(summary).items()
        if summary["policies"][name]["lossless"]
    }
    found = [
        f"{name} (at least {cut.at_least:,.0f})"
        for name, cut in cuts.items()
        if cut.value is None and cut.at_least is not None
    ]
    return f"; with more users than were asked {', '.join(found)} may hold more" if found else ""


def _lines(summary: Mapping[str, Any]) -> dict[str, Frontier]:
    return {name: frontier(name, p["points"]) for name, p in summary["policies"].items()}


def _best(summary: Mapping[str, Any]) -> str | None:
    """Return the lossless policy with the most throughput at the headline SLO.

    A policy whose line ends before the SLO counts with what it holds at least.
    """
    held = {}
    for name, line in _lines(summary).items():
        cut = line.throughput_at(summary["question"]["headline_slo"])
        least = cut.at_least if cut.value is None else cut.value
        if least is not None and summary["policies"][name]["lossless"]:
            held[name] = least
    return max(held, key=lambda name: held[name]) if held else None


def _reasons(summary: Mapping[str, Any]) -> list[str]:
    """Say why cells are empty or bounds, one line for all policies with the same reason."""
    if summary["question"]["kind"] != "frontier":
        return []
    lines, question = _lines(summary), summary["question"]
    baseline, slos = question["baseline"], question["slo_tok_s_user"]
    said: list[str] = []
    for slo in slos:
        cuts = {name: line.throughput_at(slo) for name, line in lines.items()}
        said += _grouped(
            cuts,
            f"too slow for {slo:g} tok/s/user under every load asked",
            f"faster than {slo:g} tok/s/user under every load asked (> says what is held at least;"
            " ask for more users)",
        )
    held = lines[baseline].throughput_at(question["headline_slo"]).value
    if held is not None:
        cuts = {name: line.speed_at(held) for name, line in lines.items() if name != baseline}
        what = f"the {held:,.0f} tok/s/GPU of {baseline}, so no speed-up"
        said += _grouped(
            cuts,
            f"below {what}",
            f"above {what}: ask for fewer users",
        )
    return said


def _grouped(cuts: Mapping[str, Cut], short_of_it: str, past_it: str) -> list[str]:
    said = []
    for text, bounded in ((short_of_it, False), (past_it, True)):
        names = [
            name
            for name, cut in cuts.items()
            if cut.value is None and (cut.at_least is not None) == bounded
        ]
        if names:
            said.append(f"{text}: {', '.join(names)}")
    return said


def _held(line: Frontier, slo: float) -> str:
    cut = line.throughput_at(slo)
    bound = f">{cut.at_least:,.0f}" if cut.at_least is not None else _ABSENT
    return bound if cut.value is None else f"{cut.value:,.0f}"


def _number(value: float | None, form: str) -> str:
    if value is None:
        return _ABSENT
    return f"{value * 1e3:,.2f}" if form == "ms" else format(value, form)


def print_validation(found: Validation, *, console: Console | None = None) -> None:
    """Print every number of a validation beside its limits.

    Args:
        found: the outcome.
        console: where to print; stdout if None.
    """
    console = console or _console()
    table = Table(box=SIMPLE_HEAD, title=found.name, title_justify="left", title_style="bold")
    for column in ("number", "value", "limits", ""):
        table.add_column(column, justify="right" if column == "value" else "left")
    for check in found.checks:
        limits = " to ".join("" if x is None else f"{x:.6g}" for x in (check.low, check.high))
        judged = check.low is not None or check.high is not None
        table.add_row(
            check.name,
            f"{check.value:.6g}",
            limits.strip() if judged else Text("for information", style="dim"),
            Text("ok" if check.passed else "FAILED", style="green" if check.passed else "bold red")
            if judged
            else "",
        )
    console.print(table)
    if found.fitted_on:
        console.print(f"fitted on: {found.fitted_on}", markup=False)
    console.print(f"predicted: {found.predicted}", markup=False)
    console.print("passes" if found.passed else "does not pass", style="bold")


def print_bench(found: Mapping[str, Any], *, console: Console | None = None) -> None:
    """Print what `study.bench.bench` measured."""
    console = console or _console()
    runs = {name: rows for name, rows in found.items() if name.startswith("run_")}
    table = Table(box=SIMPLE_HEAD, title="Simulation speed, one core, medians of processor time")
    for heading in ("requests", "Mtok/s", "unrecorded", "steps/s", "us/step", "floor", "ratio"):
        table.add_column(heading, justify="right")
    for name, row in runs.items():
        table.add_row(
            name.removeprefix("run_"),
            f"{row['output_tok_per_s'] / 1e6:.1f}",
            f"{row['unrecorded_tok_per_s'] / 1e6:.1f}",
            f"{row['steps_per_s']:,.0f}",
            f"{row['step_us']:.1f}",
            f"{row['floor_us']:.1f}",
            f"{row['floor_ratio']:.2f}",
        )
    console.print(table)
    for title, part in (("plan", "planner"), ("sampling", "lossless")):
        for name, value in found.get(part, {}).items():
            console.print(f"{title} {name}: {value:,.1f}", markup=False)
