"""Charts as inline SVG: no script needed to see them, no colour or font of their own.

Colours, dashes and text sizes come from the page's style sheet by class, so that one drawing serves
light, dark, print and phone. Every mark that a reader may point at or tab to has `data-tip`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 16, 16, 62
MARKERS = ("circle", "square", "up", "diamond", "down", "cross", "star")


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart.

    Attributes:
        index: of its policy, which decides colour and marker.
        x: positions.
        y: heights.
        tips: what a reader is told at each point; none if empty (no markers then).
        style: `line`, `dashed`, `dots` (markers alone) or `steps`.
        low, high: ends of each point's interval; empty for none.
        published: drawn grey and broad, for somebody else's numbers.
    """

    index: int
    x: Sequence[float]
    y: Sequence[float]
    tips: Sequence[str] = ()
    style: str = "line"
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    published: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """One stacked bar.

    Attributes:
        index: of its policy.
        label: its name.
        parts: (name of the part, size, tip), stacked from the left.
    """

    index: int
    label: str
    parts: Sequence[tuple[str, float, str]]


@dataclass(frozen=True, slots=True)
class Chart:
    """What a line chart shows.

    Attributes:
        title: read to people who do not see it.
        x_label, y_label: the axes with their units.
        series: the lines.
        verticals: (x, label) of vertical lines.
        x_format, y_format: of the tick labels.
        x_log: logarithmic x axis.
        x_from_zero, y_from_zero: whether an axis begins at 0.
        y_top: end of the y axis; by the data if None.
        diagonal: draw y = x.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    verticals: Sequence[tuple[float, str]] = ()
    x_format: Callable[[float], str] = field(default=lambda v: f"{v:g}")
    y_format: Callable[[float], str] = field(default=lambda v: f"{v:g}")
    x_log: bool = False
    x_from_zero: bool = False
    y_from_zero: bool = True
    y_top: float | None = None
    diagonal: bool = False


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    first: float
    last: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(max(value, 1e-300))
        return self.first + (at - low) / ((high - low) or 1.0) * (self.last - self.first)


def nice_ticks(low: float, high: float, *, wanted: int = 6) -> list[float]:
    """Return round numbers from at or below `low` to at or above `high`."""
    span = (high - low) or abs(high) or 1.0
    raw = span / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2, 5, 10, .. times powers of ten that cover the range."""
    found = [
        m * 10.0**e
        for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for m in (1, 2, 5)
    ]
    first = max([t for t in found if t <= low * 1.001], default=found[0])
    last = min([t for t in found if t >= high * 0.999], default=found[-1])
    return [t for t in found if first <= t <= last]


def line_chart(chart: Chart, *, width: int = WIDTH, height: int = HEIGHT) -> str:
    """Draw a chart of lines; an empty string if there is nothing to draw."""
    xs = [x for s in chart.series for x in s.x if math.isfinite(x)]
    ys = [y for s in chart.series for y in (*s.y, *s.high) if math.isfinite(y)]
    if not xs or not ys:
        return ""
    xs += [x for x, _ in chart.verticals if min(xs) * 0.5 <= x <= max(xs) * 1.2]
    if chart.x_log:
        x_ticks = log_ticks(min(x for x in xs if x > 0), max(xs))
    else:
        x_ticks = nice_ticks(0.0 if chart.x_from_zero else min(xs), max(xs), wanted=7)
    bottom = 0.0 if chart.y_from_zero else min(ys)
    y_ticks = nice_ticks(bottom, max(ys) if chart.y_top is None else chart.y_top, wanted=5)
    x_of = _Scale(x_ticks[0], x_ticks[-1], _LEFT, width - _RIGHT, chart.x_log)
    y_of = _Scale(y_ticks[0], y_ticks[-1], height - _BOTTOM, _TOP)
    parts = [_open(chart.title, width, height)]
    parts += _axes(chart, x_ticks, y_ticks, x_of, y_of, width, height)
    if chart.diagonal:
        a, b = max(x_ticks[0], y_ticks[0]), min(x_ticks[-1], y_ticks[-1])
        parts.append(
            f'<line class="guide" x1="{x_of(a):.1f}" y1="{y_of(a):.1f}" x2="{x_of(b):.1f}" '
            f'y2="{y_of(b):.1f}"/>'
        )
    for x, label in chart.verticals:
        if x_ticks[0] <= x <= x_ticks[-1]:
            parts.append(
                f'<g class="slo"><line x1="{x_of(x):.1f}" x2="{x_of(x):.1f}" y1="{_TOP}" '
                f'y2="{height - _BOTTOM}"/><text x="{x_of(x) + 4:.1f}" y="{_TOP + 11}">'
                f"{escape(label)}</text></g>"
            )
    for series in sorted(chart.series, key=lambda s: not s.published):
        parts.append(_series(series, x_of, y_of))
    parts.append(f'</svg><p class="axes">{escape(axes_note(chart))}</p>')
    return "".join(parts)


