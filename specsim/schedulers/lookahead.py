"""Causal lookahead: walks past a riser when the expected continuation pays. Our own rule.

Algorithm 1 stops at the first draft that does not raise theta, and so parks on the first shelf of a
staircase table. Looking at the survivals behind the riser would let it see whether the next shelf
pays, but those read the very tokens that are up for admission, and that biases the output. This
rule asks instead what they are *expected* to be, given what it may know: the confidences of past
steps say how a block that has come this far with this confidence goes on, on average over the token
that is not verified yet. It walks on if the best theta that it expects ahead beats the present one,
and what it has walked over stays admitted, whatever the next confidence turns out to be.

Lossless without lag: every decision reads the survivals of admitted drafts, those of the next draft
of each request (functions of admitted drafts), and the past. Proven by enumeration, jointly over
requests (`tests/lossless/test_policies.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray
from pydantic import Field

from specsim.registry import Config
from specsim.schedulers.base import BatchView, FloatArray, IntArray, Reads

_BINS = 16
_STEPS = 256
"""Expected survivals are rounded to so many steps, so that counting sorts them."""


@njit(cache=True, nogil=True)
def walk(
    survival_RG: Any,
    order_C: Any,
    bin_RG: Any,
    ahead_VG: Any,
    base_tokens: int,
    verify_s_B: Any,
    fixed_s: float,
) -> Any:
    """Return the admitted prefix lengths, int64 `[R]`.

    Args:
        survival_RG: live survivals.
        order_C: their flat indices (row-major) by (-survival, position, request).
        bin_RG: bin of each live confidence.
        ahead_VG: expected survival of the n-th draft after one whose confidence lies in bin v,
            given that this one survives; column 0 is 1.
        base_tokens: B with nothing admitted.
        verify_s_B: seconds by tokens.
        fixed_s: seconds that no plan can trim.
    """
    num_requests, gamma = survival_RG.shape
    count = len(order_C)
    verify_len_R = np.zeros(num_requests, dtype=np.int64)
    counted = np.zeros(_STEPS + 1, dtype=np.int64)
    expected = float(num_requests)
    theta = expected / (verify_s_B[base_tokens] + fixed_s)
    for admitted in range(count):
        row = order_C[admitted] // gamma
        survival = survival_RG[row, order_C[admitted] % gamma]
        if survival <= 0.0:
            break
        after = (expected + survival) / (verify_s_B[base_tokens + admitted + 1] + fixed_s)
        if not after > theta:
            # What is known now: the next draft of each request, and what follows on average.
            counted[:] = 0
            for r in range(num_requests):
                here = verify_len_R[r]
                for n in range(gamma - here):
                    ahead = survival_RG[r, here] * ahead_VG[bin_RG[r, here], n]
                    counted[int(ahead * _STEPS + 0.5)] += 1
            total, n, pays = expected, 0, False
            for step in range(_STEPS, 0, -1):
                for _ in range(counted[step]):
                    n += 1
                    total += step / _STEPS
                    if total / (verify_s_B[base_tokens + admitted + n] + fixed_s) > theta:
                        pays = True
                        break
                if pays:
                    break
            if not pays:
                break
        verify_len_R[row] += 1
        expected += survival
        theta = after
    return verify_len_R


def walk_twin(
    survival_RG: FloatArray,
    bin_RG: IntArray,
    ahead_VG: FloatArray,
    base_tokens: int,
    verify_s_B: NDArray[np.float64],
    fixed_s: float,
) -> IntArray:
    """Return what `walk` returns, from frontiers instead of a sorted list, in plain numpy."""
    num_requests, gamma = survival_RG.shape
    lengths = np.zeros(num_requests, dtype=np.int64)
    expected = float(num_requests)
    while True:
        admitted = int(lengths.sum())
        theta = expected / (verify_s_B[base_tokens + admitted] + fixed_s)
        frontier = [
            (-float(survival_RG[r, k]), k, r) for r, k in enumerate(lengths.tolist()) if k < gamma
        ]
        if not frontier or min(frontier)[0] >= 0:
            return lengths
        known = [
            float(survival_RG[r, k]) * ahead_VG[bin_RG[r, k], : gamma - k] for _, k, r in frontier
        ]
        steps = np.sort((np.concatenate(known) * _STEPS + 0.5).astype(np.int64))[::-1]
        ahead = steps[steps > 0] / _STEPS
        seconds = verify_s_B[base_tokens + admitted + 1 :][: len(ahead)] + fixed_s
        minus_survival, _, row = min(frontier)
        after_s = verify_s_B[base_tokens + admitted + 1] + fixed_s
        rises = (expected - minus_survival) / after_s > theta
        if not rises and not (np.cumsum(np.r_[expected, ahead])[1:] / seconds > theta).any():
            return lengths
        lengths[row] += 1
        expected -= minus_survival


@njit(cache=True, nogil=True)
def learn(confidence_RG: Any, bin_RG: Any, memory: float, sum_VG: Any, weight_VG: Any) -> None:
    """Add one past step: how blocks went on after a draft in each bin; fades what was before."""
    sum_VG *= memory
    weight_VG *= memory
    num_requests, gamma = confidence_RG.shape
    for r in range(num_requests):
        for k in range(gamma):
            v = bin_RG[r, k]
            product = 1.0
            for n in range(1, gamma - k):
                product *= confidence_RG[r, k + n]
                sum_VG[v, n] += product
                weight_VG[v, n] += 1.0


@dataclass(slots=True)
class Lookahead:
    """See the module. `prior` blocks that keep their confidence stand in for a missing past."""

    prior: float
    memory: float
    reads: frozenset[Reads] = frozenset({"live"})
    lag: int = 0
    lossless: bool = True
    _sum_VG: NDArray[np.float64] | None = field(default=None)
    _weight_VG: NDArray[np.float64] | None = field(default=None)

    def plan(self, view: BatchView) -> IntArray:
        """Return the admitted prefix lengths, then take note of this step's confidences."""
        if self._sum_VG is None or self._weight_VG is None:
            self._sum_VG = np.zeros((_BINS, view.gamma))
            self._weight_VG = np.zeros((_BINS, view.gamma))
        confidence_RG = view.confidence_RG
        bin_RG = np.minimum((confidence_RG * _BINS).astype(np.int64), _BINS - 1)
        ahead_VG = expected_ahead(self._sum_VG, self._weight_VG, self.prior)
        verify_len_R: IntArray = walk(
            view.survival_RG,
            in_order(view.survival_RG),
            bin_RG,
            ahead_VG,
            view.base_tokens,
            view.verify_s_B,
            view.fixed_s,
        )
        # Only now: this step's confidences must not move this step's plan.
        learn(confidence_RG, bin_RG, self.memory, self._sum_VG, self._weight_VG)
        return verify_len_R


