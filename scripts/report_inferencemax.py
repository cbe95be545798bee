"""Rebuild reports/inferencemax/: served points predicted at lengths that were not fitted.

    python scripts/report_inferencemax.py --source FILE.csv

FILE.csv is aiconfigurator's `silicon_sample.csv` or alike; it is not part of this repository, and
without it the script says so and writes nothing.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from specsim.interop.silicon import load_points
from specsim.study.validate_inferencemax import (
    Prediction,
    Skipped,
    by_deployment,
    errors_of,
    predict,
)

ROOT = Path(__file__).parent.parent


def draw(found: list[Prediction], path: Path) -> None:
    style: dict[Any, Any] = {
        "font.size": 9.0,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#DDDDDD",
        "grid.linewidth": 0.6,
        "svg.hashsalt": "specsim",
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(11, 4.6))
        left, right = figure.subplots(1, 2)
        for label, apart, colour in (
            ("prefill in the steps", False, "#0072B2"),
            ("prefill apart", True, "#D55E00"),
        ):
            mine = [p for p in found if p.point.disaggregated is apart]
            left.loglog(
                [p.point.tpot_s * 1e3 for p in mine],
                [p.predicted_s * 1e3 for p in mine],
                ".",
                ms=3,
                alpha=0.5,
                color=colour,
                label=label,
            )
            for errors, dash, name in (
                ([p.error for p in mine], "-", "roofline terms"),
                ([p.baseline_error for p in mine], ":", "same TPOT"),
            ):
                share = (np.arange(len(errors)) + 1) / max(1, len(errors))
                right.plot(np.sort(errors), share, dash, color=colour, label=f"{label}: {name}")
        ends = np.array([2.0, 300.0])
        left.plot(ends, ends, "-", color="0.4", lw=0.8)
        left.set_xlabel("measured TPOT, ms")
        left.set_ylabel("predicted TPOT, ms")
        left.legend(frameon=False, fontsize=8)
        right.axvline(0.15, color="0.4", lw=0.8)
        right.axhline(0.5, color="0.4", lw=0.8)
        right.set_xlim(0, 1)
        right.set_xlabel("relative error")
        right.set_ylabel("share of points")
        right.legend(frameon=False, fontsize=8, loc="lower right")
        figure.tight_layout()
        figure.savefig(path.with_suffix(".png"), dpi=130, metadata={"Software": None})


def write_groups(rows: list[dict[str, Any]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(list(rows[0]))
        for row in rows:
            writer.writerow([f"{v:.4g}" if isinstance(v, float) else v for v in row.values()])


def write_skipped(skipped: list[Skipped], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["group", "points", "reason"])
        for one in sorted(skipped, key=lambda s: (s.reason, s.group)):
            writer.writerow([" ".join(p for p in one.group if p), one.points, one.reason])


def row_of(label: str, found: list[Prediction]) -> str:
    e = errors_of(found)
    return (
        f"| {label} | {len(found)} | {e['median_error']:.1%} | {e['p90_error']:.1%} | "
        f"{e['baseline_median_error']:.1%} | {e['baseline_p90_error']:.1%} |"
    )


def text(found: list[Prediction], skipped: list[Skipped], groups: list[dict[str, Any]]) -> str:
    lines = [
        "# TPOT of served deployments at lengths that were not fitted",
        "",
        "Rebuilt by `python scripts/report_inferencemax.py --source FILE.csv`; judged by",
        "`specsim validate inferencemax --points FILE.csv`. Input: the served points of",
        "aiconfigurator's `silicon_sample.csv` (commit 095f58a, Apache-2.0; measured by others).",
        "Of each deployment (model, GPUs, engine and version, precision, parallelism) one",
        "(prompt, output) length is fitted, the one measured at most concurrencies, and the others",
        "are predicted through the roofline's weights, token flops, KV reads and prefill work; see",
        "`specsim/study/validate_inferencemax.py`. Baseline: same TPOT at the same concurrency.",
        "",
        "| points | number | median error | 90% | baseline median | baseline 90% |",
        "|---|---|---|---|---|---|",
        row_of("all", found),
        row_of(
            "prompt longer than fitted", [p for p in found if p.fitted_on[0] < p.point.isl_tokens]
        ),
        row_of(
            "output longer than fitted", [p for p in found if p.fitted_on[1] < p.point.osl_tokens]
        ),
        row_of("prefill in the steps", [p for p in found if not p.point.disaggregated]),
        row_of("prefill apart", [p for p in found if p.point.disaggregated]),
        "",
        "![predictions](predictions.png)",
        "",
        f"{len(groups)} deployments are judged (`groups.csv`); {len(skipped)} with "
        f"{sum(s.points for s in skipped)} points cannot be",
        "(`skipped.csv`):",
        "",
    ]
    for reason, count in Counter(s.reason for s in skipped).most_common():
        lines.append(f"- {count}: {reason}")
    worst = sorted(groups, key=lambda row: -row["median_error"])[:8]
    lines += [
        "",
        "The worst eight by median error, of those with three points or more:",
        "",
        "| deployment | fitted on | points | median error | baseline |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['group']} | {row['fitted_on']} | {row['points']:.0f} | "
        f"{row['median_error']:.0%} | {row['baseline_median_error']:.0%} |"
        for row in worst
        if row["points"] >= 3
    ]
    lines += [
        "",
        "**Where it fails.** With prefill apart it is no better than the baseline: how the load",
        "splits between prefill and decode workers differs between lengths and is not in the",
        "file, so the requests that decode together are not the concurrency over the workers.",
        "Among the others the worst are wide expert-parallel deployments with data-parallel",
        "attention, whose all-to-all and idle ranks the roofline does not know.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True, help="file of served points")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "inferencemax")
    args = parser.parse_args()
    if not args.source.is_file():
        print(f"source data absent: {args.source}; nothing is written", file=sys.stderr)
        return 2
    found, skipped = predict(load_points(args.source))
    groups = by_deployment(found)
    args.out.mkdir(parents=True, exist_ok=True)
    write_groups(groups, args.out / "groups.csv")
    write_skipped(skipped, args.out / "skipped.csv")
    draw(found, args.out / "predictions")
    (args.out / "README.md").write_text(text(found, skipped, groups), encoding="utf-8")
    print(text(found, skipped, groups))
    return 0


if __name__ == "__main__":
    sys.exit(main())
