"""The ledger: one row for every request that was ever submitted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.engine.request import Request
from specsim.engine.step import Slot
from specsim.metrics.record import Columns, Status
from specsim.metrics.requestlog import RequestLog

IntArray = NDArray[np.int64]
_FIRST, _END = int(Slot.ROUNDS), int(Slot.EMITTED) + 1
_NO_COUNTS = [0] * (_END - _FIRST)
_FLUSH_ROWS = 1 << 14

_COLUMNS = (
    ("request", np.int64),
    ("user", np.int64),
    ("domain", np.int64),
    ("rank", np.int64),
    ("arrival_s", np.float64),
    ("first_token_s", np.float64),
    ("finish_s", np.float64),
    ("prompt_tokens", np.int64),
    ("output_tokens", np.int64),
    ("rounds", np.int64),
    ("verified", np.int64),
    ("accepted", np.int64),
    ("emitted", np.int64),
    ("status", np.int64),
    ("admitted_s", np.float64),
    ("closed_s", np.float64),
    ("priority", np.int64),
    ("session", np.int64),
    ("preemptions", np.int64),
    ("reroutes", np.int64),
    ("prefilled", np.int64),
    ("cached", np.int64),
)


def empty_columns(count: int) -> Columns:
    """Return the ledger's columns for `count` requests, all 0."""
    return {name: np.zeros(count, dtype=dtype) for name, dtype in _COLUMNS}


class Ledger:
    """Rows of the requests that are closed, and the requests that are open.

    Columns beside the obvious: `rank` where it ran last, `finish_s` of its last token (NaN unless
    finished), `closed_s` when it left for whatever reason, `status` (`metrics.record.Status`),
    `admitted_s` when a rank first took it, `prefilled` and `cached` prompt tokens that prefill
    computed (again, after preemptions) and that the prefix cache spared it.

    Args:
        log: gets the rows of requests that are closed, as all before them are; of a bounded log
            some at a time, otherwise in the end.
    """

    def __init__(self, log: RequestLog) -> None:
        self.log = log
        self.open: dict[int, Request] = {}
        self.closed = [0] * len(Status)
        self.emitted = 0
        self._rows: list[tuple[Any, ...]] = []  # of closed requests that are not in the log
        self._flush_at = _FLUSH_ROWS

    def close(self, request: Request, slot_F: IntArray | None) -> None:
        """Write the row of a request whose status is final."""
        del self.open[request.index]
        row = _row(request, slot_F)
        self._rows.append(row)
        self.closed[request.status] += 1
        if self.log.bounded and len(self._rows) >= self._flush_at:
            self._flush()

    @property
    def mean_output_tokens(self) -> float:
        """Mean output of finished requests so far; 1 before the first."""
        count = self.closed[Status.FINISHED]
        return self.emitted / count if count else 1.0

    def latest(self, running: Mapping[int, IntArray]) -> Columns:
        """Return every request that is not in the log, by index; NaN for what has not happened.

        Args:
            running: slot columns of the requests in batches, by request index.
        """
        open_rows = [
            _row(request, running.get(index, request.saved)) for index, request in self.open.items()
        ]
        return _columns(sorted(self._rows + open_rows))

    def _flush(self) -> None:
        """Hand the log the closed requests before the oldest open one."""
        oldest = next(iter(self.open), None)  # they are opened in the order of their indices
        self._rows.sort()
        index = [row[0] for row in self._rows]
        end = len(index) if oldest is None else bisect_left(index, oldest)
        self.log.add(_columns(self._rows[:end]))
        del self._rows[:end]
        self._flush_at = 2 * len(self._rows) + _FLUSH_ROWS


def _columns(rows: Sequence[tuple[Any, ...]]) -> Columns:
    return {
        name: np.array([row[i] for row in rows], dtype=dtype)
        for i, (name, dtype) in enumerate(_COLUMNS)
    }


def _row(request: Request, slot_F: IntArray | None) -> tuple[Any, ...]:
    counts = _NO_COUNTS if slot_F is None else slot_F[_FIRST:_END].tolist()
    return (
        request.index,
        request.user,
        request.domain,
        request.rank,
        request.arrival_s,
        request.first_token_s,
        request.finish_s,
        request.prompt_tokens,
        request.output_tokens,
        *counts,
        request.status,
        request.admitted_s,
        request.closed_s,
        request.priority,
        request.session,
        request.preemptions,
        request.reroutes,
        request.prefilled,
        request.cached,
    )
