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
from specsim.errors import InputError
from specsim.schedulers.group import allocate_group
from specsim.schedulers.kernels import ascending


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
            duration_s = max(rank.forward.own_s for rank in joined)
            yield after(env, duration_s, Order.STEP)
            for rank in joined:
                rank.commit(duration_s)

    def _plan(self, busy: Sequence[Rank], joined: Sequence[Rank]) -> None:
        if self._spec.budget == "group":
            self._plan_group(busy)
            return
        for rank in busy:
            rank.plan()
        if self._spec.budget == "max_tier":
            if any(rank.batch.count and rank.warm_steps < rank.scheduler.lag for rank in busy):
                for rank in busy:
                    rank.forward.adopt(rank.forward.full_plan())
            tokens = self._tier(max(rank.forward.charged for rank in joined))
            for rank in joined:
                rank.forward.price(tokens)

    def _tier(self, tokens: int) -> int:
        at = int(np.searchsorted(self._tiers_T, tokens))
        return int(self._tiers_T[at]) if at < len(self._tiers_T) else tokens

    def _plan_group(self, busy: Sequence[Rank]) -> None:
        """Share out one budget by the gain of the group; idle ranks never make a step longer.

        Of the policy's scheduler it takes the lag, and the gate if it has one.
        """
        views = [rank.view() for rank in busy]
        scheduler = busy[0].scheduler
        if not {"live", "lagged"} <= scheduler.reads:
            reads = ", ".join(sorted(scheduler.reads)) or "neither"
            raise InputError(
                "lockstep budget: group shares out live survivals under a budget from lagged "
                f"ones, and this policy's scheduler reads {reads}; use async_topk, or the budget "
                "per_rank or max_tier"
            )
        none_RG = np.zeros((0, busy[0].gamma), dtype=np.float32)
        plans = allocate_group(
            [ascending(none_RG if v is None else v.lagged_survival_RG) for v in views],
            [none_RG if view is None else view.survival_RG for view in views],
            base_tokens_D=[rank.batch.count + rank.forward.prefill_tokens for rank in busy],
            verify_s_B=busy[0].forward.verify_s_B,
            fixed_s_D=[rank.forward.fixed_s for rank in busy],
        )
        for rank, verify_len_R in zip(busy, plans, strict=True):
            rank.forward.adopt(rank.forward.gated(verify_len_R))
