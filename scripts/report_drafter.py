"""Rebuild reports/drafter/ from the shipped trace, its rollouts and the ablations' numbers.

python scripts/report_drafter.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import binom, norm

from specsim.acceptance import calibration as cal
from specsim.acceptance.lint import conditional_acceptance
from specsim.acceptance.trace import DenseTrace, load_trace
from specsim.rng import stream

ROOT = Path(__file__).parents[1]
OUT = ROOT / "reports" / "drafter"
TRACE = ROOT / "profiles" / "traces" / "smollm2_dspark_t1.npz"
ROLLOUTS = TRACE.with_name("smollm2_dspark_t1_rollouts.npz")
COLOUR = {"math": "#0072B2", "code": "#D55E00", "chat": "#009E73"}
DRAFTERS = {
    "markov depth 2 gamma 7 steps 2560 texts 2800": ("DSpark (Markov head)", "o"),
    "none depth 2 gamma 7 steps 2560 texts 2800": ("DFlash (no head)", "s"),
    "eagle depth 1 gamma 7 steps 2560 texts 2800": ("Eagle3-style", "^"),
}
THRESHOLDS = tuple(round(0.1 * i, 1) for i in range(10))


def figure(columns: int, height: float = 3.0) -> tuple[Figure, list[Axes]]:
    """One row of axes on a figure of its own."""
    made = Figure(figsize=(3.4 * columns, height), layout="constrained")
    axes = [made.add_subplot(1, columns, i + 1) for i in range(columns)]
    for one in axes:
        one.grid(color="#DDDDDD", linewidth=0.6)
        one.spines[["top", "right"]].set_visible(False)
    return made, axes


def save(made: Figure, name: str) -> None:
    made.savefig(OUT / f"{name}.png", dpi=130, metadata={"Software": ""})


def walk(
    trace: DenseTrace, domain: int, *, threshold: float | None = None, fixed: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Replay sequences of a domain: accepted, verified and rounds of each; whole rounds only."""
    rows = []
    said, accepted = trace.confidence_NG.astype(np.float32), trace.num_accepted_N.astype(np.int64)
    for s in np.flatnonzero(trace.sequence_domain_S == domain):
        at, end = (int(i) for i in trace.sequence_offset_S1[s : s + 2])
        took = verified = rounds = 0
        while at + trace.gamma <= end:
            length = trace.gamma if fixed is None else fixed
            if threshold is not None:
                below = np.flatnonzero(said[at] < threshold)
                length = int(below[0]) if len(below) else trace.gamma
            count = min(length, int(accepted[at]))
            took, verified, rounds, at = took + count, verified + length, rounds + 1, at + count + 1
        if rounds:
            rows.append((took, verified, rounds))
    data = np.array(rows, dtype=np.float64)
    return data[:, 0], data[:, 1], data[:, 2]


def ratio_interval(top: np.ndarray, bottom: np.ndarray) -> tuple[float, float]:
    """sum / sum with the half-width of its 95 % interval, sequences being independent."""
    ratio = float(top.sum() / bottom.sum())
    spread = np.sqrt(((top - ratio * bottom) ** 2).sum()) / bottom.sum()
    return ratio, 1.96 * float(spread)


def short_walk(trace: DenseTrace, domain: int, *, length: int, tokens: int) -> list[list[float]]:
    """Replay a fixed verify length over the first `tokens` of each answer: [accepted, rounds].

    A round counts if its whole block lies inside the answer (or its first `tokens`).
    """
    rows = []
    for s in np.flatnonzero(trace.sequence_domain_S == domain):
        start, end = (int(i) for i in trace.sequence_offset_S1[s : s + 2])
        accepted = trace.num_accepted_N[start:end].astype(np.int64)
        last = min(len(accepted) + 1, tokens) - length - 2
        at = took = rounds = 0
        while at <= last:
            count = min(length, int(accepted[at]))
            took, rounds, at = took + count, rounds + 1, at + count + 1
        if rounds:
            rows.append([took, rounds])
    return rows


