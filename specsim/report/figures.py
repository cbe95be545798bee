"""Pictures: the throughput-interactivity frontier as PNG and SVG.

Drawn on a matplotlib `Figure` of its own, without pyplot: no window, no browser, no global state,
and the same bytes for the same input.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from specsim.report.bands import Band
from specsim.report.pareto import Frontier, frontier

X_DEFINITION = "speed of one user, tok/s/user = tokens emitted / request-seconds in the batch"
Y_DEFINITION = "output throughput, tok/s/GPU = tokens emitted / seconds / GPUs"

# Okabe and Ito's colours, told apart by people with any colour vision; yellow is left out because
# it is lost on white. Markers and dashes tell the lines apart again, in print and for everybody.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
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


@dataclass(frozen=True, slots=True, eq=False)
class PublishedLine:
    """A line somebody else measured, drawn under ours for comparison.

    Attributes:
        name: what it is and who published it.
        speed_P: tok/s/user, `[P]`.
        throughput_P: tok/s/GPU, `[P]`.
    """

    name: str
    speed_P: NDArray[np.float64]
    throughput_P: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Picture:
    """What a frontier figure shows.

    Attributes:
        title: one line.
        lines: our policies, in the order of the legend.
        marks: for each policy, what must stand beside it, such as "unsafe"; may be empty.
        baseline: the policy drawn in black.
        slos: user speeds with a vertical line each.
        headline: the SLO whose values are written beside its line.
        published: lines of others.
        note: small print under the figure, such as where the inputs come from.
        x_label, y_label: definitions of the axes.
        bands: confidence bands over seeds.
    """

    title: str
    lines: Sequence[Frontier]
    marks: Sequence[str]
    baseline: str
    slos: Sequence[float]
    headline: float
    published: Sequence[PublishedLine] = ()
    note: str = ""
    x_label: str = X_DEFINITION
    y_label: str = Y_DEFINITION
    bands: Sequence[Band] = ()


def frontier_files(
    summary: Mapping[str, Any], *, published: Sequence[PublishedLine] = ()
) -> dict[str, bytes]:
    """Draw a stored frontier: `frontier.png` and `frontier.svg`.

    Args:
        summary: `summary.json` of a run whose question is a frontier.
        published: lines of others to lay under it.
    """
    question, policies = summary["question"], summary["policies"]
    picture = Picture(
        title=f"{summary['scenario']}: throughput that a speed of one user leaves",
        lines=[frontier(name, policy["points"]) for name, policy in policies.items()],
        marks=_marks(policies),
        baseline=question["baseline"],
        slos=question["slo_tok_s_user"],
        headline=question["headline_slo"],
        published=published,
        note=_inputs(policies, summary["seed"]),
    )
    return {f"frontier.{kind}": content for kind, content in render(draw_frontier(picture)).items()}


def _marks(policies: Mapping[str, Any]) -> list[str]:
    """Leave the marks that hold for every drafting policy to the note; keep what sets one apart."""
    drafting = [set(policy["labels"]) for policy in policies.values() if policy["gamma"]]
    shared = set.intersection(*drafting) - {"unsafe"} if drafting else set()
    return [
        ", ".join(mark for mark in policy["labels"] if mark not in shared)
        for policy in policies.values()
    ]


def _inputs(policies: Mapping[str, Any], seed: int) -> str:
    """Name the inputs of all policies and what kind of numbers they are."""
    tables = {f"{p['cost_table']} ({p['cost_status']})" for p in policies.values()}
    traces = {_acceptance(p["acceptance"]) for p in policies.values() if p["gamma"]}
    costs, acceptance = ", ".join(sorted(tables)), ", ".join(sorted(traces))
    return f"step costs: {costs}; acceptance: {acceptance}; seed {seed}"


def _acceptance(found: Mapping[str, Any]) -> str:
    name = " ".join(str(found[key]) for key in ("model", "calibration") if key in found)
    tilted = ", tilted" if found.get("tilted") else ""
    return f"{name or 'trace'} ({found.get('status', 'unknown')}{tilted})"


def draw_frontier(picture: Picture) -> Figure:
    """Draw throughput of one GPU against speed of one user, one line a policy."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8.0, 5.6), dpi=150, layout="constrained")
        axes = figure.add_subplot()
        _published(axes, picture.published)
        _lines(axes, picture)
        _slos(axes, picture)
        axes.set_xlabel(picture.x_label)
        axes.set_ylabel(picture.y_label)
        axes.set_title(picture.title, loc="left", fontweight="bold")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.legend(loc="upper right", frameon=True, framealpha=0.9, edgecolor="none")
        if picture.note:
            figure.supxlabel(picture.note, fontsize=7, color="#555555", x=0.01, ha="left")
    return figure


def render(figure: Figure) -> dict[str, bytes]:
    """Return the figure as `png` and `svg`; the same figure gives the same bytes."""
    with mpl.rc_context(_STYLE):
        png, svg = io.BytesIO(), io.BytesIO()
        figure.savefig(png, format="png", metadata={"Software": None})
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": "specsim"})
    return {"png": png.getvalue(), "svg": svg.getvalue()}


def _lines(axes: Axes, picture: Picture) -> None:
    taken = 0
    for line, mark in zip(picture.lines, picture.marks, strict=True):
        label = f"{line.name} ({mark})" if mark else line.name
        if line.name == picture.baseline:
            colour, marker, label = "#000000", "o", f"{label}, baseline"
        else:
            # After six policies the colours come again with other markers.
            colour, marker = _COLOURS[taken % 6], _MARKERS[1 + (taken + taken // 6) % 6]
            taken += 1
        if len(line.rows) == 0:
            label += ": no point"
        dashes = "--" if "unsafe" in mark else "-"
        for band in (b for b in picture.bands if b.name == line.name):
            axes.fill_between(
                band.speed_P, band.low_P, band.high_P, color=colour, alpha=0.18, linewidth=0
            )
        axes.plot(
            line.speed_P,
            line.throughput_P,
            dashes,
            color=colour,
            marker=marker,
            markersize=3.5,
            linewidth=1.6,
            label=label,
        )


def _published(axes: Axes, lines: Sequence[PublishedLine]) -> None:
    for index, line in enumerate(lines):
        axes.plot(
            line.speed_P,
            line.throughput_P,
            color="#999999",
            linewidth=3.5,
            alpha=0.6,
            linestyle=("-", "--", ":", "-.")[index % 4],
            label=f"{line.name} (published)",
        )


def _slos(axes: Axes, picture: Picture) -> None:
    for slo in picture.slos:
        chief = slo == picture.headline
        axes.axvline(slo, color="#444444", linewidth=1.2 if chief else 0.8, linestyle=(0, (2, 2)))
        axes.annotate(
            f"SLO {slo:g}",
            (slo, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, -3),
            textcoords="offset points",
            rotation=90,
            va="top",
            fontsize=8,
            fontweight="bold" if chief else "normal",
            color="#444444",
        )
    for line in picture.lines:
        found = line.throughput_at(picture.headline)
        if found.value is not None:
            axes.plot(
                [picture.headline],
                [found.value],
                marker="o",
                markersize=7,
                markerfacecolor="none",
                markeredgecolor="#444444",
                linestyle="none",
            )
