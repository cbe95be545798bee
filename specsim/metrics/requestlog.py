"""The request log: one row a request, or in long runs that are kept bounded, a sample of them."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specsim.metrics.account import count_requests
from specsim.metrics.record import Bounded, Columns, Status


class RequestLog:
    """Rows of requests as they are closed, in the order of their indices, and counts of all.

    A bounded log of more than `most_requests` keeps those whose index, mixed, ends in `k` zero
    bits, with the smallest `k` that is enough, whatever became of them and in whatever parts they
    came.
    """

    def __init__(self, *, keep: Literal["steps", "none"] | Bounded = "steps") -> None:
        self._keep = keep
        self._parts: list[Columns] = []
        self.bounded = isinstance(keep, Bounded)
        self._each = 1
        self.counts: Counter[str] = Counter()  # of all: `metrics.account.count_requests`

    @property
    def each(self) -> float:
        """Requests that a row stands for: all over those kept."""
        kept = sum(len(part["request"]) for part in self._parts)
        return sum(self.counts[kind.name] for kind in Status) / kept if kept else 1.0

    def add(self, rows: Columns) -> None:
        """Append rows, with the columns of `engine.ledger`."""
        self.counts.update(count_requests(rows))
        keep = self._keep
        if not isinstance(keep, Bounded):
            self._parts.append(rows)
            return
        if self._each > 1 and keep.requests is not None:
            keep.requests(rows)
        self._parts.append(_thinned(rows, self._each))
        while sum(len(part["request"]) for part in self._parts) > keep.most_requests:
            if self._each == 1 and keep.requests is not None:
                for part in self._parts:
                    keep.requests(part)
            self._each *= 2
            self._parts = [_thinned(part, self._each) for part in self._parts]

    def columns(self) -> Columns:
        """Return the rows that are kept, by index."""
        names = self._parts[0].keys()
        return {name: np.concatenate([part[name] for part in self._parts]) for name in names}


def _thinned(rows: Columns, each: int) -> Columns:
    if each == 1:
        return rows
    chosen_N = _mixed(rows["request"]) % np.uint64(each) == 0
    return {name: column[chosen_N] for name, column in rows.items()}


def _mixed(index_N: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Spread indices over all bits: the finaliser of splitmix64 (Steele, Lea and Flood 2014)."""
    z_N = index_N.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z_N = (z_N ^ (z_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z_N = (z_N ^ (z_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z_N ^ (z_N >> np.uint64(31))