def rolled_walks(rolled: dict[str, np.ndarray], domain: int, *, length: int) -> list[list[float]]:
    """The same of true rollouts, with the same rule for what counts."""
    rows = []
    mine = (rolled["verify_len"] == length) & (rolled["domain"] == domain)
    last_of = {int(s): i for i, s in enumerate(rolled["sequence"])}
    for sequence in (int(s) for s in np.unique(rolled["sequence"][mine])):
        accepted = rolled["num_accepted"][rolled["sequence"] == sequence].astype(np.int64)
        start = np.concatenate(([0], np.cumsum(accepted + 1)))
        total = int(start[-1]) + 1
        # An end token among the accepted drafts brings no bonus.
        if total < int(rolled["max_new_tokens"]) and not rolled["whole"][last_of[sequence]]:
            total -= 1
        total = min(total, int(rolled["max_new_tokens"]))
        counts = start[:-1] <= total - length - 2
        if counts.any():
            rows.append([float(accepted[counts].sum()), float(counts.sum())])
    return rows


def replay_check(trace: DenseTrace) -> list[dict[str, Any]]:
    """Mean acceptance length of true rollouts and of the replay, by domain and verify length."""
    with np.load(ROLLOUTS, allow_pickle=False) as file:
        rolled = {name: file[name] for name in file.files}
    tokens = int(rolled["max_new_tokens"])
    out = []
    for index, name in enumerate(trace.domain_names):
        for k in range(1, trace.gamma + 1):
            took, rounds = np.array(rolled_walks(rolled, index, length=k)).T
            true, true_half = ratio_interval(took, rounds)
            took, rounds = np.array(short_walk(trace, index, length=k, tokens=tokens)).T
            mean, half = ratio_interval(took, rounds)
            out.append(
                {
                    "domain": name,
                    "k": k,
                    "true": 1 + true,
                    "true_half": true_half,
                    "replay": 1 + mean,
                    "replay_half": half,
                    "agree": abs(true - mean) <= float(np.hypot(true_half, half)),
                }
            )
    return out