def _open(title: str, width: int, height: int) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}" '
        f'preserveAspectRatio="xMidYMid meet">'
    )


def _axes(
    chart: Chart,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    x_of: _Scale,
    y_of: _Scale,
    width: int,
    height: int,
) -> list[str]:
    floor = height - _BOTTOM
    parts = ['<g class="axis">']
    for tick in y_ticks:
        y = y_of(tick)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">'
            f"{escape(chart.y_format(tick))}</text>"
        )
    for n, tick in enumerate(x_ticks):
        x = x_of(tick)
        anchor = "end" if n == len(x_ticks) - 1 and n else "middle"
        odd = ' class="odd"' if n % 2 else ""
        parts.append(
            f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{floor}" y2="{floor + 4}"/>'
            f'<text{odd} x="{x + (8 if anchor == "end" else 0):.1f}" y="{floor + 19}" '
            f'text-anchor="{anchor}">{escape(chart.x_format(tick))}</text>'
        )
    parts.append(
        f'<line class="base" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{floor}" y2="{floor}"/>'
        f'<text class="label" x="{(_LEFT + width - _RIGHT) / 2:.0f}" y="{height - 12}" '
        f'text-anchor="middle">{_label(chart.x_label)}</text>'
        f'<text class="label up" transform="translate(17 {(_TOP + floor) / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{_label(chart.y_label)}</text></g>'
    )
    return parts


def _label(text: str) -> str:
    """Mark the definition of what an axis shows, which a small screen leaves to the caption."""
    short, equals, definition = text.partition(" = ")
    rest = f'<tspan class="def"> = {escape(definition)}</tspan>' if equals else ""
    return escape(short) + rest


def axes_note(chart: Chart) -> str:
    """Return the caption that stands in for the labels on a small screen."""
    return f"↑ {chart.y_label}. → {chart.x_label}."


def _series(series: Series, x_of: _Scale, y_of: _Scale) -> str:
    points = [
        (x_of(x), y_of(y))
        for x, y in zip(series.x, series.y, strict=True)
        if math.isfinite(x) and math.isfinite(y)
    ]
    if not points:
        return ""
    kind = "published" if series.published else f"c{series.index % 8}"
    parts = [f'<g class="series {kind}" data-policy="{series.index}">']
    if series.low and not series.published:
        up = [(x_of(x), y_of(y)) for x, y in zip(series.x, series.high, strict=True)]
        down = [(x_of(x), y_of(y)) for x, y in zip(series.x, series.low, strict=True)]
        band = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*up, *reversed(down)])
        parts.append(f'<polygon class="band" points="{band}"/>')
    if series.style != "dots" and len(points) > 1:
        drawn = points
        if series.style == "steps":
            drawn = [points[0]]
            for (_, y0), (x1, y1) in pairwise(points):
                drawn += [(x1, y0), (x1, y1)]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in drawn)
        dashed = " dashed" if series.style == "dashed" else ""
        parts.append(f'<path class="line{dashed}" d="{path}"/>')
    for (x, y), tip in zip(points, series.tips, strict=False):
        # Lines of a tip are split by "|": a tip is read out too, where a line break says nothing.
        parts.append(
            f'<g class="mark" tabindex="0" role="img" data-tip="{escape(tip)}" '
            f'aria-label="{escape(tip.replace("|", ", "))}">'
            f'<circle class="hit" cx="{x:.1f}" cy="{y:.1f}" r="13"/>'
            f"{marker(series.index, x, y)}</g>"
        )
    parts.append("</g>")
    return "".join(parts)


def marker(index: int, x: float, y: float, *, size: float = 4.4) -> str:
    """Draw the marker of policy `index` at a place."""
    shape, s = MARKERS[index % len(MARKERS)], size
    match shape:
        case "circle":
            return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="{s}"/>'
        case "square":
            at = f'x="{x - s * 0.9:.1f}" y="{y - s * 0.9:.1f}"'
            return f'<rect class="dot" {at} width="{1.8 * s:.1f}" height="{1.8 * s:.1f}"/>'
        case "up":
            corners = [(0, -1.2), (1.1, 0.8), (-1.1, 0.8)]
        case "down":
            corners = [(0, 1.2), (1.1, -0.8), (-1.1, -0.8)]
        case "diamond":
            corners = [(0, -1.3), (1.2, 0), (0, 1.3), (-1.2, 0)]
        case "cross":
            t = 0.42
            corners = [
                (-t, -1.2), (t, -1.2), (t, -t), (1.2, -t), (1.2, t), (t, t), (t, 1.2), (-t, 1.2),
                (-t, t), (-1.2, t), (-1.2, -t), (-t, -t),
            ]  # fmt: skip
        case _:
            corners = [
                (
                    math.sin(n * math.pi / 5) * (1.4 if n % 2 == 0 else 0.6),
                    -math.cos(n * math.pi / 5) * (1.4 if n % 2 == 0 else 0.6),
                )
                for n in range(10)
            ]
    points = " ".join(f"{x + s * a:.1f},{y + s * b:.1f}" for a, b in corners)
    return f'<polygon class="dot" points="{points}"/>'


