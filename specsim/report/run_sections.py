"""Sections of a run's page that are drawn from its summary alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specsim.report.axes import CONVENTIONS, Axes
from specsim.report.figures import PublishedLine
from specsim.report.loads import load_name
from specsim.report.page import (
    PART_NAMES,
    Choice,
    Section,
    interval_text,
    number,
    row_at,
    shared_labels,
)
from specsim.report.pareto import frontier
from specsim.report.svg import Bar, Chart, Series, line_chart, stacked_bars

_TIME_PARTS = ("verify", "prefill", "attention", "draft", "host", "rank_wait", "idle")
_RAREST = 0.0005  # bins with fewer of the blocks are noise, and are not drawn


def frontier_section(summary: Mapping[str, Any], published: Sequence[PublishedLine]) -> Section:
    """Draw the frontier under every convention of axes, with the cuts at the SLOs."""
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
            + interval_text(row.get("tok_s_gpu_ci95"))
            + f"|{load_name(row['concurrency'])}"
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


def budget_section(summary: Mapping[str, Any]) -> Section:
    """Draw what a step verifies, commits and wastes, over the load."""
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


def time_section(summary: Mapping[str, Any], loads: Sequence[int | None]) -> Section:
    """Draw where the time goes, a bar a policy."""
    choices, seen = [], set()
    for load in loads:
        bars = []
        for index, name in enumerate(summary["policies"]):
            row = row_at(summary, name, load)
            parts = []
            for part in _TIME_PARTS:
                share = row.get(f"time_{part}_share")
                if share and share > 1e-6:
                    seen.add(part)
                    parts.append((part, share, f"{name}|{PART_NAMES[part]}: {share:.1%}"))
            if parts:
                bars.append(Bar(index, name, parts))
        svg = stacked_bars(
            f"Where the time goes at {load_name(load)}",
            bars,
            x_label="share of all rank-seconds measured",
            x_format=lambda v: f"{v:.0%}",
            full=1.0,
        )
        if svg:
            choices.append(Choice(load_name(load), svg))
    return Section(
        "time",
        "Where the time goes",
        "A cost that a table has inside its verify curve counts as target forward; the inputs "
        "below say which.",
        choices,
        menu="at",
        parts=[part for part in _TIME_PARTS if part in seen],
    )


def token_section(summary: Mapping[str, Any], loads: Sequence[int | None]) -> Section:
    """Draw verified tokens as anchors, accepted and rejected drafts."""
    choices = []
    for load in loads:
        bars = []
        for index, name in enumerate(summary["policies"]):
            row = row_at(summary, name, load)
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
            f"Tokens of a request in one step at {load_name(load)}",
            bars,
            x_label="tokens of a request in one target forward",
            x_format=lambda v: f"{v:g}",
        )
        if svg:
            choices.append(Choice(load_name(load), svg))
    return Section(
        "tokens",
        "Verified, accepted, rejected",
        "The whole bar is paid for; the first two parts are what a user gets.",
        choices,
        menu="at",
        parts=["anchor", "accepted", "rejected"],
    )


def calibration_section(summary: Mapping[str, Any]) -> Section:
    """Draw the reliability of the confidences of every trace used."""
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


def input_section(summary: Mapping[str, Any]) -> Section:
    """List the inputs of every policy with their provenance."""
    head = ["policy", "scheduler", "drafts", "output law", "step costs", "other costs"]
    head += ["acceptance"]
    rows = []
    for name, policy in summary["policies"].items():
        scheduler = ", ".join(
            [str(policy["scheduler"]["kind"])]
            + [f"{k} {v}" for k, v in policy["scheduler"].items() if k != "kind" and v is not None]
        )
        acceptance = policy["acceptance"]
        said = [
            str(acceptance.get(key, "")) for key in ("target", "model", "drafter", "calibration")
        ]
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


def point_section(summary: Mapping[str, Any]) -> Section:
    """Draw and list what every policy does under the one load."""
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
                    + interval_text(row.get("tok_s_gpu_ci95")),
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
        x_format=number,
    )
    load = summary["question"].get("concurrency")
    at = load_name(load) if load else "the load asked"
    return Section(
        "result",
        f"What each policy does at {at}",
        "Click a heading to sort.",
        [Choice("", svg)] if svg else (),
        table=(head, rows),
        policy_column=0,
    )
