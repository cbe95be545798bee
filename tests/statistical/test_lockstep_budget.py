"""One budget for the group against one a rank: mean step throughput on twenty uneven cases."""

from __future__ import annotations

import numpy as np
import pytest

from specsim.engine.lockstep import Lockstep
from specsim.engine.run import ClosedLoop, Stop
from specsim.schedulers.topk import AsyncTopK
from specsim.stats.intervals import mean_interval
from specsim.workload.lengths import UniformLengthConfig
from tests.engine_world import LinearCost, small_run


def step_throughput(budget: str, seed: int) -> float:
    """Mean over steps of the group's tokens over the step's duration, tok/s."""
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(2, 9))
    out = small_run(
        load=ClosedLoop(int(rng.integers(3, 12)) * ranks),
        ranks=ranks,
        router="round_robin",  # blind to load: uneven ranks
        capacity=64,
        scheduler=lambda: AsyncTopK(2),
        cost=LinearCost(
            base_s=float(rng.uniform(2e-3, 1e-2)), slope_s=float(rng.uniform(1e-4, 1e-3))
        ),
        output=UniformLengthConfig(kind="uniform", min=2, max=300),
        lockstep=Lockstep(budget),
        seed=seed,
        stop=Stop(tokens=30_000),
    )
    emitted = out.steps["emitted"].reshape(-1, ranks).sum(axis=1)
    return float((emitted / out.steps["duration_s"].reshape(-1, ranks)[:, 0]).mean())


@pytest.mark.slow
def test_the_group_budget_is_at_least_as_good_on_twenty_uneven_cases() -> None:
    gain = np.array(
        [step_throughput("group", seed) / step_throughput("per_rank", seed) for seed in range(20)]
    )
    interval = mean_interval(gain, level=0.95)
    print(f"group over per_rank: {interval.mean:.4f} +- {interval.half_width:.4f}; {gain.round(3)}")
    assert interval.mean - interval.half_width > 1.0
