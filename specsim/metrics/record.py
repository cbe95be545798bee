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
_EMITTED = _STEP_COUNTS.index("emitted")
_BLOCK_ROWS = 4096


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

    Args:
        keep: False only adds up `emitted`, and has no rows.
    """

    def __init__(self, *, keep: bool = True) -> None:
        self._keep = keep
        self._blocks: list[tuple[NDArray[np.float64], NDArray[np.int64]]] = []
        self._times: list[tuple[float, ...]] = []  # of the rows that are in no block yet
        self._counts: list[tuple[int, ...]] = []
        self.emitted = 0

    def __len__(self) -> int:
        return sum(len(times) for times, _ in self._blocks) + len(self._times)

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
        self.add_row(
            (end_s, duration_s, duration_s if own_s is None else own_s),
            (
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
            ),
        )

    def add_row(self, times: tuple[float, float, float], counts: tuple[int, ...]) -> None:
        """Append one step as `add` does, with everything in the order of the columns.

        Args:
            times: `end_s`, `duration_s`, `own_s`.
            counts: the others, `rank` to `kv_blocks`.
        """
        self.emitted += counts[_EMITTED]
        if not self._keep:
            return
        self._times.append(times)
        self._counts.append(counts)
        if len(self._times) == _BLOCK_ROWS:
            self._store()

    @staticmethod
    def block(rows: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return room for that many steps, all 0: times and counts in the order of the columns."""
        return (
            np.zeros((rows, len(_STEP_TIMES))),
            np.zeros((rows, len(_STEP_COUNTS)), dtype=np.int64),
        )

    def add_block(self, times: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
        """Append many steps at once, as `block` lays them out; keeps the arrays."""
        self._store()
        self._blocks.append((times, counts))
        self.emitted += int(counts[:, _EMITTED].sum())

    def _store(self) -> None:
        """Make a block of the loose rows: tuples are quick to write, arrays small to keep."""
        times = np.array(self._times, dtype=np.float64).reshape(-1, len(_STEP_TIMES))
        counts = np.array(self._counts, dtype=np.int64).reshape(-1, len(_STEP_COUNTS))
        self._blocks.append((times, counts))
        self._times, self._counts = [], []

    def columns(self) -> Columns:
        """Return the rows so far as columns."""
        self._store()
        columns: Columns = {}
        for names, part in ((_STEP_TIMES, 0), (_STEP_COUNTS, 1)):
            for i, name in enumerate(names):  # one at a time: no second copy of the whole log
                columns[name] = np.concatenate([block[part][:, i] for block in self._blocks])
        return columns
