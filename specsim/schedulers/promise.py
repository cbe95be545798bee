"""What a plan promises: theta over budgets, uniform lengths, and other readings of the table."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specsim.schedulers.base import BatchView, FloatArray

Read = Literal["floor", "linear", "ceil"]


def theta_by_budget(view: BatchView, survival_RG: FloatArray) -> NDArray[np.float64]:
    """Return theta for K = 0, 1, .. R gamma drafts, best first: `[R gamma + 1]`, tokens a second.

    Args:
        view: the step; its R, table and fixed time.
        survival_RG: the survivals that promise, `[R, gamma]`.
    """
    descending_C = np.sort(survival_RG, axis=None)[::-1].astype(np.float64)
    expected = np.cumsum(np.concatenate([[float(view.num_requests)], descending_C]))
    seconds = view.verify_s_B[view.base_tokens : view.base_tokens + len(expected)] + view.fixed_s
    theta: NDArray[np.float64] = expected / seconds
    return theta


def theta_by_length(view: BatchView, survival_RG: FloatArray) -> NDArray[np.float64]:
    """Return theta if every request verifies L = 0, 1, .. gamma drafts: `[gamma + 1]`."""
    column_G = survival_RG.sum(axis=0, dtype=np.float64)
    expected = np.cumsum(np.concatenate([[float(view.num_requests)], column_G]))
    batch = view.base_tokens + view.num_requests * np.arange(view.gamma + 1)
    theta: NDArray[np.float64] = expected / (view.verify_s_B[batch] + view.fixed_s)
    return theta


def reread(
    verify_s_B: NDArray[np.float64],
    first: int,
    count: int,
    probe_tokens: tuple[int, ...],
    read: Read,
) -> NDArray[np.float64]:
    """Return the table at B = first, .. first + count - 1 as a planner reads its own few probes.

    Before the first probe the first is read; past the last one, the table itself.

    Args:
        verify_s_B: the table as the machine has it.
        first: first B wanted.
        count: how many.
        probe_tokens: B of the probes, strictly increasing; empty reads the table itself.
        read: at or below, linear between, or at or above.
    """
    wanted = verify_s_B[first : first + count]
    probes = np.array([p for p in probe_tokens if p < len(verify_s_B)], dtype=np.int64)
    if len(probes) == 0:
        return wanted
    batch = np.arange(first, first + count)
    last = len(probes) - 1
    above = np.searchsorted(probes, batch, side="left").clip(0, last)
    below = (np.searchsorted(probes, batch, side="right") - 1).clip(0, last)
    if read == "linear":
        found = np.interp(batch, probes, verify_s_B[probes])
    else:
        found = verify_s_B[probes[below if read == "floor" else above]]
    return np.where(batch > probes[-1], wanted, found)
