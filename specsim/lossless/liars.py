"""Schedulers that exist to be judged: planted leaks, and rules as engines and papers publish them.

None is on offer to scenarios. Each says what it is and what the lab must find; those with a `lag`
leak on live survivals (lag 0) and are exact on lagged ones. On pre-token confidences unless said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specsim.schedulers.base import BatchView, FloatArray, IntArray, Reads
from specsim.schedulers.kernels import allocate

LIVE: frozenset[Reads] = frozenset({"live"})
LIVE_LAGGED: frozenset[Reads] = frozenset({"live", "lagged"})


def _source(view: BatchView, lag: int) -> FloatArray:
    return view.lagged_survival_RG if lag else view.survival_RG


def _top(view: BatchView, k: int) -> IntArray:
    """Return the live top-K in the safe order."""
    return allocate(view.survival_RG, k)


def _theta(view: BatchView, survival_RG: FloatArray) -> NDArray[np.float64]:
    """Return theta for K = 0, 1, .. R gamma of the given survivals."""
    promised = view.num_requests + np.cumsum(np.sort(survival_RG, axis=None)[::-1])
    expected = np.concatenate([[float(view.num_requests)], promised])
    seconds = view.verify_s_B[view.base_tokens : view.base_tokens + len(expected)] + view.fixed_s
    theta: NDArray[np.float64] = expected / seconds
    return theta


class _ByLag:
    """Ranks by live survivals and chooses a budget on `lag` steps old ones: exact with a lag."""

    __slots__ = ()
    lag: int

    @property
    def reads(self) -> frozenset[Reads]:
        """Live, and lagged with a lag."""
        return LIVE_LAGGED if self.lag else LIVE

    @property
    def lossless(self) -> bool:
        """Only on lagged survivals."""
        return self.lag > 0


@dataclass(frozen=True, slots=True)
class FixedTopK:
    """The live top-K for a constant K: exact. On post-token scores it is TETRIS and leaks (R > 1).

    AdaSpec's verifier, read as "rank the sampled tokens by the drafter's confidence under a token
    budget", is the same rule.
    """

    k: int = 1
    reads: frozenset[Reads] = LIVE
    lag: int = 0
    lossless: bool = True

    def plan(self, view: BatchView) -> IntArray:
        """Return the admitted prefix lengths."""
        return _top(view, self.k)


@dataclass(frozen=True, slots=True)
class TieLast:
    """The live top-K with equal survivals ordered by *later* position first: leaks on ties."""

    k: int = 1
    reads: frozenset[Reads] = LIVE
    lag: int = 0
    lossless: bool = False

    def plan(self, view: BatchView) -> IntArray:
        """Return, for each request, the furthest position among the K chosen candidates."""
        survival_RG = view.survival_RG
        order = sorted(
            (-float(survival_RG[row, k]), -k, row)
            for row in range(view.num_requests)
            for k in range(view.gamma)
        )
        verify_len_R = np.zeros(view.num_requests, dtype=np.int64)
        for _, minus_k, row in order[: self.k]:
            verify_len_R[row] = max(int(verify_len_R[row]), 1 - minus_k)
        return verify_len_R


@dataclass(frozen=True, slots=True)
class ThresholdKeep:
    """Stop after the first draft below the threshold and keep that draft: exact even post-token."""

    threshold: float = 0.5
    reads: frozenset[Reads] = LIVE
    lag: int = 0
    lossless: bool = True

    def plan(self, view: BatchView) -> IntArray:
        """Return the prefix up to and with the triggering draft."""
        sure_RG = np.logical_and.accumulate(view.confidence_RG >= self.threshold, axis=1)
        verify_len_R: IntArray = np.minimum(sure_RG.sum(axis=1, dtype=np.int64) + 1, view.gamma)
        return verify_len_R


@dataclass(frozen=True, slots=True)
class MinimumGain(_ByLag):
    """Trim to the argmax only if it promises `gain` more than verifying everything."""

    gain: float = 0.04
    lag: int = 0

    def plan(self, view: BatchView) -> IntArray:
        """Return the admitted prefix lengths."""
        theta = _theta(view, _source(view, self.lag))
        best = int(np.argmax(theta))
        worth = theta[best] > (1 + self.gain) * theta[-1]
        return _top(view, best if worth else len(theta) - 1)


@dataclass(frozen=True, slots=True)
class TierAware(_ByLag):
    """Choose the best of the captured graph tiers (drafts in all), larger on ties."""

    tiers: tuple[int, ...] = (0, 2, 4, 8)
    lag: int = 0

    def plan(self, view: BatchView) -> IntArray:
        """Return the admitted prefix lengths."""
        theta = _theta(view, _source(view, self.lag))
        legal = [tier for tier in self.tiers if tier < len(theta)]
        best = max(legal, key=lambda tier: (float(theta[tier]), tier))
        return _top(view, best)


@dataclass(slots=True)
class UniformHysteresis:
    """One length for all requests, changed only for a predicted gain above `margin`."""

    margin: float = 0.05
    lag: int = 0
    _length: int | None = field(default=None)

    @property
    def reads(self) -> frozenset[Reads]:
        """Live or lagged."""
        return frozenset({"lagged"}) if self.lag else LIVE

    @property
    def lossless(self) -> bool:
        """Only on lagged survivals."""
        return self.lag > 0

    def plan(self, view: BatchView) -> IntArray:
        """Return the present uniform length for every request."""
        survival_RG = _source(view, self.lag)
        promised = np.concatenate([[0.0], np.cumsum(survival_RG.sum(axis=0))]) + view.num_requests
        batch = view.base_tokens + view.num_requests * np.arange(view.gamma + 1)
        theta = promised / (view.verify_s_B[batch] + view.fixed_s)
        best = int(np.argmax(theta))
        if self._length is None or theta[best] > (1 + self.margin) * theta[self._length]:
            self._length = best
        return np.full(view.num_requests, self._length, dtype=np.int64)


@dataclass(slots=True)
class SmoothedBudget:
    """K is a moving average of the batch's total survival; `first` counts the present step too."""

    first: bool = True
    reads: frozenset[Reads] = LIVE
    lag: int = 0
    _mean: float = field(default=1.0)

    @property
    def lossless(self) -> bool:
        """Only if the present step is averaged in after planning."""
        return not self.first

    def plan(self, view: BatchView) -> IntArray:
        """Return the live top-K for the smoothed K."""
        before = self._mean
        self._mean = 0.5 * self._mean + 0.5 * float(view.survival_RG.sum())
        return _top(view, round(self._mean if self.first else before))


