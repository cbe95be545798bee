"""One data-parallel rank: a queue, a batch, and a loop of steps."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

import numpy as np
import simpy
from numpy.typing import NDArray
from simpy.core import Environment

from specsim.acceptance.blocks import Blocks
from specsim.engine.batch import Batch
from specsim.engine.clock import Order, after
from specsim.engine.costs import StepCost
from specsim.engine.forward import Forward
from specsim.engine.kv import KvPool, KvSpec
from specsim.engine.prefill import MixedPrefill
from specsim.engine.queue import Queue
from specsim.engine.request import Request
from specsim.engine.step import Slot
from specsim.metrics.record import Status
from specsim.metrics.steplog import StepLog
from specsim.schedulers.base import BatchView, Learner, Scheduler, StepOutcome, checked_observe

__all__ = ["Home", "Rank", "StepCost"]

IntArray = NDArray[np.int64]


class Home(Protocol):
    """Whom a rank tells what becomes of its requests (`cluster.Cluster`)."""

    def finished(self, request: Request, slot_F: IntArray | None) -> None:
        """Note that a request emitted its last token."""
        ...

    def left(self, request: Request, slot_F: IntArray | None) -> None:
        """Note that a request left before its end, as `request.leaving` says."""
        ...

    def put_back(self, request: Request, queue: Queue) -> None:
        """Take back a request that was preempted from the batch that admits from `queue`."""
        ...

    def step_ended(self) -> None:
        """Note that a step has been committed and recorded."""
        ...

    def spiral(self, rank: int, preemptions: int) -> None:
        """Note that a rank preempted so often without finishing anything."""
        ...


class Rank:
    """Serves one batch after the other, for ever.

    One step is `form`, `plan`, the time that it takes, and `commit`. A rank of its own goes through
    them by itself (`start`); a lockstep group drives all of its ranks (`lockstep.Group`).

    Args:
        env: the simulation.
        index: this rank's index, which orders simultaneous steps.
        blocks: the acceptance source.
        scheduler: this rank's own scheduler.
        cost: what steps cost.
        capacity: requests that may run at once.
        queue: where it admits from; ranks may share one (a central queue).
        log: gets one row a step.
        home: told of requests that finish, leave or are put back.
        kv: its KV memory; None for no limit.
        mixed: how prefill shares its forwards; None if no prefill runs here.
        first_round: see `Batch`.
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
        queue: Queue,
        log: StepLog,
        home: Home,
        kv: KvSpec | None = None,
        mixed: MixedPrefill | None = None,
        first_round: float = 1.0,
    ) -> None:
        self.env = env
        self.index = index
        self.queue = queue
        self.alive = True
        self.batch = Batch(blocks, scheduler, capacity=capacity, first_round=first_round)
        self.prefilling: list[Request] = []
        self.scheduler = scheduler
        self.gamma = blocks.gamma
        self.warm_steps = 0  # steps with a batch since it was last empty: what a lag can look at
        self.forward = Forward(self.batch, scheduler, cost, gamma=self.gamma, mixed=mixed)
        self._cap = min(capacity, self.forward.most_requests or capacity)
        self._log, self._home, self._kv_spec = log, home, kv
        self._kv = None if kv is None else KvPool(kv, gamma=self.gamma)
        self._learner = scheduler if isinstance(scheduler, Learner) else None
        self._step = 0
        self._idle: simpy.Event | None = None
        self._in_step = self._lost = False  # between `plan` and `commit`; died in between
        self._preempted = self._preempted_since_finish = 0
        self._swap_s = 0.0
        self._leaving: list[Request] = []

    # What others may ask

    @property
    def num_running(self) -> int:
        """Requests in prefill or decoding here."""
        return self.batch.count + len(self.prefilling)

    @property
    def load(self) -> int:
        """Requests running and waiting here (a shared queue counts for every rank)."""
        return self.batch.count + len(self.prefilling) + len(self.queue)

    @property
    def kv_load(self) -> int:
        """KV tokens resident here and prompt tokens on their way in."""
        waiting = sum(request.prompt_tokens for request in self.queue)
        return self.batch.kv_tokens + waiting + sum(r.prompt_tokens for r in self.prefilling)

    def work_tokens(self, mean_output_tokens: float) -> float:
        """Return the decode tokens still expected of everyone here, if outputs have that mean."""
        batch = self.batch
        emitted_R = batch.slots[Slot.EMITTED, : batch.count]
        left = float(np.maximum(mean_output_tokens - emitted_R, 1.0).sum())
        return left + (len(self.queue) + len(self.prefilling)) * mean_output_tokens

    @property
    def idle(self) -> bool:
        """Whether the rank waits for work."""
        return self._idle is not None and self.alive

    def fits(self, request: Request) -> bool:
        """Say whether the rank could serve `request` to its end with nobody else there."""
        return self._kv is None or self._kv.fits_alone(request)

    def running_slots(self) -> dict[int, IntArray]:
        """Return the slot columns of the current batch, by request id."""
        return {
            request.index: self.batch.slots[:, slot].copy()
            for slot, request in enumerate(self.batch.running)
        }

    # The loop

    def start(self) -> None:
        """Serve by itself from now on."""
        self.env.process(self._serve())

    def wake(self) -> None:
        """Tell an idle rank that its queue has work; it starts after this instant's arrivals."""
        if self._idle is not None:
            if not self._idle.triggered:  # a lockstep group sleeps on one event
                self._idle.succeed()
            self._idle = None

    def sleep(self, until: simpy.Event) -> None:
        """Be idle until `wake` triggers that event."""
        self._idle = until

    def _serve(self) -> Generator[simpy.Event, None, None]:
        env, order = self.env, Order.STEP + self.index
        while True:
            if not self.form():
                idle = simpy.Event(env)
                self.sleep(idle)
                yield idle
                # The waker may be an arrival; let the other arrivals of this instant come first.
                yield after(env, 0.0, order)
                continue
            self.plan()
            duration_s = self.forward.own_s
            yield after(env, duration_s, order)
            self.commit(duration_s)

    def form(self) -> bool:
        """Decide who is in the next step; say whether there is one."""
        self._preempted = 0
        if not self.alive:
            return False
        if self._kv is not None and self._kv.spec.admission == "optimistic":
            self._make_room(self._kv)
        if not self._preempted:
            self._admit()
        return bool(self.batch.running or self.prefilling)

    def _admit(self) -> None:
        """Take requests from the queue, first come first served, up to the cap."""
        queue, kv = self.queue, self._kv
        while queue and self.batch.count + len(self.prefilling) < self._cap:
            if kv is not None and not kv.admit(queue[0], alone=self.num_running == 0):
                return
            request = queue.popleft()
            request.queue = None
            request.rank = self.index
            request.status = Status.RUNNING
            if request.admitted_s != request.admitted_s:
                request.admitted_s = self.env.now
            if request.swapped:
                request.swapped = False
                self._swap_s += self._swap_time(request)
                self.batch.add(request)
            elif request.to_prefill:
                self.prefilling.append(request)
            else:
                self._decode(request)

    def _decode(self, request: Request) -> None:
        """Let a request whose prompt has been read decode from the next step on."""
        if request.first_token_s != request.first_token_s:
            request.first_token_s = self.env.now
        if self._kv is not None:
            self._kv.publish(request)
        if request.output_tokens == 1:  # the prefill's token was all of it
            if self._kv is not None:
                self._kv.release(request, None)
            self._home.finished(request, None)
            return
        self.batch.add(request)

    # Planning

    def plan(self) -> None:
        """Ask the scheduler for the step's plan and price it."""
        self._in_step = True
        if self.batch.count == 0:
            self.warm_steps = 0
        self.forward.plan(self._step, self.prefilling, self._swap_s)
        self._swap_s = 0.0

    def view(self) -> BatchView | None:
        """Return what the scheduler may see; for whoever plans in its place (`Forward.adopt`)."""
        self._in_step = True
        if self.batch.count == 0:
            self.warm_steps = 0
        view = self.forward.view(self._step, self.prefilling, self._swap_s)
        self._swap_s = 0.0
        return view

    def plan_dummy(self) -> None:
        """Join a lockstep step without work."""
        self._in_step = True
        self.warm_steps = 0
        self.forward.dummy()

    # Committing

    def commit(self, duration_s: float) -> None:
        """Accept and emit, record the step, hand finished requests back."""
        if self._lost:  # the rank died during the step
            self._lost = self._in_step = False
            return
        batch, count, forward = self.batch, self.batch.count, self.forward
        verify_len_R = forward.verify_len_R
        accepted = emitted = finished = ceiling = verified = 0
        if count:
            accepted, emitted, finished, ceiling, verified = batch.commit(verify_len_R)
            self.warm_steps += 1
        self._in_step = False
        self._step += 1
        self._log.add_row(
            (self.env.now, duration_s, forward.own_s),
            (
                self.index,
                count,
                verified,
                accepted,
                emitted,
                len(self.queue),
                batch.kv_tokens,
                ceiling,
                forward.charged,
                forward.prefill_tokens,
                forward.trimmed,
                self._preempted,
                0 if self._kv is None else self._kv.used,
            ),
        )
        if self._learner is not None and count:
            checked_observe(
                self._learner,
                StepOutcome(
                    step=self._step - 1,
                    request_id_R=batch.slots[Slot.ID, :count].copy(),
                    verify_len_R=verify_len_R,
                    num_accepted_R=batch.accepted_R[:count].copy(),
                    duration_s=duration_s,
                ),
            )
        if finished:
            self._finish()
        if self._leaving:
            self._let_go()
        if forward.chunks:
            self._progress()
        self._home.step_ended()

    def _finish(self) -> None:
        done = np.flatnonzero(self.batch.slots[Slot.LEFT, : self.batch.count] == 0)
        self._preempted_since_finish = 0
        for request, row in self.batch.drop(done):
            if self._kv is not None:
                self._kv.release(request, row, finished=True)
            self._home.finished(request, row)

    def _progress(self) -> None:
        chunks, self.forward.chunks = self.forward.chunks, []
        for request, taken in chunks:
            if request.status is not Status.RUNNING:
                continue  # it left during the step
            request.to_prefill -= taken
            request.prefilled += taken
            if request.to_prefill == 0:
                self.prefilling.remove(request)
                self._decode(request)

    # Leaving before the end

    def leave(self, request: Request) -> None:
        """Let a running request go when the step that holds it ends."""
        self._leaving.append(request)

    def _let_go(self) -> None:
        leaving, self._leaving = self._leaving, []
        for request in leaving:
            if request.status is Status.RUNNING:
                self._home.left(request, self._take_out(request))

    def _take_out(self, request: Request) -> IntArray | None:
        """Take a running request off the rank; return its slot if it was decoding."""
        if request in self.prefilling:
            self.prefilling.remove(request)
            row = None
        else:
            ((_, row),) = self.batch.drop(np.array([self.batch.running.index(request)]))
        if self._kv is not None:
            self._kv.release(request, row)
        return row

    def _make_room(self, kv: KvPool) -> None:
        """Put requests back until the others can write their next step."""
        while not kv.grown(self.batch.slots, self.batch.count):
            victim = max(
                (*self.batch.running, *self.prefilling), key=lambda r: (r.priority, r.index)
            )
            row = self._take_out(victim)
            victim.status = Status.WAITING
            victim.preemptions += 1
            self._preempted += 1
            self._preempted_since_finish += 1
            if row is not None:
                victim.saved = row
                if kv.spec.preemption == "swap":
                    victim.swapped = True
                    self._swap_s += self._swap_time(victim)
            self._home.put_back(victim, self.queue)
        if self._preempted and self._preempted_since_finish >= kv.spec.spiral_after:
            self._home.spiral(self.index, self._preempted_since_finish)

    def _swap_time(self, request: Request) -> float:
        assert self._kv_spec is not None
        assert request.saved is not None
        return self._kv_spec.swap_s_per_token * int(request.saved[Slot.CONTEXT])

    def die(self) -> list[Request]:
        """Lose the step, the KV and the batch; return the requests that ran here."""
        self.alive = False
        self._lost = self._in_step
        orphans = []
        for request, row in self.batch.drop(np.arange(self.batch.count)):
            request.saved = row
            orphans.append(request)
        orphans += self.prefilling
        self.prefilling, self._leaving, self.forward.chunks = [], [], []
        self._swap_s = 0.0
        for request in orphans:
            request.kv_private, request.kv_shared, request.kv_keys = 0, 0, ()
        if self._kv_spec is not None:
            self._kv = KvPool(self._kv_spec, gamma=self.gamma)
        return orphans

    def come_back(self) -> None:
        """Serve again, with an empty batch and memory."""
        self.alive = True
        self.wake()
