"""Global argmax for the budget, top-K for who gets it, and where each reads its survivals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from specsim.registry import Config
from specsim.schedulers.base import BatchView, IntArray, Reads
from specsim.schedulers.kernels import NO_PATIENCE_LIMIT, Rule, RuleKind, allocate, budget


@dataclass(frozen=True, slots=True)
class AsyncTopK:
    """K from survivals `lag` steps old, filled by the live top-K (DSpark's deployed scheduler).

    theta uses the present R and table, so load changes are felt at once; only confidences are old.
    Lossless for lag >= 1 given the tie order of `kernels.allocate`.
    """

    lag: int
    reads: frozenset[Reads] = frozenset({"live", "lagged"})
    lossless: bool = True

    def plan(self, view: BatchView) -> IntArray:
        """Return the admitted prefix lengths."""
        return allocate(view.survival_RG, budget(view.lagged_survival_RG, view))

    def rule(self) -> Rule:
        """Return this plan as a rule."""
        return Rule(RuleKind.WALK, lag=self.lag, patience=NO_PATIENCE_LIMIT)


@dataclass(frozen=True, slots=True)
class Stale:
    """K and the lengths both from one snapshot `lag` steps old (vLLM's first form)."""

    lag: int
    reads: frozenset[Reads] = frozenset({"lagged"})
    lossless: bool = True

    def plan(self, view: BatchView) -> IntArray:
        """Return the admitted prefix lengths."""
        lagged_RG = view.lagged_survival_RG
        return allocate(lagged_RG, budget(lagged_RG, view))


@dataclass(frozen=True, slots=True)
class GlobalSearch:
    """The argmax over live survivals: retrospective, so it biases the output (Appendix A)."""

    reads: frozenset[Reads] = frozenset({"live"})
    lag: int = 0
    lossless: bool = False

    def plan(self, view: BatchView) -> IntArray:
        """Return the admitted prefix lengths."""
        return allocate(view.survival_RG, budget(view.survival_RG, view))

    def rule(self) -> Rule:
        """Return this plan as a rule."""
        return Rule(RuleKind.WALK, patience=NO_PATIENCE_LIMIT)


class AsyncTopKConfig(Config):
    """DSpark's asynchronous top-K (paper section 4; SGLang lag 2, vLLM lag 1)."""

    kind: Literal["async_topk"]
    lag: int = Field(default=2, ge=1, le=64, description="age of the confidences behind K, steps")

    def build(self) -> AsyncTopK:
        """Make the scheduler."""
        return AsyncTopK(self.lag)


class StaleConfig(Config):
    """Budget and split from one old snapshot (vLLM pull request 47808, first version)."""

    kind: Literal["stale"]
    lag: int = Field(default=1, ge=1, le=64, description="age of the snapshot, steps")

    def build(self) -> Stale:
        """Make the scheduler."""
        return Stale(self.lag)


class GlobalConfig(Config):
    """Retrospective search over live survivals; needs `unsafe: true`."""

    kind: Literal["global"]

    def build(self) -> GlobalSearch:
        """Make the scheduler."""
        return GlobalSearch()
