"""The step log: one row a step, or in long runs that are kept bounded, one for several steps."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specsim.metrics.record import Bounded, Columns
from specsim.rng import stream

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
_PARTS = 16  # of `most_steps`: so much is merged at once
_FIRST_EACH = 4
_LAST = ("end_s", "rank", "waiting", "kv_tokens")
_MOST = ("kv_blocks", "forward_tokens")

Block = tuple[NDArray[np.float64], NDArray[np.int64]]
"""Times and counts of some steps, in the order of the columns."""


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

    A bounded log of more than `most_steps` steps merges neighbours: see `merged`.

    Args:
        keep: `none` only adds up `emitted`, and has no rows.
    """

    def __init__(self, *, keep: Literal["steps", "none"] | Bounded = "steps") -> None:
        self._keep = keep
        self._blocks: list[Block] = []
        self._times: list[tuple[float, ...]] = []  # of the rows that are in no block yet
        self._counts: list[tuple[int, ...]] = []
        self._waiting = 0  # rows of the blocks
        self._merged: list[Columns] = []  # what has left the blocks, oldest first
        self._rng = stream(0, "step_log")
        self.each = 1  # steps that a merged row is made of
        self.emitted = 0

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
        if self._keep == "none":
            return
        self._times.append(times)
        self._counts.append(counts)
        if len(self._times) == _BLOCK_ROWS:
            self._store()

    @staticmethod
    def block(rows: int) -> Block:
        """Return room for that many steps, all 0: times and counts in the order of the columns."""
        return (
            np.zeros((rows, len(_STEP_TIMES))),
            np.zeros((rows, len(_STEP_COUNTS)), dtype=np.int64),
        )

    def add_block(self, times: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
        """Append many steps at once, as `block` lays them out; keeps the arrays."""
        if self._times:
            self._store()
        self.emitted += int(counts[:, _EMITTED].sum())
        self._append(times, counts)

    def _store(self) -> None:
        """Make a block of the loose rows: tuples are quick to write, arrays small to keep."""
        times = np.array(self._times, dtype=np.float64).reshape(-1, len(_STEP_TIMES))
        counts = np.array(self._counts, dtype=np.int64).reshape(-1, len(_STEP_COUNTS))
        self._times, self._counts = [], []
        self._append(times, counts)

    def _append(self, times: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
        self._blocks.append((times, counts))
        self._waiting += len(times)
        if not isinstance(self._keep, Bounded):
            return
        most = self._keep.most_steps
        if self.each == 1 and self._waiting >= most:
            self.each = _FIRST_EACH
        while self.each > 1 and self._waiting >= (part := max(most // _PARTS, self.each)):
            self._merge(part)

    def columns(self) -> Columns:
        """Return the rows so far as columns."""
        self._store()
        if self.each == 1:
            return _columns(self._blocks)
        if self._waiting:
            self._merge(self._waiting)
        return _joined(self._merged)

    def _merge(self, count: int) -> None:
        """Move the oldest `count` rows out of the blocks and merge them, `each` into one."""
        keep = self._keep
        assert isinstance(keep, Bounded)
        steps = _columns(self._take(count))
        if keep.steps is not None:
            keep.steps(steps)
        if keep.priced is not None:
            steps |= keep.priced(steps)
        rows = single(steps)
        for _ in range(self.each.bit_length() - 1):
            rows = merged(rows, self._rng)
        self._merged.append(rows)
        if sum(len(rows["steps"]) for rows in self._merged) >= keep.most_steps // 2:
            self._merged = [merged(_joined(self._merged), self._rng)]
            self.each *= 2

    def _take(self, count: int) -> list[Block]:
        """Remove the oldest `count` rows of the blocks."""
        taken: list[Block] = []
        self._waiting -= count
        while count:
            times, counts = self._blocks[0]
            if len(times) <= count:
                taken.append(self._blocks.pop(0))
                count -= len(times)
            else:
                taken.append((times[:count], counts[:count]))
                self._blocks[0] = (times[count:].copy(), counts[count:].copy())
                count = 0
        return taken


def single(steps: Columns) -> Columns:
    """Add to steps what merging needs: rows of one step each. See `merged`."""
    return steps | {
        "steps": np.ones(len(steps["end_s"]), dtype=np.int64),
        "request_s": steps["num_requests"] * steps["duration_s"],
        "gap_s": steps["duration_s"],
        "forward_tokens": steps["num_requests"] + steps["verified"],
    }


def merged(rows: Columns, rng: np.random.Generator) -> Columns:
    """Merge neighbours two by two; of an odd number the last stays alone.

    Columns are added up, except: `end_s`, `rank`, `waiting` and `kv_tokens` are those of the later
    one, `kv_blocks` and `forward_tokens` (requests and drafts of one step) the larger, and `gap_s`
    (duration of one step) is drawn, each as likely as it has requests, so that the gaps of all rows
    are a fair sample of what requests waited between chunks. `steps` counts the steps of a row,
    `request_s` is the sum over them of requests times duration.
    """
    even = len(rows["steps"]) // 2 * 2
    weight_2T = rows["num_requests"][:even].reshape(-1, 2).T
    later_T = rng.random(even // 2) * weight_2T.sum(axis=0) < weight_2T[1]
    found: Columns = {}
    for name, column in rows.items():
        earlier, later = column[0:even:2], column[1:even:2]
        if name in _LAST:
            both = later
        elif name in _MOST:
            both = np.maximum(earlier, later)
        elif name == "gap_s":
            both = np.where(later_T, later, earlier)
        else:
            both = earlier + later
        found[name] = np.concatenate([both, column[even:]])
    return found


def _columns(blocks: list[Block]) -> Columns:
    columns: Columns = {}
    empty = StepLog.block(0)
    for names, part in ((_STEP_TIMES, 0), (_STEP_COUNTS, 1)):
        for i, name in enumerate(names):  # one at a time: no second copy of the whole log
            columns[name] = np.concatenate([block[part][:, i] for block in (empty, *blocks)])
    return columns


def _joined(parts: list[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
