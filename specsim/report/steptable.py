"""A step table in words and in a picture: its shape, its oddities, what each reading charges."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from specsim.cost.diagnose import findings, knee_tokens, risers
from specsim.cost.fit import FitResult
from specsim.cost.roofline import Roofline, gpu_named, too_fast
from specsim.cost.shape import load_shape
from specsim.cost.table import Read, StepTable
from specsim.cost.telemetry import HostFit, LinearFit, Telemetry
from specsim.errors import InputError

READINGS: tuple[Read, ...] = ("floor", "linear", "ceil")
_WIDTH = 96
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "svg.hashsalt": "specsim",
    "svg.fonttype": "path",
}


def describe(table: StepTable, *, at_tokens: Sequence[int] | None = None) -> dict[str, Any]:
    """Return everything worth saying about a table.

    Args:
        table: the table.
        at_tokens: B at which the three readings are compared; where they differ most if None.
    """
    steps = risers(table.verify)
    parts = [name for name in ("draft", "attention", "host") if getattr(table, name) is not None]
    return {
        "name": table.name,
        "provenance": table.provenance.model_dump(),
        "probes": len(table.verify.probes_N),
        "first_tokens": int(table.verify.probes_N[0]),
        "last_tokens": table.last_tokens,
        "graph_limit_tokens": table.graph_limit_tokens,
        "own_curves": parts,
        "inside_verify": sorted(table.includes),
        "to_be_given": [
            name
            for name in ("attention", "draft", "host")
            if name not in parts and name not in table.includes
        ],
        "knee_tokens": knee_tokens(table.verify),
        "risers": [
            {"from": riser.before_tokens, "to": riser.after_tokens, "ms": riser.rise_s * 1e3}
            for riser in steps
        ],
        "findings": [
            {"kind": finding.kind, "refuse": finding.refuse, "message": finding.message}
            for finding in findings(table)
        ],
        "readings_ms": readings(table, at_tokens),
    }


def readings(table: StepTable, at_tokens: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Return what each reading charges, in ms, at the given B or where they differ most."""
    most = max(at_tokens) if at_tokens else table.last_tokens
    dense = {read: table.dense(read, most) for read in READINGS}
    if at_tokens is None:
        at_tokens = _widest_gaps(dense["floor"], dense["ceil"])
    return [
        {"batch_tokens": tokens, **{read: float(dense[read][tokens]) * 1e3 for read in READINGS}}
        for tokens in at_tokens
    ]


def _widest_gaps(floor_s_B: Any, ceil_s_B: Any, *, count: int = 5) -> list[int]:
    gap_B = np.abs(ceil_s_B[1:] / floor_s_B[1:] - 1)
    found: list[int] = []
    for index in np.argsort(-gap_B, kind="stable").tolist():
        tokens = index + 1
        # One B of each stretch between probes: the rest of a stretch has the same gap.
        if all((floor_s_B[tokens], ceil_s_B[tokens]) != (floor_s_B[b], ceil_s_B[b]) for b in found):
            found.append(tokens)
        if len(found) == count or gap_B[index] == 0:
            break
    return sorted(found)


def as_text(said: dict[str, Any]) -> str:
    """Return `describe`'s answer as lines for a terminal."""
    provenance = said["provenance"]
    limit = said["graph_limit_tokens"]
    lines = [
        f"{said['name']}: {provenance['status']}, {provenance['date']}, {provenance['licence']}",
        f"  source     {provenance['source']}",
        f"  left out   {'; '.join(provenance['left_out']) or 'nothing said'}",
        f"  probes     {said['probes']} from {said['first_tokens']} to {said['last_tokens']} tokens"
        + (f", graphs up to {limit}" if limit else ""),
        f"  curves     verify{''.join(', ' + name for name in said['own_curves'])}"
        + (f"; inside verify: {', '.join(said['inside_verify'])}" if said["inside_verify"] else ""),
        f"  scenario must give: {', '.join(said['to_be_given']) or 'nothing'}",
        f"  knee       {said['knee_tokens']} tokens",
    ]
    shown = sorted(said["risers"], key=lambda riser: -riser["ms"])[:8]
    lines += [
        f"  riser      {riser['from']} -> {riser['to']} tokens: +{riser['ms']:.3g} ms"
        for riser in sorted(shown, key=lambda riser: riser["from"])
    ]
    if len(said["risers"]) > len(shown):
        lines.append(f"  riser      .. and {len(said['risers']) - len(shown)} smaller ones")
    lines += [
        f"  {'REFUSED' if finding['refuse'] else 'note':<10} "
        f"{finding['kind']}: {finding['message']}"
        for finding in said["findings"]
    ]
    lines.append("  a step of B tokens costs, in ms, by reading:")
    lines.append("        B     floor    linear      ceil")
    lines += [
        f"  {row['batch_tokens']:>7} {row['floor']:>9.3f} {row['linear']:>9.3f} {row['ceil']:>9.3f}"
        for row in said["readings_ms"]
    ]
    return "\n".join(lines) + "\n"


