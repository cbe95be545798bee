"""The page of a run: complete, self-contained, and true to the stored numbers."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from specsim.errors import InputError
from specsim.report.page import Stored
from specsim.report.run_page import page_of_run
from specsim.report.svg import Chart, Series, line_chart, log_ticks, nice_ticks
from specsim.study.reports import open_page, write_report
from specsim.study.run import run_scenario
from specsim.study.store import read_manifest, read_summary
from tests.study_world import FRONTIER, write_scenario


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    path = write_scenario(folder, question=FRONTIER)
    text = path.read_text() + "  peek: {scheduler: {kind: global}, gamma: 3, unsafe: true}\n"
    path.write_text(
        text.replace("name: tiny\n", "name: tiny\ndescription: 'a <b>bold</b> & \"x\"'\n")
    )
    return run_scenario(str(path), out=folder / "runs").directory


def test_the_page_needs_nothing_from_outside(run: Path) -> None:
    text = write_report(run, format="html").read_text(encoding="utf-8")
    assert len(text) < 2_000_000
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)[^"']+""", text)
    assert "url(" not in text
    assert "@import" not in text
    assert "http" not in re.sub(r"http://www\.w3\.org/\S+", "", text)


def test_what_a_user_wrote_is_text_and_not_markup(run: Path) -> None:
    text = write_report(run, format="html").read_text(encoding="utf-8")
    assert "<b>bold</b>" not in text
    assert "&lt;b&gt;bold&lt;/b&gt;" in text


def test_the_same_run_gives_the_same_bytes(run: Path, tmp_path: Path) -> None:
    files = [write_report(run, format="html", out=tmp_path / name) for name in ("a", "b")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_every_section_is_there_and_warnings_are_told(run: Path) -> None:
    page = open_page(run)
    assert [s.key for s in page.sections] == [
        "frontier", "budgets", "time", "tokens", "latency", "timeline", "calibration", "inputs",
    ]  # fmt: skip
    assert any("unsafe" in line for line in page.warnings)
    assert "160 tok/s/user" in page.answer[0]
    assert page.policies[0][0] == "none"  # the baseline first
    assert ("peek", "unsafe") in page.policies


def test_the_table_holds_the_stored_answer(run: Path) -> None:
    summary = read_summary(run)
    table = open_page(run).sections[0].table
    assert table is not None
    for record, row in zip(summary["answer"], table[1], strict=True):
        assert row[0][0] == record["policy"]
        assert row[2][1] == record["tok_s_gpu"]


def test_time_shares_sum_to_one(run: Path) -> None:
    for policy in read_summary(run)["policies"].values():
        for row in policy["points"]:
            shares = [v for k, v in row.items() if re.fullmatch(r"time_\w+_share", k)]
            assert sum(shares) == pytest.approx(1.0, abs=1e-9)
            assert min(shares) >= 0
        # `none` drafts nothing; the host's time is charged to everybody.
    points = read_summary(run)["policies"]
    assert points["none"]["points"][0]["time_draft_share"] == 0
    assert points["topk"]["points"][0]["time_draft_share"] > 0.01
    assert points["none"]["points"][0]["time_host_share"] > 0.01


def test_the_reliability_of_a_true_head_is_the_diagonal(run: Path) -> None:
    records = read_summary(run)["policies"]["topk"]["reliability"]
    assert [r["position"] for r in records] == [1, 2, 3]
    for record in records:
        assert record["ece"] < 0.08
        assert record["observed"] == pytest.approx(record["predicted"], abs=0.06)
    assert records[0]["observed"] == pytest.approx(0.8, abs=0.06)


def test_every_chart_is_well_formed(run: Path) -> None:
    page = page_of_run(Stored(run, read_summary(run), read_manifest(run)))
    charts = [choice.svg for section in page.sections for choice in section.choices]
    assert len(charts) > 15
    for svg in charts:
        ET.fromstring("<g>" + svg + "</g>")  # noqa: S314


def test_markdown_has_the_answer_and_escapes_pipes(run: Path) -> None:
    text = write_report(run, format="markdown").read_text(encoding="utf-8")
    assert "**At 160 tok/s/user" in text
    assert "![tiny](frontier.svg)" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in rows[:8]}) == 1


def test_a_point_run_has_a_page_and_no_picture(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    directory = run_scenario(str(path), out=tmp_path / "runs").directory
    assert "gives the most" in write_report(directory, format="html").read_text(encoding="utf-8")
    with pytest.raises(InputError, match="only a frontier has a picture"):
        write_report(directory, format="png")


def test_where_arrivals_decide_the_throughput_speed_is_the_answer(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, question="{kind: point}")
    text = path.read_text().replace("{kind: closed_loop}", "{kind: poisson, rate_per_s: 0.02}")
    path.write_text(text)
    directory = run_scenario(str(path), out=tmp_path / "runs").directory
    page = page_of_run(Stored(directory, read_summary(directory), read_manifest(directory)))
    points = {n: p["points"][0] for n, p in read_summary(directory)["policies"].items()}
    rates = [point["tok_s_gpu"] for point in points.values()]
    assert max(rates) < 1.02 * min(rates)
    fastest = max(points, key=lambda name: points[name]["tok_s_user"])
    assert page.answer[0].startswith(f"{fastest} serves a user fastest")
    # So few tokens a second that whole numbers would name several ticks alike.
    result = next(section for section in page.sections if section.key == "result")
    ticks = re.findall(r'y="\d+" text-anchor="(?:middle|end)">([^<]+)<', result.choices[0].svg)
    assert len(set(ticks)) == len(ticks) >= 4


def test_no_run_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run"):
        write_report(tmp_path, format="html")


def test_ticks_cover_the_data() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        low, high = np.sort(rng.uniform(-1e4, 1e4, 2) * 10.0 ** rng.integers(-6, 4))
        ticks = nice_ticks(float(low), float(high))
        assert ticks[0] <= low + 1e-12
        assert ticks[-1] >= high - abs(high) * 1e-9
        assert len(ticks) <= 12
    assert log_ticks(1, 64)[0] == 1
    assert log_ticks(1, 64)[-1] == 100


def test_points_are_drawn_where_they_are() -> None:
    svg = line_chart(Chart("t", "x", "y", [Series(0, [0, 10], [0, 100], ["a", "b"])]))
    (x0, y0), (x1, y1) = re.findall(r'class="hit" cx="([\d.]+)" cy="([\d.]+)"', svg)
    assert float(x0) < float(x1)
    assert float(y0) > float(y1)  # up is more


@pytest.mark.parametrize("values", [[], [float("nan")]])
def test_nothing_to_draw_is_no_chart(values: list[float]) -> None:
    assert line_chart(Chart("t", "x", "y", [Series(0, values, values)])) == ""
