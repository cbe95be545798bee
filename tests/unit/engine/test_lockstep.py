"""Ranks that wait for the slowest."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from specsim.acceptance.blocks import lay_out
from specsim.engine.lockstep import Lockstep
from specsim.engine.run import Batch, ClosedLoop, Feed, RunColumns, Stop
from specsim.errors import InputError
from specsim.schedulers.greedy import Greedy
from specsim.schedulers.static import FixedLength
from specsim.schedulers.topk import AsyncTopK
from specsim.workload.feed import Arrival
from specsim.workload.lengths import UniformLengthConfig
from tests.engine_world import LinearCost, random_trace, small_run


def uneven(seed: int) -> Iterator[Arrival]:
    """Long and short outputs in turn, so that round robin gives one rank the long ones."""
    for i in range(24):
        yield Arrival(0.0, 10, 200 if i % 2 else 20)


def by_step(out: RunColumns, ranks: int) -> dict[str, np.ndarray]:
    """Reshape the log of an all-lockstep run to `[step, rank]`."""
    return {name: column.reshape(-1, ranks) for name, column in out.steps.items()}


def test_identical_ranks_step_as_independent_ones() -> None:
    # One sequence, equal lengths: both ranks do the same thing at the same time.
    blocks = lay_out(random_trace(sequences=1, domains=1, anchors=400), gamma=4, seed=0)
    changes = {
        "blocks": blocks,
        "load": Batch(12),
        "ranks": 2,
        "router": "round_robin",
        "scheduler": lambda: AsyncTopK(2),
        "stop": Stop(),
    }
    alone = small_run(**changes)
    for budget in ("per_rank", "max_tier", "group"):
        together = small_run(lockstep=Lockstep(budget), **changes)
        if budget == "per_rank":
            for name, column in alone.steps.items():
                assert column.tobytes() == together.steps[name].tobytes(), name
            for name, column in alone.requests.items():
                assert column.tobytes() == together.requests[name].tobytes(), name
        assert together.requests["emitted"].sum() == alone.requests["emitted"].sum()


def test_a_step_lasts_as_long_as_its_slowest_rank() -> None:
    out = small_run(
        load=Feed(uneven), ranks=2, router="round_robin", lockstep=Lockstep(), stop=Stop()
    )
    steps = by_step(out, 2)
    np.testing.assert_array_equal(steps["end_s"][:, 0], steps["end_s"][:, 1])
    np.testing.assert_array_equal(steps["duration_s"][:, 0], steps["own_s"].max(axis=1))
    assert (steps["own_s"][:, 0] < steps["own_s"][:, 1]).any()


def test_an_idle_rank_runs_a_dummy_row_until_the_group_is_done() -> None:
    cost = LinearCost()
    out = small_run(
        load=Feed(uneven),
        ranks=2,
        router="round_robin",
        lockstep=Lockstep(),
        cost=cost,
        stop=Stop(),
    )
    steps = by_step(out, 2)
    idle = steps["num_requests"][:, 0] == 0
    assert idle.sum() > 10
    assert (steps["num_requests"][idle, 1] > 0).all()
    for name in ("verified", "accepted", "emitted", "kv_tokens"):
        assert (steps[name][idle, 0] == 0).all()
    np.testing.assert_allclose(steps["own_s"][idle, 0], cost.verify_s_B[1] + cost.fixed)


def test_all_ranks_pay_for_the_largest_tier() -> None:
    cost = LinearCost()
    out = small_run(
        load=Feed(uneven),
        ranks=2,
        router="round_robin",
        lockstep=Lockstep("max_tier", (8, 16, 64)),
        cost=cost,
        stop=Stop(),
    )
    steps = by_step(out, 2)
    np.testing.assert_array_equal(steps["charged"][:, 0], steps["charged"][:, 1])
    assert set(np.unique(steps["charged"])) <= {8, 16, 64}
    real = (steps["num_requests"] + steps["verified"]).max(axis=1)
    assert (steps["charged"][:, 0] >= real).all()
    # An idle rank has no real tokens in a forward of the group's size.
    idle = steps["num_requests"][:, 0] == 0
    assert idle.any()
    assert (steps["charged"][idle, 0] >= 8).all()


def test_a_forward_past_the_last_tier_is_not_padded() -> None:
    out = small_run(
        load=Batch(32), ranks=2, lockstep=Lockstep("max_tier", (4, 8)), stop=Stop(), capacity=16
    )
    assert out.steps["charged"].max() == 16 * 3


def test_a_rank_without_a_budget_makes_all_verify_everything() -> None:
    changes = {
        "load": Feed(uneven),
        "ranks": 2,
        "router": "round_robin",
        "scheduler": lambda: AsyncTopK(3),
        "cost": LinearCost(slope_s=2e-3),  # so dear that a planner trims
        "stop": Stop(),
    }
    steps = by_step(small_run(lockstep=Lockstep("max_tier"), **changes), 2)
    full = steps["verified"] == 4 * steps["num_requests"]
    assert full[:3].all()  # nothing to look back at: everywhere, everything
    assert not full[3:].all()
    free = by_step(small_run(lockstep=Lockstep("per_rank"), **changes), 2)
    assert (free["verified"] < 4 * free["num_requests"])[3:].any()


def test_one_rank_late_makes_all_verify_everything_again() -> None:
    def late(seed: int) -> Iterator[Arrival]:
        yield Arrival(0.0, 10, 400)
        yield Arrival(1.0, 10, 100)  # rank 1 has been idle

    out = small_run(
        load=Feed(late),
        ranks=2,
        router="round_robin",
        scheduler=lambda: AsyncTopK(2),
        cost=LinearCost(slope_s=5e-3),
        lockstep=Lockstep("max_tier"),
        stop=Stop(),
    )
    steps = by_step(out, 2)
    woken = int(np.argmax(steps["num_requests"][:, 1] > 0))
    assert steps["verified"][woken - 1, 0] < 4
    np.testing.assert_array_equal(steps["verified"][woken : woken + 2], 4)


def test_a_group_drains_to_one_request_and_none() -> None:
    for budget in ("per_rank", "max_tier", "group"):
        out = small_run(
            load=Feed(uneven),
            ranks=3,
            router="round_robin",
            scheduler=lambda: AsyncTopK(2),
            lockstep=Lockstep(budget, (4, 8, 16) if budget == "max_tier" else ()),
            stop=Stop(),
        )
        steps = by_step(out, 3)
        assert steps["num_requests"].sum(axis=1)[-1] >= 1
        assert (steps["verified"] <= 4 * steps["num_requests"]).all()
        assert np.isfinite(out.requests["finish_s"]).all()


def test_the_group_wakes_from_idleness_together() -> None:
    def two(seed: int) -> Iterator[Arrival]:
        yield Arrival(0.0, 10, 10)
        yield Arrival(5.0, 10, 10)

    out = small_run(load=Feed(two), ranks=2, router="round_robin", lockstep=Lockstep(), stop=Stop())
    assert (np.diff(out.steps["end_s"].reshape(-1, 2)[:, 0]) > 4).sum() == 1
    assert out.ended == "all done"


def test_group_needs_a_lagged_scheduler() -> None:
    for scheduler in (Greedy, lambda: FixedLength(2)):
        with pytest.raises(InputError, match="use async_topk"):
            small_run(scheduler=scheduler, ranks=2, lockstep=Lockstep("group"))


def throughput(budget: str, seed: int) -> float:
    out = small_run(
        load=ClosedLoop(20),
        ranks=4,
        router="round_robin",
        capacity=64,
        scheduler=lambda: AsyncTopK(2),
        cost=LinearCost(base_s=5e-3, slope_s=4e-4),
        output=UniformLengthConfig(kind="uniform", min=2, max=300),
        lockstep=Lockstep(budget),
        seed=seed,
        stop=Stop(tokens=12_000),
    )
    return float(out.steps["emitted"].sum() / out.end_s)


def test_the_group_budget_beats_per_rank_budgets_on_uneven_ranks() -> None:
    # The long version, with its interval, is tests/statistical/test_lockstep_budget.py.
    gains = [throughput("group", seed) / throughput("per_rank", seed) for seed in range(4)]
    assert np.mean(gains) > 1.0
