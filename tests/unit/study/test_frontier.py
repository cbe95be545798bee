"""Frontiers under every convention of axes, hypervolume, bands, overlays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specsim.errors import InputError
from specsim.report.axes import CONVENTIONS
from specsim.report.bands import band, hypervolume
from specsim.report.overlays import measured_lines, published_for
from specsim.report.pareto import frontier
from specsim.study.frontier import draw
from tests.study_world import FRONTIER, write_scenario


def line(points: list[tuple[float, float]], name: str = "x"):  # type: ignore[no-untyped-def]
    return frontier(name, [{"tok_s_user": x, "tok_s_gpu": y} for x, y in points])


def test_hypervolume_is_the_area_of_the_staircase() -> None:
    assert hypervolume(line([(1, 3), (2, 1)])) == 1 * 3 + 1 * 1
    assert hypervolume(line([(1, 3), (2, 1), (1.5, 0.5)])) == 4  # a dominated point adds nothing
    assert hypervolume(line([(1, 3), (2, 1)]), speed=1, throughput=0.5) == 0.5
    assert hypervolume(line([])) == 0
    rng = np.random.default_rng(1)
    points = [(float(x), float(y)) for x, y in rng.random((30, 2))]
    thrown = rng.random((200_000, 2))
    below = np.zeros(len(thrown), dtype=bool)
    for x, y in points:
        below |= (thrown[:, 0] <= x) & (thrown[:, 1] <= y)
    assert hypervolume(line(points)) == pytest.approx(below.mean(), abs=0.005)


def test_a_band_covers_the_mean_and_the_shared_speeds_only() -> None:
    lines = [line([(1, 10 + n), (3 + n, 2)]) for n in range(4)]
    found = band(lines)
    assert found is not None
    assert (found.speed_P[0], found.speed_P[-1]) == (1, 3)
    assert found.mean_P[0] == pytest.approx(11.5)
    # t interval of 10, 11, 12, 13: 3.182 * sd / 2
    assert found.high_P[0] - found.mean_P[0] == pytest.approx(3.1824 * np.sqrt(5 / 3) / 2, rel=1e-3)
    assert band(lines[:1]) is None
    assert band([line([(1, 2)]), line([(5, 2)])]) is None


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("frontier")
    path = write_scenario(folder, question=FRONTIER)
    return path, draw(str(path), replications=3, out=folder / "runs", jobs=1)


def test_the_conventions_differ_and_each_is_on_its_axis(drawn, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    _, first = drawn
    speeds = {}
    for name, axes in CONVENTIONS.items():
        found = draw(str(first.directory), axes=name, out=tmp_path, jobs=1)
        svg = (first.directory / "pareto.svg").read_text()
        assert svg  # drawn as paths; the definitions are told in the numbers:
        assert found.result["axes"]["x"] == axes.x_label
        speeds[name] = found.result["lines"]["topk"]["tok_s_user"][0]
    assert len({round(v, 9) for v in speeds.values()}) == len(CONVENTIONS)
    # A closed loop without think time: output / users is nearly the mean speed of a running one.
    assert speeds["vllm"] == pytest.approx(speeds["paper"], rel=0.02)
    # trtllm counts the wait for the first token too, and the mean of ratios is over the median.
    assert speeds["inferencex"] == pytest.approx(speeds["paper"], rel=0.1)


def test_bands_ratios_and_hypervolumes_are_told(drawn) -> None:  # type: ignore[no-untyped-def]
    _, first = drawn
    result = first.result
    assert result["seeds"] == 3
    assert set(result["bands"]) == {"none", "fixed", "topk"}
    low, mean, high = (np.array(result["bands"]["topk"][k]) for k in ("low", "mean", "high"))
    assert (low < mean).all()
    assert (mean < high).all()
    assert result["lines"]["none"]["hypervolume_ratio"] == 1
    assert result["lines"]["topk"]["hypervolume_ratio"] > 1.2
    assert {p.name for p in first.files} == {"pareto.png", "pareto.svg", "pareto.json"}
    assert all(p.stat().st_size > 1000 for p in first.files)


def test_measured_points_are_read_and_mistakes_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("policy,tok_s_user,tok_s_gpu\na,2,10\na,1,20\nb,3,5\n")
    a, b = measured_lines(path)
    assert a.name == "a"
    assert a.speed_P.tolist() == [1, 2]
    assert a.throughput_P.tolist() == [20, 10]
    assert b.name == "b"
    path.write_text("tok_s_usr,tok_s_gpu\n1,2\n")
    with pytest.raises(InputError, match='has no column "tok_s_user"'):
        measured_lines(path)
    path.write_text("tok_s_user,tok_s_gpu\n1,2\n1,x\n")
    with pytest.raises(InputError, match=r"mine.csv:3: .* must be numbers"):
        measured_lines(path)


def test_the_papers_lines_belong_to_its_tables() -> None:
    def summary(table: str) -> dict[str, object]:
        return {"policies": {"x": {"cost_table": table}}}

    lines = published_for(summary("v4_flash/fig7_mtp1"))
    assert [line.name for line in lines] == [
        "MTP-1, DSpark paper, Figure 7",
        "DSpark-5, DSpark paper, Figure 7",
    ]
    assert lines[0].throughput_P.max() == 19434
    assert published_for(summary("vidur/h100_llama2-70b_tp4_fp16")) == []


def test_a_point_question_is_refused(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    with pytest.raises(InputError, match="asks no frontier question"):
        draw(str(path), out=tmp_path / "runs", jobs=1)
