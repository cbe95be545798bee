"""Step costs from telemetry, frontier lines, and the host time of a no-speculation arm."""

from __future__ import annotations

import pytest

from specsim.cost.fit import fit_table
from specsim.cost.table import Provenance, StepTable, curve
from specsim.cost.telemetry import (
    Telemetry,
    fit_host,
    fit_linear,
    frontier_telemetry,
    linear_table,
    telemetry_rows,
)
from specsim.errors import InputError
from specsim.report.steptable import linear_text
from specsim.rng import stream

HERE = Provenance(status="fitted", source="a test", date="2026-11-29", licence="Apache-2.0")


def truth(requests: float, tokens: float, context: float) -> float:
    return 4e-3 + 30e-6 * requests + 12e-6 * tokens + 5e-9 * requests * context


def points(noise: float = 0.0) -> list[Telemetry]:
    rng = stream(3, "telemetry")
    made = []
    for concurrency in (1, 8, 32, 128):
        for width, accepted in ((1, 1.0), (4, 2.6), (8, 3.1)):
            for context in (500, 4000):
                step_s = truth(concurrency, concurrency * width, context)
                step_s *= 1 + noise * float(rng.standard_normal())
                made.append(Telemetry(concurrency, step_s / accepted, accepted, width, context))
    return made


def test_linear_form_is_recovered() -> None:
    found = fit_linear(points())
    assert found.coefficients["bias"] == pytest.approx(4e-3, rel=1e-6)
    assert found.coefficients["per_request"] == pytest.approx(30e-6, rel=1e-5)
    assert found.coefficients["per_token"] == pytest.approx(12e-6, rel=1e-6)
    assert found.coefficients["per_kv_token"] == pytest.approx(5e-9, rel=1e-6)
    assert max(found.leave_one_out) < 1e-6


