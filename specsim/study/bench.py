"""`specsim bench`: how fast this machine simulates, beside the floor that it could not go under.

The floor of a step is measured in the same breath: (a) one event of a bare SimPy loop, and (b) one
gather of the survivals of R requests from the trace with one library sort of them. Times depend on
the machine and on what else it does; ratios to the floor hardly.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np
import simpy

from specsim.engine.clock import Order, after
from specsim.engine.run import RunInput, Stop, run, simulate
from specsim.engine.step import gather
from specsim.lossless import leaks
from specsim.lossless.montecarlo import Sampler
from specsim.scenario.build import build_arm, run_input
from specsim.scenario.load import load_scenario
from specsim.scenario.locate import find_scenario
from specsim.schedulers.base import BatchView, SchedulerFactory
from specsim.schedulers.greedy import Greedy
from specsim.schedulers.static import FixedLength
from specsim.schedulers.topk import AsyncTopK

SCENARIO, POLICY = "flash_120tps", "dspark_5"
"""What is simulated: DSpark's asynchronous top-K, gamma 5, on the table fitted to V4-Flash."""

PLANNED = ((64, 5), (64, 7), (256, 5), (256, 7), (1024, 5), (1024, 7))
_EVENTS = 20_000


@dataclass(frozen=True, slots=True)
class Speed:
    """One run, timed.

    Attributes:
        steps: steps that it took.
        tokens: output tokens.
        seconds: processor seconds.
    """

    steps: int
    tokens: int
    seconds: float

    @property
    def step_us(self) -> float:
        """Microseconds a step."""
        return 1e6 * self.seconds / self.steps


def bench_input(users: int, *, steps: int) -> RunInput:
    """Return a closed loop of that many users on one rank that lasts about so many steps."""
    loaded = load_scenario(find_scenario(SCENARIO))
    if users > loaded.scenario.cluster.max_requests_per_rank:
        overrides = [f"cluster.max_requests_per_rank={users}"]
        loaded = load_scenario(find_scenario(SCENARIO), overrides=overrides)
    arm = build_arm(loaded.scenario, POLICY, folder=loaded.path.parent.resolve())
    given = run_input(loaded.scenario, arm, concurrency=users)
    # A step emits some three tokens a request.
    return replace(given, stop=Stop(tokens=int(3.3 * users * steps)))


def timed(given: RunInput, *, how: Callable[[RunInput], Any] = run) -> Speed:
    """Run and time it by processor time, which other programs do not count in."""
    started = time.process_time()
    out = how(given)
    seconds = time.process_time() - started
    return Speed(len(out.steps["end_s"]), int(out.requests["emitted"].sum()), seconds)


def event_us(events: int = _EVENTS) -> float:
    """Return the microseconds of one event of a bare SimPy loop."""
    env = simpy.Environment()

    def serve() -> Generator[simpy.Event, None, None]:
        for _ in range(events):
            yield after(env, 1.0, Order.STEP)

    env.process(serve())
    started = time.process_time()
    env.run()
    return 1e6 * (time.process_time() - started) / events


def gather_and_sort_us(given: RunInput, users: int, *, rounds: int = 300) -> float:
    """Return the microseconds of one gather and one library sort of `users` requests' survivals.

    The rows are the ones of users who walk through the trace, as in a run.
    """
    blocks = given.blocks
    rng = np.random.default_rng(0)
    row_TR = rng.integers(0, len(blocks.block_NG1) - 8 * rounds, users) + np.cumsum(
        rng.integers(1, 2 + blocks.gamma, (rounds, users)), axis=0
    )
    slots_TFR = np.stack([np.zeros_like(row_TR), row_TR], axis=1)
    out_RG = np.zeros((users, blocks.gamma), dtype=np.float32)
    gather(slots_TFR[0], users, blocks.block_NG1, 1, out_RG)
    started = time.process_time()
    for slots_FR in slots_TFR:
        gather(slots_FR, users, blocks.block_NG1, 1, out_RG)
        np.sort(out_RG, axis=None)
    return 1e6 * (time.process_time() - started) / rounds


