"""Walks down the survivals with limited patience: Algorithm 1, and its patient variant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from specsim.registry import Config
from specsim.schedulers.base import BatchView, IntArray, Reads
from specsim.schedulers.kernels import Rule, RuleKind, allocate, budget


@dataclass(frozen=True, slots=True)
class Greedy:
    """DSpark Algorithm 1: admit by falling live survival while theta strictly rises.

    Lossless: whether x[r, k] is admitted depends on the survivals that rank before it, which are
    functions of other requests and of x[r, <k]; nothing after the stop is looked at. The price is
    that it parks on the first shelf of a staircase table.
    """

    reads: frozenset[Reads] = frozenset({"live"})
    lag: int = 0
    lossless: bool = True

    def plan(self, view: BatchView) -> IntArray:
        """Return the admitted prefix lengths."""
        return allocate(view.survival_RG, budget(view.survival_RG, view, patience=0))

    def rule(self) -> Rule:
        """Return this plan as a rule."""
        return Rule(RuleKind.WALK)


@dataclass(frozen=True, slots=True)
class PatientGreedy:
    """Look `patience` non-rising candidates past the best theta, then roll back to the best.

    Walks the survivals of `lag` steps ago and admits the live top-K, so that K does not depend on
    live tokens. With lag 0 it reads the live survivals behind the shelf and leaks.
    """

    patience: int
    lag: int
    reads: frozenset[Reads]
    lossless: bool

    def plan(self, view: BatchView) -> IntArray:
        """Return the admitted prefix lengths."""
        source_RG = view.lagged_survival_RG if self.lag else view.survival_RG
        k = budget(source_RG, view, patience=self.patience)
        return allocate(view.survival_RG, k)

    def rule(self) -> Rule:
        """Return this plan as a rule."""
        return Rule(RuleKind.WALK, lag=self.lag, patience=self.patience)


class GreedyConfig(Config):
    """Algorithm 1 of the DSpark paper, strict early stop on live survivals."""

    kind: Literal["greedy"]

    def build(self) -> Greedy:
        """Make the scheduler."""
        return Greedy()


class PatienceConfig(Config):
    """Greedy with patience, on lagged survivals (`lag: 0` is the live form: unsafe)."""

    kind: Literal["patience"]
    patience: int = Field(default=8, ge=1, description="non-rising candidates to look past")
    lag: int = Field(default=2, ge=0, le=64, description="age of the survivals, steps; 0 leaks")

    def build(self) -> PatientGreedy:
        """Make the scheduler."""
        reads: frozenset[Reads] = frozenset({"live", "lagged"} if self.lag else {"live"})
        return PatientGreedy(self.patience, self.lag, reads, lossless=self.lag > 0)
