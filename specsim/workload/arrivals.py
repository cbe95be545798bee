"""When requests come: users who wait for their answer, a Poisson stream, or all at once."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specsim.registry import Config


class ClosedLoopConfig(Config):
    """A fixed number of users a rank, each with one request at a time.

    How many is the question's `concurrency`.
    """

    kind: Literal["closed_loop"]
    think_time_s: float = Field(
        default=0.0,
        ge=0,
        description="Seconds between the end of a user's answer and the next request.",
    )


class PoissonConfig(Config):
    """Requests that come independently of each other, to the cluster as a whole."""

    kind: Literal["poisson"]
    rate_per_s: float = Field(gt=0, description="Mean requests a second over the whole cluster.")


class BatchConfig(Config):
    """All requests at time 0, none afterwards: an offline batch."""

    kind: Literal["batch"]
    num_requests: int = Field(ge=1, le=10_000_000, description="Requests over the whole cluster.")


CONFIGS: tuple[type[Config], ...] = (ClosedLoopConfig, PoissonConfig, BatchConfig)
