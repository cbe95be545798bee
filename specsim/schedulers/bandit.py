"""A bandit over k: tries lengths, keeps the one with the fewest seconds a token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from pydantic import Field

from specsim.registry import Config
from specsim.rng import stream
from specsim.schedulers.base import BatchView, IntArray, Reads, StepOutcome


@dataclass(slots=True)
class _Bin:
    """What one bin of batch sizes knows."""

    seconds_K: list[float]
    tokens_K: list[float]
    block: int = 0
    left: int = 0
    k: int = 0


@dataclass(slots=True)
class Bandit:
    """For each bin of batch sizes (powers of two), one uniform k held for a block of steps.

    Every k runs for one step first. Then block b of a bin explores with probability 1 / b, any k,
    and else takes the k with the fewest seconds a token so far, plus `switch_s / k` where
    speculation was off in the step before. Blocks double up to `longest_block`.

    Lossless: k depends on past steps and on draws that have nothing to do with the drafts. Proven
    by enumeration (`tests/lossless/test_policies.py`).
    """

    switch_s: float
    longest_block: int
    memory: float
    seed: int
    reads: frozenset[Reads] = frozenset({"history"})
    lag: int = 0
    lossless: bool = True
    _bins: dict[int, _Bin] = field(default_factory=dict)
    _rng: np.random.Generator | None = field(default=None)
    _before: int = field(default=0)
    _planned: int = field(default=0)

    def plan(self, view: BatchView) -> IntArray:
        """Return the present k of this batch size for every request."""
        if self._rng is None:
            self._rng = stream(self.seed, "scheduler/bandit")
        size = _bin_of(view.num_requests)
        if size not in self._bins:
            self._bins[size] = _Bin([0.0] * (view.gamma + 1), [0.0] * (view.gamma + 1))
        arms = self._bins[size]
        if arms.left == 0:
            self._next_block(arms, self._rng)
        arms.left -= 1
        self._planned = arms.k
        return np.full(view.num_requests, arms.k, dtype=np.int64)

    def _next_block(self, arms: _Bin, rng: np.random.Generator) -> None:
        if 0.0 in arms.tokens_K:
            arms.k, arms.left = arms.tokens_K.index(0.0), 1
            return
        arms.block += 1
        arms.left = min(2 ** min(arms.block - 1, 30), self.longest_block)
        explore = rng.random() < 1 / arms.block
        arms.k = int(rng.integers(len(arms.tokens_K))) if explore else self._best(arms)

    def _best(self, arms: _Bin) -> int:
        def cost(k: int) -> float:
            switch_s = self.switch_s / k if self._before == 0 and k > 0 else 0.0
            return arms.seconds_K[k] / arms.tokens_K[k] + switch_s

        return min(range(len(arms.tokens_K)), key=cost)  # of equal costs the shortest

    def observe(self, outcome: StepOutcome) -> None:
        """Note the seconds and tokens of the k that ran."""
        num_requests = len(outcome.request_id_R)
        arms = self._bins.get(_bin_of(num_requests))
        if arms is None or num_requests == 0:
            return
        k = self._planned
        arms.seconds_K[k] = self.memory * arms.seconds_K[k] + outcome.duration_s
        arms.tokens_K[k] = (
            self.memory * arms.tokens_K[k] + num_requests + float(outcome.num_accepted_R.sum())
        )
        self._before = k


def _bin_of(num_requests: int) -> int:
    """Return the power of two at or above R."""
    return 1 << max(num_requests - 1, 0).bit_length()


class BanditConfig(Config):
    """A bandit over the uniform k, for each bin of batch sizes.

    Source: Nightjar (arXiv 2512.22420) as its abstract and public notes describe it: exploration
    1 / b, held blocks that double, a cost for switching speculation on. Bins by powers of two,
    trying every k first, forgetting and the longest block are ours.
    """

    kind: Literal["bandit"]
    switch_s: float = Field(default=0.0, ge=0, description="Cost of turning speculation on, s.")
    longest_block: int = Field(default=64, ge=1, description="Steps of the longest block.")
    memory: float = Field(default=0.99, gt=0, le=1, description="Weight of what was seen before.")
    seed: int = Field(default=0, ge=0, description="Of the exploration, apart from the run's.")

    def build(self) -> Bandit:
        """Make the scheduler."""
        return Bandit(self.switch_s, self.longest_block, self.memory, self.seed)
