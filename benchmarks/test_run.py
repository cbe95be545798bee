"""Whole runs of a thousand steps: the compiled loop, event by event, and the bare event loop."""

from __future__ import annotations

from dataclasses import replace

import pytest
import simpy

from specsim.engine.clock import Order, after
from specsim.engine.run import Stop, run, simulate
from specsim.study.bench import bench_input

STEPS = 1000


@pytest.mark.benchmark(group="step")
def test_floor_a_thousand_bare_events(benchmark) -> None:
    def events() -> None:
        env = simpy.Environment()

        def serve():
            for _ in range(STEPS):
                yield after(env, 1.0, Order.STEP)

        env.process(serve())
        env.run()

    benchmark(events)


@pytest.mark.benchmark(group="step")
@pytest.mark.parametrize("users", [16, 64, 256])
@pytest.mark.parametrize("how", [run, simulate])
def test_a_thousand_steps(benchmark, how, users: int) -> None:
    given = bench_input(users, steps=STEPS)
    benchmark(how, given)


@pytest.mark.benchmark(group="run")
@pytest.mark.parametrize("record", ["steps", "none"])
@pytest.mark.parametrize("users", [16, 256])
def test_a_million_tokens(benchmark, users: int, record: str) -> None:
    given = replace(bench_input(users, steps=1), stop=Stop(tokens=1_000_000), record=record)
    benchmark.pedantic(run, (given,), rounds=3, warmup_rounds=1)
