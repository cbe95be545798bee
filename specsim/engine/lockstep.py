"""Ranks that step together: attention-DP with expert parallelism.

The experts of every layer are spread over all ranks, so that no rank is ahead of another: a step
lasts as long as its slowest rank, and a rank without work joins with a dummy row.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import simpy
from simpy.core import Environment

from specsim.engine.clock import Order, after
from specsim.engine.rank import Rank


@dataclass(frozen=True, slots=True)
class Lockstep:
    """How a group of ranks decides what a step verifies.

    Attributes:
        budget: `per_rank`: each rank's scheduler plans as if the rank were alone. `max_tier`: the
            same, and every rank's forward is padded to the largest of them, as CUDA graphs of one
            size on all ranks demand (SGLang); a rank without a budget, whose lagged scheduler has
            no step to look back at, makes all ranks verify everything. `group`: one plan for all
            ranks, by the gain of the group (`schedulers.group`).
        tiers: captured forward sizes, rising; the largest forward is padded to the next of them,
            and one past the last is not padded. Of `max_tier` only; empty for every size.
    """

    budget: Literal["per_rank", "max_tier", "group"] = "per_rank"
    tiers: tuple[int, ...] = ()


class Group:
    """Drives its ranks through common steps, for ever.

    A rank that dies takes its part of the step with it and leaves the group until it comes back:
    the others go on without waiting for it, as if their experts had replicas.
    """

    def __init__(self, env: Environment, ranks: Sequence[Rank], spec: Lockstep) -> None:
        self.env = env
        self._ranks, self._spec = ranks, spec
        self._tiers_T = np.array(spec.tiers, dtype=np.int64)
        env.process(self._serve())

    def _serve(self) -> Generator[simpy.Event, None, None]:
        env = self.env
        while True:
            busy = [rank for rank in self._ranks if rank.form()]
            if not busy:
                asleep = simpy.Event(env)
                for rank in self._ranks:
                    rank.sleep(asleep)
                yield asleep
                for rank in self._ranks:
                    rank.wake()
                yield after(env, 0.0, Order.STEP)
                continue
            joined = [rank for rank in self._ranks if rank.alive]
            for rank in joined:
                if rank not in busy:
                    rank.plan_dummy()
            self._plan(busy, joined)
            duration_s = max(rank.own_s for rank in joined)
            yield after(env, duration_s, Order.STEP)
            for rank in joined:
                rank.commit(duration_s)

    def _plan(self, busy: Sequence[Rank], joined: Sequence[Rank]) -> None:
        if self._spec.budget == "group":
            self._plan_group(busy, joined)
            return
        for rank in busy:
            rank.plan()
        if self._spec.budget == "max_tier":
            if any(rank.batch.count and rank.warm_steps < rank.scheduler.lag for rank in busy):
                for rank in busy:
                    rank.adopt(np.full(rank.batch.count, rank.gamma, dtype=np.int64))
            tokens = self._tier(max(rank.charged for rank in joined))
            for rank in joined:
                rank.price(tokens)

    def _tier(self, tokens: int) -> int:
        at = int(np.searchsorted(self._tiers_T, tokens))
        return int(self._tiers_T[at]) if at < len(self._tiers_T) else tokens

    def _plan_group(self, busy: Sequence[Rank], joined: Sequence[Rank]) -> None:
        raise NotImplementedError
