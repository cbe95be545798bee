"""Batch-size tables, goodput control, adaptive steps and the bandit, against hand-worked cases."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from specsim.schedulers.bandit import BanditConfig, _Bin, _bin_of
from specsim.schedulers.feedback import AdaptiveStepsConfig, GoodputConfig, mean_committed
from specsim.schedulers.tables import BatchTableConfig
from tests.scheduler_views import make_view, outcome


def lengths(scheduler, count, gamma=7, **more):
    return scheduler.plan(make_view(np.full((count, gamma), 0.8), **more))


def test_gaps_in_a_batch_table_keep_the_range_before() -> None:
    table = BatchTableConfig(
        kind="batch_table", ranges=[(1, 4, 5), (8, 16, 2), (32, 64, 0)]
    ).build()
    wanted = {1: 5, 4: 5, 7: 5, 8: 2, 31: 2, 32: 0, 100: 0}
    for count, k in wanted.items():
        assert lengths(table, count).tolist() == [k] * count
    assert lengths(table, 1, gamma=3).tolist() == [3]


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ([(2, 4, 1)], "first range must start at 1"),
        ([(1, 4, 1), (4, 9, 1)], "overlap"),
        ([(1, 4, 1), (9, 8, 1)], "ends before it begins"),
        ([], "at least 1"),
        ([(1, 4, -1)], "greater than or equal to 0"),
    ],
)
def test_batch_tables_that_make_no_sense(ranges, said) -> None:
    with pytest.raises(ValidationError, match=said):
        BatchTableConfig(kind="batch_table", ranges=ranges)


def test_goodput_follows_its_formula_and_stops_at_the_first_decrease() -> None:
    config = GoodputConfig(kind="goodput", start=0.7, every=20)
    assert mean_committed(0.5, 2) == 1.75
    # One request, 1 s a step and 0.2 s a token: goodput(k) = (1 - .7^(k+1)) / .3 / (1.2 + .2 k).
    table = 1.0 + 0.2 * np.arange(20)
    found = int(lengths(config.build(), 1, table=table)[0])
    by_hand = [mean_committed(0.7, k) / (1.2 + 0.2 * k) for k in range(8)]
    assert found == int(np.argmax(by_hand)) == 3
    # A hump at k = 2 hides the cheap k = 4 behind it: the search has stopped.
    humped = np.array([0, 1, 1, 5, 5, 1, 1, 1, 1, 1.0])
    assert int(lengths(config.build(), 1, table=humped)[0]) == 1


def test_goodput_takes_the_whole_block_where_tokens_are_free() -> None:
    scheduler = GoodputConfig(kind="goodput", start=0.9).build()
    assert lengths(scheduler, 2, gamma=4, table=np.ones(30)).tolist() == [4, 4]


@pytest.mark.parametrize("every", [1, 2, 3, 4])
def test_goodput_thinks_anew_every_so_many_plans(every) -> None:
    scheduler = GoodputConfig(kind="goodput", start=0.9, every=every).build()
    table = 1.0 + 0.2 * np.arange(30)
    first = int(lengths(scheduler, 1, table=table)[0])
    assert first > 0
    for _ in range(60):
        scheduler.observe(outcome([4], [0]))
    found = [int(lengths(scheduler, 1, table=table)[0]) for _ in range(every)]
    assert found == [first] * (every - 1) + [0]


def test_goodput_favours_no_speculation_by_a_tenth() -> None:
    table = np.array([0, 1.0, 1.6, 9, 9, 9, 9, 9, 9, 9])  # k = 1 promises 1.7 / 1.6 = 1.06
    assert int(lengths(GoodputConfig(kind="goodput").build(), 1, table=table)[0]) == 0
    plain = GoodputConfig(kind="goodput", idle_bonus=1.0)
    assert int(lengths(plain.build(), 1, table=table)[0]) == 1


def test_goodput_learns_from_judged_drafts_only_and_thinks_now_and_then() -> None:
    scheduler = GoodputConfig(kind="goodput", every=3).build()
    lengths(scheduler, 2)
    # 4 verified, 1 accepted, then a rejection: 1 of 2 judged. The other: 4 of 4.
    scheduler.observe(outcome([4, 4], [1, 4]))
    assert scheduler._alpha == pytest.approx(0.85 * 0.7 + 0.15 * 5 / 6)
    table = 1.0 + 0.2 * np.arange(30)
    before = lengths(scheduler, 1, table=table)
    for _ in range(40):
        scheduler.observe(outcome([4], [0]))
    assert lengths(scheduler, 1, table=table).tolist() == before.tolist()
    assert lengths(scheduler, 1, table=table).tolist() == [0]  # the third plan thinks anew
    alpha = scheduler._alpha
    scheduler.observe(outcome([0], [0]))
    assert scheduler._alpha == alpha


def climb(scheduler, count, accepted, steps):
    found = []
    for _ in range(steps):
        k = int(lengths(scheduler, count)[0])
        found.append(k)
        scheduler.observe(outcome([k] * count, [min(k, accepted)] * count))
    return found


def test_adaptive_steps_drop_and_rise_by_the_published_thresholds() -> None:
    scheduler = AdaptiveStepsConfig(kind="adaptive_steps").build()
    found = climb(scheduler, 1, 0, 40)
    # Ten batches of warm-up, then a decision every five: the mean falls below 5 - .75 long before.
    assert found[:15] == [7] * 15
    assert found[15] < 7
    assert found[-1] == 1
    # One draft always accepted: the mean nears 1, above 1 - .5, so the next is tried; there the
    # mean stays at 1 > 1 - .5 - .25, so it does not drop back.
    assert climb(scheduler, 1, 7, 60)[-1] == 7


def test_adaptive_steps_decide_every_so_many_batches_after_the_warm_up() -> None:
    config = AdaptiveStepsConfig(
        kind="adaptive_steps",
        slots=[{"from_requests": 1, "steps": (1, 2, 3, 4)}],
        memory=0.0,
        warmup=3,
        every=5,
    )
    # Decisions at batches 8 and 13: nothing accepted, down to 1; one of one accepted, one up.
    scheduler = config.build()
    assert climb(scheduler, 1, 0, 9) == [4] * 8 + [1]
    assert climb(scheduler, 1, 4, 5) == [1] * 4 + [2]


def test_adaptive_steps_stay_between_the_thresholds() -> None:
    config = AdaptiveStepsConfig(
        kind="adaptive_steps", slots=[{"from_requests": 1, "steps": (1, 3)}], warmup=0, every=1
    )
    scheduler = config.build()
    # Mean 2 drafts accepted of 3: neither <= 1 - .75 nor anything above to rise to.
    assert climb(scheduler, 1, 2, 30)[-1] == 3
    # Nothing accepted: 0.8^n * 3 must fall to .25 first.
    found = climb(scheduler, 1, 0, 30)
    assert found.index(1) == 1 + int(np.ceil(np.log(0.25 / scheduler_mean(2.0)) / np.log(0.8))) - 1


def scheduler_mean(converged: float) -> float:
    return converged + 0.8**30 * (3 - converged)


def test_from_zero_the_next_is_always_probed() -> None:
    config = AdaptiveStepsConfig(
        kind="adaptive_steps",
        slots=[{"from_requests": 1, "steps": (0, 1)}],
        warmup=0,
        every=1,
        down=0.6,
    )
    found = climb(config.build(), 1, 0, 40)
    zero = found.index(0)
    assert found[zero + 1] == 1
    # With SGLang's own thresholds a mean of 0 is not low enough to drop to 0.
    usual = config.model_copy(update={"down": -0.25}).build()
    assert set(climb(usual, 1, 0, 40)) == {1}


def test_batch_sizes_have_slots_of_their_own() -> None:
    scheduler = AdaptiveStepsConfig(kind="adaptive_steps").build()
    assert lengths(scheduler, 7).tolist() == [7] * 7
    assert lengths(scheduler, 8).tolist() == [3] * 8
    assert lengths(scheduler, 64).tolist() == [0] * 64
    climb(scheduler, 1, 0, 60)
    assert lengths(scheduler, 8).tolist() == [3] * 8
    with pytest.raises(ValidationError, match="must start at 1"):
        AdaptiveStepsConfig(kind="adaptive_steps", slots=[{"from_requests": 2, "steps": (1,)}])
    with pytest.raises(ValidationError, match="strictly rising"):
        AdaptiveStepsConfig(kind="adaptive_steps", slots=[{"from_requests": 1, "steps": (3, 1)}])
    for steps in ((1, 65), (-1, 2), (2, 2)):
        with pytest.raises(ValidationError, match=r"strictly rising lengths of 0\.\.64"):
            AdaptiveStepsConfig(kind="adaptive_steps", slots=[{"from_requests": 1, "steps": steps}])
    AdaptiveStepsConfig(kind="adaptive_steps", slots=[{"from_requests": 1, "steps": (0, 64)}])


def pull(scheduler, cost, steps, count=4):
    """Run it against a machine where k drafts take cost[k] seconds and all are accepted."""
    found = []
    for _ in range(steps):
        k = int(lengths(scheduler, count, gamma=3)[0])
        found.append(k)
        scheduler.observe(outcome([k] * count, [k] * count, seconds=cost[k]))
    return found


def test_a_bandit_finds_the_cheapest_length_and_keeps_looking_less() -> None:
    scheduler = BanditConfig(kind="bandit", seed=3).build()
    found = pull(scheduler, [1.0, 1.1, 4.0, 9.0], 3000)
    late = np.array(found[1500:])
    assert (late == 1).mean() > 0.8
    assert set(found) == {0, 1, 2, 3}


def test_a_bandit_turns_around_when_the_machine_does() -> None:
    scheduler = BanditConfig(kind="bandit", seed=3, memory=0.95).build()
    pull(scheduler, [1.0, 9.0, 9.0, 9.0], 2000)
    late = np.array(pull(scheduler, [9.0, 9.0, 9.0, 1.0], 6000)[3000:])
    assert (late == 3).mean() > 0.8


def test_a_bandit_holds_blocks_that_double_and_repeats_itself() -> None:
    one, two = (pull(BanditConfig(kind="bandit", seed=5).build(), [1, 1, 1, 1.0], 67) for _ in "ab")
    assert one == two
    assert sorted(one[:4]) == [0, 1, 2, 3]  # every length once before anything else
    starts = [4, 5, 7, 11, 19, 35]
    for first, end in zip(starts, [*starts[1:], 67], strict=True):
        assert len(set(one[first:end])) == 1
    assert one != pull(BanditConfig(kind="bandit", seed=6).build(), [1, 1, 1, 1.0], 67)
    scheduler = BanditConfig(kind="bandit", seed=5, longest_block=8).build()
    pull(scheduler, [1, 1, 1, 1.0], 4 + 1 + 2 + 4 + 8 + 8)
    (arms,) = scheduler._bins.values()
    assert (arms.block, arms.left) == (5, 0)


def test_a_bandit_takes_the_shortest_of_equally_cheap_lengths() -> None:
    scheduler = BanditConfig(kind="bandit", seed=3, memory=1.0).build()
    late = pull(scheduler, [1.0, 2.0, 3.0, 4.0], 3000)[1500:]
    assert np.mean(np.array(late) == 0) > 0.8


def test_goodput_counts_every_request_and_the_time_that_nobody_trims() -> None:
    """Three requests and two prompt tokens: goodput(k) = 3 (1 + .. + a^k) / (T(5 + 3k) + f)."""
    table = 1.0 + 0.1 * np.arange(40)
    for fixed_s, alpha in ((0.0, 0.7), (5.0, 0.7), (0.0, 0.55), (1.0, 0.9)):
        scheduler = GoodputConfig(kind="goodput", start=alpha, idle_bonus=1.0).build()
        found = lengths(scheduler, 3, gamma=4, table=table, base=5, fixed_s=fixed_s)
        by_hand = [3 * mean_committed(alpha, k) / (table[5 + 3 * k] + fixed_s) for k in range(5)]
        falls = np.flatnonzero(np.diff(by_hand) < 0)
        assert found.tolist() == [int(falls[0]) if len(falls) else 4] * 3


def test_goodput_stays_at_the_shorter_of_equals_and_looks_past_it() -> None:
    def found(*seconds: float) -> int:
        scheduler = GoodputConfig(kind="goodput", start=1.0, idle_bonus=1.0).build()
        return int(lengths(scheduler, 1, gamma=2, table=[0, *seconds])[0])

    assert found(1, 2, 4) == 0  # promises 1, 1, 3 / 4
    assert found(1, 2, 2) == 2  # 1, 1, 3 / 2: an equal one does not end the search
    assert found(1, 1, 1.5) == 1  # 1, 2, 2


def test_an_acceptance_of_nothing_is_an_acceptance() -> None:
    """alpha = 0 must not be taken for "nothing known yet"."""
    scheduler = GoodputConfig(kind="goodput", start=1.0, memory=0.0, every=1).build()
    assert lengths(scheduler, 1, table=np.ones(20)).tolist() == [7]
    scheduler.observe(outcome([7], [0]))
    assert lengths(scheduler, 1, table=np.ones(20)).tolist() == [0]


def settled(scheduler, count, total):
    """What one decision makes of a mean of `total / count` accepted drafts, with no memory."""
    before = int(lengths(scheduler, count)[0])
    accepted = [total // count + (row < total % count) for row in range(count)]
    scheduler.observe(outcome([before] * count, accepted))
    return int(lengths(scheduler, count)[0])


def test_thresholds_of_adaptive_steps_to_the_quarter() -> None:
    """From 4 down at a mean of 2 - .5 - .25 or less; from 2 up above 2 - .5; both at once never."""

    def at(start: int, total: int, steps=(1, 2, 4, 6)) -> int:
        config = AdaptiveStepsConfig(
            kind="adaptive_steps",
            slots=[{"from_requests": 1, "steps": steps}],
            memory=0.0,
            warmup=0,
            every=1,
        )
        scheduler = config.build()
        lengths(scheduler, 4)
        scheduler._slots[0].at = steps.index(start)
        return settled(scheduler, 4, total)

    assert [at(4, n) for n in (5, 6, 14, 15)] == [2, 4, 4, 6]  # means 1.25, 1.5, 3.5, 3.75
    assert [at(2, n) for n in (1, 2, 6, 7, 15)] == [1, 2, 2, 4, 6]
    assert [at(6, n) for n in (13, 14, 1)] == [4, 6, 1]  # and as far down as the mean says
    assert at(1, 0) == 1
    assert at(6, 24) == 6


def test_batches_that_taught_nothing_are_not_counted() -> None:
    config = AdaptiveStepsConfig(
        kind="adaptive_steps",
        slots=[{"from_requests": 1, "steps": (1, 5)}],
        memory=0.0,
        warmup=0,
        every=2,
    )
    scheduler = config.build()
    scheduler.observe(outcome([], []))
    scheduler.observe(outcome([5], [0]))
    assert lengths(scheduler, 1).tolist() == [5]
    scheduler.observe(outcome([5], [0]))
    assert lengths(scheduler, 1).tolist() == [1]


def test_smoothing_keeps_the_share_that_it_says() -> None:
    config = AdaptiveStepsConfig(
        kind="adaptive_steps", slots=[{"from_requests": 1, "steps": (8,)}], memory=0.75
    )
    scheduler = config.build()
    for accepted, mean in ((4, 7.0), (4, 6.25), (0, 4.6875)):
        scheduler.observe(outcome([8], [accepted]))
        assert scheduler._slots[0].mean_accepted == mean


def test_published_ranges_end_where_sglang_says() -> None:
    scheduler = AdaptiveStepsConfig(kind="adaptive_steps").build()
    found = {count: int(lengths(scheduler, count)[0]) for count in (1, 7, 8, 31, 32, 63, 64, 99)}
    assert found == {1: 7, 7: 7, 8: 3, 31: 3, 32: 1, 63: 1, 64: 0, 99: 0}
    assert [slot.steps for slot in scheduler._slots] == [(1, 3, 5, 7), (0, 1, 3), (0, 1), (0,)]
    climb(scheduler, 64, 0, 40)  # with nothing to choose from it stays
    assert int(lengths(scheduler, 64)[0]) == 0
    for firsts in ((1, 1), (1, 8, 4)):
        with pytest.raises(ValidationError, match="the others rise strictly"):
            AdaptiveStepsConfig(
                kind="adaptive_steps", slots=[{"from_requests": n, "steps": (1,)} for n in firsts]
            )


def test_bins_of_a_bandit_are_powers_of_two() -> None:
    sizes = {0: 1, 1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 8: 8, 9: 16, 64: 64, 65: 128}
    assert {count: _bin_of(count) for count in sizes} == sizes
    scheduler = BanditConfig(kind="bandit").build()
    assert [int(lengths(scheduler, n, gamma=3)[0]) for n in (3, 4, 5)] == [0, 0, 0]
    scheduler.observe(outcome([0] * 5, [0] * 5))
    assert [int(lengths(scheduler, n, gamma=3)[0]) for n in (8, 3)] == [1, 0]


def test_a_bandit_keeps_seconds_and_tokens_of_each_length() -> None:
    scheduler = BanditConfig(kind="bandit", memory=0.5).build()
    scheduler.observe(outcome([1] * 4, [1] * 4))  # of a batch that it never planned
    for k, accepted, seconds in ((0, 0, 3.0), (1, 3, 2.0), (2, 5, 4.0)):
        assert lengths(scheduler, 4, gamma=2).tolist() == [k] * 4
        scheduler.observe(outcome([], []))  # nobody decoded: nothing to note
        scheduler.observe(
            outcome(
                [k] * 4, [accepted - 3 * (accepted // 4), *[accepted // 4] * 3], seconds=seconds
            )
        )
    (arms,) = scheduler._bins.values()
    assert (arms.seconds_K, arms.tokens_K) == ([3.0, 2.0, 4.0], [4.0, 7.0, 9.0])
    scheduler._planned = 1
    scheduler.observe(outcome([1] * 4, [1, 1, 0, 0], seconds=10.0))
    assert (arms.seconds_K, arms.tokens_K) == ([3.0, 11.0, 4.0], [4.0, 9.5, 9.0])


def test_turning_speculation_on_costs_a_bandit_something() -> None:
    """Seconds a token 1.0, 0.9, 0.8; coming from 0, k drafts cost `switch_s / k` more."""
    for switch_s, off, on in ((0.0, 2, 2), (0.1, 2, 2), (0.5, 0, 2), (0.39, 2, 2), (0.41, 0, 2)):
        scheduler = BanditConfig(kind="bandit", switch_s=switch_s).build()
        arms = _Bin([4.0, 3.6, 3.2], [4.0, 4.0, 4.0])
        found = []
        for before in (0, 1):
            scheduler._before = before
            found.append(scheduler._best(arms))
        assert found == [off, on], switch_s
    scheduler._before = 0
    assert scheduler._best(_Bin([2.0, 1.0], [4.0, 4.0])) == 0  # 1 / 4 + 0.41 / 1
    observed = BanditConfig(kind="bandit").build()
    lengths(observed, 2, gamma=1)
    observed.observe(outcome([0, 0], [0, 0]))
    lengths(observed, 2, gamma=1)
    observed.observe(outcome([1, 1], [0, 0]))
    assert observed._before == 1


def test_a_bandit_explores_less_and_less() -> None:
    """Block b tries any length with probability 1 / b: the first always, then half, a third, .."""
    tries, blocks = 4000, 4
    best = np.zeros(blocks)
    for seed in range(tries):
        scheduler = BanditConfig(kind="bandit", seed=0).build()
        rng, arms = np.random.default_rng(seed), _Bin([1.0, 2.0, 3.0, 4.0], [1.0] * 4)
        for block in range(blocks):
            scheduler._next_block(arms, rng)
            assert (arms.block, arms.left) == (block + 1, 2**block)
            best[block] += arms.k == 0
    wanted = [1 / b / 4 + (1 - 1 / b) for b in range(1, blocks + 1)]
    np.testing.assert_allclose(best / tries, wanted, atol=0.03)
