"""Draft lengths that follow what was accepted: goodput control, and SGLang's adaptive steps.

Both look at nothing but R, the table and the past, so they are lossless. Proven by enumeration
(`tests/lossless/test_policies.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from specsim.registry import Config
from specsim.schedulers.base import BatchView, IntArray, Reads, StepOutcome

HISTORY: frozenset[Reads] = frozenset({"history"})


def mean_committed(alpha: float, k: int) -> float:
    """Return 1 + alpha + .. + alpha^k: tokens of one request if each draft is accepted so often."""
    # Python 3.12 rounds sum() otherwise than 3.11; a plan may not depend on that.
    return math.fsum(alpha**i for i in range(k + 1))


@dataclass(slots=True)
class Goodput:
    """The uniform k with the best predicted tokens per second, rethought every few steps.

    The acceptance of a draft is taken to be the same everywhere, alpha: the share of accepted ones
    among the drafts that were judged (a draft behind a rejected one is not), smoothed. The search
    stops at the first k that predicts less than the one before.
    """

    every: int
    start: float
    memory: float
    idle_bonus: float
    reads: frozenset[Reads] = HISTORY
    lag: int = 0
    lossless: bool = True
    _alpha: float = field(default=-1.0)
    _k: int = field(default=0)
    _planned: int = field(default=0)

    def plan(self, view: BatchView) -> IntArray:
        """Return the present k for every request."""
        if self._alpha < 0:
            self._alpha = self.start
        if self._planned % self.every == 0:
            self._k = self._best(view)
        self._planned += 1
        return np.full(view.num_requests, self._k, dtype=np.int64)

    def _best(self, view: BatchView) -> int:
        best, best_goodput = 0, 0.0
        for k in range(view.gamma + 1):
            batch = view.base_tokens + view.num_requests * k
            seconds = float(view.verify_s_B[batch]) + view.fixed_s
            goodput = view.num_requests * mean_committed(self._alpha, k) / seconds
            if k == 0:
                goodput *= self.idle_bonus
            elif goodput < best_goodput:
                break
            if goodput > best_goodput:
                best, best_goodput = k, goodput
        return best

    def observe(self, outcome: StepOutcome) -> None:
        """Move alpha towards the acceptance of this step's judged drafts."""
        accepted = int(outcome.num_accepted_R.sum())
        rejected = int((outcome.num_accepted_R < outcome.verify_len_R).sum())
        if accepted + rejected:
            observed = accepted / (accepted + rejected)
            self._alpha = self.memory * self._alpha + (1 - self.memory) * observed


class GoodputConfig(Config):
    """Goodput control: the uniform length with the best predicted tokens per second.

    Source: SmartSpec / TurboSpec (arXiv 2406.14066) and the TETRIS fork's `dsd.py`: smoothing
    0.85, start 0.7, no speculation favoured by 1.1, every 20 steps, first decrease ends the search.
    The paper fits its own step-time model; here the step table is read. With k = 0 nothing is
    judged, so alpha stays.
    """

    kind: Literal["goodput"]
    every: int = Field(default=20, ge=1, description="Steps between decisions.")
    start: float = Field(default=0.7, ge=0, le=1, description="Acceptance assumed at first.")
    memory: float = Field(default=0.85, ge=0, lt=1, description="Weight of the old estimate.")
    idle_bonus: float = Field(
        default=1.1, gt=0, le=10, description="Factor on the goodput of no speculation."
    )

    def build(self) -> Goodput:
        """Make the scheduler."""
        return Goodput(self.every, self.start, self.memory, self.idle_bonus)


@dataclass(slots=True)
class _Slot:
    """One range of batch sizes: its lengths, where it stands, and what it has seen."""

    steps: tuple[int, ...]
    at: int
    mean_accepted: float
    batches: int = 0


