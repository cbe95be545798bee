"""Asks a scheduler for plans the way an engine does, and holds it to its contract.

The scheduler gets a read-only view with nothing in it that its `reads` does not declare. What it
returns is checked and named: the step, the request, the value. A scheduler that changes while it
plans has a memory; then every path gets a fresh one that replays the views of that path.
"""

from __future__ import annotations

import dataclasses
import types
from enum import Enum
from fractions import Fraction
from typing import Any

import numpy as np

from specsim.errors import SchedulerFault
from specsim.lossless.peek import Outcome
from specsim.lossless.worlds import World
from specsim.schedulers.base import (
    BatchView,
    FloatArray,
    History,
    IntArray,
    LaggedSurvival,
    Learner,
    Scheduler,
    SchedulerFactory,
    StepOutcome,
    checked_observe,
    checked_plan,
)

Rows = tuple[Outcome, ...]


class Memory(Exception):
    """The scheduler changed while it planned, so its past must be replayed."""


@dataclasses.dataclass(frozen=True, slots=True)
class ViewRecord:
    """All that a scheduler saw in one step, hashable; `view` makes it a `BatchView` again."""

    step: int
    request_ids: tuple[int, ...]
    confidence: Rows | None
    lagged: Rows | None
    history: tuple[tuple[int, int, int], ...] | None
    sampled: Rows | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """One finished step of a path: what was seen, and what a learner was then told."""

    record: ViewRecord
    lengths: tuple[int, ...]
    accepted: tuple[int, ...] | None = None


def frozen_array(values: Any, dtype: type[Any]) -> Any:
    """Return a read-only array."""
    array = np.array(values, dtype=dtype)
    array.flags.writeable = False
    return array


def survival(confidence_RG: FloatArray) -> FloatArray:
    """Return the running products along each block, float64, as an engine computes them."""
    product_RG: FloatArray = np.cumprod(confidence_RG, axis=1)
    product_RG.flags.writeable = False
    return product_RG


def fingerprint(value: Any) -> Any:
    """Return something that changes if `value` does.

    Raises:
        Memory: the value has parts that cannot be compared, such as a generator's state.
    """
    if value is None or isinstance(value, bool | int | float | str | bytes | Fraction | Enum):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, types.FunctionType | type | types.BuiltinFunctionType):
        return id(value)
    if isinstance(value, list | tuple):
        return (type(value).__name__, *(fingerprint(item) for item in value))
    if isinstance(value, dict):
        return tuple((fingerprint(k), fingerprint(v)) for k, v in value.items())
    if isinstance(value, set | frozenset):
        return frozenset(fingerprint(item) for item in value)
    raise Memory


def state_of(scheduler: Scheduler) -> Any:
    """Return a fingerprint of a scheduler's attributes, slots included."""
    slots = [
        name
        for base in type(scheduler).__mro__
        for name in _names(base.__dict__.get("__slots__", ()))
    ]
    named = {name: getattr(scheduler, name) for name in slots if hasattr(scheduler, name)}
    return fingerprint({**named, **getattr(scheduler, "__dict__", {})})


def _names(slots: Any) -> tuple[str, ...]:
    found = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in found if name not in {"__dict__", "__weakref__"})


def ask(scheduler: Scheduler, view: BatchView) -> IntArray:
    """Return a plan that keeps the contract.

    Raises:
        SchedulerFault: the scheduler raised, wrote to the view or returned something illegal.
    """
    try:
        return checked_plan(scheduler, view)
    except SchedulerFault as fault:
        hint = "; the view is read-only: copy before changing" if "read-only" in str(fault) else ""
        raise SchedulerFault(
            f"{fault}{hint} (batch of requests {view.request_id_R.tolist()})"
        ) from fault


