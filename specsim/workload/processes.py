"""Arrival times of renewal processes whose rate may change: unit-mean gaps on a warped clock.

A renewal process with gaps of mean 1 runs on an operational clock u. Arrivals happen at the real
times t with Lambda(t) = u, where Lambda is the integral of the rate. With exponential gaps that is
exactly the Poisson process of that rate; with others the coefficient of variation (CV) of the gaps
holds on the operational clock. The first gap is the stationary residual, so the expected number of
arrivals in [0, t] is exactly Lambda(t), however bursty the gaps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Family = Literal["gamma", "weibull"]
_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class UnitGaps:
    """Gaps of mean 1, gamma or Weibull by shape; shape 1 of either is exponential.

    Attributes:
        family: which of the two.
        shape: its shape parameter, above 0.
    """

    family: Family
    shape: float

    @property
    def cv(self) -> float:
        """Coefficient of variation of the gaps."""
        if self.family == "gamma":
            return 1 / math.sqrt(self.shape)
        return _weibull_cv(self.shape)

    @property
    def _scale(self) -> float:
        if self.family == "gamma":
            return 1 / self.shape
        return math.exp(-_log_gamma(1 + 1 / self.shape))

    def sample(self, rng: np.random.Generator, size: int) -> FloatArray:
        """Return `size` gaps."""
        if self.family == "gamma":
            return rng.gamma(self.shape, self._scale, size)
        return self._scale * rng.weibull(self.shape, size)

    def residual(self, rng: np.random.Generator) -> float:
        """Return the time to the next arrival of a process that has always run.

        It is a uniform share of a length-biased gap; a length-biased gamma has shape + 1, and a
        length-biased Weibull is the 1 / shape-th power of a gamma of shape 1 + 1 / shape.
        """
        if self.family == "gamma":
            biased = rng.gamma(self.shape + 1, self._scale)
        else:
            biased = self._scale * rng.gamma(1 + 1 / self.shape) ** (1 / self.shape)
        return float(rng.random() * biased)


def unit_gaps(family: Family, cv: float) -> UnitGaps:
    """Return the gaps of that family with that coefficient of variation.

    Args:
        family: gamma or weibull.
        cv: standard deviation over mean, 0.05..20.
    """
    from scipy.optimize import brentq  # heavy, and few scenarios need it

    if family == "gamma":
        return UnitGaps("gamma", cv**-2)
    # The CV of a Weibull law falls with its shape: 20 at 0.19, 0.05 at 25.
    found = brentq(lambda shape: _weibull_cv(shape) - cv, 0.12, 60.0, xtol=1e-12)
    return UnitGaps("weibull", float(found))


def _weibull_cv(shape: float) -> float:
    return math.sqrt(math.expm1(_log_gamma(1 + 2 / shape) - 2 * _log_gamma(1 + 1 / shape)))


def operational_times(gaps: UnitGaps, rng: np.random.Generator) -> Iterator[FloatArray]:
    """Yield the times of a stationary unit-rate renewal process from 0, in chunks."""
    last = 0.0
    drawn = gaps.sample(rng, _CHUNK)
    drawn[0] = gaps.residual(rng)
    while True:
        times = last + np.cumsum(drawn)
        yield times
        last = float(times[-1])
        drawn = gaps.sample(rng, _CHUNK)


class Clock(Protocol):
    """The inverse of an integrated rate."""

    def real_s(self, operational: FloatArray) -> FloatArray:
        """Return the real times at which Lambda reaches the given increasing values, seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """The same rate for ever."""

    rate_per_s: float

    def real_s(self, operational: FloatArray) -> FloatArray:
        """Return u / rate."""
        return operational / self.rate_per_s


@dataclass(frozen=True, slots=True)
class Diurnal:
    """rate(t) = mean (1 + amplitude cos(2 pi (t - peak) / period)).

    Attributes:
        mean_per_s: mean rate.
        amplitude: 0..1; 1 stops in the trough.
        period_s: length of a day.
        peak_s: when the rate is highest.
    """

    mean_per_s: float
    amplitude: float
    period_s: float
    peak_s: float

    def integral(self, t_s: FloatArray) -> FloatArray:
        """Return Lambda(t)."""
        turn = 2 * np.pi / self.period_s
        wave = np.sin(turn * (t_s - self.peak_s)) + np.sin(turn * self.peak_s)
        return np.asarray(self.mean_per_s * (t_s + self.amplitude / turn * wave))

    def real_s(self, operational: FloatArray) -> FloatArray:
        """Return the times by bisection: Lambda stays within amplitude / turn of its mean line."""
        reach = 2 * self.amplitude * self.period_s / (2 * np.pi)
        low = np.maximum(operational / self.mean_per_s - reach, 0.0)
        high = operational / self.mean_per_s + reach
        for _ in range(64):
            middle = (low + high) / 2
            early = self.integral(middle) < operational
            low, high = np.where(early, middle, low), np.where(early, high, middle)
        return np.asarray(high)


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that goes linearly from one to another, and stays there.

    Attributes:
        from_per_s: rate at time 0.
        to_per_s: rate from `over_s` on, above 0.
        over_s: how long it takes.
    """

    from_per_s: float
    to_per_s: float
    over_s: float

    def real_s(self, operational: FloatArray) -> FloatArray:
        """Return the times; a quadratic while the rate changes."""
        slope = (self.to_per_s - self.from_per_s) / self.over_s
        area = (self.from_per_s + self.to_per_s) / 2 * self.over_s
        within = np.minimum(operational, area)
        # Written so that a slope of 0 needs no case of its own.
        root = np.sqrt(np.maximum(self.from_per_s**2 + 2 * slope * within, 0.0))
        t_s = 2 * within / (self.from_per_s + root)
        return np.asarray(t_s + (operational - within) / self.to_per_s)


def renewal_times(gaps: UnitGaps, clock: Clock, rng: np.random.Generator) -> Iterator[float]:
    """Yield the arrival times of a renewal process under a clock, seconds, without end."""
    for operational in operational_times(gaps, rng):
        yield from clock.real_s(operational).tolist()


def on_off_times(
    *,
    on_per_s: float,
    off_per_s: float,
    mean_on_s: float,
    mean_off_s: float,
    rng: np.random.Generator,
) -> Iterator[float]:
    """Yield the arrival times of a two-state Markov-modulated Poisson process, without end.

    It starts in a state drawn by the long-run shares of the two.

    Args:
        on_per_s: rate in the busy state.
        off_per_s: rate in the quiet state, may be 0.
        mean_on_s: mean length of a busy period (exponential).
        mean_off_s: mean length of a quiet period (exponential).
        rng: the stream.
    """
    busy = rng.random() * (mean_on_s + mean_off_s) < mean_on_s
    start_s = 0.0
    while True:
        end_s = start_s + rng.exponential(mean_on_s if busy else mean_off_s)
        count = rng.poisson((on_per_s if busy else off_per_s) * (end_s - start_s))
        yield from np.sort(rng.uniform(start_s, end_s, count)).tolist()
        start_s, busy = end_s, not busy


Times = Callable[[np.random.Generator], Iterator[float]]
"""Arrival times from a stream."""


def _log_gamma(x: float) -> float:
    from scipy.special import gammaln  # slow to import, and few scenarios need it

    return float(gammaln(x))