def draw(tables: Sequence[StepTable], *, form: str = "png") -> bytes:
    """Draw step time and steps per second over B; knee, risers and cliff are marked.

    Args:
        tables: one or more; marks are drawn for a single one.
        form: `png` or `svg`.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11, 4.4))
        left, right = figure.subplots(1, 2)
        for table, colour in zip(tables, _COLOURS * len(tables), strict=False):
            _draw_one(table, left, right, colour, alone=len(tables) == 1)
        left.set_ylabel("step time, ms")
        right.set_ylabel("SPS(B), steps per second")
        for axes in (left, right):
            axes.set_xlabel("B, tokens of the forward")
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        slowest = max(table.dense("linear", table.last_tokens).max() for table in tables)
        fastest = min(float(table.verify.seconds_N.min()) for table in tables)
        if slowest > 10 * fastest:  # a cliff would flatten everything before it
            left.set_yscale("log")
            left.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        else:
            left.set_ylim(bottom=0)
        right.set_ylim(bottom=0)
        left.legend(fontsize=8, frameon=False, loc="upper left")
        figure.suptitle(
            tables[0].name if len(tables) == 1 else "step tables, verify curves as measured"
        )
        figure.tight_layout()
        out = io.BytesIO()
        metadata = {"Software": None} if form == "png" else {"Date": None}
        figure.savefig(out, format=form, dpi=130, metadata=metadata)
    return out.getvalue()


def _draw_one(table: StepTable, left: Any, right: Any, colour: str, *, alone: bool) -> None:
    first, last = int(table.verify.probes_N[0]), table.last_tokens
    tokens_B = np.unique(
        np.concatenate(
            [np.arange(first, min(last, 4096) + 1), np.geomspace(first, last, 200).astype(int)]
        )
    )
    label = table.name
    for read, dash in (("linear", "-"), ("floor", ":"), ("ceil", "--")):
        if read != "linear" and not alone:
            continue
        seconds_B = table.dense(read, last)[tokens_B]  # type: ignore[arg-type]
        name = f"read {read}" if alone else label
        left.plot(
            tokens_B,
            seconds_B * 1e3,
            dash,
            color=colour,
            lw=1.0,
            label=name,
            alpha=1.0 if read == "linear" else 0.6,
        )
        right.plot(
            tokens_B,
            1 / seconds_B,
            dash,
            color=colour,
            lw=1.0,
            alpha=1.0 if read == "linear" else 0.6,
        )
    if not alone:
        return
    for part in (table.verify, table.past_limit):
        if part is not None:
            left.plot(part.probes_N, part.seconds_N * 1e3, ".", ms=3, color="black")
    knee = knee_tokens(table.verify)
    for axes in (left, right):
        axes.axvline(knee, color="#D55E00", lw=1.0, ls="--")
        if table.graph_limit_tokens:
            axes.axvline(table.graph_limit_tokens, color="#CC79A7", lw=1.2)
    left.plot([], [], color="#D55E00", ls="--", lw=1.0, label=f"knee, {knee} tokens")
    if table.graph_limit_tokens:
        left.plot(
            [], [], color="#CC79A7", lw=1.2, label=f"graph limit, {table.graph_limit_tokens} tokens"
        )
    steps = risers(table.verify)
    at = [riser.after_tokens for riser in steps]
    if at:
        index = np.searchsorted(table.verify.probes_N, at)
        left.plot(
            at,
            table.verify.seconds_N[index] * 1e3,
            "^",
            ms=5,
            color="#009E73",
            label=f"{len(at)} risers",
        )


def comparison(
    tables: Sequence[StepTable], *, read: Read, at_tokens: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    """Return step times in ms at the same B and their ratio to the first table's.

    Args:
        tables: two or more.
        read: how to read between probes.
        at_tokens: B; powers of two that every table has probes up to if None.
    """
    if at_tokens is None:
        most = min(table.last_tokens for table in tables)
        at_tokens = [2**i for i in range(most.bit_length()) if 2**i <= most]
    dense = [table.dense(read, max(at_tokens)) for table in tables]
    return [
        {
            "batch_tokens": tokens,
            "ms": [float(seconds[tokens]) * 1e3 for seconds in dense],
            "ratio": [float(seconds[tokens] / dense[0][tokens]) for seconds in dense],
        }
        for tokens in at_tokens
    ]


def comparison_text(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    """Return `comparison`'s answer as lines for a terminal."""
    lines = [f"  [{index}] {name}" for index, name in enumerate(names, start=1)]
    head = "".join(f"{f'[{i}] ms':>12}" for i in range(1, len(names) + 1))
    head += "".join(f"{f'[{i}]/[1]':>9}" for i in range(2, len(names) + 1))
    lines.append(f"{'B':>9}{head}")
    for row in rows:
        shown = "".join(f"{value:>12.3f}" for value in row["ms"])
        shown += "".join(f"{value:>9.3f}" for value in row["ratio"][1:])
        lines.append(f"{row['batch_tokens']:>9}{shown}")
    return "\n".join(lines) + "\n"


