"""Rebuild reports/dspark_paper/: the paper's figures beside the simulator's.

python scripts/report_paper.py [--jobs 2] [--store runs/points]
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specsim.study import fig7, paper, paper_text
from specsim.study.executor import Place

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "profiles" / "published"
OUT = ROOT / "reports" / "dspark_paper"
BLUE, RED, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
STYLE = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "svg.hashsalt": "specsim",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--store", type=Path, default=ROOT / "runs" / "points")
    given = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)

    def say(done: int, total: int, what: str) -> None:
        sys.stderr.write(f"\r{what}: {done} of {total} points ")

    items = paper.figure2(PUBLISHED) + paper.table1(PUBLISHED)
    items += paper.figure5(PUBLISHED) + paper.figure6(PUBLISHED)
    served, lines = paper.figures_7_and_8(
        PUBLISHED, store=given.store.resolve(), place=Place(given.jobs), progress=say
    )
    items += served + paper.appendix_a_items()
    with (OUT / "numbers.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["figure", "quantity", "published", "simulated", "difference", "how"])
        writer.writerows(
            [i.figure, i.quantity, f"{i.published:.6g}", f"{i.simulated:.6g}",
             f"{i.difference:.4g}", i.how]
            for i in items
        )  # fmt: skip
    with mpl.rc_context(STYLE):
        _acceptance(items)
        _serving(items, lines)
    (OUT / "README.md").write_text(_text(items), encoding="utf-8")
    sys.stderr.write("\n")


def _of(items: Sequence[paper.Item], figure: str, part: str) -> list[paper.Item]:
    return [i for i in items if i.figure == figure and part in i.quantity]


def _pair(
    axes: Axes, x: Sequence[float], items: Sequence[paper.Item], colour: str, name: str
) -> None:
    axes.plot(x, [i.published for i in items], color=colour, linewidth=5, alpha=0.28)
    axes.plot(x, [i.simulated for i in items], "o-", color=colour, markersize=3.5, label=name)


def _acceptance(items: Sequence[paper.Item]) -> None:
    figure = Figure(figsize=(11, 3.5), dpi=150, layout="constrained")
    one, two, three = figure.subplots(1, 3)
    for domain, colour in zip(paper.DOMAINS, (BLUE, GREEN, RED), strict=True):
        found = _of(items, "Figure 2", f"{domain}, conditional")
        _pair(one, range(1, 8), found, colour, domain)
        name = paper.FIGURE5[domain]
        accepted = _of(items, "Figure 5", f"{name}, ")
        sweep = [i for i in accepted if "accepted" in i.quantity]
        verified = [i for i in accepted if "verified" in i.quantity]
        for key, width, alpha, mark in (("published", 5, 0.28, ""), ("simulated", 1.5, 1, "o")):
            two.plot(
                [getattr(i, key) for i in verified],
                [getattr(i, key) for i in sweep],
                mark + "-", color=colour, linewidth=width, alpha=alpha, markersize=3.5,
                label=name if key == "simulated" else None,
            )  # fmt: skip
    for name, colour in (("before", RED), ("after", GREEN)):
        found = _of(items, "Figure 6", f"ECE {name}")
        _pair(three, (1, 3, 5, 7), found, colour, f"ECE {name} scaling, %")
    found = _of(items, "Figure 6", "AUC")
    tens = [
        paper.Item(i.figure, i.quantity, i.published * 10, i.simulated * 10, i.how) for i in found
    ]
    _pair(three, (1, 3, 5, 7), tens, BLUE, "AUC x 10")
    one.set(title="Figure 2", xlabel="position in the block", ylabel="conditional acceptance")
    one.set_ylim(0.6, 1.0)
    two.set(title="Figure 5", xlabel="verified tokens a step", ylabel="accepted tokens a step")
    three.set(title="Figure 6 (Alpaca)", xlabel="position in the block")
    three.set_ylim(bottom=0)
    for axes in (one, two, three):
        axes.legend(fontsize=7.5, frameon=False)
    figure.supxlabel("broad and pale: published; points: simulated", fontsize=8, color=GREY)
    _save(figure, "acceptance")


def _serving(items: Sequence[paper.Item], lines: dict[tuple[fig7.Engine, str], fig7.Line]) -> None:
    figure = Figure(figsize=(11, 7), dpi=150, layout="constrained")
    grid = figure.subplots(2, 2)
    for column, engine in enumerate(paper.SCENARIOS):
        axes = grid[0][column]
        for policy, arm, colour in (("mtp_1", "MTP-1", BLUE), ("dspark_5", "DSpark-5", RED)):
            theirs = fig7.published_line(engine, arm, folder=PUBLISHED)
            axes.plot(
                theirs.tok_s_user_N, theirs.tok_s_gpu_N, color=colour, linewidth=5, alpha=0.28
            )
            ours = lines[engine, policy]
            axes.plot(
                ours.tok_s_user_N, ours.tok_s_gpu_N, "o-", color=colour, markersize=3.5, label=arm
            )
        for slo in fig7.SLO_TOK_S_USER[engine]:
            axes.axvline(slo, color=GREY, linewidth=0.8, linestyle="--")
        axes.set(
            title=f"Figure 7: {engine}",
            xlabel="tok/s/user = tokens emitted / request-seconds in the batch",
            ylabel="output tok/s/GPU",
        )
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
        axes = grid[1][column]
        found = _of(items, "Figure 8", engine)
        requests, budget = fig7.published_budget(engine, folder=PUBLISHED)
        axes.plot(requests, budget, color=RED, linewidth=5, alpha=0.28)
        axes.plot(requests, [i.simulated for i in found], "o-", color=RED, markersize=3.5)
        axes.axvline(fig7.FITTED_UP_TO, color=GREY, linewidth=0.8, linestyle=":")
        axes.set(
            title=f"Figure 8: {engine}, verification budget",
            xlabel="requests in flight on one GPU",
            ylabel="verified tokens a request, anchor in",
        )
        axes.set_ylim(1, 6)
    figure.supxlabel(
        "broad and pale: published; points: simulated; left of the dotted line V4-Flash was fitted",
        fontsize=8, color=GREY,
    )  # fmt: skip
    _save(figure, "serving")


def _save(figure: Figure, name: str) -> None:
    figure.savefig(OUT / f"{name}.png", metadata={"Software": None})
    figure.savefig(OUT / f"{name}.svg", metadata={"Date": None, "Creator": "specsim"})


def _text(items: Sequence[paper.Item]) -> str:
    parts = [
        "# The DSpark paper, reproduced",
        "",
        "arXiv 2607.05147. Rebuilt by `make paper` (scripts/report_paper.py); every number, "
        "published, simulated and their difference, is in `numbers.csv`.",
        "",
        "*input*: the number went in, and comes out as a check of the way. *fitted to it*: "
        "parameters were fitted to this figure, so agreement says that the model can hold it. "
        "*predicted*: neither. *exact*: computed in rationals.",
        "",
        "![Acceptance](acceptance.png)",
        "",
        "![Serving](serving.png)",
        "",
        "## How far off",
        "",
        "| figure | how | numbers | mean of difference / published | largest |",
        "|---|---|---|---|---|",
    ]
    for figure in dict.fromkeys(i.figure for i in items):
        for how in dict.fromkeys(i.how for i in items if i.figure == figure):
            group = [i for i in items if (i.figure, i.how) == (figure, how)]
            known = [i for i in group if np.isfinite(i.simulated)]
            share = [abs(i.difference) / abs(i.published) for i in known]
            worst = known[int(np.argmax(share))]
            missing = (
                f" ({len(group) - len(known)} out of reach)" if len(known) < len(group) else ""
            )
            parts.append(
                f"| {figure} | {how} | {len(group)}{missing} | {np.mean(share):.2%} | "
                f"{max(share):.2%}: {worst.quantity}, {worst.published:.4g} published, "
                f"{worst.simulated:.4g} simulated |"
            )
    for figure in ("Table 1", "Figure 7", "Figure 8", "Figure 6", "Appendix A"):
        parts += ["", f"## {figure}", "", "| | published | simulated | difference | how |"]
        parts.append("|---|---|---|---|---|")
        parts += [
            f"| {i.quantity} | {i.published:.5g} | "
            + ("-" if np.isnan(i.simulated) else f"{i.simulated:.5g}")
            + f" | {i.difference:+.3g} | {i.how} |"
            for i in items
            if i.figure == figure
        ]
    parts += [
        "",
        "## Where the paper disagrees with itself",
        "",
        "| where | text | figure or code | what is done here |",
        "|---|---|---|---|",
    ]
    parts += [
        f"| {d.where} | {d.text} | {d.figure} | {d.ours} |"
        for d in paper_text.disagreements(PUBLISHED)
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
