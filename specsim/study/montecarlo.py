"""The Monte-Carlo losslessness check on many processes or a cluster, through the sweeps' seam."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specsim.lossless.montecarlo import KERNELS_FROM, Sampled, Sampler, chunk_sizes, judged
from specsim.lossless.worlds import World
from specsim.schedulers.base import SchedulerFactory
from specsim.study.executor import Place, settle_tasks

CHUNKS_A_TASK = 16


@dataclass(frozen=True, slots=True)
class _Task:
    """Some chunks of one run."""

    world: World
    factory: SchedulerFactory
    chunks: tuple[tuple[int, int], ...]
    seed: int
    num_tokens: int
    watch: tuple[int, ...] | None
    rule: str
    kernels: bool


def sample_on(
    place: Place,
    world: World,
    factory: SchedulerFactory,
    *,
    num_samples: int,
    seed: int = 0,
    num_tokens: int = 1,
    watch: tuple[int, ...] | None = None,
    rule: str = "token",
) -> Sampled:
    """Return what `lossless.montecarlo.sample_world` returns, wherever its chunks run.

    Args:
        place: where they run.
        world: the world.
        factory: makes a fresh scheduler; elsewhere than here a module-level class or function.
        num_samples, seed, num_tokens, watch, rule: see `sample_world`.

    Raises:
        InputError: what `sample_world` refuses.
        SchedulerFault: the scheduler raised or returned something illegal.
    """
    chunks = tuple(enumerate(chunk_sizes(num_samples)))
    law_V = Sampler(world, factory, num_tokens=num_tokens, watch=watch, rule=rule).law_V
    kernels = num_samples >= KERNELS_FROM
    tasks = [
        _Task(
            world,
            factory,
            chunks[at : at + CHUNKS_A_TASK],
            seed,
            num_tokens,
            watch,
            rule,
            kernels,
        )
        for at in range(0, len(chunks), CHUNKS_A_TASK)
    ]
    total_V = np.zeros(len(law_V), dtype=np.int64)
    for settled in settle_tasks(place, _counts, tasks):
        if settled.error is not None:
            raise settled.error
        if settled.result is not None:
            total_V += settled.result
    return judged(total_V, law_V)


def _counts(task: _Task) -> NDArray[np.int64]:
    sampler = Sampler(
        task.world,
        task.factory,
        seed=task.seed,
        num_tokens=task.num_tokens,
        watch=task.watch,
        rule=task.rule,
        kernels=task.kernels,
    )
    total_V = np.zeros(len(sampler.law_V), dtype=np.int64)
    for chunk, size in task.chunks:
        total_V += sampler.chunk_counts(chunk, size)
    return total_V
