"""`specsim compare A B`: paired differences of two stored runs or studies, with intervals.

Runs are paired by load and request: the same seed gives request i of both the same prompt, length
and luck, so per-request latencies are compared request by request, and the interval of the mean
difference comes from batch means along the requests. Throughput is one number a run; its interval
adds the two runs' own, which is wider than it need be, as the two share their luck. Studies with
several seeds are paired by seed, and the interval is the t interval of the differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from specsim.errors import InputError, nearest
from specsim.jsontext import shaped
from specsim.report.page import Stored
from specsim.stats.intervals import mean_interval, ratio_interval
from specsim.study.store import read_manifest, read_summary
from specsim.study.sweep import read_table

METRICS = ("tok_s_gpu", "tok_s_user", "budget_tokens", "acceptance_length", "rejected_share")
LATENCIES = ("tpot_s", "ttft_s", "e2e_s")
_FEWEST = 40


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: `DIRECTORY` or `DIRECTORY:policy`."""

    directory: Path
    policy: str | None
    summary: Mapping[str, Any]

    @property
    def is_study(self) -> bool:
        """Whether it is a study rather than a run."""
        return "study" in self.summary

    @property
    def name(self) -> str:
        """What to call it."""
        return self.directory.name + (f":{self.policy}" if self.policy else "")


def open_side(text: str) -> Side:
    """Open `DIRECTORY` or `DIRECTORY:policy`.

    Raises:
        InputError: there is no such run, or no such policy in it.
    """
    path, policy = Path(text), None
    if not path.exists() and ":" in text:
        head, _, policy = text.rpartition(":")
        path = Path(head)
    if not path.is_dir():
        raise InputError(
            f"{text}: no such folder; compare two stored runs or studies, such as "
            "runs/1f2e3d4c5b6a, or runs/1f2e3d4c5b6a:greedy for one policy of a run"
        )
    summary = read_summary(path)
    with shaped(str(path), "stored run or study"):
        names = (
            sorted({row["policy"] for row in summary["rows"]})
            if "study" in summary
            else list(summary["policies"])
        )
    if policy is not None and policy not in names:
        close = nearest(policy, names)
        raise InputError(
            f'{text}: no policy "{policy}"{"; " + close if close else ""}; it has '
            f"{', '.join(names)}"
        )
    return Side(path, policy, summary)


def compare(a_text: str, b_text: str) -> dict[str, Any]:
    """Compare B with A.

    Returns:
        `a`, `b`, `paired_by`, `notes`, and `rows`: `policy`, `concurrency`, `metric`, `a`, `b`,
        `difference` (b - a), `ci95` (half-width, None if unknown), `ratio`, and `clear` (whether
        the interval leaves 0 out).

    Raises:
        InputError: the two have nothing in common, or one is a run and the other a study.
    """
    a, b = open_side(a_text), open_side(b_text)
    if a.is_study != b.is_study:
        raise InputError(
            f"{a.name} is a {'study' if a.is_study else 'run'} and {b.name} is not; compare two "
            "of a kind"
        )
    with shaped(f"{a.directory} or {b.directory}", "stored run or study"):
        found = _studies(a, b) if a.is_study else _runs(a, b)
    if not found["rows"]:
        raise InputError(
            f"{a.name} and {b.name} share no policy and load; name one policy of each, such as "
            f"{a.directory}:NAME"
        )
    return {"a": a.name, "b": b.name, **found}


def _pairs(a: Side, b: Side, names_a: list[str], names_b: list[str]) -> list[tuple[str, str]]:
    if a.policy and b.policy:
        return [(a.policy, b.policy)]
    if a.policy or b.policy:
        one = a.policy or b.policy or ""
        return [(one, one)] if one in names_a and one in names_b else []
    return [(name, name) for name in names_a if name in names_b]


def _runs(a: Side, b: Side) -> dict[str, Any]:
    notes = []
    same_seed = a.summary["seed"] == b.summary["seed"]
    if not same_seed:
        notes.append(
            f"the seeds differ ({a.summary['seed']} and {b.summary['seed']}), so nothing is "
            "paired and the intervals are wider"
        )
    stored = [Stored(s.directory, s.summary, read_manifest(s.directory)) for s in (a, b)]
    rows = []
    policies = _pairs(a, b, list(a.summary["policies"]), list(b.summary["policies"]))
    for name_a, name_b in policies:
        points = [
            {row["concurrency"]: row for row in side.summary["policies"][name]["points"]}
            for side, name in ((a, name_a), (b, name_b))
        ]
        label = name_a if name_a == name_b else f"{name_b} - {name_a}"
        for load in points[0]:
            if load not in points[1]:
                continue
            one, other = points[0][load], points[1][load]
            for metric in METRICS:
                half = _added(one.get(f"{metric}_ci95"), other.get(f"{metric}_ci95"))
                rows.append(_row(label, load, metric, one.get(metric), other.get(metric), half))
            if same_seed:
                ledgers = [
                    side.columns("requests", name, load)
                    for side, name in zip(stored, (name_a, name_b), strict=True)
                ]
                rows += _paired_latencies(label, load, ledgers[0], ledgers[1])
    paired = "request (same seed)" if same_seed else "nothing"
    return {"paired_by": paired, "notes": notes, "rows": [r for r in rows if r is not None]}