class Planner:
    """Plans for the views of one world, remembering answers that cannot change."""

    def __init__(self, world: World, factory: SchedulerFactory, *, remembers: bool = False) -> None:
        self.factory = factory
        self.scheduler = factory()
        self.learns = isinstance(self.scheduler, Learner)
        self.remembers = remembers or self.learns
        reads = self.scheduler.reads
        self.reads_live = "live" in reads
        self.reads_lagged = "lagged" in reads
        self.reads_history = "history" in reads
        self.reads_sampled = "sampled" in reads
        if "oracle" in reads:
            raise SchedulerFault(
                f"{type(self.scheduler).__name__} reads what verification will accept: that is a "
                "bound and no policy, and no draft outcome can be enumerated for it"
            )
        self.lag = self.scheduler.lag if self.reads_lagged else 0
        self.gamma = world.gamma
        self.verify_s_B = frozen_array([float(s) for s in world.verify_s_B], np.float64)
        self.fixed_s = float(world.fixed_s)
        self._plans: dict[ViewRecord, tuple[int, ...]] = {}
        self._survivals: dict[Rows, Rows] = {}
        self._state: Any = None
        if not self.remembers:
            try:
                self._state = state_of(self.scheduler)
            except Memory:
                self.remembers = True  # it holds parts whose changes could not be seen

    def survivals(self, confidence: Rows) -> Rows:
        """Return the float64 survivals of one step's confidences."""
        if confidence not in self._survivals:
            product_RG = survival(np.array(confidence, dtype=np.float64))
            self._survivals[confidence] = tuple(tuple(row) for row in product_RG.tolist())
        return self._survivals[confidence]

    def arrays(self, request_ids: tuple[int, ...], survivals: Rows) -> tuple[IntArray, FloatArray]:
        """Return ids and survivals as arrays."""
        return np.array(request_ids, dtype=np.int64), np.array(survivals, dtype=np.float64)

    def record(
        self,
        step: int,
        request_ids: tuple[int, ...],
        confidence: Rows,
        lagged: LaggedSurvival,
        history: tuple[tuple[int, int, int], ...] | None,
        sampled: Rows = (),
    ) -> ViewRecord:
        """Return what the scheduler may see of a step, and nothing else."""
        old: Rows | None = None
        if self.reads_lagged:
            ids, live = self.arrays(request_ids, self.survivals(confidence))
            old = tuple(tuple(row) for row in lagged.aligned(ids, live).tolist())
        return ViewRecord(
            step,
            request_ids,
            confidence if self.reads_live else None,
            old,
            history,
            sampled if self.reads_sampled else None,
        )

    def view(self, record: ViewRecord) -> BatchView:
        """Return the read-only view of a record."""
        confidence_RG = None
        survival_RG = None
        if record.confidence is not None:
            confidence_RG = frozen_array(record.confidence, np.float64)
            survival_RG = survival(confidence_RG)
        history = None
        if record.history is not None:
            counts = np.array(record.history, dtype=np.int64)
            history = History(*(frozen_array(counts[:, i], np.int64) for i in range(3)))
        return BatchView(
            step=record.step,
            gamma=self.gamma,
            request_id_R=frozen_array(record.request_ids, np.int64),
            base_tokens=len(record.request_ids),
            verify_s_B=self.verify_s_B,
            fixed_s=self.fixed_s,
            confidence_RG=confidence_RG,
            survival_RG=survival_RG,
            lagged_survival_RG=(
                None if record.lagged is None else frozen_array(record.lagged, np.float64)
            ),
            history=history,
            sampled_RG=(
                None if record.sampled is None else frozen_array(record.sampled, np.float64)
            ),
        )

    def outcome(self, seen: Seen) -> StepOutcome:
        """Return what a learner is told of a finished step."""
        batch_tokens = len(seen.lengths) + sum(seen.lengths)
        return StepOutcome(
            step=seen.record.step,
            request_id_R=frozen_array(seen.record.request_ids, np.int64),
            verify_len_R=frozen_array(seen.lengths, np.int64),
            num_accepted_R=frozen_array(seen.accepted or (), np.int64),
            duration_s=float(self.verify_s_B[batch_tokens]) + self.fixed_s,
        )

    def plan(self, record: ViewRecord, path: tuple[Seen, ...]) -> tuple[int, ...]:
        """Return the lengths planned for `record` after the views of `path`.

        Raises:
            Memory: the scheduler changed, and this planner was not made to replay.
            SchedulerFault: see `ask`.
        """
        if self.remembers:
            scheduler = self.factory()
            for past in path:
                ask(scheduler, self.view(past.record))
                if isinstance(scheduler, Learner):
                    checked_observe(scheduler, self.outcome(past))
            return tuple(ask(scheduler, self.view(record)).tolist())
        if record not in self._plans:
            lengths = tuple(ask(self.scheduler, self.view(record)).tolist())
            if state_of(self.scheduler) != self._state:
                raise Memory
            self._plans[record] = lengths
        return self._plans[record]
