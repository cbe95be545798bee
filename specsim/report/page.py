"""What a page of a run says, section by section: charts drawn, tables laid out, numbers written.

A pure function of a stored run; `html` puts it on a page, `markdown` into a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from specsim.report.axes import CONVENTIONS, Axes
from specsim.report.figures import PublishedLine
from specsim.report.pareto import frontier
from specsim.report.svg import (
    Bar,
    Chart,
    Series,
    StepMark,
    line_chart,
    stacked_bars,
    timeline,
)
from specsim.report.terminal import verdict

FloatArray = NDArray[np.float64]
_TIME_PARTS = ("verify", "prefill", "attention", "draft", "host", "rank_wait", "idle")
PART_NAMES = {
    "verify": "target forward",
    "prefill": "prompt tokens",
    "attention": "decode attention",
    "draft": "drafting",
    "host": "host",
    "rank_wait": "waiting for the slowest rank",
    "idle": "idle",
    "anchor": "anchor and bonus",
    "accepted": "accepted drafts",
    "rejected": "rejected drafts",
}
_TIMELINE_STEPS = 90
_RAREST = 0.0005  # bins with fewer of the blocks are noise, and are not drawn
_QUANTILES = np.concatenate([np.linspace(0, 0.98, 50), np.linspace(0.982, 1.0, 10)])


@dataclass(frozen=True, slots=True)
class Choice:
    """A chart among several that a reader picks from.

    Attributes:
        label: its name in the menu.
        svg: the drawing.
        note: a sentence under it.
        keys: (marker, name) of lines that are no policies.
    """

    label: str
    svg: str
    note: str = ""
    keys: Sequence[tuple[int, str]] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a page.

    Attributes:
        key: its anchor.
        title: its heading.
        lead: one or two sentences on how to read it.
        choices: its charts; more than one become a menu.
        menu: what is chosen between.
        parts: names of stacked parts to explain by a legend.
        table: header and rows, each cell (text, sort key); None for none.
        folded: whether the table is shut at first.
        policy_column: index of the table's column that names the policy, for the filter; -1: none.
        notes: sentences under the table, such as why a cell is empty.
    """

    key: str
    title: str
    lead: str
    choices: Sequence[Choice] = ()
    menu: str = ""
    parts: Sequence[str] = ()
    table: tuple[Sequence[str], Sequence[Sequence[tuple[str, Any]]]] | None = None
    folded: bool = False
    policy_column: int = -1
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page."""

    title: str
    description: str
    answer: Sequence[str]
    tiles: Sequence[tuple[str, str, str]]
    warnings: Sequence[str]
    policies: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    rerun: Sequence[tuple[str, str]]
    source: str = ""
    small_print: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored run, opened.

    Attributes:
        directory: where it lies.
        summary, manifest: what it says.
    """

    directory: Path
    summary: Mapping[str, Any]
    manifest: Mapping[str, Any]

    def columns(self, file: str, policy: str, load: int | None) -> dict[str, NDArray[Any]]:
        """Return the columns of `requests` or `steps` of one point."""
        where = [("policy", "==", policy)]
        if load is not None:
            where.append(("concurrency", "==", load))  # type: ignore[arg-type]
        path = self.directory / f"{file}.parquet"
        if not path.is_file():
            return {}
        table = pq.read_table(path, filters=where)
        return {
            name: table[name].to_numpy(zero_copy_only=False)
            for name in table.column_names
            if name not in ("policy", "concurrency")
        }