def _added(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else float(np.hypot(one, other))


def _row(
    policy: str,
    load: int | None,
    metric: str,
    a: float | None,
    b: float | None,
    half: float | None,
    *,
    pairs: int | None = None,
) -> dict[str, Any] | None:
    if a is None or b is None:
        return None
    difference = b - a
    return {
        "policy": policy,
        "concurrency": load,
        "metric": metric,
        "a": a,
        "b": b,
        "difference": difference,
        "ci95": half,
        "ratio": b / a if a else None,
        "clear": half is not None and abs(difference) > half,
        "pairs": pairs,
    }


def _paired_latencies(
    label: str, load: int | None, a: Mapping[str, Any], b: Mapping[str, Any]
) -> list[dict[str, Any] | None]:
    if not a or not b:
        return []
    _, at_a, at_b = np.intersect1d(a["request"], b["request"], return_indices=True)
    one = {name: column[at_a] for name, column in a.items()}
    other = {name: column[at_b] for name, column in b.items()}
    rows = []
    for metric in LATENCIES:
        a_N, b_N = _latency(one, metric), _latency(other, metric)
        # Requests of different length are not the same request.
        both = np.isfinite(a_N) & np.isfinite(b_N)
        both &= one["output_tokens"] == other["output_tokens"]
        if both.sum() < _FEWEST:
            continue
        a_N, b_N = a_N[both], b_N[both]
        found = ratio_interval(b_N - a_N, np.ones(len(a_N)))
        half = found.half_width if np.isfinite(found.half_width) else None
        mean_a, mean_b = float(a_N.mean()), float(b_N.mean())
        rows.append(_row(label, load, f"mean_{metric}", mean_a, mean_b, half, pairs=len(a_N)))
    return rows


def _latency(columns: Mapping[str, Any], metric: str) -> Any:
    match metric:
        case "ttft_s":
            return columns["first_token_s"] - columns["arrival_s"]
        case "e2e_s":
            return columns["finish_s"] - columns["arrival_s"]
    tokens = columns["output_tokens"] - 1
    decode_s = columns["finish_s"] - columns["first_token_s"]
    return np.where(tokens > 0, decode_s / np.maximum(tokens, 1), np.nan)


def _studies(a: Side, b: Side) -> dict[str, Any]:
    tables = [read_table(side.directory) for side in (a, b)]
    axes = [x for x in a.summary["axes"] if x in b.summary["axes"]]
    metrics = [m for m in a.summary["metrics"] if m in b.summary["metrics"]]
    names = [sorted(set(table["policy"])) for table in tables]
    rows = []
    for name_a, name_b in _pairs(a, b, names[0], names[1]):
        label = name_a if name_a == name_b else f"{name_b} - {name_a}"
        halves = [
            table[(table["policy"] == name) & (table["status"] == "ok")]
            for table, name in zip(tables, (name_a, name_b), strict=True)
        ]
        joined = halves[0].merge(
            halves[1], on=[*axes, "concurrency", "seed"], suffixes=("_a", "_b")
        )
        for keys, group in joined.groupby([*axes, "concurrency"], dropna=False, sort=False):
            where = dict(zip([*axes, "concurrency"], keys, strict=True))
            load = where.pop("concurrency")
            said = ", ".join(f"{k.rsplit('.', 1)[-1]} {v}" for k, v in where.items())
            for metric in metrics:
                one = group[f"{metric}_a"].to_numpy(np.float64)
                other = group[f"{metric}_b"].to_numpy(np.float64)
                found = mean_interval(other - one)
                rows.append(
                    _row(
                        f"{label} ({said})" if said else label,
                        None if pd.Series([load]).isna().item() else int(load),
                        metric,
                        float(one.mean()),
                        float(other.mean()),
                        found.half_width if np.isfinite(found.half_width) else None,
                        pairs=len(group),
                    )
                )
    return {"paired_by": "seed", "notes": [], "rows": [r for r in rows if r is not None]}