def planning_view(requests: int, gamma: int, *, seed: int = 0) -> BatchView:
    """Return one step's view for planners: Beta(4, 1.5) confidences and a jagged table."""
    rng = np.random.default_rng(seed)
    most = requests * (1 + gamma)
    seconds_B = 8e-3 + 2e-5 * np.arange(most + 2) + 1e-3 * (np.arange(most + 2) // 64)
    live_RG, lagged_RG = (
        np.cumprod(rng.beta(4, 1.5, (requests, gamma)), axis=1).astype(np.float32) for _ in range(2)
    )
    return BatchView(
        step=0,
        gamma=gamma,
        request_id_R=np.arange(requests, dtype=np.int64),
        base_tokens=requests,
        verify_s_B=seconds_B,
        fixed_s=1e-3,
        survival_RG=live_RG,
        lagged_survival_RG=lagged_RG,
    )


def plan_us(requests: int, gamma: int, *, rounds: int = 300) -> float:
    """Return the microseconds of one plan of the asynchronous top-K, as an engine would call it."""
    view, scheduler = planning_view(requests, gamma), AsyncTopK(2)
    scheduler.plan(view)
    started = time.process_time()
    for _ in range(rounds):
        scheduler.plan(view)
    return 1e6 * (time.process_time() - started) / rounds


def blocks_per_s(factory: SchedulerFactory, *, samples: int = 500_000) -> float:
    """Return the draft-verify rounds a second of the Monte-Carlo checker on Appendix A's world."""
    sampler = Sampler(leaks.appendix_a(), factory, num_tokens=3, kernels=True)
    sampler.counts(1000)
    before, started = sampler.num_blocks, time.process_time()
    sampler.counts(samples)
    return (sampler.num_blocks - before) / (time.process_time() - started)


def bench(*, repeats: int = 5, users: tuple[int, ...] = (256, 16)) -> dict[str, Any]:
    """Time everything `repeats` times, turn by turn, and return medians.

    Returns:
        `run_<users>`: `output_tok_per_s`, `steps_per_s` and `step_us` with the step log kept, the
        first two without it (`unrecorded_*`), `general_steps_per_s` (every step a SimPy event),
        `floor_us` and `floor_ratio` (step over floor); `floor`: its parts; `planner`:
        `us_<requests>x<gamma>`; `lossless`: draft-verify rounds a second of the Monte-Carlo
        checker; `machine`.
    """
    found: dict[str, Any] = {}
    floor: dict[str, float] = {}
    for count in users:
        given = bench_input(count, steps=1_000_000 // count)
        bare = replace(given, record="none")
        slow = replace(given, stop=Stop(tokens=max(1, (given.stop.tokens or 0) // 10)))
        timed(replace(slow, record="none"))  # compiles, and fills caches
        timed(slow, how=simulate)
        rows: dict[str, list[float]] = {}
        for _ in range(repeats):
            kept = timed(given)
            unkept = replace(timed(bare), steps=kept.steps)  # the same run
            general = timed(slow, how=simulate)
            a, b = event_us(), gather_and_sort_us(given, count)
            for name, value in (
                ("output_tok_per_s", kept.tokens / kept.seconds),
                ("steps_per_s", kept.steps / kept.seconds),
                ("step_us", kept.step_us),
                ("unrecorded_tok_per_s", unkept.tokens / unkept.seconds),
                ("unrecorded_steps_per_s", unkept.steps / unkept.seconds),
                ("general_steps_per_s", general.steps / general.seconds),
                ("floor_us", a + b),
                ("floor_ratio", kept.step_us / (a + b)),
            ):
                rows.setdefault(name, []).append(value)
            floor["simpy_event_us"] = a
            floor[f"gather_and_sort_{count}_us"] = b
        found[f"run_{count}"] = {name: statistics.median(values) for name, values in rows.items()}
    found["floor"] = floor
    found["planner"] = {
        f"us_{requests}x{gamma}": statistics.median(
            plan_us(requests, gamma) for _ in range(repeats)
        )
        for requests, gamma in PLANNED
    }
    found["lossless"] = {
        f"{name}_blocks_per_s": statistics.median(blocks_per_s(make) for _ in range(repeats))
        for name, make in (("fixed", lambda: FixedLength(2)), ("greedy", Greedy))
    }
    found["machine"] = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "processor": platform.machine(),
        "repeats": repeats,
    }
    return found
