"""What a run writes down: one row a step, one row a request, in columns."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Columns = dict[str, NDArray[Any]]
"""Columns of equal length by name."""


class Status(IntEnum):
    """Where a request stands: the ledger's `status` column.

    Every submitted request is in exactly one of these at every instant. Waiting counts queues,
    transfers and requests that were preempted; running counts prefill too.
    """

    WAITING = 0
    RUNNING = 1
    FINISHED = 2
    CANCELLED = 3
    TIMED_OUT = 4
    FAILED = 5


_STEP_TIMES = ("end_s", "duration_s", "own_s")
_STEP_COUNTS = (
    "rank",
    "num_requests",
    "verified",
    "accepted",
    "emitted",
    "waiting",
    "kv_tokens",
    "ceiling",
    "charged",
    "prefill_tokens",
    "trimmed",
    "preempted",
    "kv_blocks",
)


class StepLog:
    """One row for every step of every rank, in the order in which the steps end.

    Columns: `end_s`, `duration_s`, `own_s` (what the step would last without the other ranks of a
    lockstep group), float64; `rank`, `num_requests` (R, 0 for the dummy row of an idle lockstep
    rank and for steps of prefill alone), `verified` (draft tokens), `accepted` (draft tokens),
    `emitted` (output tokens), `waiting` (requests in the rank's queue when the step ended),
    `kv_tokens` (of decoding requests, resident after the step), `ceiling` (drafts that would have
    been accepted had all been verified), `charged` (tokens of the forward as priced, padding and
    prefill included), `prefill_tokens` (prompt tokens in the forward), `trimmed` (planned drafts
    that the step's token budget cut), `preempted` (requests put back before the step),
    `kv_blocks` (held after the step by running requests and the prefix cache; 0 without a KV
    limit); int64.
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
        own_s: float | None = None,
        ceiling: int = 0,
        charged: int = 0,
        prefill_tokens: int = 0,
        trimmed: int = 0,
        preempted: int = 0,
        kv_blocks: int = 0,
    ) -> None:
        """Append one step; left out, `own_s` is `duration_s` and counts are 0."""
        at = self._length
        if at == len(self._times):
            self._times = np.concatenate([self._times, np.empty_like(self._times)])
            self._counts = np.concatenate([self._counts, np.empty_like(self._counts)])
        self._times[at] = (end_s, duration_s, duration_s if own_s is None else own_s)
        self._counts[at] = (
            rank,
            num_requests,
            verified,
            accepted,
            emitted,
            waiting,
            kv_tokens,
            ceiling,
            charged,
            prefill_tokens,
            trimmed,
            preempted,
            kv_blocks,
        )
        self._length = at + 1
        self.emitted += emitted

    def columns(self) -> Columns:
        """Return the rows so far as columns."""
        times, counts = self._times[: self._length], self._counts[: self._length]
        columns: Columns = {name: times[:, i].copy() for i, name in enumerate(_STEP_TIMES)}
        columns |= {name: counts[:, i].copy() for i, name in enumerate(_STEP_COUNTS)}
        return columns
