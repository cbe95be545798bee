"""The two questions every budget scheduler asks: how many drafts to verify, and which ones.

*How many* (capacity): walk the survivals from the largest down; after K of them the plan promises
`theta(K) = (R + sum of the first K) / (verify_s(base_tokens + K) + fixed_s)` tokens per second.
*Which* (allocation): the K candidates first by (-survival, position, request). Survivals do not
rise along a request, so this order always admits prefixes, and with equal survivals an earlier
position never gives way to a later one (otherwise the asynchronous scheduler leaks).

Each kernel has a plain numpy twin, `*_twin`, which tests compare to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from specsim.schedulers.base import FloatArray, IntArray

NO_PATIENCE_LIMIT = np.iinfo(np.int64).max
"""Patience that never runs out: the walk sees every candidate, which is the global argmax."""


def ascending(survival_RG: FloatArray) -> FloatArray:
    """Return all survivals in rising order, `[R * gamma]` (largest last)."""
    return np.sort(survival_RG, axis=None)


@njit(cache=True, nogil=True)
def capacity(
    ascending_C: Any,
    num_requests: int,
    base_tokens: int,
    verify_s_B: Any,
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
    expected = float(num_requests)
    best_theta = expected / (verify_s_B[base_tokens] + fixed_s)
    best_k = 0
    waited = 0
    for k in range(1, len(ascending_C) + 1):
        survival = float(ascending_C[len(ascending_C) - k])
        if survival <= 0.0:
            break
        expected += survival
        theta = expected / (verify_s_B[base_tokens + k] + fixed_s)
        if theta > best_theta:
            best_theta = theta
            best_k = k
            waited = 0
        else:
            waited += 1
            if waited > patience:
                break
    return best_k


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
def _admit(survival_RG: Any, least: float, num_admitted: int) -> Any:
    """Admit all candidates above `least`, then those equal to it by (position, request)."""
    num_requests, gamma = survival_RG.shape
    verify_len_R = np.zeros(num_requests, dtype=np.int64)
    left = num_admitted
    for row in range(num_requests):
        for k in range(gamma):
            if not survival_RG[row, k] > least:
                break
            verify_len_R[row] += 1
            left -= 1
    for k in range(gamma):
        if left == 0:
            break
        for row in range(num_requests):
            if survival_RG[row, k] == least:
                verify_len_R[row] += 1
                left -= 1
                if left == 0:
                    break
    return verify_len_R


def allocate(survival_RG: FloatArray, ascending_C: FloatArray, num_admitted: int) -> IntArray:
    """Return verify_len_R for the `num_admitted` first by (-survival, position, request).

    Args:
        survival_RG: survivals that rank the candidates, `[R, gamma]`.
        ascending_C: the same, sorted by `ascending`.
        num_admitted: K; clipped to the candidates with a survival above 0.
    """
    positive = len(ascending_C) - int(np.searchsorted(ascending_C, 0.0, side="right"))
    num_admitted = min(num_admitted, positive)
    if num_admitted <= 0:
        return np.zeros(len(survival_RG), dtype=np.int64)
    least = ascending_C[len(ascending_C) - num_admitted]
    verify_len_R: IntArray = _admit(survival_RG, least, num_admitted)
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