def in_order(survival_RG: FloatArray) -> IntArray:
    """Return flat row-major indices by (-survival, position, request), int64 `[R gamma]`."""
    num_requests, gamma = survival_RG.shape
    by_position = np.argsort(-survival_RG.T.ravel(), kind="stable")
    order_C: IntArray = by_position % num_requests * gamma + by_position // num_requests
    return order_C


def expected_ahead(
    sum_VG: NDArray[np.float64], weight_VG: NDArray[np.float64], prior: float
) -> NDArray[np.float64]:
    """Return ahead_VG: what was seen, shrunk to blocks that keep the confidence of their bin."""
    middle_V = (np.arange(_BINS) + 0.5) / _BINS
    kept_VG = middle_V[:, None] ** np.arange(sum_VG.shape[1])
    ahead_VG: NDArray[np.float64] = (sum_VG + prior * kept_VG) / (weight_VG + prior)
    ahead_VG[:, 0] = 1.0
    return ahead_VG


class LookaheadConfig(Config):
    """Ours: Algorithm 1 that crosses a riser if what it expects behind pays; lossless, no lag."""

    kind: Literal["lookahead"]
    prior: float = Field(default=8.0, gt=0, le=1e6, description="Weight of the prior, blocks.")
    memory: float = Field(default=0.99, ge=0, le=1, description="Weight of what was seen before.")

    def build(self) -> Lookahead:
        """Make the scheduler."""
        return Lookahead(self.prior, self.memory)
