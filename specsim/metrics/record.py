"""What a run writes down: one row a step, one row a request, in columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Columns = dict[str, NDArray[Any]]
"""Columns of equal length by name."""

_STEP_TIMES = ("end_s", "duration_s")
_STEP_COUNTS = (
    "rank",
    "num_requests",
    "verified",
    "accepted",
    "emitted",
    "waiting",
    "kv_tokens",
)


class StepLog:
    """One row for every step of every rank, in the order in which the steps end.

    Columns: `end_s`, `duration_s` (float64); `rank`, `num_requests` (R), `verified` (draft tokens),
    `accepted` (draft tokens), `emitted` (output tokens), `waiting` (requests in the rank's queue
    when the step ended), `kv_tokens` (resident, after the step); int64.
    """

    def __init__(self) -> None:
        self._times = np.empty((1024, len(_STEP_TIMES)))
        self._counts = np.empty((1024, len(_STEP_COUNTS)), dtype=np.int64)
        self._length = 0
        self.emitted = 0

    def __len__(self) -> int:
        return self._length

    def add(
        self,
        *,
        end_s: float,
        duration_s: float,
        rank: int,
        num_requests: int,
        verified: int,
        accepted: int,
        emitted: int,
        waiting: int,
        kv_tokens: int,
    ) -> None:
        """Append one step."""
        at = self._length
        if at == len(self._times):
            self._times = np.concatenate([self._times, np.empty_like(self._times)])
            self._counts = np.concatenate([self._counts, np.empty_like(self._counts)])
        self._times[at] = (end_s, duration_s)
        self._counts[at] = (rank, num_requests, verified, accepted, emitted, waiting, kv_tokens)
        self._length = at + 1
        self.emitted += emitted

    def columns(self) -> Columns:
        """Return the rows so far as columns."""
        times, counts = self._times[: self._length], self._counts[: self._length]
        columns: Columns = {name: times[:, i].copy() for i, name in enumerate(_STEP_TIMES)}
        columns |= {name: counts[:, i].copy() for i, name in enumerate(_STEP_COUNTS)}
        return columns