def test_intervals_hold_the_truth_under_noise() -> None:
    found = fit_linear(points(noise=0.03))
    for name, value in (("bias", 4e-3), ("per_token", 12e-6), ("per_kv_token", 5e-9)):
        low, high = found.intervals[name]
        assert low <= value <= high, name
        assert high - low < value  # narrow enough to mean something
    assert found.leave_one_out[len(found.leave_one_out) // 2] < 0.05
    load = Telemetry(64, 1e-3, 2.0, 6, 2000)
    assert found.step_s(load) == pytest.approx(truth(64, 384, 2000), rel=0.05)


def one_token_loads(context: float = 0.0, width: int = 1) -> list[Telemetry]:
    loads = (1, 4, 8, 16, 32, 64, 128)
    return [
        Telemetry(c, truth(c, c * width, context) / width, width, width, context) for c in loads
    ]


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("context", [0.0, 700.0])
def test_one_width_alone_leaves_the_split_open_and_says_so(width: int, context: float) -> None:
    load = one_token_loads(context, width)
    slope = 30e-6 + 12e-6 * width + 5e-9 * context
    found = fit_linear(load)
    assert found.split is not None
    assert found.split.slope_s == pytest.approx(slope, rel=1e-6)
    assert found.split.interval_s == pytest.approx((slope, slope), rel=1e-3)
    assert found.coefficients["per_request"] == 0  # all on tokens: as dear as they can be
    assert found.coefficients["per_token"] == pytest.approx(slope / width, rel=1e-6)
    assert found.intervals["per_request"] is None
    assert found.intervals["per_token"] is None
    assert found.intervals["per_kv_token"] is None
    assert found.intervals["bias"] is not None
    assert "not identified" in found.beware()
    assert f"every load verified {width} token" in found.beware()
    said = linear_text(found)
    assert said.count("not identified)") == (3 if context else 2)
    assert ("does not vary in the loads" in said) == (context == 0)
    for share in (0.0, 0.25, 1.0):
        told = fit_linear(load, per_request_share=share)
        assert told.coefficients["per_request"] == pytest.approx(share * slope, rel=1e-6)
        assert [told.step_s(p) for p in load] == pytest.approx([p.step_s for p in load], rel=1e-6)
        assert f"{share:.0%} of it is put on requests, as told" in told.beware()
        table = linear_table(told, load, name="t", provenance=HERE)
        assert table.provenance.split_open_at == width
        assert table.provenance.notes == told.beware()
        assert table.includes == {"host"} | ({"draft"} if width > 1 else set()) | (
            {"attention"} if share == 0 else set()
        )


def test_the_share_of_a_split_that_is_known_is_refused() -> None:
    assert fit_linear(points()).beware() == ""
    with pytest.raises(InputError, match="tell requests and tokens apart"):
        fit_linear(points(), per_request_share=0.5)


def test_a_bias_that_the_loads_do_not_show_has_no_interval() -> None:
    """One number of requests: what they cost is part of the bias."""
    load = [Telemetry(16, truth(16, 16 * w, 0), 1.0, w) for w in (1, 2, 4, 8)]
    found = fit_linear(load)
    assert found.open_terms == ("bias", "per_request")
    assert found.split is None
    assert found.intervals["bias"] is None
    assert found.coefficients["per_token"] == pytest.approx(12e-6, rel=1e-6)
    assert "do not tell bias and per_request apart" in found.beware()


def test_coefficients_never_go_below_zero() -> None:
    falling = [Telemetry(c, 1e-3 * (20 - c), 1.0, 1) for c in (1, 2, 4, 8)]
    assert min(fit_linear(falling).coefficients.values()) >= 0


def test_flat_or_too_little_telemetry_is_refused() -> None:
    with pytest.raises(InputError, match="same step time"):
        fit_linear([Telemetry(c, 5e-3, 1.0, 1) for c in (1, 2, 4, 8, 16)])
    with pytest.raises(InputError, match="give at least"):
        fit_linear(points()[:2])


def test_a_frontier_line_gives_back_its_step_times() -> None:
    users = [10.0, 40.0, 100.0]
    step = [truth(r, 2 * r, 0) for r in users]
    speed = [1.8 / s for s in step]
    line = frontier_telemetry(
        speed,
        [r * v for r, v in zip(users, speed, strict=True)],
        acceptance_length=1.8,
        tokens_per_request=2,
    )
    table = fit_table(telemetry_rows(line), name="t", provenance=HERE).table
    assert table.verify.probes_N.tolist() == [20, 80, 200]
    assert table.verify.seconds_N.tolist() == pytest.approx(step)
    assert table.includes == {"attention", "draft", "host"}
    with pytest.raises(InputError, match="2 speeds for 1 throughputs"):
        frontier_telemetry([1, 2], [1], acceptance_length=1.8, tokens_per_request=2)


def test_host_time_is_what_the_table_leaves() -> None:
    table = StepTable("t", HERE, curve([1, 64, 256], [5e-3, 8e-3, 11e-3]))
    verify_s_B = table.dense("ceil", 256)
    arm = [Telemetry(c, verify_s_B[c] + 1.5e-3 + 40e-6 * c, 1.0, 1) for c in (1, 16, 64, 128, 256)]
    found = fit_host(table, arm, read="ceil")
    assert found.base_s == pytest.approx(1.5e-3, rel=1e-6)
    assert found.per_request_s == pytest.approx(40e-6, rel=1e-6)
    assert max(abs(error) for error in found.errors) < 1e-9
    assert found.left_s == pytest.approx([1.5e-3 + 40e-6 * c for c in (1, 16, 64, 128, 256)])
    plain = fit_host(table, arm, read="linear")
    mixed = fit_host(table, arm, read="linear", prefill_tokens_per_step=[0, 4, 16, 32, 64])
    assert mixed.base_s + 256 * mixed.per_request_s < plain.base_s + 256 * plain.per_request_s


def test_host_time_is_not_fitted_on_speculation() -> None:
    table = StepTable("t", HERE, curve([1, 64], [5e-3, 8e-3]))
    with pytest.raises(InputError, match="at concurrency 8 speculates"):
        fit_host(table, [Telemetry(1, 6e-3, 1, 1), Telemetry(8, 3e-3, 2, 4)], read="ceil")
    with pytest.raises(InputError, match="two loads or more"):
        fit_host(table, [Telemetry(1, 6e-3, 1, 1)], read="ceil")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0, 1e-3, 1, 1), "concurrency must be"),
        ((1, float("nan"), 1, 1), "tpot_s must be"),
        ((1, 1e-3, 0.5, 1), "acceptance_length must be .* at least 1"),
        ((1, 1e-3, 3.0, 2), "exceeds the 2 tokens verified"),
    ],
)
def test_senseless_telemetry_is_refused(values: tuple[float, ...], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        Telemetry(*values)


def test_a_fit_is_what_it_says_it_predicts_with() -> None:
    """Requests, tokens and context hang together, but requests and tokens are told apart."""
    loads = [
        Telemetry(c, truth(c, c * width, context) / accepted, accepted, width, context)
        for c in (1, 4, 16, 64)
        for width, accepted, context in ((1, 1.0, 500.0), (4, 2.5, 600.0))
    ]
    found = fit_linear(loads)
    assert found.split is None
    errors = sorted(abs(found.step_s(load) / load.step_s - 1) for load in loads)
    assert errors[-1] < 1e-6
    assert max(found.leave_one_out) < 1e-6
    assert "apart" in found.beware()
    assert "every load verified" not in found.beware()
    with pytest.raises(InputError, match="leave per_request_share out"):
        fit_linear(loads, per_request_share=0.5)


def test_one_concurrency_alone_says_nothing_about_tokens() -> None:
    loads = [
        Telemetry(8, truth(8, 8, context), 1.0, 1.0, context)
        for context in (100.0, 500.0, 1000.0, 3000.0, 5000.0)
    ]
    found = fit_linear(loads)
    assert found.split is None
    assert "all of it is put on tokens" not in found.beware()
    assert "apart" in found.beware()
