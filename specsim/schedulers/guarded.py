"""Argmaxes that hold back: a minimum gain, graph tiers, one uniform length, D-Cut's shares.

Each decides *how many* on survivals `lag` steps old and *which* by the live top-K, so it is
lossless for lag >= 1; with lag 0 the decision reads survivals behind the cut and leaks, and the
scheduler says so. Proven and refuted by enumeration (`tests/lossless/test_policies.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from specsim.registry import Config
from specsim.schedulers.base import BatchView, FloatArray, IntArray, Reads
from specsim.schedulers.kernels import allocate, ascending
from specsim.schedulers.promise import theta_by_budget, theta_by_length

_LAG = Field(default=2, ge=0, le=64, description="Age of the survivals, steps; 0 leaks.")


def reads_at(lag: int) -> frozenset[Reads]:
    """Return what a rule reads that decides on old survivals and splits by live ones."""
    return frozenset({"live", "lagged"}) if lag else frozenset({"live"})


def decided_on(view: BatchView, lag: int) -> FloatArray:
    """Return the survivals that decide."""
    return view.lagged_survival_RG if lag else view.survival_RG


def live_top(view: BatchView, num_admitted: int) -> IntArray:
    """Return the live top-K in the safe tie order."""
    return allocate(view.survival_RG, num_admitted)


@dataclass(frozen=True, slots=True)
class MinimumGain:
    """Trims to the argmax only if it promises more than `1 + gain` times verifying everything."""

    gain: float
    lag: int

    @property
    def reads(self) -> frozenset[Reads]:
        """Live, and lagged with a lag."""
        return reads_at(self.lag)

    @property
    def lossless(self) -> bool:
        """Only on lagged survivals."""
        return self.lag > 0

    def plan(self, view: BatchView) -> IntArray:
        """Return the admitted prefix lengths."""
        theta = theta_by_budget(view, decided_on(view, self.lag))
        best = int(np.argmax(theta))
        if theta[best] <= (1 + self.gain) * theta[-1]:
            return np.full(view.num_requests, view.gamma, dtype=np.int64)
        return live_top(view, best)


class MinimumGainConfig(Config):
    """Argmax that trims only for a predicted gain (TensorRT-LLM's guard against noise).

    Source: TensorRT-LLM pull request 17056, `confidence_min_predicted_gain`, 4 percent.
    """

    kind: Literal["min_gain"]
    gain: float = Field(default=0.04, ge=0, le=10, description="Least predicted gain of a trim.")
    lag: int = _LAG

    def build(self) -> MinimumGain:
        """Make the scheduler."""
        return MinimumGain(self.gain, self.lag)


@dataclass(frozen=True, slots=True)
class TierAware:
    """Chooses among the budgets that just fill a graph tier; of equals the larger."""

    tiers: tuple[int, ...]
    lag: int

    @property
    def reads(self) -> frozenset[Reads]:
        """Live, and lagged with a lag."""
        return reads_at(self.lag)

    @property
    def lossless(self) -> bool:
        """Only on lagged survivals."""
        return self.lag > 0

    def plan(self, view: BatchView) -> IntArray:
        """Return the admitted prefix lengths."""
        theta = theta_by_budget(view, decided_on(view, self.lag))
        legal = self._legal(view, len(theta))
        best = int(legal[len(legal) - 1 - np.argmax(theta[legal][::-1])])
        return live_top(view, best)

    def _legal(self, view: BatchView, count: int) -> IntArray:
        """Return the budgets that fill a tier, and always 0 and everything, rising."""
        base = view.base_tokens
        if self.tiers:
            inner = [tier - base for tier in self.tiers if 0 < tier - base < count - 1]
            return np.unique(np.array([0, *inner, count - 1], dtype=np.int64))
        seconds = view.verify_s_B[base : base + count]
        ends = np.flatnonzero(np.diff(seconds) > 0)  # the last token before each riser
        return np.unique(np.concatenate([[0], ends, [count - 1]]).astype(np.int64))


def rising_tokens(tokens: tuple[int, ...]) -> tuple[int, ...]:
    """Return token counts that rise strictly from at least 1; for validators."""
    if list(tokens) != sorted(set(tokens)) or (tokens and tokens[0] < 1):
        raise PydanticCustomError("tokens", "strictly rising token counts from 1 are needed")
    return tokens


class TierAwareConfig(Config):
    """Argmax over the budgets that fill a captured graph, so that no padding is paid for nothing.

    Source: TensorRT-LLM pull request 17056 (captured tiers, ties to the larger) and SGLang's
    `align-verify-tokens-to-graph-tier`.
    """

    kind: Literal["tiers"]
    tiers: tuple[int, ...] = Field(
        default=(),
        max_length=4096,
        description="Tokens of the captured graphs; empty takes the ends of the table's shelves.",
    )
    lag: int = _LAG

    @field_validator("tiers")
    @classmethod
    def _rising(cls, tiers: tuple[int, ...]) -> tuple[int, ...]:
        return rising_tokens(tiers)

    def build(self) -> TierAware:
        """Make the scheduler."""
        return TierAware(self.tiers, self.lag)


@dataclass(slots=True)
class UniformLength:
    """One length for all requests, changed only for a predicted gain above `margin`."""

    margin: float
    lag: int
    _length: int = field(default=-1)

    @property
    def reads(self) -> frozenset[Reads]:
        """Lagged survivals, or live ones without a lag."""
        return frozenset({"lagged"}) if self.lag else frozenset({"live"})

    @property
    def lossless(self) -> bool:
        """Only on lagged survivals."""
        return self.lag > 0

    def plan(self, view: BatchView) -> IntArray:
        """Return the present length for every request."""
        theta = theta_by_length(view, decided_on(view, self.lag))
        best = int(np.argmax(theta))
        if self._length < 0 or theta[best] > (1 + self.margin) * theta[self._length]:
            self._length = best
        return np.full(view.num_requests, self._length, dtype=np.int64)


class UniformConfig(Config):
    """The best uniform length, with hysteresis: for engines that refuse ragged plans.

    Source: a vLLM fork's `dspark/scheduler.py` (5 percent hysteresis).
    """

    kind: Literal["uniform"]
    margin: float = Field(default=0.05, ge=0, le=10, description="Least predicted gain to change.")
    lag: int = _LAG

    def build(self) -> UniformLength:
        """Make the scheduler."""
        return UniformLength(self.margin, self.lag)


@dataclass(frozen=True, slots=True)
class DCut:
    """The best of a few shares of all drafts, by scores that leave out the draft's own token.

    s[r, k] = c[r, 1] .. c[r, k-1]: every first draft scores 1. The share is the one with the best
    sum of scores a second.
    """

    shares: tuple[float, ...]
    lag: int

    @property
    def reads(self) -> frozenset[Reads]:
        """Live, and lagged with a lag."""
        return reads_at(self.lag)

    @property
    def lossless(self) -> bool:
        """With a lag, or if there is only one share to choose from."""
        return self.lag > 0 or len(self.shares) == 1

    def plan(self, view: BatchView) -> IntArray:
        """Return the top-K of the best share."""
        descending_C = ascending(_scores(decided_on(view, self.lag)))[::-1]

        def rate(k: int) -> float:
            seconds = float(view.verify_s_B[view.base_tokens + k]) + view.fixed_s
            return float(descending_C[:k].sum()) / seconds

        # Of equal rates the smallest share: `max` keeps the first.
        best = max((math.ceil(share * len(descending_C)) for share in self.shares), key=rate)
        return allocate(_scores(view.survival_RG), best)


def _scores(survival_RG: FloatArray) -> FloatArray:
    score_RG: NDArray[np.floating] = np.ones_like(survival_RG)
    score_RG[:, 1:] = survival_RG[:, :-1]
    return score_RG


class DCutConfig(Config):
    """D-Cut: verify the best quarter, half, three quarters or all of the drafts.

    Source: AngelSlim's D-Cut, which chooses the share on live scores (`lag: 0`, unsafe; published
    for temperature 0); with a lag it is lossless.
    """

    kind: Literal["dcut"]
    shares: tuple[float, ...] = Field(
        default=(0.25, 0.5, 0.75, 1.0), min_length=1, description="Shares of all drafts, rising."
    )
    lag: int = _LAG

    @field_validator("shares")
    @classmethod
    def _rising(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        if list(shares) != sorted(set(shares)) or shares[0] <= 0 or shares[-1] > 1:
            raise PydanticCustomError("shares", "strictly rising shares above 0, up to 1, needed")
        return shares

    def build(self) -> DCut:
        """Make the scheduler."""
        return DCut(self.shares, self.lag)
