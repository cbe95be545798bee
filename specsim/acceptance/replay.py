"""A recorded trace as an acceptance source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import Field

from specsim.acceptance.tilt import TiltConfig, tilt
from specsim.acceptance.trace import DenseTrace, load_trace
from specsim.registry import Config
from specsim.rng import stream


class TraceConfig(Config):
    """Blocks recorded from a real drafter and target."""

    kind: Literal["trace"]
    trace: str = Field(
        min_length=1, description="A shipped trace by name, or a path beside the scenario."
    )
    tilt: TiltConfig | None = Field(
        default=None,
        description="Move the trace to another acceptance level; labelled in every output.",
    )

    def build(self, *, seed: int, gamma: int, locate: Callable[[str, str], Path]) -> DenseTrace:
        """Load the trace, and tilt it if asked to.

        Args:
            seed: the scenario's seed; only a tilt draws from it.
            gamma: unused; the trace is cut to it later.
            locate: finds `("traces", name)`.

        Raises:
            InputError: the file is missing or wrong, or the level cannot be reached.
        """
        trace = load_trace(locate("traces", self.trace))
        if self.tilt is None:
            return trace
        return tilt(trace, self.tilt.levels(trace.gamma), rng=stream(seed, "acceptance/tilt"))
