from __future__ import annotations

import struct
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np

from specsim.report.figures import (
    Picture,
    PublishedLine,
    draw_frontier,
    frontier_files,
)
from specsim.report.pareto import frontier
from tests.unit.report.made_up_summaries import frontier_summary


def test_the_same_summary_gives_the_same_bytes() -> None:
    assert frontier_files(frontier_summary()) == frontier_files(frontier_summary())


def test_files_are_a_png_and_an_svg_without_a_date() -> None:
    files = frontier_files(frontier_summary())
    assert sorted(files) == ["frontier.png", "frontier.svg"]
    assert files["frontier.png"].startswith(b"\x89PNG\r\n")
    width, height = struct.unpack(">II", files["frontier.png"][16:24])
    assert (width, height) == (1200, 840)
    root = ElementTree.fromstring(files["frontier.svg"])  # noqa: S314, our own file
    assert root.tag.endswith("svg")
    assert b"date" not in files["frontier.svg"].lower()


def test_no_global_state_is_left_behind() -> None:
    before = dict(mpl.rcParams)
    frontier_files(frontier_summary())
    assert dict(mpl.rcParams) == before


def picture(**changes: object) -> Picture:
    points = [{"tok_s_user": 50.0, "tok_s_gpu": 200.0}, {"tok_s_user": 100.0, "tok_s_gpu": 100.0}]
    given: dict[str, object] = {
        "title": "t",
        "lines": [frontier("base", points), frontier("peek", points), frontier("none", [])],
        "marks": ["", "unsafe", ""],
        "baseline": "base",
        "slos": [60.0, 80.0],
        "headline": 80.0,
    }
    return Picture(**(given | changes))  # type: ignore[arg-type]


def test_marks_and_empty_lines_are_in_the_legend() -> None:
    (axes,) = draw_frontier(picture()).axes
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "base, baseline",
        "peek (unsafe)",
        "none: no point",
    ]
    lines = {line.get_label(): line for line in axes.lines}
    assert lines["peek (unsafe)"].get_linestyle() == "--"
    assert lines["base, baseline"].get_linestyle() == "-"


def test_axes_say_their_definition_and_slos_are_drawn() -> None:
    (axes,) = draw_frontier(picture()).axes
    assert "tok/s/user = tokens emitted" in axes.get_xlabel()
    assert "tok/s/GPU = tokens emitted" in axes.get_ylabel()
    assert [text.get_text() for text in axes.texts] == ["SLO 60", "SLO 80"]


def test_published_lines_are_laid_under_ours() -> None:
    published = PublishedLine("Figure 7", np.array([50.0, 100.0]), np.array([210.0, 90.0]))
    (axes,) = draw_frontier(picture(published=[published])).axes
    assert axes.lines[0].get_label() == "Figure 7 (published)"
    assert axes.lines[0].get_ydata().tolist() == [210.0, 90.0]  # type: ignore[union-attr]


def test_ten_policies_have_ten_looks() -> None:
    points = [{"tok_s_user": 50.0, "tok_s_gpu": 200.0}, {"tok_s_user": 100.0, "tok_s_gpu": 100.0}]
    lines = [frontier(f"p{i}", points) for i in range(10)]
    (axes,) = draw_frontier(picture(lines=lines, marks=[""] * 10, baseline="p0")).axes
    looks = {
        (line.get_color(), line.get_marker(), line.get_linestyle())
        for line in axes.lines
        if str(line.get_label()).startswith("p")
    }
    assert len(looks) == 10
