"""Cut each block where the drafter stops being sure (DeepSpec's static threshold)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from specsim.registry import Config
from specsim.schedulers.base import BatchView, IntArray, Reads
from specsim.schedulers.kernels import Rule, RuleKind


@dataclass(frozen=True, slots=True)
class Threshold:
    """Verify the drafts before the first whose confidence or survival is below `threshold`.

    Lossless: whether draft k is cut depends on c[1..k], functions of x[<k] alone.
    """

    threshold: float
    on: Literal["conditional", "cumulative"]
    reads: frozenset[Reads] = frozenset({"live"})
    lag: int = 0
    lossless: bool = True

    def plan(self, view: BatchView) -> IntArray:
        """Return the length of each request's prefix that stays at or above the threshold."""
        score_RG = view.confidence_RG if self.on == "conditional" else view.survival_RG
        keep_RG = (score_RG >= self.threshold) & (view.survival_RG > 0)
        verify_len_R: IntArray = np.logical_and.accumulate(keep_RG, axis=1).sum(
            axis=1, dtype=np.int64
        )
        return verify_len_R

    def rule(self) -> Rule:
        """Return this plan as a rule."""
        return Rule(
            RuleKind.THRESHOLD, threshold=self.threshold, conditional=self.on == "conditional"
        )


class ThresholdConfig(Config):
    """A static confidence threshold (DeepSpec: conditional, `eval.py`; paper Figure 5)."""

    kind: Literal["threshold"]
    threshold: float = Field(ge=0, le=1, description="cut before the first draft below this")
    on: Literal["conditional", "cumulative"] = Field(
        default="conditional", description="compare each confidence, or their running product"
    )

    def build(self) -> Threshold:
        """Make the scheduler."""
        return Threshold(self.threshold, self.on)
