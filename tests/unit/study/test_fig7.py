"""Figure 7's lines, the step table behind them, and the scores of a frontier against them."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import pytest

from specsim.cost.table import check_table, load_table
from specsim.errors import InputError
from specsim.study import fig7

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "profiles" / "published"
ENGINES: tuple[fig7.Engine, ...] = ("V4-Flash", "V4-Pro")


@pytest.mark.parametrize(
    ("engine", "slo", "ratio", "speedup"),
    [
        ("V4-Flash", 80, 1.51, 1.60),
        ("V4-Flash", 120, 7.6, 1.85),
        ("V4-Pro", 35, 1.52, 1.57),
        ("V4-Pro", 50, 5.06, 1.78),
    ],
)
def test_the_published_lines_give_the_published_answers(
    engine: fig7.Engine, slo: float, ratio: float, speedup: float
) -> None:
    mtp = fig7.published_line(engine, "MTP-1", folder=FOLDER)
    dspark = fig7.published_line(engine, "DSpark-5", folder=FOLDER)
    assert fig7.throughput_ratio(dspark, mtp, slo) == pytest.approx(ratio, rel=0.005)
    assert fig7.equal_throughput_speedup(dspark, mtp, slo) == pytest.approx(speedup, rel=0.005)


def test_a_straight_piece_of_the_figure_is_straight() -> None:
    line = fig7.make_line(np.array([50.0, 200.0]), np.array([150.0, 80.0]))
    for requests in (60.0, 100.0, 150.0):
        speed = float(line.user_speed_at(requests))
        share = (speed - 80) / (150 - 80)
        assert requests * speed == pytest.approx(200 * 80 + share * (50 * 150 - 200 * 80))
        assert line.throughput_at_speed(speed) == pytest.approx(requests * speed)
        assert line.speed_at_throughput(requests * speed) == pytest.approx(speed)


def test_what_a_line_does_not_reach_is_nan() -> None:
    line = fig7.make_line(np.array([200.0, 50.0]), np.array([80.0, 150.0]))
    assert line.num_requests_N.tolist() == [50, 200]
    assert np.isnan(line.user_speed_at(np.array([49.0, 201.0]))).all()
    assert np.isnan(line.throughput_at_speed(79))
    assert np.isnan(line.speed_at_throughput(20_000))
    assert np.isnan(line.speed_at_throughput(7_000))


def test_of_a_line_that_turns_back_the_lighter_load_counts() -> None:
    line = fig7.make_line(np.array([10.0, 20.0, 40.0]), np.array([100.0, 100.0, 40.0]))
    assert line.speed_at_throughput(1_800) == pytest.approx(100)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_step_table_gives_back_the_mtp_line(engine: fig7.Engine) -> None:
    table = fig7.mtp_step_table(engine, 0.8, folder=FOLDER, day=date(2026, 11, 29))
    check_table(table)
    mtp = fig7.published_line(engine, "MTP-1", folder=FOLDER)
    last = table.last_tokens
    assert last == int(2 * mtp.num_requests_N[-1])
    step_s_B = table.dense("linear", 2 * last)
    requests_N = np.arange(np.ceil(mtp.num_requests_N[0]), last // 2 + 1)
    speed_N = 1.8 / step_s_B[(2 * requests_N).astype(int)]
    assert speed_N == pytest.approx(mtp.user_speed_at(requests_N), rel=0.003)
    assert (np.diff(step_s_B[1:]) > 0).all()
    # The longest piece of the line goes on past its end, at the same slope.
    slope = (step_s_B[last] - step_s_B[last - 200]) / 200
    assert step_s_B[2 * last] == pytest.approx(step_s_B[last] + slope * last, rel=0.01)
    assert table.includes == {"draft", "attention", "host"}
    assert table.provenance.status == "fitted"


def test_the_points_are_sixty_equally_spaced_in_speed() -> None:
    dspark = fig7.published_line("V4-Flash", "DSpark-5", folder=FOLDER)
    requests_N, speed_N = fig7.speed_points(dspark)
    assert len(speed_N) == 60
    assert np.diff(speed_N) == pytest.approx(np.full(59, (73.8 - 231.0) / 59))
    assert (requests_N[0], requests_N[-1]) == pytest.approx((1211 / 231.0, 16734 / 73.8))


def test_speed_errors_are_rms_logs_apart_by_range() -> None:
    dspark = fig7.published_line("V4-Flash", "DSpark-5", folder=FOLDER)
    own = fig7.speed_error(dspark, dspark)
    assert (own.fitted, own.predicted, own.whole) == pytest.approx((0, 0, 0), abs=1e-12)
    grid_N = np.linspace(5, 227, 223)
    slow_N = dspark.user_speed_at(np.clip(grid_N, 5.2425, 226.747)) * np.where(
        grid_N > 100, 0.9, 1.0
    )
    error = fig7.speed_error(fig7.make_line(grid_N, slow_N), dspark)
    assert error.fitted < 0.005
    assert error.predicted == pytest.approx(-np.log(0.9), rel=0.02)
    assert error.fitted < error.whole < error.predicted
    short = fig7.make_line(grid_N[10:], slow_N[10:])
    assert np.isnan(fig7.speed_error(short, dspark).whole)


def test_budget_errors_are_the_largest_apart_by_range() -> None:
    published = fig7.published_budget("V4-Flash", folder=FOLDER)
    requests_N, budget_N = published
    off_N = budget_N + np.where(requests_N > 100, -0.4, 0.1)
    error = fig7.budget_error(requests_N, off_N, published)
    assert (error.fitted, error.predicted, error.whole) == pytest.approx((0.1, 0.4, 0.4))
    assert np.isnan(fig7.budget_error(requests_N[2:], off_N[2:], published).fitted)


@pytest.mark.parametrize(("engine", "low", "high"), [("V4-Flash", 0.0, 0.07), ("V4-Pro", 0.1, 0.2)])
def test_figure_8_is_not_figure_7(engine: fig7.Engine, low: float, high: float) -> None:
    least, most = fig7.figure8_gap(engine, "DSpark-5", folder=FOLDER)
    assert low < abs(np.mean([least, most])) < high


def test_missing_numbers_and_senseless_lines_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="published numbers are missing"):
        fig7.published_line("V4-Flash", "MTP-1", folder=tmp_path)
    with pytest.raises(InputError, match="two points"):
        fig7.make_line(np.array([1.0]), np.array([2.0]))
    with pytest.raises(InputError, match="above 0"):
        fig7.make_line(np.array([0.0, 1.0]), np.array([2.0, 1.0]))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_shipped_table_is_the_one_that_the_fit_gives(engine: fig7.Engine) -> None:
    import json

    name = engine.lower().replace("-", "_")
    fitted = json.loads((ROOT / "profiles" / "fits" / f"{name}_fig7.json").read_text())
    shipped = load_table(ROOT / "profiles" / "steps" / name / "fig7_mtp1.json")
    again = fig7.mtp_step_table(
        engine, fitted["numbers"]["p1"], folder=FOLDER, day=date(2026, 11, 29)
    )
    assert shipped.verify.probes_N.tolist() == again.verify.probes_N.tolist()
    assert shipped.verify.seconds_N == pytest.approx(again.verify.seconds_N, rel=1e-9)
