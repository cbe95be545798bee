"""The compiled loop against the general engine, which is its twin: the same bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.acceptance.blocks import Blocks, lay_out
from specsim.cost.model import CostConfig, StepCost, make_cost
from specsim.cost.table import parse_table
from specsim.engine.faults import Patience
from specsim.engine.fused import rule_of
from specsim.engine.lockstep import Lockstep
from specsim.engine.run import (
    Batch,
    ClosedLoop,
    Poisson,
    RunColumns,
    Stop,
    fused_run,
    run,
    simulate,
)
from specsim.schedulers.base import BatchView, IntArray
from specsim.schedulers.greedy import Greedy, PatientGreedy
from specsim.schedulers.static import FixedLength
from specsim.schedulers.threshold import Threshold
from specsim.schedulers.topk import AsyncTopK, GlobalSearch, Stale
from specsim.workload.lengths import UniformLengthConfig
from tests.engine_world import LinearCost, random_trace, small_input

SCHEDULERS = (
    lambda: FixedLength(0),
    lambda: FixedLength(3),
    lambda: Threshold(0.6, "conditional"),
    lambda: Threshold(0.4, "cumulative"),
    Greedy,
    GlobalSearch,
    lambda: AsyncTopK(1),
    lambda: AsyncTopK(2),
    lambda: AsyncTopK(5),
    lambda: PatientGreedy(2, 2, frozenset({"live", "lagged"}), lossless=True),
    lambda: PatientGreedy(1, 0, frozenset({"live"}), lossless=False),
)
LOADS = (
    ClosedLoop(1),
    ClosedLoop(7),
    ClosedLoop(40),
    Poisson(30.0),
    Poisson(400.0),
    Batch(1),
    Batch(50),
)
STOPS = (
    Stop(requests=1),
    Stop(requests=60),
    Stop(tokens=300),
    Stop(seconds=0.7),
    Stop(requests=60, tokens=300, seconds=5.0),
)


def table_cost(layout: str = "ragged", *, seed: int = 0, gamma: int = 4) -> StepCost:
    """A jagged table with attention over R and context, for up to 64 requests of 7 tokens."""
    rng = np.random.default_rng(seed)
    risers = np.cumsum(rng.choice([0.0, 1e-5, 2e-3], 448))
    data: dict[str, Any] = {
        "format": "specsim.steps/1",
        "name": "jagged",
        "provenance": {
            "status": "synthetic",
            "source": "made for a test",
            "date": "2026-11-30",
            "licence": "Apache-2.0",
        },
        "verify": {"batch_tokens": list(range(1, 449)), "seconds": (5e-3 + risers).tolist()},
        "draft": {"num_requests": [1, 64], "seconds": [1e-4, 2e-3]},
        "host": {"num_requests": [1, 64], "seconds": [2e-4, 3e-4]},
        "attention": {
            "num_requests": [1, 64],
            "context_tokens": [8, 20, 60],
            "seconds": [[1e-5, 1e-4], [2e-5, 3e-4], [5e-5, 2e-3]],
        },
    }
    config = CostConfig(table="jagged", read="linear", layout=layout)  # type: ignore[arg-type]
    table = parse_table(json.dumps(data), where="jagged.json")
    return make_cost(config, table, max_requests=64, max_tokens=448, gamma=gamma)


def assert_same(found: RunColumns, wanted: RunColumns) -> None:
    """Hold two runs against each other, bit by bit."""
    for name in ("steps", "requests", "prefill_steps"):
        mine, other = getattr(found, name), getattr(wanted, name)
        assert list(mine) == list(other)
        for column, values in mine.items():
            assert values.dtype == other[column].dtype, column
            assert values.tobytes() == other[column].tobytes(), (name, column)
    for name in ("end_s", "request_seconds", "ended", "findings"):
        assert getattr(found, name) == getattr(wanted, name), name
    np.testing.assert_array_equal(found.rounds_K, wanted.rounds_K)
    accepted = found.steps["accepted"].sum()
    assert found.rounds_K @ np.arange(len(found.rounds_K)) == accepted
    assert found.rounds_K.sum() == found.steps["num_requests"].sum()


def blocks_of(seed: int, gamma: int) -> Blocks:
    """A trace with saturated confidences of exactly 0 and 1, and ties."""
    trace = random_trace(seed=seed, sequences=5, anchors=9)
    rng = np.random.default_rng(seed)
    c = trace.confidence_NG.copy()
    c[rng.random(c.shape) < 0.3] = rng.choice([0.0, 0.5, 1.0])
    return lay_out(replace(trace, confidence_NG=c), gamma=gamma, seed=seed)


@settings(max_examples=250, deadline=None)
@given(
    seed=st.integers(0, 999),
    gamma=st.integers(0, 4),
    scheduler=st.sampled_from(SCHEDULERS),
    load=st.sampled_from(LOADS),
    stop=st.sampled_from(STOPS),
    layout=st.sampled_from(["ragged", "padded", "cap_accept"]),
    router=st.sampled_from(["least_loaded", "round_robin", "central_queue"]),
    ranks=st.sampled_from([1, 1, 2, 3, 5]),
    capacity=st.sampled_from([1, 3, 16, 64]),
    shortest=st.sampled_from([1, 2, 9]),
)
def test_the_same_bytes_as_event_by_event(
    seed, gamma, scheduler, load, stop, layout, router, ranks, capacity, shortest
) -> None:
    wanted = small_input(
        blocks_of(seed, gamma),
        scheduler=scheduler,
        cost=table_cost(layout, seed=seed, gamma=gamma),
        load=load,
        prompt=UniformLengthConfig(kind="uniform", min=4, max=40),
        output=UniformLengthConfig(kind="uniform", min=shortest, max=15),
        ranks=ranks,
        capacity=capacity,
        router=router,
        seed=seed,
        stop=stop,
    )
    fused = fused_run(wanted, rule_of(wanted.scheduler()))
    assert fused is not None
    assert_same(fused, simulate(wanted))


@pytest.mark.parametrize(
    ("load", "capacity", "at_least"),
    [
        (ClosedLoop(30), 16, (8193, 0)),
        (Poisson(900.0), 16, (8193, 0)),
        (ClosedLoop(1), 1, (0, 8193)),
    ],
)
def test_more_than_one_chunk_of_requests_arrivals_and_steps(load, capacity, at_least) -> None:
    wanted = small_input(
        cost=table_cost(),
        load=load,
        capacity=capacity,
        scheduler=lambda: AsyncTopK(2),
        output=UniformLengthConfig(kind="uniform", min=2, max=5),
        stop=Stop(requests=9000),
    )
    found = run(wanted)
    assert len(found.requests["request"]) >= at_least[0]
    assert len(found.steps["end_s"]) >= at_least[1]
    assert_same(found, simulate(wanted))


def test_ranks_at_odd_sizes() -> None:
    for ranks, users in ((64, 1), (64, 70), (7, 4096)):
        wanted = small_input(
            cost=table_cost(),
            load=ClosedLoop(users),
            ranks=ranks,
            scheduler=Greedy,
            stop=Stop(requests=3 * users),
        )
        fused = fused_run(wanted, rule_of(wanted.scheduler()))
        assert fused is not None
        assert_same(fused, simulate(wanted))


def test_without_recording_the_requests_are_the_same_and_no_steps_are_kept() -> None:
    wanted = small_input(cost=table_cost(), scheduler=lambda: AsyncTopK(2))
    kept = run(wanted)
    for way in (run, simulate):
        bare = way(replace(wanted, record="none"))
        assert {len(column) for column in bare.steps.values()} == {0}
        assert_same(replace(bare, steps=kept.steps), kept)
        tokens = replace(wanted, stop=Stop(tokens=300))
        assert way(replace(tokens, record="none")).end_s == run(tokens).end_s


@pytest.mark.parametrize(
    "changes",
    [
        {"cost": LinearCost()},  # a law of its own
        {"lockstep": Lockstep()},
        {"load": ClosedLoop(8, think_s=1.0)},
        {"patience": Patience(total_s=1.0)},
        {"priority_shares_C": (0.5, 0.5)},
        {"scheduler": lambda: Stale(1)},
        {"ranks": 2, "router": "power_of_two"},
        {"cost": table_cost("uniform")},
        {"cost": table_cost("cap_accept", gamma=3)},  # a table for other blocks
    ],
)
def test_what_it_does_not_know_goes_event_by_event(changes: dict[str, Any]) -> None:
    given = small_input(**({"cost": table_cost()} | changes))
    assert fused_run(given, rule_of(given.scheduler())) is None


@dataclass(frozen=True, slots=True)
class Shy(Greedy):
    """Greedy's rule by inheritance, and a plan of its own."""

    def plan(self, view: BatchView) -> IntArray:
        """Verify nothing."""
        return np.zeros(view.num_requests, dtype=np.int64)


def test_an_inherited_rule_does_not_speak_for_another_plan() -> None:
    assert rule_of(Greedy()) is not None
    assert rule_of(Shy()) is None
    found = run(small_input(cost=table_cost(), scheduler=Shy))
    assert found.steps["verified"].sum() == 0
