"""What happens inside one step: gather the blocks of the batch, then commit what was verified.

The batch is a dense table of slots, one column a running request, one row a quantity (`Slot`).
Kernels work on it in place; each has a plain numpy twin that tests compare.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from specsim.acceptance.blocks import Blocks

IntArray = NDArray[np.int64]


class Slot(IntEnum):
    """Rows of the slot table, int64 `[len(Slot), capacity]`."""

    ID = 0  # request id
    ROW = 1  # trace row whose block comes next
    SEQUENCE = 2  # trace sequence that the row belongs to
    LEFT = 3  # decode tokens still to emit
    CONTEXT = 4  # resident KV tokens
    ROUNDS = 5  # decode steps done
    VERIFIED = 6  # drafts verified
    ACCEPTED = 7  # drafts accepted
    EMITTED = 8  # decode tokens emitted
    LIMIT = 9  # most drafts that this round can accept: `NO_LIMIT` but after a bad transfer
    PRIVATE = 10  # KV blocks that the request holds alone
    SHARED = 11  # KV blocks that it holds through the prefix cache


NO_LIMIT = 1 << 30


class Total(IntEnum):
    """What one commit adds up to, int64 `[len(Total)]`."""

    ACCEPTED = 0  # drafts accepted
    EMITTED = 1  # tokens that count as output
    FINISHED = 2  # requests that ended
    CEILING = 3  # drafts that full verification would have accepted
    VERIFIED = 4  # drafts verified


_ROW, _SEQUENCE, _LEFT, _CONTEXT = 1, 2, 3, 4
_ROUNDS, _VERIFIED, _ACCEPTED, _EMITTED, _LIMIT = 5, 6, 7, 8, 9


@njit(cache=True, nogil=True)
def gather(slots: Any, num_requests: int, source_NG: Any, first: int, out_RG: Any) -> None:
    """Copy the block of each running request: `out_RG[r] = source_NG[row of r, first:]`."""
    gamma = out_RG.shape[1]
    for r in range(num_requests):
        row = slots[_ROW, r]
        for k in range(gamma):
            out_RG[r, k] = source_NG[row, first + k]


@njit(cache=True, nogil=True)
def commit(
    slots: Any,
    num_requests: int,
    verify_len_R: Any,
    num_accepted_N: Any,
    first_row_S: Any,
    end_row_S: Any,
    next_sequence_S: Any,
    accepted_R: Any,
    rounds_K: Any,
    totals: Any,
) -> None:
    """Accept, emit and move on every running request, in place; fill `accepted_R` and `totals`.

    `rounds_K` `[gamma + 1]` counts on: request-steps by the drafts that they accepted.

    A step commits `min(verify_len, LIMIT, accepted of the block) + 1` tokens of a request and moves
    it as many rows on; tokens past its end were verified and are not emitted. Finished requests
    keep LEFT = 0 until `remove_finished`.
    """
    accepted_sum = 0
    emitted_sum = 0
    ceiling_sum = 0
    verified_sum = 0
    finished = 0
    for r in range(num_requests):
        row = slots[_ROW, r]
        ceiling = min(slots[_LIMIT, r], np.int64(num_accepted_N[row]))
        slots[_LIMIT, r] = NO_LIMIT
        ceiling_sum += ceiling
        accepted = min(verify_len_R[r], ceiling)
        accepted_R[r] = accepted
        rounds_K[accepted] += 1
        emitted = min(accepted + 1, slots[_LEFT, r])
        slots[_LEFT, r] -= emitted
        slots[_CONTEXT, r] += emitted
        slots[_ROUNDS, r] += 1
        slots[_VERIFIED, r] += verify_len_R[r]
        verified_sum += verify_len_R[r]
        slots[_ACCEPTED, r] += accepted
        slots[_EMITTED, r] += emitted
        row += accepted + 1
        sequence = slots[_SEQUENCE, r]
        if row >= end_row_S[sequence]:
            sequence = next_sequence_S[sequence]
            row = first_row_S[sequence]
            slots[_SEQUENCE, r] = sequence
        slots[_ROW, r] = row
        accepted_sum += accepted
        emitted_sum += emitted
        if slots[_LEFT, r] == 0:
            finished += 1
    totals[0] = accepted_sum
    totals[1] = emitted_sum
    totals[2] = finished
    totals[3] = ceiling_sum
    totals[4] = verified_sum


def commit_twin(
    slots: IntArray,
    num_requests: int,
    verify_len_R: IntArray,
    blocks: Blocks,
    accepted_R: IntArray,
    rounds_K: IntArray,
    totals: IntArray,
) -> None:
    """Do what `commit` does, in plain numpy."""
    batch = slots[:, :num_requests]
    recorded_R = blocks.num_accepted_N[batch[Slot.ROW]].astype(np.int64)
    ceiling_R = np.minimum(recorded_R, batch[Slot.LIMIT])
    batch[Slot.LIMIT] = NO_LIMIT
    accepted_R[:num_requests] = np.minimum(verify_len_R, ceiling_R)
    accepted_R = accepted_R[:num_requests]
    rounds_K += np.bincount(accepted_R, minlength=len(rounds_K))
    emitted_R = np.minimum(accepted_R + 1, batch[Slot.LEFT])
    batch[Slot.LEFT] -= emitted_R
    batch[Slot.CONTEXT] += emitted_R
    batch[Slot.ROUNDS] += 1
    batch[Slot.VERIFIED] += verify_len_R
    batch[Slot.ACCEPTED] += accepted_R
    batch[Slot.EMITTED] += emitted_R
    batch[Slot.ROW] += accepted_R + 1
    past_R = batch[Slot.ROW] >= blocks.end_row_S[batch[Slot.SEQUENCE]]
    batch[Slot.SEQUENCE] = np.where(
        past_R, blocks.next_sequence_S[batch[Slot.SEQUENCE]], batch[Slot.SEQUENCE]
    )
    batch[Slot.ROW] = np.where(past_R, blocks.first_row_S[batch[Slot.SEQUENCE]], batch[Slot.ROW])
    finished = (batch[Slot.LEFT] == 0).sum()
    totals[:] = (
        accepted_R.sum(),
        emitted_R.sum(),
        finished,
        ceiling_R.sum(),
        verify_len_R.sum(),
    )


@njit(cache=True, nogil=True)
def degrade_confidences(slots: Any, num_requests: int, factor: float, confidence_RG: Any) -> None:
    """Scale by `factor` what the drafter says of rows whose drafts are degraded (LIMIT is set)."""
    for r in range(num_requests):
        if slots[_LIMIT, r] != NO_LIMIT:
            for k in range(confidence_RG.shape[1]):
                confidence_RG[r, k] *= factor


@njit(cache=True, nogil=True)
def degrade_survivals(slots: Any, num_requests: int, factor: float, survival_RG: Any) -> None:
    """Do it to survivals: products of confidences, so position k falls by `factor` to the k."""
    for r in range(num_requests):
        if slots[_LIMIT, r] != NO_LIMIT:
            product = 1.0
            for k in range(survival_RG.shape[1]):
                product *= factor
                survival_RG[r, k] *= product


@njit(cache=True, nogil=True)
def remove_finished(slots: Any, num_requests: int, lagged_LRG: Any) -> int:
    """Close the gaps that finished requests leave, in order; return how many stay.

    The lagged survivals `[lag, capacity, gamma]` move with their rows, so that each row keeps its
    own past.
    """
    kept = 0
    for r in range(num_requests):
        if slots[_LEFT, r] == 0:
            continue
        if kept < r:
            for f in range(slots.shape[0]):
                slots[f, kept] = slots[f, r]
            for age in range(lagged_LRG.shape[0]):
                for k in range(lagged_LRG.shape[2]):
                    lagged_LRG[age, kept, k] = lagged_LRG[age, r, k]
        kept += 1
    return kept
