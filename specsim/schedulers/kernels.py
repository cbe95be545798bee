"""The two questions every budget scheduler asks: how many drafts to verify, and which ones.

*How many* (capacity): walk the survivals from the largest down; after K of them the plan promises
`theta(K) = (R + sum of the first K) / (verify_s(base_tokens + K) + fixed_s)` tokens per second.
*Which* (allocation): the K candidates first by (-survival, position, request). Survivals do not
rise along a request, so this order always admits prefixes, and with equal survivals an earlier
position never gives way to a later one (otherwise the asynchronous scheduler leaks).

Each kernel has a plain numpy twin, `*_twin`, which tests compare to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numba import njit
from numpy.typing import NDArray

from specsim.schedulers.base import BatchView, FloatArray, IntArray


class RuleKind(IntEnum):
    """The plans that the compiled loop knows (`engine.fused_loop`)."""

    FIXED = 0  # k drafts of everyone
    THRESHOLD = 1  # drafts before the first that scores below the threshold
    WALK = 2  # K by `walk`, filled by `admit`


@dataclass(frozen=True, slots=True)
class Rule:
    """A plan in numbers, for the compiled loop.

    Attributes:
        kind: which.
        k: drafts of a fixed plan.
        threshold: of a threshold.
        conditional: whether a threshold looks at confidences instead of survivals.
        lag: age of the survivals that a walk looks at, steps.
        patience: of a walk.
    """

    kind: RuleKind
    k: int = 0
    threshold: float = 0.0
    conditional: bool = False
    lag: int = 0
    patience: int = 0


@runtime_checkable
class Fusible(Protocol):
    """A scheduler whose `plan` is one of the rules."""

    def rule(self) -> Rule:
        """Return the rule that `plan` follows, to the bit."""
        ...


NO_PATIENCE_LIMIT = np.iinfo(np.int64).max
"""Patience that never runs out: the walk sees every candidate, which is the global argmax."""


def ascending(survival_RG: FloatArray) -> FloatArray:
    """Return all survivals in rising order, `[R * gamma]` (largest last)."""
    ascending_C = survival_RG.flatten()
    ascending_C.sort()
    return ascending_C


DIGITS = 3 << 10
"""Length of the scratch that `sort_survivals` counts digits in."""

_FEW = 48


@njit(cache=True, nogil=True)
def sort_survivals(key_X: Any, num_keys: int, out_X: Any, scratch_X: Any, digit_W: Any) -> None:
    """Sort float32 survivals by their bits, which order as they do.

    A radix sort, least digit first: the bits of 1.0 are 0x3f800000, three digits of ten bits.

    Args:
        key_X: the bits of survivals in [0, 1], uint32 `[>= num_keys]`; not written to.
        num_keys: how many.
        out_X: gets them in rising order, uint32 `[>= num_keys]`.
        scratch_X: uint32 `[>= num_keys]`.
        digit_W: uint32 `[DIGITS]`.
    """
    if num_keys <= _FEW:
        for i in range(num_keys):
            key = key_X[i]
            at = i
            while at > 0 and out_X[at - 1] > key:
                out_X[at] = out_X[at - 1]
                at -= 1
            out_X[at] = key
        return
    # Unsigned indices spare numba its check for negative ones.
    one, ten, twenty, mask = np.uint32(1), np.uint64(10), np.uint64(20), np.uint64(1023)
    low_W, middle_W, high_W = digit_W[:1024], digit_W[1024:2048], digit_W[2048:3072]
    digit_W[:3072] = 0
    for i in range(num_keys):
        bits = np.uint64(key_X[i])
        low_W[bits & mask] += one
        middle_W[(bits >> ten) & mask] += one
        high_W[(bits >> twenty) & mask] += one
    low = middle = high = np.uint32(0)
    for digit in range(np.uint64(1024)):
        here = low_W[digit]
        low_W[digit] = low
        low += here
        here = middle_W[digit]
        middle_W[digit] = middle
        middle += here
        here = high_W[digit]
        high_W[digit] = high
        high += here
    for i in range(num_keys):
        key = key_X[i]
        w = np.uint64(key) & mask
        out_X[np.uint64(low_W[w])] = key
        low_W[w] += one
    for i in range(num_keys):
        key = out_X[i]
        w = (np.uint64(key) >> ten) & mask
        scratch_X[np.uint64(middle_W[w])] = key
        middle_W[w] += one
    for i in range(num_keys):
        key = scratch_X[i]
        w = (np.uint64(key) >> twenty) & mask
        out_X[np.uint64(high_W[w])] = key
        high_W[w] += one


@njit(cache=True, nogil=True, error_model="numpy")
def walk(
    ascending_C: Any,
    num_sorted: int,
    gone_X: Any,
    num_certain: int,
    num_requests: int,
    base_tokens: int,
    verify_s_B: Any,
    fixed_s: float,
    patience: int,
) -> int:
    """Return the K of `capacity` over a sorted list that has changed since it was sorted.

    Args:
        ascending_C: survivals in rising order, `[>= num_sorted]`.
        num_sorted: how many of them.
        gone_X: those of them that are crossed out, in rising order.
        num_certain: candidates of survival 1 that have come since.
        num_requests, base_tokens, verify_s_B, fixed_s, patience: see `capacity`.
    """
    expected = float(num_requests)
    best_theta = expected / (verify_s_B[base_tokens] + fixed_s)
    best_k = 0
    waited = 0
    at = num_sorted - 1
    out = len(gone_X) - 1
    for k in range(1, num_certain + num_sorted - len(gone_X) + 1):
        if k <= num_certain:
            survival = 1.0
        else:
            while out >= 0 and gone_X[out] == ascending_C[np.uint64(at)]:
                out -= 1
                at -= 1
            survival = float(ascending_C[np.uint64(at)])
            at -= 1
        if survival <= 0.0:
            break
        expected += survival
        theta = expected / (verify_s_B[np.uint64(base_tokens + k)] + fixed_s)
        if theta > best_theta:
            best_theta = theta
            best_k = k
            waited = 0
        else:
            waited += 1
            if waited > patience:
                break
    return best_k


def capacity(
    ascending_C: FloatArray,
    num_requests: int,
    base_tokens: int,
    verify_s_B: NDArray[np.float64],
    fixed_s: float,
    patience: int,
) -> int:
    """Return K, the number of candidates whose theta is best among those that the walk sees.

    The walk goes from the largest survival down and gives up after `patience + 1` candidates in a
    row that do not strictly raise the best theta: patience 0 is Algorithm 1's early stop,
    `NO_PATIENCE_LIMIT` the global argmax (first maximum). Candidates of survival 0 end it.

    Args:
        ascending_C: survivals in rising order, `[C]`.
        num_requests: R, one certain token each.
        base_tokens: B of the forward at K = 0.
        verify_s_B: seconds of a forward by tokens, at least `base_tokens + C + 1` long.
        fixed_s: seconds of the step that do not depend on K.
        patience: non-rising candidates to look past, at least 0.
    """
    none_X = ascending_C[:0]
    count = len(ascending_C)
    k: int = walk(
        ascending_C,
        count,
        none_X,
        0,
        num_requests,
        base_tokens,
        verify_s_B,
        fixed_s,
        patience,
    )
    return k


def budget(survival_RG: FloatArray, view: BatchView, *, patience: int = NO_PATIENCE_LIMIT) -> int:
    """Return the K of `capacity` for this step, over survivals that may be live or old.

    Args:
        survival_RG: the survivals to walk, `[R, gamma]`.
        view: R, the table and the fixed seconds are the present ones.
        patience: see `capacity`; without end if left out.
    """
    return capacity(
        ascending(survival_RG),
        view.num_requests,
        view.base_tokens,
        view.verify_s_B,
        view.fixed_s,
        patience,
    )


def capacity_twin(
    ascending_C: FloatArray,
    num_requests: int,
    base_tokens: int,
    verify_s_B: NDArray[np.float64],
    fixed_s: float,
    patience: int,
) -> int:
    """Return what `capacity` returns, in plain numpy."""
    descending_C = ascending_C[::-1].astype(np.float64)
    descending_C = descending_C[descending_C > 0]
    steps = np.concatenate([[float(num_requests)], descending_C])
    seconds = verify_s_B[base_tokens : base_tokens + len(steps)] + fixed_s
    theta = np.cumsum(steps) / seconds
    best_k = 0
    for k in range(1, len(theta)):
        if theta[k] > theta[best_k]:
            best_k = k
        elif k - best_k > patience:
            break
    return best_k


@njit(cache=True, nogil=True)
def admit(
    survival_X: Any,
    num_requests: int,
    gamma: int,
    least: float,
    num_admitted: int,
    verify_len_R: Any,
) -> None:
    """Fill `verify_len_R` for the first `num_admitted` by (-survival, position, request).

    Args:
        survival_X: survivals that rank the candidates, row by row, `[R * gamma]`.
        num_requests, gamma: R, and drafts a request.
        least: the K-th largest of them; candidates of survival 0 are never admitted.
        num_admitted: K, in 1..R * gamma.
        verify_len_R: the plan, int64 `[>= R]`.
    """
    left = num_admitted
    for row in range(num_requests):
        # Without a branch: where a prefix ends is what a processor cannot foresee.
        length = 0
        going = 1
        for k in range(gamma):
            survival = survival_X[row * gamma + k]
            going &= survival > least
            length += going
        verify_len_R[row] = length
        left -= length
    if least <= 0.0:
        return
    for k in range(gamma):
        for row in range(num_requests):
            if left == 0:
                return
            if survival_X[row * gamma + k] == least:
                verify_len_R[row] += 1
                left -= 1


def allocate(survival_RG: FloatArray, num_admitted: int) -> IntArray:
    """Return verify_len_R for the `num_admitted` first by (-survival, position, request).

    Args:
        survival_RG: survivals that rank the candidates, `[R, gamma]`.
        num_admitted: K; clipped to the candidates with a survival above 0.
    """
    num_requests, gamma = survival_RG.shape
    total = num_requests * gamma
    num_admitted = min(num_admitted, total)
    if num_admitted <= 0:
        return np.zeros(num_requests, dtype=np.int64)
    survival_X = survival_RG.ravel()
    least = np.partition(survival_X, total - num_admitted)[total - num_admitted]
    verify_len_R = np.empty(num_requests, dtype=np.int64)
    admit(survival_X, num_requests, gamma, least, num_admitted, verify_len_R)
    return verify_len_R


def allocate_twin(survival_RG: FloatArray, num_admitted: int) -> IntArray:
    """Return what `allocate` returns, by sorting every candidate under its full key."""
    num_requests, gamma = survival_RG.shape
    order = sorted(
        (-float(survival_RG[row, k]), k, row)
        for row in range(num_requests)
        for k in range(gamma)
        if survival_RG[row, k] > 0
    )
    verify_len_R = np.zeros(num_requests, dtype=np.int64)
    for _, _, row in order[: max(num_admitted, 0)]:
        verify_len_R[row] += 1
    return verify_len_R