def figure_2(ablations: dict[str, Any], trace: DenseTrace) -> None:
    made, axes = figure(4)
    positions = np.arange(1, 8)
    for axis, domain in zip(axes, COLOUR, strict=False):
        for name, (label, marker) in DRAFTERS.items():
            one = ablations["runs"][name]["domains"][domain]
            half = 1.96 * np.array(one["standard_error"])
            axis.errorbar(positions, one["conditional"], half, marker=marker, ms=4, label=label)
        axis.set_title(f"tiny target, {domain}", fontsize=10)
    whole, domain_N = trace.whole_block_N(), trace.domain_N()
    for index, name in enumerate(trace.domain_names):
        accepted = trace.num_accepted_N[whole & (domain_N == index)].astype(np.int64)
        rate = conditional_acceptance(accepted, 7)
        reached = np.array([(accepted >= k).sum() for k in range(7)])
        half = 1.96 * np.sqrt(rate * (1 - rate) / reached)
        axes[3].errorbar(positions, rate, half, marker="o", ms=4, color=COLOUR[name], label=name)
    axes[3].set_title("SmolLM2-135M, shipped DSpark drafter", fontsize=10)
    for axis in axes:
        axis.set_xlabel("draft position")
    axes[3].legend(fontsize=7, loc="lower left")
    handles, labels = axes[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower left", ncols=3, fontsize=8)
    axes[0].set_ylabel("P(accepted | earlier ones were)")
    save(made, "figure_2")


def figures_3_and_4(ablations: dict[str, Any]) -> None:
    made, axes = figure(3)
    runs = ablations["runs"]
    for domain, colour in COLOUR.items():
        depth = [runs[f"markov depth {d} gamma 7"]["domains"][domain] for d in (1, 2, 3)]
        axes[0].plot(
            [1, 2, 3], [r["acceptance_length"] for r in depth], "o-", color=colour, label=domain
        )
        for kind, style in (("markov", "o-"), ("none", "s--")):
            length = [
                runs[f"{kind} depth 2 gamma {g}"]["domains"][domain]["acceptance_length"]
                for g in (3, 7, 11)
            ]
            label = f"{domain}, {'Markov' if kind == 'markov' else 'no head'}"
            axes[1].plot([3, 7, 11], length, style, color=colour, label=label)
    axes[0].set(xlabel="drafter layers", xticks=[1, 2, 3], ylabel="acceptance length (bonus in)")
    axes[1].set(xlabel="gamma", xticks=[3, 7, 11], ylabel="acceptance length (bonus in)")
    axes[0].legend(fontsize=7)
    axes[1].legend(fontsize=6)
    names = ["none depth 2 gamma 7", "markov depth 2 gamma 7", "eagle depth 1 gamma 7"]
    names += ["markov depth 2 gamma 3", "markov depth 2 gamma 11"]
    left = np.zeros(len(names))
    for part, label in (
        ("block_ms", "parallel block"),
        ("loop_ms", "draft loop"),
        ("verify_ms", "target"),
    ):
        width = np.array([runs[n]["round"][part] for n in names])
        axes[2].barh(names, width, left=left, label=label)
        left += width
    axes[2].tick_params(axis="y", labelsize=6)
    axes[2].set_xlabel("CPU ms of a round, 32 sequences")
    axes[2].set_xlim(0, 1.5 * left.max())
    axes[2].legend(fontsize=7, loc="lower right")
    save(made, "figures_3_4")


def figure_5(trace: DenseTrace) -> dict[str, list[tuple[float, float, float]]]:
    """Threshold sweep; returns (accepted length, verified with anchor, verify efficiency)."""
    made, axes = figure(3)
    table: dict[str, list[tuple[float, float, float]]] = {}
    for index, name in enumerate(trace.domain_names):
        rows = []
        for threshold in THRESHOLDS:
            took, verified, rounds = walk(trace, index, threshold=threshold)
            length = 1 + took.sum() / rounds.sum()
            width = 1 + verified.sum() / rounds.sum()
            rows.append((float(length), float(width), float(length / width)))
        table[name] = rows
        data = np.array(rows)
        for axis, column in zip(axes, data.T, strict=True):
            axis.plot(THRESHOLDS, column, "o-", ms=4, color=COLOUR[name], label=name)
    titles = ("acceptance length (bonus in)", "tokens verified a round (anchor in)")
    for axis, title in zip(axes, (*titles, "verify efficiency: first over second"), strict=True):
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("stop at the first confidence below")
        axis.legend(fontsize=7)
    save(made, "figure_5")
    return table


def figure_6(trace: DenseTrace) -> dict[str, Any]:
    """Reliability of the prefix survivals before and after STS, on held-out texts."""
    records = cal.records_of_trace(trace)
    rng = stream(0, "calibration")
    fit, held = cal.split(records, rng)
    temperature = cal.fit_sts(fit)
    before = cal.evaluate(held, np.ones(7), rng)
    after = cal.evaluate(held, temperature, rng)
    shown = (1, 3, 5, 7)
    made, axes = figure(4)
    happened = held.prefix_NG()
    for values, label, style in (
        (held.confidence_NG, "as trained", "o-"),
        (cal.scale(held.confidence_NG, temperature), "after STS", "s--"),
    ):
        survival = np.cumprod(values, axis=1)
        for axis, k in zip(axes, shown, strict=True):
            curve = cal.reliability(survival[:, k - 1], happened[:, k - 1])
            big = curve.count >= 30
            axis.plot(curve.said[big], curve.seen[big], style, ms=4, label=label)
    for axis, k in zip(axes, shown, strict=True):
        axis.plot([0, 1], [0, 1], color="#999999", lw=0.8)
        axis.set_title(
            f"prefix of {k}: ECE {100 * before[k - 1].ece:.1f} to {100 * after[k - 1].ece:.1f} %",
            fontsize=9,
        )
        axis.set_xlabel("survival said")
        axis.legend(fontsize=7)
    axes[0].set_ylabel("share seen")
    save(made, "figure_6")
    # Matched data can be calibrated already; a shift is where STS has work to do.
    shift: dict[str, tuple[float, float]] = {}
    sharp = cal.Records(
        cal.scale(records.confidence_NG, np.full(7, 0.5)),
        records.num_accepted_N,
        records.group_N,
        records.domain_N,
        records.domain_names,
    )
    for name, shifted in (
        ("overconfident head (logits doubled)", sharp),
        *((f"{d} alone", records.domain(d)) for d in records.domain_names),
    ):
        result, _, _ = cal.calibrate(shifted, stream(1, "calibration"), dataset=name)
        shift[name] = (result.ece_before, result.ece_after)
    math_fit = cal.fit_sts(records.domain("math"))
    chat = records.domain("chat")
    moved = [
        float(np.mean([q.ece for q in cal.evaluate(chat, t, rng)])) for t in (np.ones(7), math_fit)
    ]
    shift["chat, temperatures fitted on math"] = (moved[0], moved[1])
    return {"temperature": temperature, "before": before, "after": after, "shift": shift}


def ece_cell(quality: cal.Quality) -> str:
    """ECE with its interval, in percent."""
    low, high = quality.ece_interval
    return f"{100 * quality.ece:.2f} ({100 * low:.2f} to {100 * high:.2f})"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table."""
    return [" | ".join(head), " | ".join("---" for _ in head), *(" | ".join(r) for r in rows), ""]


def shortfalls(
    trace: DenseTrace, ablations: dict[str, Any], calibration: dict[str, Any]
) -> list[str]:
    """What the numbers do not show, said by the numbers themselves."""
    out = []
    whole, domain_N = trace.whole_block_N(), trace.domain_N()
    for index, name in enumerate(trace.domain_names):
        first = float((trace.num_accepted_N[whole & (domain_N == index)] > 0).mean())
        if name != "chat" and first < 0.45:
            out.append(
                f"Acceptance at position 1 is {first:.3f} on {name}; the aim was 0.45 for a "
                "drafter trained on a CPU."
            )
    for pair, domains in ablations["markov_minus_none"].items():
        for domain, one in domains.items():
            unseen = [k + 1 for k, low in enumerate(one["low"]) if k and low <= 0]
            if unseen:
                worse = [k for k in unseen if one["high"][k - 1] < 0]
                out.append(
                    f"Tiny target, {pair}, {domain}: the Markov head is not above none beyond "
                    f"doubt at {_list(unseen)}"
                    + (f", and below it at {_list(worse)}." if worse else ".")
                )
    before = np.mean([q.ece for q in calibration["before"]])
    after = np.mean([q.ece for q in calibration["after"]])
    if after >= before:
        out.append(
            f"STS does not lower the mean held-out ECE of the shipped trace ({100 * before:.2f} % "
            f"before, {100 * after:.2f} % after): text and drafter are those that the head was "
            "trained for, so that little is left to correct; see the shifts below."
        )
    return out


def _list(positions: list[int]) -> str:
    return ", ".join(map(str, positions))


def head_table(ablations: dict[str, Any]) -> list[str]:
    """Markov minus none at each position, every pair of drafters on the same texts."""
    rows, held, total = [], 0, 0
    for pair, domains in ablations["markov_minus_none"].items():
        for domain, one in domains.items():
            cells = [
                f"{100 * d:+.1f} ({100 * low:+.1f}, {100 * high:+.1f})"
                for d, low, high in zip(one["difference"], one["low"], one["high"], strict=True)
            ]
            held += sum(low > 0 for low in one["low"][1:])
            total += len(one["low"]) - 1
            rows.append([pair, domain, *cells, *([""] * (11 - len(cells)))])
    lines = table(["drafters", "domain", *map(str, range(1, 12))], rows)
    lines += [
        "Markov minus none in points of conditional acceptance, by position, with 95 % intervals "
        "over texts; both drafters have the same backbone, steps and seed and are measured on the "
        "same held-out texts, by expectation and not by sampled drafts. Past the first position "
        f"{held} of {total} intervals lie above zero.",
        "",
    ]
    return lines


def family(replay: list[dict[str, Any]]) -> str:
    """What chance alone does to this many intervals, and what it did here."""
    count, outside = len(replay), sum(not r["agree"] for r in replay)
    z = [
        abs(r["true"] - r["replay"]) / (np.hypot(r["true_half"], r["replay_half"]) / 1.96)
        for r in replay
    ]
    least = float(2 * norm.sf(max(z)))
    return (
        f"{count - outside} of {count} differences lie within their 95 % interval. Of {count} "
        f"correct intervals {0.05 * count:.1f} miss by chance on average, and {max(1, outside)} or "
        f"more miss with probability {float(binom.sf(max(1, outside) - 1, count, 0.05)):.2f} "
        f"(counted as independent). The largest |z| is {max(z):.2f}: p = {least:.3f} alone, "
        f"{min(1.0, count * least):.2f} as the largest of {count} (Bonferroni)."
    )


def render(
    trace: DenseTrace,
    ablations: dict[str, Any],
    sweep: dict[str, list[tuple[float, float, float]]],
    calibration: dict[str, Any],
    replay: list[dict[str, Any]],
    tokens: dict[str, Any] | None,
) -> str:
    """The report's text; every number is computed from the files named in it."""
    meta = trace.metadata
    whole, domain_N = trace.whole_block_N(), trace.domain_N()
    lines = [
        "# The bundled drafter runner: what its traces show",
        "",
        "Rebuilt by `python scripts/report_drafter.py` from "
        "`profiles/traces/smollm2_dspark_t1.npz`, `smollm2_dspark_t1_rollouts.npz` "
        "(both measured) and this folder's `ablations.json` "
        "(`python scripts/drafter_ablations.py`, measured) and `first_tokens.json` "
        "(`python scripts/drafter_checks.py`, measured).",
        "",
    ]
    missed = shortfalls(trace, ablations, calibration)
    if missed:
        lines += ["## What fell short", "", *(f"- {text}" for text in missed), ""]
        lines += (
            [(OUT / "shortfall.md").read_text().strip(), ""]
            if (OUT / "shortfall.md").is_file()
            else []
        )
    lines += [
        "## The shipped trace",
        "",
        f"{trace.num_anchors:,} anchors ({int(whole.sum()):,} whole blocks) in "
        f"{trace.num_sequences} answers of {meta.get('target')} at temperature "
        f"{meta.get('temperature')} to held-out prompts, drafter `{meta.get('drafter')}`, gamma "
        f"{trace.gamma}.",
        "",
    ]
    rows = []
    for index, name in enumerate(trace.domain_names):
        accepted = trace.num_accepted_N[whole & (domain_N == index)].astype(np.int64)
        rate = conditional_acceptance(accepted, 7)
        rows.append([name, *(f"{r:.3f}" for r in rate), f"{1 + accepted.mean():.3f}"])
    lines += table(["conditional acceptance", *"1234567", "acceptance length"], rows)
    lines += ["## Figure 2: conditional acceptance by position", "", "![](figure_2.png)", ""]
    rows = []
    longest = ablations["runs"][next(iter(DRAFTERS))]
    for name, (label, _) in DRAFTERS.items():
        for domain in COLOUR:
            one = ablations["runs"][name]["domains"][domain]
            cells = [f"{r:.3f}" for r in one["conditional"]]
            rows.append([f"{label}, {domain}", *cells, f"{one['acceptance_length']:.3f}"])
    lines += table(["tiny target", *"1234567", "acceptance length"], rows)
    lines += [
        "Three drafters of the tiny target (characters of generated sums, library code and its "
        f"documentation; {longest['steps']:,} steps on {longest['texts']:,} texts that the target "
        "wrote, the same for all) and the shipped drafter of SmolLM2. The three "
        "kinds are compared on the tiny target alone: for SmolLM2 one drafter has been trained.",
        "",
        *head_table(ablations),
        "## Figures 3 and 4: depth, block size, and the draft loop's share",
        "",
        "![](figures_3_4.png)",
        "",
    ]
    rows = []
    for name, run in ablations["runs"].items():
        parts = run["round"]
        total = sum(parts.values())
        lengths = [f"{run['domains'][d]['acceptance_length']:.3f}" for d in COLOUR]
        rows.append([name, *lengths, f"{100 * parts['loop_ms'] / total:.0f} %", f"{total:.1f} ms"])
    lines += table(["run", *COLOUR, "draft loop", "round (CPU)"], rows)
    gaps = []
    for gamma in (3, 7, 11):
        gap = [
            ablations["runs"][f"markov depth 2 gamma {gamma}"]["domains"][d]["acceptance_length"]
            - ablations["runs"][f"none depth 2 gamma {gamma}"]["domains"][d]["acceptance_length"]
            for d in COLOUR
        ]
        gaps.append(
            f"{gamma}: " + ", ".join(f"{d} {g:+.3f}" for d, g in zip(COLOUR, gap, strict=True))
        )
    lines += ["Markov minus no head, acceptance length, by gamma: " + "; ".join(gaps) + ".", ""]
    lines += ["## Figure 5: static thresholds replayed on the trace", "", "![](figure_5.png)", ""]
    rows = [
        [f"{t:.1f}", *(f"{c:.3f} / {c2:.2f} / {100 * c3:.1f} %" for c, c2, c3 in cells)]
        for t, *cells in zip(THRESHOLDS, *(sweep[d] for d in trace.domain_names), strict=True)
    ]
    lines += table(["threshold", *trace.domain_names], rows)
    lines += [
        "Acceptance length / tokens verified a round (anchor in) / verify efficiency.",
        "",
        "## Figure 6: reliability before and after Sequential Temperature Scaling",
        "",
        "![](figure_6.png)",
        "",
    ]
    rows = [
        [
            str(old.position), f"{t:.2f}", *(
                ece_cell(q)
                for q in (old, new)
            ), f"{old.auc:.3f}", f"{old.conditional_auc:.3f}",
        ]
        for t, old, new in zip(
            calibration["temperature"], calibration["before"], calibration["after"], strict=True
        )
    ]  # fmt: skip
    head = ["prefix", "T", "ECE % before (95 %)", "ECE % after (95 %)", "AUC", "conditional AUC"]
    lines += table(head, rows)
    lines += ["Fitted on half of the texts, measured on the others. Mean ECE under a shift:", ""]
    rows = [
        [n, f"{100 * a:.2f} %", f"{100 * b:.2f} %"] for n, (a, b) in calibration["shift"].items()
    ]
    lines += table(["data", "before", "after"], rows)
    if replay:
        lines += ["## Dense replay against true rollouts", ""]
        rows = [
            [r["domain"], str(r["k"]), f"{r['true']:.3f} +- {r['true_half']:.3f}",
             f"{r['replay']:.3f} +- {r['replay_half']:.3f}", "yes" if r["agree"] else "NO"]
            for r in replay
        ]  # fmt: skip
        lines += table(["domain", "verify length", "true", "replay", "agree"], rows)
        lines += [family(replay), ""]
    if tokens is not None:
        lines += ["## Losslessness of the runner on SmolLM2", ""]
        rows = [
            [n, f"{t['G']:.1f}", str(t["dof"]),
             f"{t['p_value']:.3g}" if t["p_value"] else "< 1e-300",
             ", ".join("none" if s is None else f"{s:.4f}" for s in t["power_tv_shift"]) or "-"]
            for n, t in tokens["tests"].items()
        ]  # fmt: skip
        lines += table(["setting", "G", "dof", "p", "smallest TV shift seen, by prompt"], rows)
        lines += [
            f"{tokens['samples']:,} first tokens over {tokens['prompts']} fixed prompts, each "
            "drafted and verified by the library's own code. The planted bugs must have a tiny p. "
            "The last column is the power, for the prompts of math, code and chat in turn: the "
            "shift in total variation, towards the law at twice the temperature, that p < 0.001 "
            "sees nine times in ten (0: one token alone is possible, and any other fails at once).",
            "",
        ]
    return "\n".join(lines)


def main() -> None:
    ablations = json.loads((OUT / "ablations.json").read_text())
    trace = load_trace(TRACE)
    figure_2(ablations, trace)
    figures_3_and_4(ablations)
    sweep = figure_5(trace)
    calibration = figure_6(trace)
    replay = replay_check(trace) if ROLLOUTS.is_file() else []
    first = OUT / "first_tokens.json"
    tokens = json.loads(first.read_text()) if first.is_file() else None
    text = render(trace, ablations, sweep, calibration, replay, tokens)
    (OUT / "README.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