@dataclass(frozen=True, slots=True)
class PeekNext:
    """Admit draft k only if the confidence of draft k + 1 (which reads x[k]) is high enough."""

    threshold: float = 0.5
    reads: frozenset[Reads] = LIVE
    lag: int = 0
    lossless: bool = False

    def plan(self, view: BatchView) -> IntArray:
        """Return the prefix whose successors are all sure."""
        sure_RG = view.confidence_RG[:, 1:] >= self.threshold
        verify_len_R: IntArray = np.logical_and.accumulate(sure_RG, axis=1).sum(
            axis=1, dtype=np.int64
        )
        return verify_len_R


@dataclass(frozen=True, slots=True)
class BatchGate:
    """Verify everything if the batch looks sure on average, else nothing."""

    threshold: float = 0.5
    reads: frozenset[Reads] = LIVE
    lag: int = 0
    lossless: bool = False

    def plan(self, view: BatchView) -> IntArray:
        """Return gamma or 0 for all."""
        sure = float(view.survival_RG.mean()) >= self.threshold
        return np.full(view.num_requests, view.gamma if sure else 0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class CrossPeek:
    """Admit a request's drafts iff the *next* request's second confidence is high.

    Each request's own law is exact (its admission ignores its own drafts), yet the two outputs are
    correlated: each reads a draft of the other that may go unverified.
    """

    threshold: float = 0.5
    reads: frozenset[Reads] = LIVE
    lag: int = 0
    lossless: bool = False

    def plan(self, view: BatchView) -> IntArray:
        """Return 1 where the neighbour looks sure; a lone request is verified in full."""
        if view.num_requests == 1 or view.gamma < 2:
            return np.full(view.num_requests, view.gamma, dtype=np.int64)
        sure_R = view.confidence_RG[:, 1] >= self.threshold
        verify_len_R: IntArray = np.roll(sure_R, -1).astype(np.int64)
        return verify_len_R


@dataclass(frozen=True, slots=True)
class DCut:
    """D-Cut's budget: the best of a few shares of the batch by scores that exclude the own token.

    s[k] = product of c[1..k-1], so a draft's own token is not in its own rank even post-token. With
    one bucket the budget is constant; with several the choice reads all live scores.
    """

    buckets: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    reads: frozenset[Reads] = LIVE
    lag: int = 0

    @property
    def lossless(self) -> bool:
        """Only if there is nothing to choose."""
        return len(self.buckets) == 1

    def plan(self, view: BatchView) -> IntArray:
        """Return the top-K of the best bucket."""
        score_RG = np.ones_like(view.survival_RG)
        score_RG[:, 1:] = view.survival_RG[:, :-1]
        ordered = np.sort(score_RG, axis=None)

        def rate(k: int) -> float:
            promised = float(ordered[len(ordered) - k :].sum())
            return promised / float(view.verify_s_B[view.base_tokens + k] + view.fixed_s)

        best = max((math.ceil(share * score_RG.size) for share in self.buckets), key=rate)
        return allocate(score_RG, best)


@dataclass(frozen=True, slots=True)
class SparseGate:
    """ECHO as its abstract describes it: confidence gates at some depths, freed budget moved on.

    A request stops at the first gate that it fails; `keep` decides whether the gated draft stays.
    What it does not use goes to the requests that passed, in row order.
    """

    budget: int = 2
    depths: tuple[int, ...] = (1, 2)
    threshold: float = 0.5
    keep: bool = False
    reads: frozenset[Reads] = LIVE
    lag: int = 0
    lossless: bool = True

    def plan(self, view: BatchView) -> IntArray:
        """Return the gated lengths within the global budget."""
        limit_R = np.full(view.num_requests, view.gamma, dtype=np.int64)
        for depth in sorted(self.depths, reverse=True):
            if depth <= view.gamma:
                failed_R = view.confidence_RG[:, depth - 1] < self.threshold
                limit_R[failed_R] = depth if self.keep else depth - 1
        share = self.budget // view.num_requests
        verify_len_R: IntArray = np.minimum(limit_R, share)
        left = self.budget - int(verify_len_R.sum())
        for row in range(view.num_requests):
            more = min(left, int(limit_R[row] - verify_len_R[row]))
            verify_len_R[row] += more
            left -= more
        return verify_len_R
