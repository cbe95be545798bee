"""One data-parallel rank: a queue, a batch, and a loop of steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Protocol, TypeVar

import numpy as np
import simpy
from numpy.typing import NDArray
from simpy.core import Environment

from specsim.acceptance.blocks import Blocks
from specsim.engine.clock import Order, after
from specsim.engine.request import Request
from specsim.engine.step import Slot, Total, commit, gather, remove_finished
from specsim.metrics.record import StepLog
from specsim.schedulers.base import (
    BatchView,
    History,
    Learner,
    Scheduler,
    StepOutcome,
    checked_plan,
)

IntArray = NDArray[np.int64]
_Scalar = TypeVar("_Scalar", bound=np.generic)


class StepCost(Protocol):
    """What a step costs (`cost.model.StepCost`, or a law of its own in a validation)."""

    @property
    def verify_s_B(self) -> NDArray[np.float64]:
        """Seconds of one target forward at B = 0, 1, .. tokens."""
        ...

    def fixed_s(self, num_requests: int, kv_tokens: int) -> float:
        """Return the seconds of a step that no plan can trim."""
        ...

    def charged_tokens(self, verify_len_R: IntArray) -> int:
        """Return the tokens that the forward pays for under this engine's layout."""
        ...


class Rank:
    """Serves one batch after the other, for ever.

    Args:
        env: the simulation.
        index: this rank's index, which orders simultaneous steps.
        blocks: the acceptance source.
        scheduler: this rank's own scheduler.
        cost: what steps cost.
        capacity: requests that may run at once.
        queue: where it admits from; ranks may share one (a central queue).
        log: gets one row a step.
        on_finish: told of each finished request, in slot order.
        on_step: told after each step has been committed and recorded.
    """

    def __init__(
        self,
        env: Environment,
        *,
        index: int,
        blocks: Blocks,
        scheduler: Scheduler,
        cost: StepCost,
        capacity: int,
        queue: deque[Request],
        log: StepLog,
        on_finish: Callable[[Request, IntArray], None],
        on_step: Callable[[], None],
    ) -> None:
        self.env = env
        self.index = index
        self.queue = queue
        self.num_running = 0
        self._blocks, self._scheduler, self._cost = blocks, scheduler, cost
        self._capacity, self._log = capacity, log
        self._on_finish, self._on_step = on_finish, on_step
        self._running: list[Request] = []
        self._slots = np.zeros((len(Slot), capacity), dtype=np.int64)
        self._kv_tokens = 0
        self._step = 0
        self._idle: simpy.Event | None = None
        gamma = blocks.gamma
        self._totals = np.zeros(len(Total), dtype=np.int64)
        self._accepted_R = np.zeros(capacity, dtype=np.int64)
        self._learner = scheduler if isinstance(scheduler, Learner) else None
        self._survival_RG = np.ones((capacity, gamma), dtype=np.float32)
        self._confidence_RG = np.ones((capacity, gamma), dtype=np.float32)
        # Ring of the last `lag` steps' survivals; a row moves with its request.
        self._lagged_LRG = np.ones((scheduler.lag, capacity, gamma), dtype=np.float32)
        self.process = env.process(self._serve())

    @property
    def load(self) -> int:
        """Requests running and waiting here (a shared queue counts for every rank)."""
        return self.num_running + len(self.queue)

    @property
    def idle(self) -> bool:
        """Whether the rank waits for work."""
        return self._idle is not None

    def wake(self) -> None:
        """Tell an idle rank that its queue has work; it starts after this instant's arrivals."""
        if self._idle is not None:
            self._idle.succeed()
            self._idle = None

    def running_slots(self) -> dict[int, IntArray]:
        """Return the slot columns of the current batch, by request id."""
        return {
            request.index: self._slots[:, slot].copy() for slot, request in enumerate(self._running)
        }

    def _serve(self) -> Generator[simpy.Event, None, None]:
        env, order = self.env, Order.STEP + self.index
        while True:
            self._admit()
            if not self._running:
                self._idle = simpy.Event(env)
                yield self._idle
                # The waker may be an arrival; let the other arrivals of this instant come first.
                yield after(env, 0.0, order)
                continue
            verify_len_R, duration_s = self._plan()
            yield after(env, duration_s, order)
            self._commit(verify_len_R, duration_s)

    def _admit(self) -> None:
        """Take requests from the queue, first come first served, up to the cap."""
        blocks = self._blocks
        while self.queue and self.num_running < self._capacity:
            request = self.queue.popleft()
            request.rank = self.index
            request.first_token_s = self.env.now
            sequence = blocks.sequence(request.domain, request.sequence_u)
            slot = self.num_running
            self._slots[:, slot] = (
                request.index,
                blocks.first_row_S[sequence],
                sequence,
                request.output_tokens - 1,
                request.prompt_tokens,
                0,
                0,
                0,
                0,
            )
            if request.output_tokens == 1:  # the prefill's token was all of it
                request.finish_s = self.env.now
                self._on_finish(request, self._slots[:, slot])
                continue
            self._lagged_LRG[:, slot] = 1.0
            self._kv_tokens += request.prompt_tokens
            self._running.append(request)
            self.num_running += 1

    def _plan(self) -> tuple[IntArray, float]:
        """Gather the blocks, ask the scheduler, and price the step."""
        count, scheduler, blocks = self.num_running, self._scheduler, self._blocks
        fixed_s = self._cost.fixed_s(count, self._kv_tokens)
        reads = scheduler.reads
        confidence_RG = survival_RG = lagged_RG = history = None
        if "live" in reads or "lagged" in reads:
            gather(self._slots, count, blocks.survival_NG, self._survival_RG)
        if "live" in reads:
            gather(self._slots, count, blocks.confidence_NG, self._confidence_RG)
            survival_RG = _read_only(self._survival_RG[:count])
            confidence_RG = _read_only(self._confidence_RG[:count])
        if "lagged" in reads:
            lagged_RG = _read_only(self._lagged_LRG[self._step % scheduler.lag, :count])
        if "history" in reads:
            history = History(
                rounds_R=_read_only(self._slots[Slot.ROUNDS, :count]),
                verified_R=_read_only(self._slots[Slot.VERIFIED, :count]),
                accepted_R=_read_only(self._slots[Slot.ACCEPTED, :count]),
            )
        view = BatchView(
            step=self._step,
            gamma=blocks.gamma,
            request_id_R=_read_only(self._slots[Slot.ID, :count]),
            base_tokens=count,
            verify_s_B=self._cost.verify_s_B,
            fixed_s=fixed_s,
            confidence_RG=confidence_RG,
            survival_RG=survival_RG,
            lagged_survival_RG=lagged_RG,
            history=history,
        )
        verify_len_R = checked_plan(scheduler, view)
        if "lagged" in reads:
            self._lagged_LRG[self._step % scheduler.lag, :count] = self._survival_RG[:count]
        charged = self._cost.charged_tokens(verify_len_R)
        duration_s = float(self._cost.verify_s_B[charged]) + fixed_s
        return verify_len_R, duration_s

    def _commit(self, verify_len_R: IntArray, duration_s: float) -> None:
        """Accept and emit, record the step, hand finished requests back."""
        blocks, totals, count = self._blocks, self._totals, self.num_running
        commit(
            self._slots,
            count,
            verify_len_R,
            blocks.num_accepted_N,
            blocks.first_row_S,
            blocks.end_row_S,
            blocks.next_sequence_S,
            self._accepted_R,
            totals,
        )
        accepted, emitted, finished = totals.tolist()
        self._kv_tokens += emitted
        self._step += 1
        self._log.add(
            end_s=self.env.now,
            duration_s=duration_s,
            rank=self.index,
            num_requests=count,
            verified=int(verify_len_R.sum()),
            accepted=accepted,
            emitted=emitted,
            waiting=len(self.queue),
            kv_tokens=self._kv_tokens,
        )
        if self._learner is not None:
            self._learner.observe(
                StepOutcome(
                    step=self._step - 1,
                    request_id_R=self._slots[Slot.ID, :count].copy(),
                    verify_len_R=verify_len_R,
                    num_accepted_R=self._accepted_R[:count].copy(),
                    duration_s=duration_s,
                )
            )
        if finished:
            self._finish(count)
        self._on_step()

    def _finish(self, count: int) -> None:
        done = np.flatnonzero(self._slots[Slot.LEFT, :count] == 0)
        rows = self._slots[:, done].T.copy()
        requests = [self._running[slot] for slot in done]
        for slot in done[::-1]:
            del self._running[slot]
        self.num_running = remove_finished(self._slots, count, self._lagged_LRG)
        for request, row in zip(requests, rows, strict=True):
            self._kv_tokens -= int(row[Slot.CONTEXT])
            request.finish_s = self.env.now
            self._on_finish(request, row)


def _read_only(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    array.flags.writeable = False  # `array` is a fresh slice: only this view is locked
    return array