@dataclass(slots=True)
class AdaptiveSteps:
    """A uniform length that climbs and falls through a few candidates, by batch size.

    Each range of batch sizes smooths the mean accepted drafts a request. Every few batches it
    drops to the candidate below while the mean is no more than `below - 0.5 + down`, or else rises
    while it is above `present - 0.5 + up`; from 0 it always tries the next.
    """

    slots: tuple[tuple[int, tuple[int, ...]], ...]
    memory: float
    every: int
    warmup: int
    down: float
    up: float
    reads: frozenset[Reads] = HISTORY
    lag: int = 0
    lossless: bool = True
    _slots: list[_Slot] = field(default_factory=list)

    def plan(self, view: BatchView) -> IntArray:
        """Return the present length of this batch size for every request."""
        slot = self._slot(view.num_requests)
        length = min(slot.steps[slot.at], view.gamma)
        return np.full(view.num_requests, length, dtype=np.int64)

    def _slot(self, num_requests: int) -> _Slot:
        if not self._slots:
            self._slots = [
                _Slot(steps, len(steps) - 1, float(steps[-1])) for _, steps in self.slots
            ]
        index = 0
        for i, (least, _) in enumerate(self.slots):
            if least <= num_requests:
                index = i
        return self._slots[index]

    def observe(self, outcome: StepOutcome) -> None:
        """Smooth the accepted drafts, and now and then choose anew."""
        if len(outcome.request_id_R) == 0:
            return
        slot = self._slot(len(outcome.request_id_R))
        mean = float(outcome.num_accepted_R.mean())
        slot.mean_accepted += (1 - self.memory) * (mean - slot.mean_accepted)
        slot.batches += 1
        if slot.batches > self.warmup and (slot.batches - self.warmup) % self.every == 0:
            self._choose(slot)

    def _choose(self, slot: _Slot) -> None:
        steps, before, mean = slot.steps, slot.at, slot.mean_accepted
        if steps[slot.at] == 0:
            slot.at = min(slot.at + 1, len(steps) - 1)
            return
        while slot.at > 0 and mean <= steps[slot.at - 1] - 0.5 + self.down:
            slot.at -= 1
        if slot.at == before:
            while slot.at < len(steps) - 1 and mean > steps[slot.at] - 0.5 + self.up:
                slot.at += 1


class StepSlot(Config):
    """The candidate lengths from one batch size up."""

    from_requests: int = Field(ge=1, description="Smallest batch of the range.")
    steps: tuple[int, ...] = Field(min_length=1, description="Lengths to choose from, rising.")

    @field_validator("steps")
    @classmethod
    def _rising(cls, steps: tuple[int, ...]) -> tuple[int, ...]:
        if list(steps) != sorted(set(steps)) or steps[0] < 0 or steps[-1] > 64:
            raise PydanticCustomError("steps", "strictly rising lengths of 0..64 are needed")
        return steps


_SGLANG_SLOTS = (
    StepSlot(from_requests=1, steps=(1, 3, 5, 7)),
    StepSlot(from_requests=8, steps=(0, 1, 3)),
    StepSlot(from_requests=32, steps=(0, 1)),
    StepSlot(from_requests=64, steps=(0,)),
)


class AdaptiveStepsConfig(Config):
    """SGLang's adaptive speculation: lengths that follow the accepted drafts, by batch size.

    Defaults are SGLang's. A range starts at its longest candidate. With its thresholds a range that
    has both 0 and 1 never drops to 0: no mean lies below -0.75. SGLang refuses it under
    attention data parallelism, where ranks would choose different lengths.
    """

    kind: Literal["adaptive_steps"]
    slots: tuple[StepSlot, ...] = Field(
        default=_SGLANG_SLOTS, min_length=1, description="Candidates by batch size, from 1 up."
    )
    memory: float = Field(default=0.8, ge=0, lt=1, description="Weight of the old mean.")
    every: int = Field(default=5, ge=1, description="Batches between decisions.")
    warmup: int = Field(default=10, ge=0, description="Batches before the first decision.")
    down: float = Field(default=-0.25, description="Shifts the threshold to drop.")
    up: float = Field(default=0.0, description="Shifts the threshold to rise.")

    @field_validator("slots")
    @classmethod
    def _from_one(cls, slots: tuple[StepSlot, ...]) -> tuple[StepSlot, ...]:
        firsts = [slot.from_requests for slot in slots]
        if firsts[0] != 1 or firsts != sorted(set(firsts)):
            raise PydanticCustomError(
                "slots", "the first range must start at 1 and the others rise strictly"
            )
        return slots

    def build(self) -> AdaptiveSteps:
        """Make the scheduler."""
        return AdaptiveSteps(
            tuple((slot.from_requests, slot.steps) for slot in self.slots),
            self.memory,
            self.every,
            self.warmup,
            self.down,
            self.up,
        )
