"""Rebuild reports/staircase/: what planning rules make of noisy, staircase-shaped cost tables.

python scripts/report_staircase.py
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from specsim.acceptance.trace import load_trace
from specsim.cost.table import StepTable, load_table
from specsim.rng import stream
from specsim.schedulers.kernels import ascending, capacity
from specsim.study.staircase import RULES, Shares, beta_survivals, noisy, shares

ROOT = Path(__file__).parent.parent
LOADS = (8, 64, 256)
COLOURS = {
    "greedy": "#c0392b",
    "argmax": "#1f4e79",
    "monotone_argmax": "#5dade2",
    "linear_fit": "#b7950b",
    "fixed_best": "#7f8c8d",
    "fixed_all": "#bdc3c7",
}


def derived_tables() -> list[StepTable]:
    found = [load_table(path) for path in sorted((ROOT / "profiles" / "steps").glob("*/*.json"))]
    return [t for t in found if t.provenance.status == "derived" and t.attention is not None]


def write_rows(found: list[Shares], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            [
                "table",
                "requests",
                "survivals",
                "rule",
                "mean_share",
                "p10_share",
                "admitted",
                "best",
            ]
        )
        for row in found:
            for rule in RULES:
                writer.writerow(
                    [
                        row.table,
                        row.num_requests,
                        row.survivals,
                        rule,
                        f"{row.mean_by_rule[rule]:.4f}",
                        f"{row.p10_by_rule[rule]:.4f}",
                        f"{row.admitted_by_rule[rule]:.4f}",
                        f"{row.best_admitted:.4f}",
                    ]
                )


def draw(found: list[Shares], tables: list[StepTable], path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6), width_ratios=(1.25, 1))
    spots = [(load, kind) for kind in ("trace", "beta") for load in LOADS]
    for offset, rule in enumerate(RULES):
        for place, (load, kind) in enumerate(spots):
            y = [
                row.mean_by_rule[rule]
                for row in found
                if row.num_requests == load and row.survivals == kind
            ]
            x = place + (offset - 2.5) * 0.13
            label = rule.replace("_", " ") if place == 0 else None
            left.plot([x] * len(y), y, ".", ms=4, alpha=0.5, color=COLOURS[rule])
            left.plot(x, np.mean(y), "_", ms=11, mew=2.5, color=COLOURS[rule], label=label)
    left.set_xticks(range(len(spots)), [f"R = {load}\n{kind}" for load, kind in spots])
    left.axvline(2.5, color="0.85", lw=1)
    left.set_ylabel("share of the best tokens/s of a step")
    left.set_ylim(0.3, 1.02)
    left.set_title("Planned with 2% noise a probe, paid clean (14 derived tables)", fontsize=10)
    left.legend(fontsize=8, loc="lower left", ncols=2, frameon=False)

    table = next(t for t in tables if t.name == "h100_llama31-8b_tp1_bf16_eager")
    rng = stream(0, "staircase/figure")
    num_requests, gamma = 64, 7
    ascending_C = ascending(beta_survivals(num_requests, gamma, rng))
    most = num_requests * (gamma + 1)
    tau_K = num_requests + np.concatenate([[0.0], np.cumsum(ascending_C[::-1])])
    tokens_K = num_requests + np.arange(len(tau_K))
    measured = noisy(table, 0.02, rng)
    fixed_s = float(table.attention.dense(num_requests)[0, num_requests]) if table.attention else 0
    for name, shown, style in (("measured", measured, "0.75"), ("clean", table, "#1f4e79")):
        theta_K = tau_K / (shown.dense("linear", most)[tokens_K] + fixed_s)
        right.plot(tokens_K, theta_K, color=style, lw=1.2, label=f"theta on the {name} table")
    clean_K = tau_K / (table.dense("linear", most)[tokens_K] + fixed_s)
    plan_s_B = measured.dense("linear", most)
    for rule, patience, mark in (("greedy", 0, "v"), ("argmax", 10**9, "o")):
        k = capacity(ascending_C, num_requests, num_requests, plan_s_B, fixed_s, patience)
        right.plot(
            num_requests + k, clean_K[k], mark, ms=9, color=COLOURS[rule], label=f"{rule} stops"
        )
    right.set_xlabel("B, tokens of the forward")
    right.set_ylabel("expected tokens/s")
    right.set_title("H100, Llama-3.1-8B, every B probed, R = 64, Beta(8, 2)", fontsize=10)
    right.legend(fontsize=8, loc="lower right", frameon=False)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    plt.rcParams["svg.hashsalt"] = "staircase"
    figure.savefig(path.with_suffix(".png"), dpi=130, metadata={"Software": None})
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    plt.close(figure)


def summary(found: list[Shares], draws: int) -> str:
    lines = [
        "# Why first descent loses on a staircase",
        "",
        "Rebuilt by `python scripts/report_staircase.py`. Inputs: the 14 derived step tables under",
        "`profiles/steps/` (derived from others' kernel measurements), survivals of the committed",
        "trace `smollm2_markov_t1` (measured) and of Beta(8, 2) confidences (synthetic), gamma 7,",
        f"context 1,024, linear reading, {draws} draws a cell. A rule plans on the table as a",
        "measurement with 2% noise a probe would give it, and pays the clean table. Shares are of",
        "the best theta on the clean table for the same survivals; a static estimate of one step.",
        "",
        "| survivals | R | " + " | ".join(rule.replace("_", " ") for rule in RULES) + " |",
        "|---|---|" + "---|" * len(RULES),
    ]
    for kind in ("trace", "beta"):
        for load in LOADS:
            cells = [r for r in found if r.num_requests == load and r.survivals == kind]
            shown = []
            for rule in RULES:
                values = [row.mean_by_rule[rule] for row in cells]
                shown.append(f"{np.mean(values):.1%} ({min(values):.0%}-{max(values):.0%})")
            lines.append(f"| {kind} | {load} | " + " | ".join(shown) + " |")
    lines += [
        "",
        "Mean over the tables, least and most of them in brackets. All cells: `shares.csv`.",
        "",
        "![shares and one staircase](staircase.png)",
        "",
        "**What it shows.** Theta is not unimodal on a measured table: just past a riser, and at",
        "every upward error of a probe, one more token lowers it although many more would raise",
        "it. First descent (Algorithm 1) stops there. The loss is largest where the best plan is",
        "far from the start (high survivals, R = 64 and 256) and where probes are dense (right",
        "panel: every B probed). The global argmax on the same noisy table stays within about 1%",
        "of the optimum: it is wrong by the noise, not by the shape. A running maximum before the",
        "argmax costs a little where the clean table itself falls (kernel switches). A straight",
        "line ignores the risers and so runs past them. The best single length for all requests",
        "is surprisingly near; verify-all is not, once requests are many and survivals modest.",
        "",
        "`fixed best` picks the length with the draw's own mean survivals, so it is an upper bound",
        "of what a tuned constant reaches.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "staircase")
    parser.add_argument("--draws", type=int, default=200)
    args = parser.parse_args()
    trace = load_trace(ROOT / "profiles" / "traces" / "smollm2_markov_t1.npz")
    tables = derived_tables()
    found = [
        shares(table, num_requests=load, survivals=kind, trace=trace, draws=args.draws)
        for table in tables
        for load in LOADS
        for kind in ("trace", "beta")
    ]
    args.out.mkdir(parents=True, exist_ok=True)
    write_rows(found, args.out / "shares.csv")
    draw(found, tables, args.out / "staircase")
    (args.out / "README.md").write_text(summary(found, args.draws), encoding="utf-8")
    print(summary(found, args.draws))
    return 0


if __name__ == "__main__":
    sys.exit(main())
