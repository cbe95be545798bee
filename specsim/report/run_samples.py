"""Sections of a run's page that need its requests and steps one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.report.loads import load_name
from specsim.report.page import Choice, Section, Stored, number
from specsim.report.svg import Chart, Series, StepMark, line_chart, timeline

FloatArray = NDArray[np.float64]
_TIMELINE_STEPS = 90
_MOST_GROUPS = 16  # row groups of one point that a page reads: a million rows of a long run
_QUANTILES = np.concatenate([np.linspace(0, 0.98, 50), np.linspace(0.982, 1.0, 10)])


def latency_section(stored: Stored, loads: Sequence[int | None]) -> Section:
    """Draw the distributions of TPOT, TTFT and end-to-end latency."""
    choices = []
    kinds = (
        ("TPOT", "time per output token after the first, ms", _tpot_ms),
        ("TTFT", "arrival to first token, ms", _ttft_ms),
        ("end to end", "arrival to last token, ms", _e2e_ms),
    )
    for load in loads[:2]:
        found = {
            name: stored.columns("requests", name, load, most_groups=_MOST_GROUPS)
            for name in stored.summary["policies"]
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
                f"{kind} at {load_name(load)}",
                label,
                "share of requests at or below",
                series,
                y_format=lambda v: f"{v:.0%}",
                y_top=1.0,
            )
            svg = line_chart(chart)
            if svg:
                choices.append(Choice(f"{kind} at {load_name(load)}", svg))
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


def timeline_section(stored: Stored, loads: Sequence[int | None]) -> Section:
    """Draw some steps of one rank, for every policy."""
    choices = []
    for name in stored.summary["policies"]:
        load = loads[0] if loads else None
        columns = stored.columns("steps", name, load, most_groups=1)
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
    at = load_name(loads[0]) if loads else ""
    return Section(
        "timeline",
        "Step by step",
        f"{_TIMELINE_STEPS} steps of one rank in the middle of the run, at {at}: as wide as they "
        "last, as high as the tokens in them.",
        choices,
        menu="policy",
        parts=["anchor", "accepted", "rejected"],
    )
