"""Replay whole public traces on eight ranks; write reports/replays/README.md, every request in it.

    python scripts/replay_traces.py --out RUNS [--stored]

The traces lie outside the repository, where the scenarios in reports/replays say. `--stored` takes
runs that are in RUNS already.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from specsim.study.run import run_scenario

HERE = Path(__file__).parent.parent / "reports" / "replays"
STATUSES = ("waiting", "running", "cancelled", "timed_out", "failed")


def summaries(out: Path, *, stored: bool) -> dict[str, dict[str, Any]]:
    found = {}
    for path in sorted(HERE.glob("*.yaml")):
        if not stored:
            found[path.stem] = run_scenario(str(path), out=out).summary
            continue
        for summary in sorted(out.glob("*/summary.json"), key=lambda p: p.stat().st_mtime):
            content = json.loads(summary.read_text())
            if content["scenario"] == path.stem:
                found[path.stem] = content
    return found


def rows(summary: dict[str, Any]) -> list[str]:
    lines = []
    for name, policy in summary["policies"].items():
        for point in policy["points"]:
            open_ = sum(point[f"requests_{status}"] for status in STATUSES)
            assert point["requests_submitted"] == point["all_finished"] + open_
            lines.append(
                f"| {summary['scenario']} | {name} | {point['requests_submitted']:,.0f} | "
                f"{point['all_finished']:,.0f} | {open_:,.0f} | {point['preemptions']:,.0f} | "
                f"{point['ttft_p50_s']:.2f} / {point['ttft_p99_s']:.2f} | "
                f"{point['tpot_p50_s'] * 1e3:.1f} / {point['tpot_p99_s'] * 1e3:.1f} | "
                f"{point['tok_s_user']:.1f} | {point['budget_tokens']:.2f} | "
                f"{100 * (point['prefix_hit_share'] or 0):.1f} | "
                f"{point['kv_blocks_peak']:,.0f} | {100 * point['utilisation']:.1f} |"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stored", action="store_true")
    given = parser.parse_args()
    found = summaries(given.out, stored=given.stored)
    lines = [
        "| trace | policy | requests | finished | not finished | preemptions | TTFT p50 / p99, s | "
        "TPOT p50 / p99, ms | tok/s/user | budget | prefix hits, % | KV blocks peak | busy, % |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    notes = []
    for name, summary in found.items():
        lines += rows(summary)
        notes += [f"- {name}: {line}" for line in summary.get("workload_rows", ())]
        notes.append(f"- {name}: KV memory {summary['kv_memory']}")
        notes += [f"- {name}: {warning}" for warning in summary["warnings"]]
    head = (HERE / "head.md").read_text()
    (HERE / "README.md").write_text(head + "\n".join([*lines, "", *notes]) + "\n")


if __name__ == "__main__":
    main()
