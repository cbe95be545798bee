"""KV blocks: who comes in, who must go, what prompts share, and when it never ends."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from specsim.engine.kv import KvPool, KvSpec, PrefixCache, grow, lacking_twin, missing_blocks
from specsim.engine.prefill import MixedPrefill
from specsim.engine.run import Batch, Feed, Poisson, Stop
from specsim.engine.step import Slot
from specsim.errors import InputError
from specsim.metrics.record import Status
from specsim.workload.feed import Arrival, Turn
from specsim.workload.lengths import FixedLengthConfig, UniformLengthConfig
from tests.engine_world import small_run

MIXED = MixedPrefill(64, "full")


def test_the_kernels_equal_their_twin() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        count, tokens = int(rng.integers(0, 20)), int(rng.integers(1, 17))
        slots = np.zeros((len(Slot), count + 2), dtype=np.int64)
        slots[Slot.CONTEXT, :count] = rng.integers(1, 300, count)
        slots[Slot.PRIVATE, :count] = rng.integers(0, 20, count)
        slots[Slot.SHARED, :count] = rng.integers(0, 5, count)
        lacking_R = lacking_twin(slots, count, 5, tokens)
        assert missing_blocks(slots, count, 5, tokens) == lacking_R.sum()
        before = slots[Slot.PRIVATE].copy()
        grow(slots, count, 5, tokens)
        np.testing.assert_array_equal(slots[Slot.PRIVATE, :count], before[:count] + lacking_R)
        assert missing_blocks(slots, count, 5, tokens) == 0


def test_worst_case_admission_runs_as_many_as_fit() -> None:
    # 10 + 40 - 1 + gamma 4 = 53 tokens are 14 blocks of 4.
    for blocks, fit in ((14, 1), (27, 1), (28, 2), (70, 5)):
        steps = small_run(kv=KvSpec(blocks, 4), load=Batch(9), stop=Stop()).steps
        assert steps["num_requests"].max() == fit, blocks
        assert steps["kv_blocks"].max() <= blocks


def test_what_can_never_fit_fails_at_once_and_is_counted() -> None:
    out = small_run(
        kv=KvSpec(13, 4),
        load=Batch(30),
        stop=Stop(),
        output=UniformLengthConfig(kind="uniform", min=20, max=60),
    )
    too_long = 10 + out.requests["output_tokens"] - 1 + 4 > 13 * 4
    assert 0 < too_long.sum() < 30
    np.testing.assert_array_equal(out.requests["status"] == Status.FAILED, too_long)
    np.testing.assert_array_equal(out.requests["status"] == Status.FINISHED, ~too_long)
    assert out.ended == "all done"


def test_closed_loop_users_whose_requests_cannot_be_served_go_away() -> None:
    out = small_run(kv=KvSpec(3, 4))
    assert out.ended == "all done"
    assert (out.requests["status"] == Status.FAILED).sum() == 8


@pytest.mark.parametrize("slots", [2, 4, 8])
def test_blocks_for_so_many_requests_are_so_many_slots(slots: int) -> None:
    # The prediction: 14 blocks a request, so that halving the blocks is halving the batch.
    changes = {"load": Poisson(30.0), "stop": Stop(requests=200)}
    by_blocks = small_run(kv=KvSpec(14 * slots + 13, 4), capacity=64, **changes)
    by_slots = small_run(capacity=slots, **changes)
    for name, column in by_slots.requests.items():
        assert column.tobytes() == by_blocks.requests[name].tobytes(), name


def wait_s(blocks: int, **kv: object) -> float:
    out = small_run(
        kv=KvSpec(blocks, 4, **kv),  # type: ignore[arg-type]
        load=Poisson(30.0),
        stop=Stop(requests=300),
        capacity=64,
    )
    return float(np.nanmean(out.requests["admitted_s"] - out.requests["arrival_s"]))


def test_half_the_blocks_make_a_queue() -> None:
    # Some 4 requests run at once without a limit, 14 blocks each.
    plenty, enough, half = wait_s(2000), wait_s(112), wait_s(56)
    assert plenty == wait_s(10**6)
    assert plenty <= enough < half / 3


def test_optimistic_admission_packs_more_and_puts_back() -> None:
    changes = {
        "load": Batch(40),
        "stop": Stop(),
        "prefill": MIXED,
        "capacity": 12,
        "output": FixedLengthConfig(kind="fixed", tokens=120),
    }
    worst = small_run(kv=KvSpec(100, 4, "worst_case"), **changes)
    hopeful = small_run(kv=KvSpec(100, 4, "optimistic"), **changes)
    assert worst.requests["preemptions"].sum() == 0
    assert hopeful.requests["preemptions"].sum() > 0
    assert hopeful.steps["preempted"].sum() == hopeful.requests["preemptions"].sum()
    assert hopeful.steps["num_requests"].max() > worst.steps["num_requests"].max()
    again = hopeful.requests["preemptions"] > 0
    # What was dropped is read again: prompt and what had been emitted.
    assert (hopeful.requests["prefilled"][again] > 10).all()
    assert (hopeful.requests["prefilled"][~again] == 10).all()
    half = small_run(kv=KvSpec(50, 4, "optimistic"), **changes)
    assert half.requests["preemptions"].sum() > hopeful.requests["preemptions"].sum()
    for out in (worst, hopeful, half):
        assert (out.requests["status"] == Status.FINISHED).all()
        assert out.requests["emitted"].sum() == 40 * 119


def test_the_last_to_come_is_put_back_first_and_low_classes_before() -> None:
    out = small_run(
        load=Batch(12),
        stop=Stop(),
        prefill=MIXED,
        kv=KvSpec(60, 4, "optimistic", watermark=0.0),
        priority_shares_C=(0.5, 0.5),
        output=FixedLengthConfig(kind="fixed", tokens=80),
        capacity=12,
    )
    preempted, high = out.requests["preemptions"], out.requests["priority"] == 0
    assert preempted.sum() > 0
    assert preempted[high].sum() < preempted[~high].sum()


def test_swapping_takes_time_and_spares_prefill() -> None:
    changes = {
        "load": Batch(30),
        "stop": Stop(),
        "prefill": MIXED,
        "capacity": 12,
        "output": FixedLengthConfig(kind="fixed", tokens=120),
    }
    slow, fast = (
        small_run(kv=KvSpec(100, 4, "optimistic", "swap", swap_s_per_token=cost_s), **changes)
        for cost_s in (1e-4, 1e-7)
    )
    assert slow.requests["preemptions"].sum() > 0
    # Only who was put back in the middle of its prompt reads again.
    assert slow.requests["prefilled"].sum() < 30 * 10 + 64
    assert slow.end_s > fast.end_s


def test_a_watermark_keeps_requests_out() -> None:
    changes = {
        "load": Batch(40),
        "stop": Stop(),
        "prefill": MIXED,
        "capacity": 12,
        "output": FixedLengthConfig(kind="fixed", tokens=120),
    }
    none, half = (
        small_run(kv=KvSpec(100, 4, "optimistic", watermark=mark), **changes) for mark in (0.0, 0.5)
    )
    assert half.requests["preemptions"].sum() < none.requests["preemptions"].sum()


def test_a_preemption_spiral_ends_and_is_named() -> None:
    out = small_run(
        load=Batch(200),
        stop=Stop(),
        prefill=MixedPrefill(600, "full"),
        capacity=100,
        kv=KvSpec(105, 4, "optimistic", watermark=0.0, spiral_after=40),
        output=FixedLengthConfig(kind="fixed", tokens=400),
        prompt=FixedLengthConfig(kind="fixed", tokens=2),
    )
    assert out.ended == "preemption spiral"
    (said,) = out.findings
    assert "preemption spiral: rank 0 put requests back" in said
    assert "of 200 requests finished" in said
    waits = out.requests["status"] == Status.WAITING
    runs = out.requests["status"] == Status.RUNNING
    done = out.requests["status"] == Status.FINISHED
    assert waits.sum() + runs.sum() + done.sum() == 200


def test_recomputing_for_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="recompute would be free"):
        small_run(kv=KvSpec(100, 4, "optimistic"))
    with pytest.raises(InputError, match="central_queue"):
        small_run(
            kv=KvSpec(100, 4, "optimistic", "swap", swap_s_per_token=1e-6), router="central_queue"
        )


def shared(seed: int) -> Iterator[Arrival]:
    """Ten prompts of 40 tokens whose first 32 are the same, one after the other."""
    for i in range(10):
        blocks = (7, 8, 9, 10, 100 + i)
        yield Arrival(i * 0.5, 40, 10, block_tokens=8, blocks=blocks)


def test_equal_prefixes_are_read_once() -> None:
    changes = {"load": Feed(shared), "prefill": MIXED, "stop": Stop()}
    reuse = small_run(kv=KvSpec(200, 4, prefix_reuse=True), **changes)
    not_ = small_run(kv=KvSpec(200, 4), **changes)
    np.testing.assert_array_equal(reuse.requests["cached"], [0] + [32] * 9)
    np.testing.assert_array_equal(reuse.requests["prefilled"], [40] + [8] * 9)
    np.testing.assert_array_equal(not_.requests["cached"], 0)
    ttft = reuse.requests["first_token_s"] - reuse.requests["arrival_s"]
    assert (ttft[1:] < ttft[0]).all()


def test_a_small_memory_forgets() -> None:
    # Room for one request and little more: the shared blocks must go in between.
    def other(seed: int) -> Iterator[Arrival]:
        for i in range(6):
            blocks = (7, 8, 9, 10, 11) if i % 2 == 0 else (50, 51, 52, 53, 54)
            yield Arrival(i * 0.5, 41, 10, block_tokens=8, blocks=blocks)

    changes = {"load": Feed(other), "prefill": MIXED, "stop": Stop()}
    small = small_run(kv=KvSpec(15, 4, prefix_reuse=True), **changes)
    large = small_run(kv=KvSpec(60, 4, prefix_reuse=True), **changes)
    np.testing.assert_array_equal(large.requests["cached"], [0, 0, 40, 40, 40, 40])
    assert small.requests["cached"].sum() < large.requests["cached"].sum()
    assert small.steps["kv_blocks"].max() <= 15


def test_a_follow_up_turn_finds_its_context() -> None:
    def talk(seed: int) -> Iterator[Arrival]:
        yield Arrival(0.0, 20, 13, session=0, then=(Turn(0.1, 8, 10),))

    changes = {"load": Feed(talk), "prefill": MIXED, "stop": Stop()}
    out = small_run(kv=KvSpec(200, 4, prefix_reuse=True), **changes)
    # 20 + 12 tokens of KV are 8 whole blocks; the answer's last token was never read.
    np.testing.assert_array_equal(out.requests["cached"], [0, 32])
    np.testing.assert_array_equal(out.requests["prefilled"], [20, 41 - 32])


def test_block_sizes_must_fit_each_other() -> None:
    with pytest.raises(InputError, match="3 does not divide the workload's prefix blocks of 8"):
        small_run(load=Feed(shared), prefill=MIXED, kv=KvSpec(99, 3, prefix_reuse=True))


def test_the_cache_lets_go_of_tails_first_and_of_the_held_never() -> None:
    cache = PrefixCache()
    for key in "abc":
        assert cache.insert(key, 2)
    assert not cache.insert("a", 2)
    assert cache.match("abx") == ("a", "b")
    cache.release("abc")
    cache.hold("a")
    assert (cache.blocks, cache.evictable) == (6, 4)
    cache.evict(1)
    assert cache.match("abc") == ("a", "b")
    assert (cache.blocks, cache.evictable) == (4, 2)


def test_an_empty_pool_gives_everything_back() -> None:
    pool = KvPool(KvSpec(10, 4), gamma=4)
    assert (pool.used, pool.available) == (0, 10)