def page_of_run(stored: Stored, *, published: Sequence[PublishedLine] = ()) -> Page:
    """Lay out the page of a run.

    Args:
        stored: the run.
        published: lines of others to lay under the frontier.
    """
    summary, manifest = ordered(stored.summary), stored.manifest
    stored = Stored(stored.directory, summary, manifest)
    policies = list(summary["policies"])
    shared = shared_labels(summary)
    loads = _loads(summary)
    is_frontier = summary["question"]["kind"] == "frontier"
    sections = []
    if is_frontier:
        sections += [_frontier(summary, published), _budgets(summary)]
    else:
        sections.append(_point(summary))
    sections += [
        _times(summary, loads),
        _tokens(summary, loads),
        _latencies(stored, loads),
        _timelines(stored, loads),
        _calibration(summary),
        _inputs(summary),
    ]
    file = manifest.get("scenario_file", "scenario.yaml")
    sets = " ".join(f"--set '{text}'" for text in manifest.get("overrides", ()))
    return Page(
        title=summary["scenario"],
        description=summary["description"],
        answer=_as_lines(verdict(summary)) if is_frontier else _point_verdict(summary),
        tiles=_tiles(summary) if is_frontier else _point_tiles(summary),
        warnings=summary["warnings"],
        policies=[
            (name, ", ".join(x for x in summary["policies"][name]["labels"] if x not in shared))
            for name in policies
        ],
        sections=[s for s in sections if s.choices or s.table],
        rerun=[
            ("command", f"specsim run {file} {sets}".strip()),
            ("redraw this page", f"specsim report {stored.directory}"),
            ("specsim", str(manifest.get("specsim", "unknown"))),
            ("seed", str(summary["seed"])),
            ("content", str(summary.get("hash", ""))[:12]),
            ("profiles", ", ".join(manifest.get("profiles", ())) or "none"),
            ("took", f"{manifest.get('wall_s', 0):.1f} s with {manifest.get('jobs', 1)} jobs"),
        ],
        source=str(manifest.get("scenario", "")),
        small_print=[
            "Intervals are 95 %, from 20 batch means of the measured window; bands over several "
            "seeds are t intervals. Between loads, lines are linear in the axes shown."
        ],
    )


def _as_lines(text: str | Sequence[str]) -> Sequence[str]:
    return [text] if isinstance(text, str) else text


def shared_labels(summary: Mapping[str, Any]) -> list[str]:
    """Return the marks of most policies, which are said once instead of beside every name."""
    every = [label for p in summary["policies"].values() for label in p["labels"]]
    most = len(summary["policies"]) / 2
    # What biases the output is never left to a common line.
    return [x for x in dict.fromkeys(every) if every.count(x) > most and x != "unsafe"]


