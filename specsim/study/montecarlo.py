"""The Monte-Carlo losslessness check on many processes or a cluster, through the sweeps' seam."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specsim.errors import InputError
from specsim.lossless.montecarlo import Sampled, Sampler, judged
from specsim.lossless.worlds import World
from specsim.rng import stream
from specsim.schedulers.base import SchedulerFactory
from specsim.study.executor import Place, settle_tasks


@dataclass(frozen=True, slots=True)
class _Shard:
    """Samples of one process: its own seed, the same world."""

    world: World
    factory: SchedulerFactory
    num_samples: int
    seed: int
    num_tokens: int
    watch: tuple[int, ...] | None
    rule: str


def sample_on(
    place: Place,
    world: World,
    factory: SchedulerFactory,
    *,
    num_samples: int,
    shards: int,
    seed: int = 0,
    num_tokens: int = 1,
    watch: tuple[int, ...] | None = None,
    rule: str = "token",
) -> Sampled:
    """Sample a world in `shards` independent parts and judge their sum.

    The result depends on the seed and the number of shards, not on where they run.

    Args:
        place: where the shards run.
        world: the world.
        factory: makes a fresh scheduler; a module-level class or function.
        num_samples: runs over all shards.
        shards: parts, each with streams of its own.
        seed: of all of it.
        num_tokens, watch, rule: see `lossless.montecarlo.sample_world`.

    Raises:
        InputError: fewer samples than shards, or what `sample_world` refuses.
        SchedulerFault: the scheduler raised or returned something illegal.
    """
    if not 1 <= shards <= num_samples:
        raise InputError(f"{shards} shards for {num_samples} samples; 1 to {num_samples} is legal")
    seeds = stream(seed, "study/montecarlo").integers(0, 2**62, size=shards)
    sizes = [num_samples // shards + (n < num_samples % shards) for n in range(shards)]
    tasks = [
        _Shard(world, factory, size, int(own), num_tokens, watch, rule)
        for size, own in zip(sizes, seeds, strict=True)
    ]
    law_V = Sampler(world, factory, num_tokens=num_tokens, watch=watch, rule=rule).law_V
    total_V = np.zeros(len(law_V), dtype=np.int64)
    for settled in settle_tasks(place, _counts, tasks):
        if settled.error is not None:
            raise settled.error
        if settled.result is not None:
            total_V += settled.result
    return judged(total_V, law_V)


def _counts(shard: _Shard) -> NDArray[np.int64]:
    sampler = Sampler(
        shard.world,
        shard.factory,
        seed=shard.seed,
        num_tokens=shard.num_tokens,
        watch=shard.watch,
        rule=shard.rule,
    )
    return sampler.counts(shard.num_samples)
