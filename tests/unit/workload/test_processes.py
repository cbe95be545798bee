"""Arrival processes against their laws: counts, gaps, rates."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest

from specsim.rng import stream
from specsim.workload.arrivals import (
    DiurnalConfig,
    OnOffConfig,
    RampConfig,
    RenewalConfig,
    SessionsConfig,
)
from specsim.workload.feed import independent_lengths
from specsim.workload.lengths import FixedLengthConfig
from specsim.workload.processes import Constant, Diurnal, Ramp, renewal_times, unit_gaps


def until(times: Iterator[float], end_s: float) -> np.ndarray:
    found = []
    for t in times:
        if t >= end_s:
            return np.array(found)
        found.append(t)
    raise AssertionError("the stream ended")


@pytest.mark.parametrize("family", ["gamma", "weibull"])
@pytest.mark.parametrize("cv", [0.2, 1.0, 3.0])
def test_gaps_have_their_mean_and_cv(family, cv) -> None:
    gaps = unit_gaps(family, cv)
    assert gaps.cv == pytest.approx(cv, rel=1e-9)
    drawn = gaps.sample(stream(1, "x"), 400_000)
    assert drawn.mean() == pytest.approx(1, abs=5 * cv / 632)
    assert drawn.std() / drawn.mean() == pytest.approx(cv, rel=0.04)


@pytest.mark.parametrize("family", ["gamma", "weibull"])
@pytest.mark.parametrize("cv", [0.2, 3.0])
def test_a_stationary_start_counts_without_bias(family, cv) -> None:
    """E N(t) = rate t for every t; started by a whole gap it is (cv^2 - 1) / 2 more."""
    gaps = unit_gaps(family, cv)
    counts = [
        len(until(renewal_times(gaps, Constant(2.0), stream(i, "c")), 3.0)) for i in range(1200)
    ]
    error = np.std(counts) / np.sqrt(1200)
    assert abs(np.mean(counts) - 6.0) < 4 * error


@pytest.mark.parametrize(
    "clock",
    [
        Constant(3.0),
        Diurnal(2.0, 1.0, 50.0, 10.0),
        Diurnal(5.0, 0.3, 86_400.0, 0.0),
        Ramp(0.0, 4.0, 30.0),
        Ramp(6.0, 1.0, 30.0),
        Ramp(2.0, 2.0, 30.0),
    ],
)
def test_clocks_invert_the_integral_of_their_rate(clock) -> None:
    u = np.linspace(0.01, 150, 500)
    t = clock.real_s(u)
    assert (np.diff(t) > 0).all()
    if isinstance(clock, Ramp):
        grid = np.linspace(0, t[-1], 200_001)
        share = np.minimum(grid / clock.over_s, 1)
        rate = clock.from_per_s + (clock.to_per_s - clock.from_per_s) * share
    elif isinstance(clock, Diurnal):
        grid = np.linspace(0, t[-1], 200_001)
        angle = 2 * np.pi * (grid - clock.peak_s) / clock.period_s
        rate = clock.mean_per_s * (1 + clock.amplitude * np.cos(angle))
    else:
        grid = np.linspace(0, t[-1], 200_001)
        rate = np.full_like(grid, clock.rate_per_s)
    steps = np.diff(grid) * (rate[1:] + rate[:-1]) / 2
    integral = np.concatenate([[0], np.cumsum(steps)])
    np.testing.assert_allclose(np.interp(t, grid, integral), u, rtol=1e-3, atol=1e-3)


def test_a_day_peaks_when_it_should() -> None:
    config = DiurnalConfig(kind="diurnal", mean_per_s=2, amplitude=0.9, period_s=1000, peak_s=250)
    t = until(config.times(3), 20_000) % 1000
    busy, quiet = ((t > 150) & (t < 350)).sum(), ((t > 650) & (t < 850)).sum()
    expected = [200 / 1000 * (1 + s * 0.9 * np.sin(0.2 * np.pi) / (0.2 * np.pi)) for s in (1, -1)]
    assert busy / len(t) == pytest.approx(expected[0], abs=0.01)
    assert quiet / len(t) == pytest.approx(expected[1], abs=0.01)


def test_a_ramp_counts_its_triangle() -> None:
    config = RampConfig(kind="ramp", from_per_s=0, to_per_s=10, over_s=1000)
    t = until(config.times(5), 2000)
    assert abs((t < 1000).sum() - 5000) < 4 * 71
    assert abs((t >= 1000).sum() - 10_000) < 400


def test_bursts_have_their_rates_and_are_bursty() -> None:
    config = OnOffConfig(kind="on_off", on_per_s=20, off_per_s=1, mean_on_s=10, mean_off_s=30)
    t = until(config.times(2), 40_000)
    assert len(t) / 40_000 == pytest.approx(20 * 0.25 + 1 * 0.75, rel=0.06)
    counts = np.histogram(t, bins=8000, range=(0, 40_000))[0]
    assert counts.var() / counts.mean() > 10  # a Poisson stream has 1
    assert (np.diff(t) >= 0).all()


def test_the_same_seed_is_the_same_stream() -> None:
    config = RenewalConfig(kind="renewal", rate_per_s=1, family="weibull", cv=2)
    one, two, other = (list(islice(config.times(s), 5000)) for s in (1, 1, 2))
    assert one == two != other


def test_a_session_carries_its_context() -> None:
    config = SessionsConfig(
        kind="sessions",
        sessions_per_s=1.0,
        mean_turns=4.0,
        mean_think_s=10.0,
        max_context_tokens=150,
    )
    law = FixedLengthConfig(kind="fixed", tokens=10)
    answer = FixedLengthConfig(kind="fixed", tokens=20)
    lengths = independent_lengths(law, answer, seed=1)
    firsts = list(islice(config.arrivals(1, lengths), 4000))
    assert [a.session for a in firsts[:3]] == [0, 1, 2]
    turns = np.array([1 + len(a.then) for a in firsts])
    # Geometric with mean 4, cut at 5 turns of 30 tokens.
    assert turns.max() == 5
    expected = sum(0.75**k for k in range(5))
    assert turns.mean() == pytest.approx(expected, abs=4 * turns.std() / np.sqrt(4000))
    longest = firsts[int(turns.argmax())]
    turn, context = longest, 0
    for number in range(5):
        assert turn.turn == number
        assert turn.context_tokens == context
        assert turn.prompt_tokens == context + 10
        context = turn.prompt_tokens + turn.output_tokens
        following = turn.follow_up(100.0)
        if following is None:
            break
        assert following.at_s == 100.0 + turn.then[0].think_s
        assert following.session == longest.session
        turn = following
    assert context == 150
    thinks = [t.think_s for a in firsts for t in a.then]
    assert np.mean(thinks) == pytest.approx(10, rel=0.06)
