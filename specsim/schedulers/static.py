"""Lengths that look at nothing: no speculation, and a fixed number of drafts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from specsim.registry import Config
from specsim.schedulers.base import BatchView, IntArray, Reads
from specsim.schedulers.kernels import Rule, RuleKind


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Verify the first `k` drafts of every request, or all gamma if there are fewer."""

    k: int
    reads: frozenset[Reads] = frozenset()
    lag: int = 0
    lossless: bool = True

    def plan(self, view: BatchView) -> IntArray:
        """Return `min(k, gamma)` for every request."""
        return np.full(view.num_requests, min(self.k, view.gamma), dtype=np.int64)

    def rule(self) -> Rule:
        """Return this plan as a rule."""
        return Rule(RuleKind.FIXED, k=self.k)


class NoneConfig(Config):
    """No speculation: every step is one anchor a request."""

    kind: Literal["none"]

    def build(self) -> FixedLength:
        """Make the scheduler."""
        return FixedLength(0)


class FixedConfig(Config):
    """A static draft length, as every engine offers it."""

    kind: Literal["fixed"]
    k: int = Field(ge=0, description="draft tokens verified a request and step")

    def build(self) -> FixedLength:
        """Make the scheduler."""
        return FixedLength(self.k)