def fit_text(result: FitResult, held_out: Sequence[float]) -> str:
    """Return what a fit found as lines for a terminal."""
    table = result.table
    lines = [
        f"{table.name}: {result.form}, {len(table.verify.probes_N)} probes from "
        f"{table.verify.probes_N[0]} to {table.last_tokens} tokens"
    ]
    if result.leave_one_out:
        errors = np.array(result.leave_one_out)
        lines.append(
            f"  leave one out  median {np.median(errors):.1%}, 90% {np.quantile(errors, 0.9):.1%}, "
            f"largest {errors.max():.1%} of {len(errors)}"
        )
    widths = np.array([high - low for low, high in result.intervals.values()])
    lines.append(
        f"  95% intervals of the medians  median width {np.median(widths):.1%}, "
        f"widest {widths.max():.1%}"
    )
    if held_out:
        errors = np.abs(held_out)
        lines.append(
            f"  held out       {len(errors)} cells: median {np.median(errors):.1%}, "
            f"90% {np.quantile(errors, 0.9):.1%}, largest {errors.max():.1%}, "
            f"{np.mean(errors <= 0.10):.0%} within 10%"
        )
    lines += [f"  note           {finding.kind}: {finding.message}" for finding in result.findings]
    if result.table.provenance.split_open_at is not None:
        lines.append(_wrapped(f"beware: {result.table.provenance.notes}"))
    return "\n".join(lines) + "\n"


def check_table_facts(
    table: StepTable,
    *,
    model: str | None = None,
    gpu: str | None = None,
    gpus: int = 1,
    weight_bytes: float = 2.0,
) -> dict[str, Any]:
    """Return what is wrong or odd about a table, its hardware's limits included if named.

    Args:
        table: the table.
        model: preset or config file; with `gpu`.
        gpu: GPU preset; with `model`.
        gpus: GPUs that share the model.
        weight_bytes: bytes a weight.

    Raises:
        InputError: only one of `model` and `gpu` is given, or an unknown preset.
    """
    odd = findings(table)
    facts: dict[str, Any] = {
        "name": table.name,
        "findings": [
            {"kind": finding.kind, "refuse": finding.refuse, "message": finding.message}
            for finding in odd
        ],
        "faster_than_hardware": [],
        "roofline": None,
    }
    if (model is None) != (gpu is None):
        raise InputError("give both a model and a GPU, or neither: limits need the two")
    if model is not None and gpu is not None:
        roofline = Roofline(load_shape(model), gpu_named(gpu), gpus, weight_bytes)
        facts["roofline"] = f"{model} on {gpus} {gpu}, {weight_bytes:g} bytes a weight"
        facts["faster_than_hardware"] = [
            {
                "batch_tokens": probe.batch_tokens,
                "ms": probe.seconds * 1e3,
                "least_ms": probe.least_s * 1e3,
                "limit": probe.limit,
            }
            for probe in too_fast(table, roofline)
        ]
    facts["refused"] = bool(facts["faster_than_hardware"]) or any(f.refuse for f in odd)
    return facts