def ordered(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary with the baseline first and the others in the scenario's order."""
    names = [r["policy"] for r in summary.get("answer", ())] or list(summary["policies"])
    baseline = summary["question"].get("baseline")
    names = list(dict.fromkeys([*([baseline] if baseline else []), *names]))
    return {**summary, "policies": {name: summary["policies"][name] for name in names}}


def _loads(summary: Mapping[str, Any]) -> list[int | None]:
    """Pick the loads that details are shown for: the headline's, lightest, middle, heaviest."""
    grid = sorted(
        {row["concurrency"] for p in summary["policies"].values() for row in p["points"]},
        key=lambda users: -1 if users is None else users,
    )
    if len(grid) <= 1:
        return list(grid)
    slo = summary["question"].get("headline_slo")
    held = [
        r["concurrency"]
        for r in summary.get("answer", ())
        if r["slo_tok_s_user"] == slo and r.get("concurrency") and r["tok_s_gpu"] is not None
    ]
    at = max(held) if held else grid[len(grid) // 2]
    near = min(grid, key=lambda users: abs(users - at))
    return list(dict.fromkeys([near, grid[0], grid[len(grid) // 2], grid[-1]]))


def _load_name(load: int | None) -> str:
    return "its load" if load is None else f"{load} user{'s' if load != 1 else ''} a rank"


def _row(summary: Mapping[str, Any], policy: str, load: int | None) -> Mapping[str, Any]:
    rows: list[Mapping[str, Any]] = summary["policies"][policy]["points"]
    return next((row for row in rows if row["concurrency"] == load), {})


def number(value: float | None, form: str = ",.4g") -> str:
    """Write a number, or a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if form == ",.4g" and abs(value) >= 1000 else format(value, form)


def _frontier(summary: Mapping[str, Any], published: Sequence[PublishedLine]) -> Section:
    question = summary["question"]
    choices = []
    for axes in CONVENTIONS.values():
        svg = _frontier_chart(summary, axes, published if axes.name == "paper" else ())
        if svg:
            note = axes.note
            if axes.name == "paper" and published:
                note = "Broad grey lines: " + "; ".join(line.name for line in published) + "."
            choices.append(Choice(axes.name, svg, note))
    head = ["policy", "SLO tok/s/user", "tok/s/GPU", "users/GPU", "verified tok/request", "wasted"]
    head.append(f"x {question['baseline']}")
    rows = [
        [
            (r["policy"], r["policy"]),
            (f"{r['slo_tok_s_user']:g}", r["slo_tok_s_user"]),
            (number(r["tok_s_gpu"]), r["tok_s_gpu"]),
            (number(r["users_per_gpu"], ".1f"), r["users_per_gpu"]),
            (number(r.get("budget_tokens"), ".2f"), r.get("budget_tokens")),
            (number(r.get("rejected_share"), ".1%"), r.get("rejected_share")),
            (number(r["ratio_to_baseline"], ".2f"), r["ratio_to_baseline"]),
        ]
        for r in summary["answer"]
    ]
    return Section(
        "frontier",
        "Throughput that a speed of one user leaves",
        "Each point is one load; up and to the right is better. Vertical lines are the speeds "
        "asked for. Point at a mark, or tab to it, for its numbers; the buttons above take "
        "policies out and in."
        + (
            f" Most lines rest on: {', '.join(shared)}."
            if (shared := shared_labels(summary))
            else ""
        ),
        choices,
        menu="axes",
        table=(head, rows),
        policy_column=0,
        notes=list(dict.fromkeys(r["reason"] for r in summary["answer"] if r["reason"])),
    )


def _frontier_chart(
    summary: Mapping[str, Any], axes: Axes, published: Sequence[PublishedLine]
) -> str:
    series = [
        Series(n, list(line.speed_P), list(line.throughput_P), published=True)
        for n, line in enumerate(published)
    ]
    for index, (name, policy) in enumerate(summary["policies"].items()):
        rows = axes.rows(policy["points"], ranks=summary["ranks"])
        line = frontier(name, rows)
        tips = [
            f"{name}|{number(row['tok_s_user'])} tok/s/user|{number(row['tok_s_gpu'])} tok/s/GPU"
            + _interval(row.get("tok_s_gpu_ci95"))
            + f"|{_load_name(row['concurrency'])}"
            f"|{number(row.get('budget_tokens'), '.2f')} tokens verified a request"
            f"|{number(row.get('rejected_share'), '.1%')} wasted"
            for row in line.rows
        ]
        half = np.array([row.get("tok_s_gpu_ci95") or 0.0 for row in line.rows])
        style = "line" if policy["lossless"] else "dashed"
        series.append(
            Series(
                index,
                list(line.speed_P),
                list(line.throughput_P),
                tips,
                style,
                list(line.throughput_P - half),
                list(line.throughput_P + half),
            )
        )
    if all(len(s.x) == 0 for s in series):
        return ""
    return line_chart(
        Chart(
            f"Throughput against speed, {axes.name} axes",
            axes.x_label,
            axes.y_label,
            series,
            [(slo, f"{slo:g}") for slo in summary["question"]["slo_tok_s_user"]]
            if axes.name == "paper"
            else (),
            y_format=lambda v: f"{v:,.0f}",
        ),
        height=470,
    )


def _interval(half: float | None) -> str:
    return f" ± {number(half)}" if half else ""


def _budgets(summary: Mapping[str, Any]) -> Section:
    choices = []
    for metric, label, text in (
        ("budget_tokens", "verified tokens a request and step, anchor included", "verified"),
        ("acceptance_length", "tokens committed a request and step, bonus included", "committed"),
        ("rejected_share", "share of verified tokens that were rejected drafts", "wasted"),
    ):
        series = []
        for index, (name, policy) in enumerate(summary["policies"].items()):
            rows = [
                r for r in policy["points"]
                if r.get(metric) is not None and (r.get("mean_running") or 0) > 0
            ]  # fmt: skip
            rows.sort(key=lambda r: r["mean_running"])
            tips = [
                f"{name}|{number(r['mean_running'], '.1f')} running on a rank"
                f"|{number(r[metric], '.3g')} {text}"
                for r in rows
            ]
            x, y = [r["mean_running"] for r in rows], [r[metric] for r in rows]
            series.append(Series(index, x, y, tips))
        chart = Chart(text, "requests running on a rank", label, series, x_log=True)
        svg = line_chart(chart)
        if svg:
            choices.append(Choice(text, svg))
    return Section(
        "budgets",
        "How the budget follows the load",
        "A policy that reads its load verifies much when few requests run and little when many do.",
        choices,
        menu="show",
    )


def _times(summary: Mapping[str, Any], loads: Sequence[int | None]) -> Section:
    choices, seen = [], set()
    for load in loads:
        bars = []
        for index, name in enumerate(summary["policies"]):
            row = _row(summary, name, load)
            parts = []
            for part in _TIME_PARTS:
                share = row.get(f"time_{part}_share")
                if share and share > 1e-6:
                    seen.add(part)
                    parts.append((part, share, f"{name}|{PART_NAMES[part]}: {share:.1%}"))
            if parts:
                bars.append(Bar(index, name, parts))
        svg = stacked_bars(
            f"Where the time goes at {_load_name(load)}",
            bars,
            x_label="share of all rank-seconds measured",
            x_format=lambda v: f"{v:.0%}",
            full=1.0,
        )
        if svg:
            choices.append(Choice(_load_name(load), svg))
    return Section(
        "time",
        "Where the time goes",
        "A cost that a table has inside its verify curve counts as target forward; the inputs "
        "below say which.",
        choices,
        menu="at",
        parts=[part for part in _TIME_PARTS if part in seen],
    )


def _tokens(summary: Mapping[str, Any], loads: Sequence[int | None]) -> Section:
    choices = []
    for load in loads:
        bars = []
        for index, name in enumerate(summary["policies"]):
            row = _row(summary, name, load)
            budget, tau = row.get("budget_tokens"), row.get("acceptance_length")
            if budget is None or tau is None:
                continue
            parts = [
                ("anchor", 1.0, f"{name}|1 token that every step gives"),
                ("accepted", tau - 1, f"{name}|{tau - 1:.2f} accepted drafts"),
                (
                    "rejected",
                    budget - tau,
                    f"{name}|{budget - tau:.2f} rejected drafts|{(budget - tau) / budget:.1%} of "
                    "the tokens verified",
                ),
            ]
            bars.append(Bar(index, name, parts))
        svg = stacked_bars(
            f"Tokens of a request in one step at {_load_name(load)}",
            bars,
            x_label="tokens of a request in one target forward",
            x_format=lambda v: f"{v:g}",
        )
        if svg:
            choices.append(Choice(_load_name(load), svg))
    return Section(
        "tokens",
        "Verified, accepted, rejected",
        "The whole bar is paid for; the first two parts are what a user gets.",
        choices,
        menu="at",
        parts=["anchor", "accepted", "rejected"],
    )


def _latencies(stored: Stored, loads: Sequence[int | None]) -> Section:
    choices = []
    kinds = (
        ("TPOT", "time per output token after the first, ms", _tpot_ms),
        ("TTFT", "arrival to first token, ms", _ttft_ms),
        ("end to end", "arrival to last token, ms", _e2e_ms),
    )
    for load in loads[:2]:
        found = {
            name: stored.columns("requests", name, load) for name in stored.summary["policies"]
        }
        for kind, label, sample in kinds:
            series = []
            for index, (name, columns) in enumerate(found.items()):
                ms_N = sample(columns) if columns else np.zeros(0)
                if len(ms_N) < 2 or ms_N.max() <= 0:
                    continue
                at_Q = np.quantile(ms_N, _QUANTILES)
                tips = {
                    q: f"{name}|{q:.0%} of {len(ms_N)} requests: {kind} at most "
                    f"{number(float(np.quantile(ms_N, q)))} ms"
                    for q in (0.5, 0.9, 0.99)
                }
                series.append(Series(index, list(at_Q), list(_QUANTILES)))
                series.append(
                    Series(
                        index,
                        [float(np.quantile(ms_N, q)) for q in tips],
                        list(tips),
                        list(tips.values()),
                        "dots",
                    )
                )
            chart = Chart(
                f"{kind} at {_load_name(load)}",
                label,
                "share of requests at or below",
                series,
                y_format=lambda v: f"{v:.0%}",
                y_top=1.0,
            )
            svg = line_chart(chart)
            if svg:
                choices.append(Choice(f"{kind} at {_load_name(load)}", svg))
    return Section(
        "latency",
        "Latency distributions",
        "Over the requests that finished, warm-up included; marks stand at 50, 90 and 99 %.",
        choices,
        menu="show",
    )


def _tpot_ms(columns: Mapping[str, NDArray[Any]]) -> FloatArray:
    tokens = columns["output_tokens"] - 1
    done = np.isfinite(columns["finish_s"]) & (tokens > 0)
    return np.asarray(
        (columns["finish_s"] - columns["first_token_s"])[done] / tokens[done] * 1e3, np.float64
    )


def _ttft_ms(columns: Mapping[str, NDArray[Any]]) -> FloatArray:
    wait = columns["first_token_s"] - columns["arrival_s"]
    return np.asarray(wait[np.isfinite(wait)] * 1e3, np.float64)


def _e2e_ms(columns: Mapping[str, NDArray[Any]]) -> FloatArray:
    whole = columns["finish_s"] - columns["arrival_s"]
    return np.asarray(whole[np.isfinite(whole)] * 1e3, np.float64)


def _timelines(stored: Stored, loads: Sequence[int | None]) -> Section:
    choices = []
    for name in stored.summary["policies"]:
        columns = stored.columns("steps", name, loads[0] if loads else None)
        if not columns or len(columns["end_s"]) == 0:
            continue
        own = np.flatnonzero(columns["rank"] == columns["rank"].min())
        middle = max(0, min(len(own) // 2, len(own) - _TIMELINE_STEPS))
        steps = []
        for i in own[middle : middle + _TIMELINE_STEPS]:
            running, verified, accepted = (
                int(columns[key][i]) for key in ("num_requests", "verified", "accepted")
            )
            prefill = int(columns["prefill_tokens"][i]) if "prefill_tokens" in columns else 0
            end_ms, took_ms = columns["end_s"][i] * 1e3, columns["duration_s"][i] * 1e3
            tip = (
                f"step of {took_ms:.2f} ms|{running} requests, {verified} drafts verified"
                f"|{accepted} accepted, {verified - accepted} rejected"
                + (f"|{prefill} prompt tokens" if prefill else "")
                + f"|{int(columns['waiting'][i])} waiting"
            )
            parts = [
                ("anchor", running),
                ("accepted", accepted),
                ("rejected", verified - accepted),
                ("prefill", prefill),
            ]
            steps.append(StepMark(end_ms - took_ms, end_ms, parts, tip))
        choices.append(Choice(name, timeline(f"Steps of {name}", steps)))
    at = _load_name(loads[0]) if loads else ""
    return Section(
        "timeline",
        "Step by step",
        f"{_TIMELINE_STEPS} steps of one rank in the middle of the run, at {at}: as wide as they "
        "last, as high as the tokens in them.",
        choices,
        menu="policy",
        parts=["anchor", "accepted", "rejected"],
    )


def _calibration(summary: Mapping[str, Any]) -> Section:
    groups: dict[str, list[str]] = {}
    records: dict[str, Any] = {}
    for name, policy in summary["policies"].items():
        found = policy.get("reliability")
        if found:
            key = repr(found)
            groups.setdefault(key, []).append(name)
            records[key] = found
    choices = []
    for key, names in groups.items():
        series = []
        shown = [r for r in records[key] if r["position"] in (1, 3, 5, 7)] or records[key]
        for n, record in enumerate(shown):
            bins = [b for b in record["bins"] if b[2] >= _RAREST] or record["bins"]
            said, true, weight = (list(column) for column in zip(*bins, strict=True))
            tips = [
                f"position {record['position']}|predicted {s:.2f}, observed {t:.2f}|{w:.1%} of "
                "the blocks"
                for s, t, w in zip(said, true, weight, strict=True)
            ]
            series.append(Series(n, said, true, tips))
        errors = ", ".join(f"position {r['position']}: {r['ece']:.1%}" for r in shown)
        chart = Chart(
            "Reliability of the confidences",
            "survival of the prefix, as predicted",
            "share of blocks in which it survived",
            series,
            x_from_zero=True,
            y_top=1.0,
            diagonal=True,
        )
        svg = line_chart(chart).replace("data-policy", "data-position")
        keys = [(n, f"position {r['position']}") for n, r in enumerate(shown)]
        note = f"Expected calibration error: {errors}."
        choices.append(Choice(", ".join(names), svg, note, keys))
    return Section(
        "calibration",
        "Does the confidence tell the truth?",
        "On the dashed diagonal it does: of the blocks said to survive with 70 %, 70 % did. One "
        "line a position of the block.",
        choices,
        menu="trace of",
    )


def _inputs(summary: Mapping[str, Any]) -> Section:
    head = ["policy", "scheduler", "drafts", "output law", "step costs", "other costs"]
    head += ["acceptance"]
    rows = []
    for name, policy in summary["policies"].items():
        scheduler = ", ".join(
            [str(policy["scheduler"]["kind"])]
            + [f"{k} {v}" for k, v in policy["scheduler"].items() if k != "kind" and v is not None]
        )
        acceptance = policy["acceptance"]
        said = [str(acceptance.get("name") or acceptance.get("calibration") or "")]
        said += [str(acceptance.get("status", "unknown")), str(acceptance.get("source", ""))]
        cells = [
            name,
            scheduler,
            str(policy["gamma"]),
            "the target's" if policy["lossless"] else "changed (unsafe)",
            f"{policy['cost_table']} ({policy['cost_status']})",
            "; ".join(f"{term}: {source}" for term, source in policy["cost_sources"].items()),
            "; ".join(part for part in said if part) if policy["gamma"] else "no drafts",
        ]
        rows.append([(cell, cell) for cell in cells])
    return Section(
        "inputs",
        "Inputs, and what kind of numbers they are",
        "measured: on the machine named; derived: computed from measurements; fitted: to the "
        "source named; assumed or synthetic: nobody measured it.",
        table=(head, rows),
        policy_column=0,
    )


def _point(summary: Mapping[str, Any]) -> Section:
    metrics = [
        ("output tok/s/GPU", "tok_s_gpu", ",.1f", 1.0),
        ("± 95 %", "tok_s_gpu_ci95", ",.1f", 1.0),
        ("tok/s/user", "tok_s_user", ",.1f", 1.0),
        ("running on a rank", "mean_running", ".1f", 1.0),
        ("verified tok/request", "budget_tokens", ".2f", 1.0),
        ("tokens a step", "acceptance_length", ".2f", 1.0),
        ("wasted", "rejected_share", ".1%", 1.0),
        ("TPOT p50, ms", "tpot_p50_s", ".2f", 1e3),
        ("TPOT p99, ms", "tpot_p99_s", ".2f", 1e3),
        ("makespan, s", "makespan_s", ",.2f", 1.0),
    ]
    first = {name: (p["points"] or [{}])[0] for name, p in summary["policies"].items()}
    metrics = [m for m in metrics if any(row.get(m[1]) is not None for row in first.values())]
    rows = []
    for name, row in first.items():
        cells: list[tuple[str, Any]] = [(name, name)]
        for _, metric, form, scale in metrics:
            value = row.get(metric)
            cells.append((number(None if value is None else value * scale, form), value))
        rows.append(cells)
    head = ["policy", *(title for title, _, _, _ in metrics)]
    bars = [
        Bar(
            index,
            name,
            [
                (
                    f"policy c{index % 8}",
                    row["tok_s_gpu"],
                    f"{name}|{number(row['tok_s_gpu'])} tok/s/GPU"
                    + _interval(row.get("tok_s_gpu_ci95")),
                )
            ],
        )
        for index, (name, row) in enumerate(first.items())
        if row.get("tok_s_gpu")
    ]
    svg = stacked_bars(
        "Output throughput",
        bars,
        x_label="output throughput, tok/s/GPU",
        x_format=lambda v: f"{v:,.0f}",
    )
    load = summary["question"].get("concurrency")
    at = _load_name(load) if load else "the load asked"
    return Section(
        "result",
        f"What each policy does at {at}",
        "Click a heading to sort.",
        [Choice("", svg)] if svg else (),
        table=(head, rows),
        policy_column=0,
    )


def _tiles(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    slo, baseline = summary["question"]["headline_slo"], summary["question"]["baseline"]
    held = [
        r
        for r in summary["answer"]
        if r["slo_tok_s_user"] == slo
        and r["tok_s_gpu"] is not None
        and summary["policies"][r["policy"]]["lossless"]
    ]
    if not held:
        return []
    best = max(held, key=lambda r: r["tok_s_gpu"])
    ratio = best["ratio_to_baseline"]
    return [
        (f"{number(best['tok_s_gpu'])}", "output tok/s/GPU", f"{best['policy']} at {slo:g} tok/s"),
        (f"{number(best['users_per_gpu'], '.1f')}", "users per GPU", f"at {slo:g} tok/s each"),
        (f"{number(ratio, '.2f')}x", f"of {baseline}", "throughput at this speed"),
        (
            number(best.get("budget_tokens"), ".2f"),
            "verified a request",
            f"{number(best.get('rejected_share'), '.0%')} of it wasted",
        ),
    ]


def _point_best(summary: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    first = {
        name: p["points"][0]
        for name, p in summary["policies"].items()
        if p["points"] and p["lossless"] and p["points"][0].get("tok_s_gpu") is not None
    }
    if not first:
        return None
    name = max(first, key=lambda key: first[key]["tok_s_gpu"])
    return name, first[name]


def _point_verdict(summary: Mapping[str, Any]) -> list[str]:
    best = _point_best(summary)
    if best is None:
        return ["No policy gave a number under this load."]
    name, row = best
    others = [
        (p["points"][0].get("tok_s_gpu") or 0.0, other)
        for other, p in summary["policies"].items()
        if other != name and p["points"] and p["lossless"]
    ]
    text = f"{name} gives the most: {number(row['tok_s_gpu'])} tok/s/GPU"
    if others and max(others)[0] > 0:
        most, second = max(others)
        text += f", {row['tok_s_gpu'] / most:.2f} times {second}"
    return [text + "."]


def _point_tiles(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    best = _point_best(summary)
    if best is None:
        return []
    name, row = best
    tpot = row.get("tpot_p50_s")
    return [
        (number(row["tok_s_gpu"]), "output tok/s/GPU", name),
        (number(row.get("tok_s_user"), ",.1f"), "tok/s/user", "mean of a running request"),
        (number(None if tpot is None else tpot * 1e3, ".2f"), "ms TPOT, median", name),
        (
            number(row.get("budget_tokens"), ".2f"),
            "verified a request",
            f"{number(row.get('rejected_share'), '.0%')} of it wasted",
        ),
    ]
