"""Laws of random fleets: nothing is lost, nothing is twice, and clocks go forward.

Every event of every run is followed by a recount of all requests from the places where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specsim.engine.faults import Death, Patience
from specsim.engine.kv import KvSpec
from specsim.engine.lockstep import Lockstep
from specsim.engine.prefill import DisaggregatedPrefill, MixedPrefill
from specsim.engine.run import Batch, ClosedLoop, Feed, Poisson, Simulation, Stop, prepare
from specsim.engine.step import Slot
from specsim.metrics.record import Status
from specsim.schedulers.greedy import Greedy
from specsim.schedulers.static import FixedLength
from specsim.schedulers.topk import AsyncTopK
from specsim.workload.feed import Arrival, Turn
from specsim.workload.lengths import UniformLengthConfig
from tests.engine_world import LinearCost, small_input

UNTIL_S = 1.2
ROUTERS = (
    "least_loaded",
    "central_queue",
    "round_robin",
    "least_kv",
    "shortest_work",
    "power_of_two",
    "session_affinity",
)
SCHEDULERS = {
    "none": lambda: FixedLength(0),
    "fixed": lambda: FixedLength(3),
    "greedy": Greedy,
    "async": lambda: AsyncTopK(2),
}


def feed(seed: int) -> Iterator[Arrival]:
    """Thirty arrivals: plain ones, some with shared prefix blocks, some sessions of three turns."""
    rng = np.random.default_rng(seed)
    at_s = 0.0
    for i in range(30):
        at_s += float(rng.exponential(0.02))
        kind = i % 3
        yield Arrival(
            at_s,
            prompt_tokens=int(rng.integers(9, 40)),
            output_tokens=int(rng.integers(1, 30)),
            session=i if kind == 2 else -1,
            block_tokens=8 if kind == 1 else 0,
            blocks=(1, 2, 100 + i % 4, i + 1000, i + 2000) if kind == 1 else (),
            then=(Turn(0.05, 5, 10), Turn(0.0, 3, 4)) if kind == 2 else (),
        )


@st.composite
def fleets(draw: st.DrawFn) -> dict[str, Any]:
    """Any legal combination of what the engine models, small."""
    scheduler = draw(st.sampled_from(sorted(SCHEDULERS)))
    ranks = draw(st.integers(1, 3))
    router = draw(st.sampled_from(ROUTERS))
    prefill = draw(
        st.sampled_from(
            [
                None,
                MixedPrefill(24, "full"),
                MixedPrefill(9, "plan"),
                DisaggregatedPrefill(2, 16, LinearCost(base_s=0.03), 1e-3, 1e-5, 0.5),
            ]
        )
    )
    kv = None
    if draw(st.booleans()):
        optimistic = draw(st.booleans())
        swap = optimistic and (prefill is None or draw(st.booleans()))
        if swap and router == "central_queue":
            router = "round_robin"
        kv = KvSpec(
            # From what only the shortest fit into up to plenty
            blocks=draw(st.integers(12, 40)),
            block_tokens=draw(st.sampled_from([2, 4, 8])),
            admission="optimistic" if optimistic else "worst_case",
            preemption="swap" if swap else "recompute",
            swap_s_per_token=1e-5 if swap else 0.0,
            watermark=draw(st.sampled_from([0.0, 0.1])),
            prefix_reuse=not isinstance(prefill, DisaggregatedPrefill) and draw(st.booleans()),
            spiral_after=draw(st.sampled_from([10, 1000])),
        )
    budgets = ["per_rank", "max_tier"] + (["group"] if scheduler == "async" else [])
    lockstep = draw(st.sampled_from([None, *budgets]))
    patience = draw(
        st.sampled_from(
            [None, Patience(0.1, 0.4), Patience(None, 0.7), Patience(None, None, 0.8, 0.2)]
        )
    )
    deaths = ()
    if draw(st.booleans()):
        back_s = draw(st.sampled_from([None, 0.5]))
        deaths = (Death(draw(st.integers(0, ranks - 1)), 0.3, back_s),)
    return {
        "load": draw(
            st.sampled_from(
                [
                    ClosedLoop(7),
                    ClosedLoop(7, think_s=0.1, thinking="exponential"),
                    Poisson(40.0),
                    Batch(30),
                    Feed(feed),
                ]
            )
        ),
        "scheduler": SCHEDULERS[scheduler],
        "ranks": ranks,
        "capacity": draw(st.integers(1, 6)),
        "router": router,
        "seed": draw(st.integers(0, 1000)),
        "prompt": UniformLengthConfig(kind="uniform", min=1, max=30),
        "output": UniformLengthConfig(kind="uniform", min=1, max=draw(st.integers(2, 60))),
        "prefill": prefill,
        "kv": kv,
        "lockstep": None if lockstep is None else Lockstep(lockstep, (4, 8, 64)[: ranks + 1]),
        "patience": patience,
        "priority_shares_C": draw(st.sampled_from([(), (0.3, 0.7)])),
        "deaths": deaths,
        "stop": Stop(),
    }


def check_instant(simulation: Simulation) -> None:
    cluster = simulation.cluster
    cluster.check_conservation()
    seen: list[int] = []
    for rank in cluster.ranks:
        seen += [request.index for request in (*rank.batch.running, *rank.prefilling)]
        assert len(rank.batch.running) == rank.batch.count
        slots = rank.batch.slots[:, : rank.batch.count]
        assert rank.batch.kv_tokens == slots[Slot.CONTEXT].sum()
        pool = rank._kv
        if pool is not None:
            assert 0 <= pool.used <= pool.spec.blocks
            held = slots[Slot.PRIVATE].sum() + sum(r.kv_private for r in rank.prefilling)
            assert pool.private == held
    for queue in {id(rank.queue): rank.queue for rank in cluster.ranks}.values():
        seen += [request.index for request in queue]
    assert len(seen) == len(set(seen)), "a request is in two places"


def check_end(simulation: Simulation) -> None:
    requests, steps = simulation.cluster.latest(), simulation.log.columns()
    status = requests["status"]
    np.testing.assert_array_equal(requests["request"], np.arange(len(status)))
    for name in ("emitted", "verified", "accepted"):
        assert requests[name].sum() == steps[name].sum(), name
    assert requests["rounds"].sum() == steps["num_requests"].sum()
    assert (np.diff(steps["end_s"]) >= 0).all()
    done = status == Status.FINISHED
    np.testing.assert_array_equal(done, np.isfinite(requests["finish_s"]))
    np.testing.assert_array_equal(requests["emitted"][done], requests["output_tokens"][done] - 1)
    np.testing.assert_array_equal(status > Status.RUNNING, np.isfinite(requests["closed_s"]))
    if simulation.cluster.pool is not None or simulation.cluster._reads_prompts:
        read = requests["prefilled"] + requests["cached"]
        assert (read[done] >= requests["prompt_tokens"][done]).all()
        once = done & (requests["preemptions"] + requests["reroutes"] == 0)
        np.testing.assert_array_equal(read[once], requests["prompt_tokens"][once])
    read_in_steps = (
        steps["prefill_tokens"].sum() + simulation.prefill_log.columns()["prefill_tokens"].sum()
    )
    left = (status == Status.CANCELLED) | (status == Status.TIMED_OUT)
    # What a request that left was having read in its last step is the steps' alone.
    assert requests["prefilled"].sum() <= read_in_steps
    if not left.any():
        assert requests["prefilled"].sum() == read_in_steps
    assert (steps["accepted"] <= steps["ceiling"]).all()
    assert (steps["accepted"] <= steps["verified"]).all()
    assert (steps["own_s"] <= steps["duration_s"] + 1e-12).all()


def run_checked(changes: dict[str, Any]) -> Simulation:
    simulation = prepare(small_input(**changes))
    env, cluster = simulation.env, simulation.cluster
    before_s = 0.0
    while not cluster.stop.triggered and env.peek() < UNTIL_S:
        env.step()
        assert env.now >= before_s
        before_s = env.now
        check_instant(simulation)
    check_end(simulation)
    return simulation


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(fleets())
def test_sixty_random_fleets_obey_the_laws(changes: dict[str, Any]) -> None:
    run_checked(changes)


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(fleets())
def test_five_hundred_random_fleets_obey_the_laws(changes: dict[str, Any]) -> None:
    run_checked(changes)