def check_lines(facts: dict[str, Any]) -> str:
    """Return `check_table_facts`'s answer as lines for a terminal."""
    lines = [f"{facts['name']}: {'not fit for use' if facts['refused'] else 'usable'}"]
    lines += [
        f"  {'REFUSED' if finding['refuse'] else 'note':<8} {finding['kind']}: {finding['message']}"
        for finding in facts["findings"]
    ]
    fast = facts["faster_than_hardware"]
    if fast:
        worst = min(fast, key=lambda probe: probe["ms"] / probe["least_ms"])
        lines.append(
            f"  REFUSED  {len(fast)} probes are faster than {facts['roofline']} allows; the worst: "
            f"{worst['ms']:.3g} ms at {worst['batch_tokens']} tokens, where {worst['limit']} alone "
            f"need {worst['least_ms']:.3g} ms"
        )
    elif facts["roofline"]:
        lines.append(f"  roofline: no probe beats {facts['roofline']}")
    return "\n".join(lines) + "\n"


def linear_text(fit: LinearFit) -> str:
    """Return a linear fit of telemetry as lines for a terminal."""
    lines = ["step time = sum of:"]
    for term, unit, scale in (
        ("bias", "ms", 1e3),
        ("per_request", "us a request", 1e6),
        ("per_token", "us a token", 1e6),
        ("per_kv_token", "ns a KV token", 1e9),
    ):
        found = fit.intervals[term]
        if found is not None:
            known = _interval(found, scale)
        else:
            known = "not identified" if term in fit.open_terms else "does not vary in the loads"
        lines.append(f"  {term:<13} {fit.coefficients[term] * scale:9.4g} {unit}  ({known})")
    if fit.split is not None:
        width = fit.split.tokens_per_request
        lines.append(
            f"  {'together':<13} {fit.split.slope_s * 1e6:9.4g} us a request with its {width:g} "
            f"token{'' if width == 1 else 's'}  ({_interval(fit.split.interval_s, 1e6)})"
        )
    errors = np.array(fit.leave_one_out)
    lines.append(
        f"  leave one out  median {np.median(errors):.1%}, largest {errors.max():.1%} of "
        f"{len(errors)} loads"
    )
    if beware := fit.beware():
        lines.append(_wrapped(f"beware: {beware}"))
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent="  ")


def _interval(edges: tuple[float, float], scale: float) -> str:
    low, high = (edge * scale for edge in edges)
    return f"95%: {low:.4g} to {high:.4g}"


def host_text(fit: HostFit, points: Sequence[Telemetry], source: str) -> str:
    """Return fitted host time as lines of a scenario: the curve, and the line through it."""
    order = sorted(range(len(points)), key=lambda index: points[index].concurrency)
    loads = ", ".join(f"{points[index].concurrency:g}" for index in order)
    left = ", ".join(f"{fit.left_s[index] * 1e3:.4g}" for index in order)
    worst = max(abs(error) for error in fit.errors)
    lines = [
        "host:",
        "  base_ms: 0",
        f"  at_requests: [{loads}]",
        f"  ms: [{left}]",
        "  label: fitted",
        f"  source: no-speculation arm of {source}",
        f"# or as a line, which puts steps off by up to {worst:.0%}:",
        f"#   base_ms: {fit.base_s * 1e3:.4g}",
        f"#   per_request_us: {fit.per_request_s * 1e6:.4g}",
    ]
    lines += [
        f"# concurrency {points[index].concurrency:g}: the line is off by {fit.errors[index]:+.1%}"
        for index in order
    ]
    return "\n".join(lines) + "\n"
