"""The lockstep equaliser: one budget for all ranks of a group. Our own rule.

Ranks in lockstep wait for the slowest, so a token costs time only where it makes its rank the
slowest. The group's promise is

    Theta(K_1 .. K_D) = sum over ranks (R_d + S_d(K_d)) / max over ranks T_d(K_d),

with S_d(K) the sum of rank d's K largest survivals and T_d(K) its step time. For a given longest
step tau each rank may as well verify all that fits, so only the values of T need to be tried: one
sweep over their sorted union finds the best tau exactly, and the budgets with it. Equal step times
for all is what this comes to.

Lossless if the budgets are taken from survivals at least one step old, of every rank, and each rank
gives its budget to its live top-K: K is then settled by the past. Ranks are requests apart, so the
proof for `async_topk` is the proof for this (`tests/lossless/test_policies.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specsim.schedulers.base import FloatArray, IntArray
from specsim.schedulers.kernels import allocate


def group_budgets(
    ascending_D: Sequence[FloatArray],
    *,
    num_requests_D: Sequence[int],
    base_tokens_D: Sequence[int],
    verify_s_B: NDArray[np.float64],
    fixed_s_D: Sequence[float],
) -> IntArray:
    """Return K_D, the drafts each rank verifies, int64 `[D]`; of equal promises the shortest step.

    Args:
        ascending_D: survivals of each rank in rising order, `[C_d]`; empty for an idle rank.
        num_requests_D: R of each rank, 0 for an idle one.
        base_tokens_D: B of each rank's forward with nothing admitted (1 for a dummy row).
        verify_s_B: seconds of a forward by tokens.
        fixed_s_D: seconds of each rank's step that no plan can trim.
    """
    if not ascending_D:
        return np.zeros(0, dtype=np.int64)
    times: list[NDArray[np.float64]] = []
    gains: list[NDArray[np.float64]] = []
    for ascending_C, base, fixed_s in zip(ascending_D, base_tokens_D, fixed_s_D, strict=True):
        descending_C = ascending_C[::-1].astype(np.float64)
        descending_C = descending_C[descending_C > 0]
        seconds = verify_s_B[base : base + len(descending_C) + 1] + fixed_s
        # Where a longer forward is quicker, whoever may do the shorter may do the longer.
        times.append(np.minimum.accumulate(seconds[::-1])[::-1])
        gains.append(np.concatenate([[0.0], descending_C]))
    rank_E = np.repeat(np.arange(len(times)), [len(t) for t in times])
    time_E = np.concatenate(times)
    order_E = np.argsort(time_E, kind="stable")
    time_E, rank_E = time_E[order_E], rank_E[order_E]
    expected_E = float(sum(num_requests_D)) + np.cumsum(np.concatenate(gains)[order_E])
    # A step cannot be shorter than the slowest rank's shortest; ties in time belong together.
    shortest_s = max(float(t[0]) for t in times)
    last_E = np.append(time_E[1:] > time_E[:-1], True) & (time_E >= shortest_s)
    theta_E = np.where(last_E, expected_E / time_E, -1.0)
    best = int(np.argmax(theta_E))
    taken_D = np.bincount(rank_E[: best + 1], minlength=len(times))
    return (taken_D - 1).astype(np.int64)


def allocate_group(
    ascending_D: Sequence[FloatArray],
    live_DRG: Sequence[FloatArray],
    *,
    base_tokens_D: Sequence[int],
    verify_s_B: NDArray[np.float64],
    fixed_s_D: Sequence[float],
) -> list[IntArray]:
    """Return each rank's verify_len_R: the group's budgets, given to the live top-K of each rank.

    Args:
        ascending_D: *lagged* survivals of each rank in rising order, which decide the budgets.
        live_DRG: live survivals of each rank, `[R_d, gamma]`, which decide who gets them.
        base_tokens_D: B of each rank's forward with nothing admitted (1 for a dummy row).
        verify_s_B: seconds of a forward by tokens.
        fixed_s_D: seconds of each rank's step that no plan can trim.
    """
    budget_D = group_budgets(
        ascending_D,
        num_requests_D=[len(live_RG) for live_RG in live_DRG],
        base_tokens_D=base_tokens_D,
        verify_s_B=verify_s_B,
        fixed_s_D=fixed_s_D,
    )
    return [
        allocate(live_RG, int(budget)) for live_RG, budget in zip(live_DRG, budget_D, strict=True)
    ]


def group_theta(
    budget_D: Sequence[int],
    ascending_D: Sequence[FloatArray],
    *,
    num_requests_D: Sequence[int],
    base_tokens_D: Sequence[int],
    verify_s_B: NDArray[np.float64],
    fixed_s_D: Sequence[float],
) -> float:
    """Return what a group's budgets promise, tokens per second."""
    tokens = float(sum(num_requests_D))
    longest_s = 0.0
    for k, ascending_C, base, fixed_s in zip(
        budget_D, ascending_D, base_tokens_D, fixed_s_D, strict=True
    ):
        tokens += float(ascending_C[len(ascending_C) - k :].sum(dtype=np.float64))
        longest_s = max(longest_s, float(verify_s_B[base + k]) + fixed_s)
    return tokens / longest_s