def stacked_bars(
    title: str,
    bars: Sequence[Bar],
    *,
    x_label: str,
    x_format: Callable[[float], str],
    full: float | None = None,
    width: int = WIDTH,
) -> str:
    """Draw horizontal stacked bars, one a policy; parts are coloured by `part-<name>`."""
    if not bars:
        return ""
    left, row, top, foot = 150, 34, 6, 52
    height = top + row * len(bars) + foot
    most = full or max(sum(size for _, size, _ in bar.parts) for bar in bars) or 1.0
    ticks = [t for t in nice_ticks(0.0, most, wanted=5) if full is None or t <= full * 1.0001]
    x_of = _Scale(0.0, ticks[-1], left, width - _RIGHT)
    parts = [_open(title, width, height), '<g class="axis">']
    floor = top + row * len(bars)
    for n, tick in enumerate(ticks):
        x = x_of(tick)
        anchor = "end" if n == len(ticks) - 1 else "middle"
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{floor}"/>'
            f'<text x="{x + (8 if anchor == "end" else 0):.1f}" y="{floor + 18}" '
            f'text-anchor="{anchor}">{escape(x_format(tick))}</text>'
        )
    parts.append(
        f'<text class="label" x="{(left + width - _RIGHT) / 2:.0f}" y="{height - 8}" '
        f'text-anchor="middle">{escape(x_label)}</text></g>'
    )
    for n, bar in enumerate(bars):
        y = top + n * row + 5
        shown = bar.label if len(bar.label) <= 20 else bar.label[:19] + "…"
        parts.append(
            f'<g class="bar" data-policy="{bar.index}"><text class="name" x="{left - 10}" '
            f'y="{y + 16}" text-anchor="end">{escape(shown)}</text>'
        )
        at = 0.0
        for name, size, tip in bar.parts:
            if size <= 0:
                continue
            x0, x1 = x_of(at), x_of(min(at + size, ticks[-1]))
            parts.append(
                f'<rect class="mark part part-{escape(name)}" tabindex="0" role="img" '
                f'x="{x0:.1f}" y="{y}" width="{max(x1 - x0, 0.5):.1f}" height="{row - 10}" '
                f'data-tip="{escape(tip)}" aria-label="{escape(tip.replace("|", ", "))}"/>'
            )
            at += size
        parts.append("</g>")
    parts.append("</svg>")
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class StepMark:
    """One step of a timeline.

    Attributes:
        start_ms, end_ms: when it ran.
        parts: (name of the part, tokens), stacked from below.
        tip: what a reader is told.
    """

    start_ms: float
    end_ms: float
    parts: Sequence[tuple[str, float]]
    tip: str


def timeline(title: str, steps: Sequence[StepMark], *, width: int = WIDTH) -> str:
    """Draw steps as boxes: as wide as they last, as high as they have tokens."""
    if not steps:
        return ""
    height = 300
    x_ticks = nice_ticks(steps[0].start_ms, steps[-1].end_ms, wanted=7)
    y_ticks = nice_ticks(0.0, max(sum(n for _, n in s.parts) for s in steps), wanted=4)
    x_of = _Scale(steps[0].start_ms, steps[-1].end_ms, _LEFT, width - _RIGHT)
    y_of = _Scale(0.0, y_ticks[-1], height - _BOTTOM, _TOP)
    chart = Chart(title, "simulated time, ms", "tokens in the target forward", ())
    shown = [t for t in x_ticks if steps[0].start_ms <= t <= steps[-1].end_ms]
    parts = [_open(title, width, height)]
    parts += _axes(chart, shown, y_ticks, x_of, y_of, width, height)
    for step in steps:
        x0, x1 = x_of(step.start_ms), x_of(step.end_ms)
        parts.append(
            f'<g class="mark step" tabindex="0" role="img" data-tip="{escape(step.tip)}" '
            f'aria-label="{escape(step.tip.replace("|", ", "))}">'
        )
        at = 0.0
        for name, tokens in step.parts:
            if tokens > 0:
                y0, y1 = y_of(at), y_of(at + tokens)
                parts.append(
                    f'<rect class="part part-{escape(name)}" x="{x0:.1f}" y="{y1:.1f}" '
                    f'width="{max(x1 - x0 - 0.8, 0.6):.1f}" height="{y0 - y1:.1f}"/>'
                )
                at += tokens
        parts.append("</g>")
    parts.append("</svg>")
    return "".join(parts)
