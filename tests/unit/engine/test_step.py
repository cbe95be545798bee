"""Kernels of one step against their plain twins, and the fate of every row."""

from __future__ import annotations

import numpy as np
import pytest

from specsim.acceptance.blocks import lay_out
from specsim.engine.step import NO_LIMIT, Slot, Total, commit, commit_twin, gather, remove_finished
from tests.engine_world import random_trace


def _slots(rng: np.random.Generator, blocks, count: int, capacity: int) -> np.ndarray:
    slots = np.zeros((len(Slot), capacity), dtype=np.int64)
    sequence = rng.integers(0, len(blocks.first_row_S), count)
    slots[Slot.ID, :count] = rng.permutation(count)
    slots[Slot.SEQUENCE, :count] = sequence
    slots[Slot.ROW, :count] = rng.integers(blocks.first_row_S[sequence], blocks.end_row_S[sequence])
    slots[Slot.LEFT, :count] = rng.integers(1, 7, count)
    slots[Slot.CONTEXT, :count] = rng.integers(1, 100, count)
    slots[Slot.LIMIT, :count] = rng.choice([0, 1, 3, NO_LIMIT], count)
    return slots


@pytest.mark.parametrize("gamma", [0, 1, 4])
@pytest.mark.parametrize("count", [1, 2, 33])
def test_commit_equals_its_twin(gamma: int, count: int) -> None:
    blocks = lay_out(random_trace(), gamma=gamma, seed=3)
    rng = np.random.default_rng(count)
    for _ in range(50):
        slots = _slots(rng, blocks, count, count + 3)
        twin = slots.copy()
        verify_len_R = rng.integers(0, gamma + 1, count)
        totals, twin_totals = np.zeros((2, len(Total)), dtype=np.int64)
        accepted_R, twin_accepted_R = np.zeros((2, count + 3), dtype=np.int64)
        rounds_K, twin_rounds_K = np.full((2, gamma + 1), 7)
        commit(
            slots,
            count,
            verify_len_R,
            blocks.num_accepted_N,
            blocks.first_row_S,
            blocks.end_row_S,
            blocks.next_sequence_S,
            accepted_R,
            rounds_K,
            totals,
        )
        commit_twin(twin, count, verify_len_R, blocks, twin_accepted_R, twin_rounds_K, twin_totals)
        np.testing.assert_array_equal(accepted_R, twin_accepted_R)
        np.testing.assert_array_equal(slots, twin)
        np.testing.assert_array_equal(totals, twin_totals)
        np.testing.assert_array_equal(rounds_K, twin_rounds_K)
        assert (rounds_K - 7) @ np.arange(gamma + 1) == totals[Total.ACCEPTED]
        assert totals[Total.EMITTED] <= totals[Total.ACCEPTED] + count
        assert (slots[Slot.LEFT, :count] >= 0).all()


def test_a_row_past_its_sequence_goes_on_in_the_same_domain() -> None:
    trace = random_trace(sequences=5, anchors=9)
    blocks = lay_out(trace, gamma=4, seed=0)
    domain_of = np.searchsorted([end for _, end in blocks.sequence_range_D], np.arange(5), "right")
    for sequence in range(5):
        following = blocks.next_sequence_S[sequence]
        assert domain_of[following] == domain_of[sequence]
        slots = np.zeros((len(Slot), 1), dtype=np.int64)
        slots[Slot.SEQUENCE], slots[Slot.LEFT] = sequence, 100
        slots[Slot.ROW] = blocks.end_row_S[sequence] - 1
        commit_twin(
            slots,
            1,
            np.array([0]),
            blocks,
            np.zeros(1, dtype=np.int64),
            np.zeros(5, dtype=np.int64),
            np.zeros(len(Total), dtype=np.int64),
        )
        assert slots[Slot.SEQUENCE, 0] == following
        assert slots[Slot.ROW, 0] == blocks.first_row_S[following]


def test_gather_copies_the_rows_of_the_running() -> None:
    blocks = lay_out(random_trace(), gamma=4, seed=0)
    slots = _slots(np.random.default_rng(0), blocks, 5, 8)
    out_RG = np.full((8, 4), -1, dtype=np.float32)
    gather(slots, 5, blocks.block_NG1, 1, out_RG)
    np.testing.assert_array_equal(out_RG[:5], blocks.survival_NG[slots[Slot.ROW, :5]])
    assert (out_RG[5:] == -1).all()


def test_rows_keep_their_past_when_others_leave() -> None:
    rng = np.random.default_rng(1)
    for _ in range(30):
        count = int(rng.integers(1, 12))
        slots = np.zeros((len(Slot), count), dtype=np.int64)
        slots[Slot.ID] = np.arange(count)
        slots[Slot.LEFT] = rng.integers(0, 2, count)
        lagged = np.broadcast_to(np.arange(count, dtype=np.float32)[None, :, None], (2, count, 3))
        lagged = lagged.copy()
        stay = np.flatnonzero(slots[Slot.LEFT] > 0)
        kept = remove_finished(slots, count, lagged)
        assert kept == len(stay)
        np.testing.assert_array_equal(slots[Slot.ID, :kept], stay)
        np.testing.assert_array_equal(lagged[1, :kept, 2], stay)


def test_blocks_leave_out_what_the_end_cuts_short() -> None:
    trace = random_trace(sequences=3, anchors=10, domains=1)
    blocks = lay_out(trace, gamma=4, seed=0)
    np.testing.assert_array_equal(blocks.end_row_S - blocks.first_row_S, [7, 7, 7])
    assert lay_out(trace, gamma=1, seed=0).end_row_S[0] == 10
    with pytest.raises(ValueError, match="gamma 5 is larger than the trace's 4"):
        lay_out(trace, gamma=5, seed=0)
    with pytest.raises(ValueError, match="no sequence of the trace has a whole block"):
        lay_out(random_trace(sequences=3, anchors=3), gamma=4, seed=0)
