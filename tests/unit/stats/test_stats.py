"""Warm-up and intervals against what they must do on laws that are known."""

from __future__ import annotations

import numpy as np
import pytest

from specsim.stats.intervals import mean_interval, ratio_interval
from specsim.stats.warmup import mser5


def _ar1(rng: np.random.Generator, count: int, rho: float) -> np.ndarray:
    noise = rng.normal(size=count)
    out = np.empty(count)
    last = noise[0] / np.sqrt(1 - rho**2)
    for i in range(count):
        last = rho * last + noise[i]
        out[i] = last
    return out


def test_the_warmup_is_cut_and_a_stationary_start_mostly_kept() -> None:
    rng = np.random.default_rng(0)
    cuts, kept = [], []
    for _ in range(40):
        steady = _ar1(rng, 600, 0.5)
        kept.append(mser5(steady))
        start = steady + 8 * np.exp(-np.arange(600) / 40)
        cuts.append(mser5(start))
    assert 60 < np.median(cuts) < 250
    assert np.median(kept) < 60


@pytest.mark.parametrize("count", [0, 1, 19])
def test_a_short_series_is_kept_whole(count: int) -> None:
    assert mser5(np.arange(float(count))) == 0


def test_at_most_half_is_cut() -> None:
    assert mser5(np.arange(100.0)) <= 50


def test_batch_means_cover_where_the_naive_interval_does_not() -> None:
    rng = np.random.default_rng(1)
    covered = naive = 0
    trials = 200
    for _ in range(trials):
        x = _ar1(rng, 2000, 0.8) + 3.0
        covered += ratio_interval(x, np.ones(2000)).covers(3.0)
        naive += mean_interval(x).covers(3.0)
    assert covered / trials > 0.88
    assert naive / trials < 0.7  # a test that could not tell them apart would prove nothing


def test_a_ratio_is_of_sums_not_a_mean_of_ratios() -> None:
    top, bottom = np.array([1.0, 9.0]), np.array([1.0, 3.0])
    assert ratio_interval(top, bottom, batches=2).mean == pytest.approx(2.5)
    assert np.isnan(ratio_interval(np.zeros(0), np.zeros(0)).mean)
    assert np.isnan(mean_interval(np.array([1.0])).half_width)


def test_the_t_interval_has_its_coverage() -> None:
    rng = np.random.default_rng(2)
    hits = sum(mean_interval(rng.normal(size=5), level=0.9).covers(0.0) for _ in range(1000))
    assert 0.87 < hits / 1000 < 0.93
