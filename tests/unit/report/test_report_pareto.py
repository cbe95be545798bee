from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.report.pareto import comparison, frontier


def rows(*points: tuple[float, float], **more: float) -> list[dict[str, float]]:
    return [{"tok_s_user": x, "tok_s_gpu": y, **more} for x, y in points]


def test_cuts_are_linear_in_the_axes_of_the_figure() -> None:
    line = frontier("a", rows((100, 1000), (200, 400), (50, 2000)))
    assert line.throughput_at(150).value == pytest.approx(700)
    assert line.throughput_at(200).value == 400
    assert line.throughput_at(50).value == 2000
    assert line.speed_at(1500).value == pytest.approx(75)
    assert line.speed_at(400).value == 200


def test_dominated_points_are_dropped() -> None:
    # (90, 900) is slower than (100, 1000) and has less throughput.
    line = frontier("a", rows((100, 1000), (90, 900), (50, 2000), (100, 999)))
    assert line.speed_P.tolist() == [50, 100]
    assert line.throughput_P.tolist() == [2000, 1000]


def test_outside_the_line_there_is_a_reason_instead_of_a_number() -> None:
    line = frontier("mtp", rows((100, 1000), (50, 2000)))
    for cut, words in (
        (line.throughput_at(101), "never reaches 101 tok/s/user"),
        (line.throughput_at(49), "ask for more users"),
        (line.speed_at(2001), "never reaches 2,001 tok/s/GPU"),
        (line.speed_at(999), "ask for fewer users"),
        (frontier("x", []).throughput_at(1), "no measured point"),
        (frontier("x", [{"tok_s_user": None, "tok_s_gpu": 3}]).speed_at(1), "no measured point"),
    ):
        assert cut.value is None
        assert words in cut.reason


def test_other_metrics_are_read_at_the_same_place() -> None:
    points = [
        {"tok_s_user": 100.0, "tok_s_gpu": 1000.0, "users": 10.0, "gap": None},
        {"tok_s_user": 50.0, "tok_s_gpu": 2000.0, "users": 40.0, "gap": 1.0},
    ]
    line = frontier("a", points)
    assert line.read("users", line.throughput_at(75)) == pytest.approx(25)
    assert line.read("users", line.speed_at(1250)) == pytest.approx(17.5)
    assert line.read("users", line.throughput_at(100)) == 10
    assert line.read("gap", line.throughput_at(75)) is None
    assert line.read("users", line.throughput_at(101)) is None


def test_comparison_with_the_papers_numbers() -> None:
    # Figure 7, V4-Flash: the lines' own anchors.
    mtp = frontier("mtp1", rows((80, 10612), (120, 1515)))
    dspark = frontier("dspark", rows((80, 16036), (120, 11534), (128.2, 10612), (222.0, 1515)))
    (record,) = comparison({"mtp1": mtp, "dspark": dspark}, baseline="mtp1", slos=[80, 120, 130])
    assert record["candidate"] == "dspark"
    assert record["baseline"] == "mtp1"
    assert record["throughput_ratio_at_slo"]["80"] == pytest.approx(1.511, abs=1e-3)
    assert record["throughput_ratio_at_slo"]["120"] == pytest.approx(7.613, abs=1e-3)
    assert record["speedup_at_equal_throughput"]["80"] == pytest.approx(1.6025)
    assert record["speedup_at_equal_throughput"]["120"] == pytest.approx(1.85)
    assert record["throughput_ratio_at_slo"]["130"] is None
    assert "mtp1 never reaches 130" in record["reasons"]["130"][0]
    assert set(record["reasons"]) == {"130"}


def test_a_candidate_that_cannot_hold_the_slo_says_so() -> None:
    lines = {
        "base": frontier("base", rows((80, 1000), (120, 500))),
        "slow": frontier("slow", rows((10, 900), (70, 600))),
    }
    (record,) = comparison(lines, baseline="base", slos=[80.0])
    assert record["throughput_ratio_at_slo"] == {"80": None}
    assert record["speedup_at_equal_throughput"] == {"80": None}
    vertical, horizontal = record["reasons"]["80"]
    assert "slow never reaches 80 tok/s/user" in vertical
    assert "slow never reaches 1,000 tok/s/GPU" in horizontal


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 1000), st.integers(1, 100_000)),
        min_size=1,
        max_size=30,
        unique=True,
    ),
    st.floats(0, 1),
)
def test_both_cuts_agree_and_no_point_beats_the_line(
    points: list[tuple[int, int]], share: float
) -> None:
    line = frontier("a", rows(*points))
    assert (np.diff(line.speed_P) > 0).all()
    assert (np.diff(line.throughput_P) < 0).all()
    for x, y in points:
        assert any(x <= a and y <= b for a, b in zip(line.speed_P, line.throughput_P, strict=True))
    speed = float(line.speed_P[0] + share * (line.speed_P[-1] - line.speed_P[0]))
    down = line.throughput_at(min(speed, float(line.speed_P[-1])))
    assert down.value is not None
    back = line.speed_at(down.value)
    assert back.value == pytest.approx(speed, rel=1e-6)
