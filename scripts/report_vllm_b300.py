"""Rebuild reports/vllm_b300/: the published B300 sweep against the simulator, point by point.

python scripts/report_vllm_b300.py            # about five minutes
python scripts/report_vllm_b300.py --quick    # without the sensitivity table
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from specsim.study.validate_vllm_b300 import (
    ADAPTIVE,
    AUC,
    COLLAPSES,
    LOADS,
    Point,
    acceptance_lengths,
    adaptive_law,
    b300_table,
    best_arm_losses,
    load_fit,
    measured,
    points,
)
from specsim.study.vllm_b300 import Lengths

ROOT = Path(__file__).parent.parent
ARMS = ("no_spec", "fixed_k1", "fixed_k3", "fixed_k5", "fixed_k7", ADAPTIVE)
COLOURS = ("#000000", "#56B4E9", "#0072B2", "#CC79A7", "#D55E00", "#009E73")


PROSE = """
## What went in

- **Step tables** (measured): vLLM's startup medians, verify and draft, as read off the blog's cost
  figure; paid at the next captured size, past 1,024 tokens eagerly.
- **Host time** (fitted, no_spec arm only), ms at c = 1, 16, 32, 64, 128, 256:
  {host}; linear between.
- **Prompts**: {prompt} tokens each, the mean of SPEED-Bench qualitative (297,348 tokens in 880
  prompts by another model's tokenizer; vllm-project/vllm pull request 36029). They share the
  forwards with the decoding requests, at most 8,192 tokens a step.
- **Outputs**: 880 requests (240 at c = 1) of at most 512 tokens, as the command in the draft of the
  blog says (vllm-project.github.io, `_posts/2026-07-31-dspark-adaptive-verification.md`, commit
  25b7b0b). Before the cut they are lognormal; mean and spread are fitted to the no_spec arm's
  aggregate throughput, which its tail lowers: {mean} and {spread} (rms of the log {rms:.3f}).
- **Acceptance lengths**: one for each fixed arm, read off its c = 1 point:
  {accepted}.
- **Adaptive arm's law**: first draft accepted with {first:.3f}, every later one with {later:.3f};
  calibrated confidences whose ROC area is {auc} (published for this model's head), equal spread
  between requests and between drafts. Stated before the arm was first scored and not changed since
  (prompt and output lengths were, see the end). The planner is vLLM's: budget one step old, split
  live, no host time in its denominator, the running maximum of the medians as its table. The
  draft's smoothing of confidences is left out.

## What it does not get right

- **k = 3 ({e3_128}) and k = 5 ({e5_128}) at c = 128, k = 7 at c = 64 ({e7_64})**: with every prompt
  as long as the mean, two that come together push a forward of 512 tokens past 1,024. Real prompts
  are mostly shorter than their mean, with a few long ones. Their spread does not show in the
  no_spec arm, so it was not fitted.
- **k = 5 at c = 16 ({e5_16}) and 32 ({e5_32})**: the measured arm itself is slow there; it verifies
  less than k = 7 and is slower at every load from 16 to 64.
- **Adaptive at c = 1 ({adaptive_1})**: it ties with fixed k = 5 there, so that which of the two is
  called best depends on the seed (table below); trusting the adaptive one would cost 6.6%, past the
  limit of 3%. The measured adaptive arm is slower than fixed k = 7 at c = 1; what its planning
  costs is in no table.

## How firm it is

The mean and spread of the outputs hardly show in the no_spec arm. All pairs of the grid within 5%
of the best misfit, and other seeds of the chosen pair:

| outputs, seed | median | 90% | largest | worst collapse | best-arm loss |
|---|---|---|---|---|---|"""
EARLIER = """An earlier run assumed prompts of 128 tokens and outputs of up to 2,048 (the draft's
command had not been found yet) and let a prompt join one forward whole: median 7.4%, k = 3 at
c = 256 off by 33%, and the best arm at c = 1 wrong by 6.6%. It had no early collapse at c = 128.
The sweep was scored three times while prompts and outputs were settled (the acceptance laws
stayed), so it is less than a blind test; at c = 1 two of three seeds miss the best arm, a tie."""


def scores(found: list[Point]) -> dict[str, float]:
    errors = np.abs([point.error for point in found if point.is_scored])
    at = {(point.arm, point.concurrency): point for point in found}
    return {
        "median": float(np.median(errors)),
        "p90": float(np.quantile(errors, 0.9)),
        "largest": float(errors.max()),
        "collapse": max(abs(at[f"fixed_k{k}", load].error) for k, load in COLLAPSES),
        "best_arm_loss": max(best_arm_losses(found).values()),
    }


def write_rows(found: list[Point], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            [
                "arm",
                "concurrency",
                "scored",
                "measured_tok_s_user",
                "simulated_tok_s_user",
                "error",
                "measured_tok_s",
                "simulated_tok_s",
                "aggregate_error",
                "prefill_step_share",
                "acceptance_length",
                "budget",
            ]
        )
        for p in found:
            s = p.simulated
            writer.writerow(
                [
                    p.arm,
                    p.concurrency,
                    int(p.is_scored),
                    p.measured_tok_s,
                    f"{s.user_tok_s:.2f}",
                    f"{p.error:+.4f}",
                    p.measured_aggregate,
                    f"{s.aggregate_tok_s:.1f}",
                    f"{p.aggregate_error:+.4f}",
                    f"{s.prefill_share:.3f}",
                    f"{s.acceptance_length:.3f}",
                    f"{s.budget:.3f}",
                ]
            )


def draw(found: list[Point], path: Path) -> None:
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
        figure = Figure(figsize=(12, 4.8))
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
        for arm, colour in zip(ARMS, COLOURS, strict=True):
            mine = [point for point in found if point.arm == arm]
            left.plot(
                [p.measured_tok_s for p in mine],
                [p.measured_aggregate for p in mine],
                "o--",
                ms=5,
                mfc="none",
                lw=1.0,
                color=colour,
            )
            left.plot(
                [p.simulated.user_tok_s for p in mine],
                [p.simulated.aggregate_tok_s for p in mine],
                "-",
                lw=1.6,
                color=colour,
                marker="x",
                ms=4,
                label=arm.replace("_", " "),
            )
            right.plot(
                range(len(LOADS)), [100 * p.error for p in mine], "x-", lw=1.2, ms=5, color=colour
            )
        left.plot([], [], "o--", color="0.4", mfc="none", label="published")
        left.plot([], [], "x-", color="0.4", label="simulated")
        left.set_xlabel("speed of one user, tok/s (1 / median TPOT)")
        left.set_ylabel("output tok/s, all of the run")
        left.set_title("DeepSeek-V4-Flash, TP4 on B300, c = 1 .. 256", fontsize=10)
        left.legend(fontsize=8, frameon=False, ncols=2)
        right.axhspan(-8, 8, color="#EEEEEE", zorder=0)
        right.set_xticks(range(len(LOADS)), [str(load) for load in LOADS])
        right.set_xlabel("concurrency")
        right.set_ylabel("error of one user's speed, %")
        right.set_title("grey: +-8%, the limit of the median", fontsize=10)
        figure.tight_layout()
        figure.savefig(path.with_suffix(".png"), dpi=130, metadata={"Software": None})
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def text(found: list[Point], others: list[tuple[str, dict[str, float]]]) -> str:
    lengths, host_s, fit = load_fit()
    table, published = b300_table(), measured()
    tau = acceptance_lengths(table, published, host_s[0])
    first, later = adaptive_law(tau)
    score = scores(found)
    at = {(point.arm, point.concurrency): point for point in found}
    lines = [
        "# vLLM's B300 sweep, predicted from its step tables",
        "",
        "Rebuilt by `python scripts/report_vllm_b300.py`; judged by `specsim validate vllm_b300`.",
        "",
        "| what | value | limit |",
        "|---|---|---|",
        f"| median error of one user's speed, 26 points | {score['median']:.1%} | 8% |",
        f"| 90th percentile, largest | {score['p90']:.1%}, {score['largest']:.1%} | - |",
    ]
    for k, load in COLLAPSES:
        error = at[f"fixed_k{k}", load].error
        lines.append(f"| eager collapse, k = {k} at c = {load} | {error:+.1%} | 30% |")
    lines += [
        f"| throughput lost by trusting the predicted best arm, worst c | "
        f"{score['best_arm_loss']:.1%} | 3% |",
        "",
        "![sweep](sweep.png)",
        "",
        "One user's speed, published and simulated, error in brackets:",
        "",
        "| arm | " + " | ".join(f"c = {load}" for load in LOADS) + " |",
        "|---|" + "---|" * len(LOADS),
    ]
    for arm in ARMS:
        cells = [
            f"{at[arm, load].measured_tok_s:.0f}, {at[arm, load].simulated.user_tok_s:.0f} "
            f"({at[arm, load].error:+.0%})"
            for load in LOADS
        ]
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    host = ", ".join(f"{value * 1e3:.2f}" for value in host_s)
    accepted = ", ".join(f"k = {k}: {value:.2f}" for k, value in tau.items())
    lines.append(
        PROSE.format(
            host=host,
            prompt=lengths.prompt_tokens,
            mean=f"{lengths.output_mean:g}",
            spread=f"{lengths.output_cv:g}",
            rms=fit["chosen"]["aggregate_rms_log"],
            accepted=accepted,
            first=first,
            later=later,
            auc=AUC,
            adaptive_1=f"{at[ADAPTIVE, 1].error:+.0%}",
            **{
                f"e{k}_{load}": f"{at[f'fixed_k{k}', load].error:+.0%}"
                for k in (3, 5, 7)
                for load in LOADS
            },
        )
    )
    for label, other in others:
        lines.append(
            f"| {label} | {other['median']:.1%} | {other['p90']:.1%} | {other['largest']:.1%} | "
            f"{other['collapse']:.1%} | {other['best_arm_loss']:.1%} |"
        )
    lines += ["", EARLIER, ""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "vllm_b300")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    lengths, host_s, fit = load_fit()
    found = points(lengths, host_s)
    chosen = f"mean {lengths.output_mean:g}, spread {lengths.output_cv:g}"
    others = [(f"{chosen}, seed 0 (chosen)", scores(found))]
    if not args.quick:
        others += [
            (f"{chosen}, seed {seed}", scores(points(lengths, host_s, seed=seed)))
            for seed in (1, 2)
        ]
        for row in fit["equally_good"]:
            other = Lengths(fit["prompt_tokens"], row["output_mean"], row["output_cv"])
            if other != lengths:
                label = f"mean {other.output_mean:g}, spread {other.output_cv:g}, seed 0"
                others.append((label, scores(points(other, tuple(row["host_s"])))))
    args.out.mkdir(parents=True, exist_ok=True)
    write_rows(found, args.out / "points.csv")
    draw(found, args.out / "sweep")
    (args.out / "README.md").write_text(text(found, others), encoding="utf-8")
    print(text(found, others))
    return 0


if __name__ == "__main__":
    sys.exit(main())
