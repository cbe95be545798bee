"""The requests that decode on one rank: their slots, and what a scheduler sees of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance.blocks import Blocks
from specsim.engine.request import Request
from specsim.engine.step import (
    NO_LIMIT,
    Slot,
    Total,
    commit,
    degrade_confidences,
    degrade_survivals,
    gather,
    remove_finished,
)
from specsim.errors import InputError
from specsim.schedulers.base import BatchView, FloatArray, History, Scheduler

IntArray = NDArray[np.int64]
_ID, _CONTEXT, _LEFT = int(Slot.ID), int(Slot.CONTEXT), int(Slot.LEFT)
_EMITTED = int(Total.EMITTED)
_Scalar = TypeVar("_Scalar", bound=np.generic)


class Batch:
    """A dense table of slots, one column a running request, in order of admission.

    Args:
        blocks: the acceptance source.
        scheduler: whose `reads` and `lag` say what must be gathered.
        capacity: most requests.
        first_round: factor on the conditional acceptances of a request's first round after its
            prefill was transferred from another rank; 1 for none.

    Attributes:
        running: the requests, by slot.
        count: how many.
        kv_tokens: KV tokens that they hold, all together.
        slots: the table, int64 `[len(Slot), capacity]`.
        rounds_K: request-steps so far by the drafts that they accepted, int64 `[gamma + 1]`.
    """

    def __init__(
        self, blocks: Blocks, scheduler: Scheduler, *, capacity: int, first_round: float = 1.0
    ) -> None:
        self.running: list[Request] = []
        self.count = 0
        self.kv_tokens = 0
        self.slots = np.zeros((len(Slot), capacity), dtype=np.int64)
        self.accepted_R = np.zeros(capacity, dtype=np.int64)
        self._blocks, self._reads, self._lag = blocks, scheduler.reads, scheduler.lag
        self._first_round, self._degraded = first_round, False
        gamma = blocks.gamma
        self.rounds_K = np.zeros(gamma + 1, dtype=np.int64)
        self._totals = np.zeros(len(Total), dtype=np.int64)
        self._survival_RG = np.ones((capacity, gamma), dtype=np.float32)
        self._confidence_RG = np.ones((capacity, gamma), dtype=np.float32)
        # Ring of the last `lag` steps' survivals; a row moves with its request.
        self._lagged_LRG = np.ones((scheduler.lag, capacity, gamma), dtype=np.float32)

    def column(self, request: Request) -> IntArray | tuple[int, ...]:
        """Return the slot that `request` starts or goes on with, `[len(Slot)]`."""
        limit = NO_LIMIT
        if request.transferred:
            request.transferred = False
            if self._first_round < 1.0:
                limit = self._surviving(request.first_round_u)
                self._degraded = True
        if request.saved is not None:
            column = request.saved
            request.saved = None
            column[Slot.LIMIT :] = limit, request.kv_private, request.kv_shared
            return column
        blocks = self._blocks
        sequence = blocks.sequence(request.domain, request.sequence_u)
        return (
            request.index,
            int(blocks.first_row_S[sequence]),
            sequence,
            request.output_tokens - 1,
            request.prompt_tokens,
            0,
            0,
            0,
            0,
            limit,
            request.kv_private,
            request.kv_shared,
        )

    def _surviving(self, u: float) -> int:
        """Return how many drafts in a row survive a coin of `first_round` each, at most gamma."""
        kept, power = 0, self._first_round
        while kept < self._blocks.gamma and u < power:
            kept, power = kept + 1, power * self._first_round
        return kept

    def add(self, request: Request) -> None:
        """Put `request` into the next slot."""
        slot = self.count
        column = self.column(request)
        self.slots[:, slot] = column
        self._lagged_LRG[:, slot] = 1.0
        self.kv_tokens += int(column[_CONTEXT])
        self.running.append(request)
        self.count += 1

    def view(
        self, *, step: int, prefill_tokens: int, verify_s_B: NDArray[np.float64], fixed_s: float
    ) -> BatchView:
        """Gather what the scheduler may see of this step."""
        count, reads, blocks = self.count, self._reads, self._blocks
        confidence_RG: Callable[[], FloatArray] | None = None
        survival_RG = lagged_RG = history = sampled_RG = accepted_R = None
        if "live" in reads or "lagged" in reads:
            gather(self.slots, count, blocks.block_NG1, 1, self._survival_RG)
            if self._degraded:
                degrade_survivals(self.slots, count, self._first_round, self._survival_RG)
        if "live" in reads:
            survival_RG = _read_only(self._survival_RG[:count])
            confidence_RG = self._confidences
        if "lagged" in reads:
            lagged_RG = _read_only(self._lagged_LRG[step % self._lag, :count])
        if "history" in reads:
            history = History(
                rounds_R=_read_only(self.slots[Slot.ROUNDS, :count]),
                verified_R=_read_only(self.slots[Slot.VERIFIED, :count]),
                accepted_R=_read_only(self.slots[Slot.ACCEPTED, :count]),
            )
        if "sampled" in reads:
            sampled_RG = self._sampled()
        if "oracle" in reads:
            batch = self.slots[:, :count]
            accepted_R = blocks.num_accepted_N[batch[Slot.ROW]].astype(np.int64)
            accepted_R = np.minimum(accepted_R, batch[Slot.LIMIT])
        return BatchView(
            step=step,
            gamma=blocks.gamma,
            request_id_R=_read_only(self.slots[_ID, :count]),
            base_tokens=count + prefill_tokens,
            verify_s_B=verify_s_B,
            fixed_s=fixed_s,
            confidence_RG=confidence_RG,
            survival_RG=survival_RG,
            lagged_survival_RG=lagged_RG,
            history=history,
            sampled_RG=sampled_RG,
            num_accepted_R=accepted_R,
        )

    def _confidences(self) -> NDArray[np.float32]:
        """Gather the confidences of this step, for a scheduler that looks at them."""
        count = self.count
        gather(self.slots, count, self._blocks.confidence_NG, 0, self._confidence_RG)
        if self._degraded:
            degrade_confidences(self.slots, count, self._first_round, self._confidence_RG)
        return _read_only(self._confidence_RG[:count])

    def _sampled(self) -> NDArray[np.float32]:
        """Return q of the proposed tokens, `[R, gamma]`."""
        draft_prob_NG = self._blocks.draft_prob_NG
        if draft_prob_NG is None:
            raise InputError(
                "the scheduler ranks by the draft law's probability of the sampled tokens, which "
                "this trace does not hold (draft_prob_NG); use a recorded trace that does, or a "
                "scheduler that ranks by confidence"
            )
        found: NDArray[np.float32] = draft_prob_NG[self.slots[Slot.ROW, : self.count]]
        return found

    def past(self, *, step: int, verify_s_B: NDArray[np.float64], fixed_s: float) -> BatchView:
        """Return what is known of this step before anything is drafted: history alone."""
        count = self.count
        return BatchView(
            step=step,
            gamma=self._blocks.gamma,
            request_id_R=_read_only(self.slots[_ID, :count]),
            base_tokens=count,
            verify_s_B=verify_s_B,
            fixed_s=fixed_s,
            history=History(
                rounds_R=_read_only(self.slots[Slot.ROUNDS, :count]),
                verified_R=_read_only(self.slots[Slot.VERIFIED, :count]),
                accepted_R=_read_only(self.slots[Slot.ACCEPTED, :count]),
            ),
        )

    def remember(self, step: int) -> None:
        """Put this step's survivals into the ring, once it has been planned."""
        if "lagged" in self._reads:
            self._lagged_LRG[step % self._lag, : self.count] = self._survival_RG[: self.count]

    def commit(self, verify_len_R: IntArray) -> list[int]:
        """Accept and emit; return what it adds up to, by `Total`."""
        blocks = self._blocks
        commit(
            self.slots,
            self.count,
            verify_len_R,
            blocks.num_accepted_N,
            blocks.first_row_S,
            blocks.end_row_S,
            blocks.next_sequence_S,
            self.accepted_R,
            self.rounds_K,
            self._totals,
        )
        self._degraded = False
        totals: list[int] = self._totals.tolist()
        self.kv_tokens += totals[_EMITTED]
        return totals

    def drop(self, leaving: IntArray) -> list[tuple[Request, IntArray]]:
        """Take out the requests of these slots (rising); return each with its slot's column."""
        rows = self.slots[:, leaving].T.copy()
        requests = [self.running[slot] for slot in leaving]
        for slot in leaving[::-1]:
            del self.running[slot]
        self.slots[_LEFT, leaving] = 0
        self.count = remove_finished(self.slots, self.count, self._lagged_LRG)
        self.kv_tokens -= sum(rows[:, _CONTEXT].tolist())
        return list(zip(requests, rows, strict=True))


def _read_only(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    array.flags.writeable = False  # `array` is a fresh slice: only this view is locked
    return array
