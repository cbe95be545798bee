"""When requests come: users who wait for their answer, a stream of some law, or all at once.

Open kinds have `times(seed)`, the arrival times of one run. Means and rates are over the whole
cluster. Renewal kinds start in their stationary state (see `processes`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from specsim.registry import Config
from specsim.rng import stream
from specsim.workload.feed import Arrival, LengthPairs
from specsim.workload.processes import (
    Constant,
    Diurnal,
    Family,
    Ramp,
    on_off_times,
    renewal_times,
    unit_gaps,
)
from specsim.workload.replay import ReplayConfig
from specsim.workload.servegen import ServeGenConfig
from specsim.workload.sessions import sessions

LEAST_PER_S, MOST_PER_S = 1e-9, 1e6
"""Bounds of all rates: beyond them, gaps no longer add up in a run's clock."""


class ClosedLoopConfig(Config):
    """A fixed number of users a rank, each with one request at a time.

    How many is the question's `concurrency`.
    """

    kind: Literal["closed_loop"]
    think_time_s: float = Field(
        default=0.0,
        ge=0,
        le=1e9,
        description="Seconds between the end of a user's answer and the next request.",
    )


class PoissonConfig(Config):
    """Requests that come independently of each other, to the cluster as a whole."""

    kind: Literal["poisson"]
    rate_per_s: float = Field(
        ge=LEAST_PER_S, le=MOST_PER_S, description="Mean requests a second over the whole cluster."
    )


class BatchConfig(Config):
    """All requests at time 0, none afterwards: an offline batch."""

    kind: Literal["batch"]
    num_requests: int = Field(ge=1, le=10_000_000, description="Requests over the whole cluster.")


class RenewalConfig(Config):
    """Gaps of a gamma or Weibull law by their coefficient of variation: smooth or bursty."""

    kind: Literal["renewal"]
    rate_per_s: float = Field(
        ge=LEAST_PER_S, le=MOST_PER_S, description="Mean requests a second over the whole cluster."
    )
    family: Family = Field(description="Law of the gaps.")
    cv: float = Field(
        ge=0.05, le=20, description="Standard deviation over mean of the gaps; 1 is Poisson."
    )

    def times(self, seed: int) -> Iterator[float]:
        """Yield the arrival times, seconds, without end."""
        gaps = unit_gaps(self.family, self.cv)
        return renewal_times(gaps, Constant(self.rate_per_s), stream(seed, "arrivals"))


class OnOffConfig(Config):
    """Poisson bursts: a busy and a quiet rate that take turns, each for an exponential time."""

    kind: Literal["on_off"]
    on_per_s: float = Field(
        ge=LEAST_PER_S, le=MOST_PER_S, description="Requests a second while busy."
    )
    off_per_s: float = Field(
        default=0.0, ge=0, le=MOST_PER_S, description="Requests a second while quiet."
    )
    mean_on_s: float = Field(gt=0, le=1e9, description="Mean length of a busy period.")
    mean_off_s: float = Field(gt=0, le=1e9, description="Mean length of a quiet period.")

    def times(self, seed: int) -> Iterator[float]:
        """Yield the arrival times, seconds, without end."""
        return on_off_times(
            on_per_s=self.on_per_s,
            off_per_s=self.off_per_s,
            mean_on_s=self.mean_on_s,
            mean_off_s=self.mean_off_s,
            rng=stream(seed, "arrivals"),
        )


class DiurnalConfig(Config):
    """A day: the rate swings around its mean as a cosine."""

    kind: Literal["diurnal"]
    mean_per_s: float = Field(ge=LEAST_PER_S, le=MOST_PER_S, description="Mean requests a second.")
    amplitude: float = Field(
        ge=0, le=1, description="Swing over mean; at 1 nobody comes in the trough."
    )
    period_s: float = Field(default=86_400.0, gt=0, le=1e9, description="Length of a day.")
    peak_s: float = Field(default=0.0, ge=0, le=1e9, description="When the rate is highest.")
    cv: float = Field(default=1.0, ge=0.05, le=20, description="Of the gaps, as in renewal.")

    def times(self, seed: int) -> Iterator[float]:
        """Yield the arrival times, seconds, without end."""
        clock = Diurnal(self.mean_per_s, self.amplitude, self.period_s, self.peak_s)
        return renewal_times(unit_gaps("gamma", self.cv), clock, stream(seed, "arrivals"))


class RampConfig(Config):
    """A rate that rises or falls linearly, and stays where it ends."""

    kind: Literal["ramp"]
    from_per_s: float = Field(ge=0, le=MOST_PER_S, description="Requests a second at the start.")
    to_per_s: float = Field(
        ge=LEAST_PER_S, le=MOST_PER_S, description="Requests a second at the end, and from then on."
    )
    over_s: float = Field(gt=0, le=1e9, description="How long the change takes.")
    cv: float = Field(default=1.0, ge=0.05, le=20, description="Of the gaps, as in renewal.")

    def times(self, seed: int) -> Iterator[float]:
        """Yield the arrival times, seconds, without end."""
        clock = Ramp(self.from_per_s, self.to_per_s, self.over_s)
        return renewal_times(unit_gaps("gamma", self.cv), clock, stream(seed, "arrivals"))


class SessionsConfig(Config):
    """Conversations that start as a Poisson stream; each turn carries the context before it.

    The workload's prompt lengths are what each turn adds.
    """

    kind: Literal["sessions"]
    sessions_per_s: float = Field(
        ge=LEAST_PER_S, le=MOST_PER_S, description="Mean sessions a second that start."
    )
    mean_turns: float = Field(ge=1, le=10_000, description="Mean turns of a session (geometric).")
    mean_think_s: float = Field(
        ge=0, le=1e6, description="Mean seconds between an answer and the next turn (exponential)."
    )
    max_context_tokens: int = Field(
        ge=1, le=10_000_000, description="A session ends before the turn that would pass this."
    )

    def arrivals(self, seed: int, lengths: LengthPairs) -> Iterator[Arrival]:
        """Yield the first turn of each session, without end."""
        clock = Constant(self.sessions_per_s)
        starts_s = renewal_times(unit_gaps("gamma", 1.0), clock, stream(seed, "arrivals"))
        return sessions(
            starts_s,
            lengths,
            mean_turns=self.mean_turns,
            mean_think_s=self.mean_think_s,
            max_context_tokens=self.max_context_tokens,
            seed=seed,
        )


TIMED: tuple[type[Config], ...] = (RenewalConfig, OnOffConfig, DiurnalConfig, RampConfig)
"""Open kinds that have `times`."""

RECORDED: tuple[type[Config], ...] = (ReplayConfig, ServeGenConfig)
"""Kinds whose requests bring their own lengths."""

CONFIGS: tuple[type[Config], ...] = (
    ClosedLoopConfig,
    PoissonConfig,
    BatchConfig,
    *TIMED,
    SessionsConfig,
    *RECORDED,
)
