"""The ranks, who sends them work, and what becomes of every request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

import numpy as np
import simpy
from numpy.typing import NDArray
from simpy.core import Environment

from specsim.engine.clock import Order, after
from specsim.engine.faults import Death, Watch
from specsim.engine.ledger import Ledger
from specsim.engine.prefill import PrefillPool
from specsim.engine.queue import Queue
from specsim.engine.rank import Rank
from specsim.engine.request import Request, RequestSource
from specsim.engine.router import Router
from specsim.engine.step import Slot
from specsim.metrics.record import Columns, Status
from specsim.metrics.steplog import StepLog
from specsim.workload.feed import Arrival

IntArray = NDArray[np.int64]

LIVELOCK_AFTER = 10_000
"""So many requests in a row that leave unserved end a run that waits for requests or tokens."""

STARVED_BY = 100
"""A request that so many later ones have passed on their way in is said to starve."""


class Cluster:
    """Submits requests, sends them through prefill to a rank, and closes each of them once.

    Args:
        env: the simulation.
        log: the step log that the ranks write.
        source: draws the requests.
        ledger: keeps a row for each of them.
        router: picks a rank.
        reads_prompts: whether prefill takes time, on the ranks or on a pool.
        stop_after_finished: trigger `stop` when so many requests have finished; None for never.
        stop_after_tokens: trigger `stop` when so many tokens have been emitted; None for never.
    """

    def __init__(
        self,
        env: Environment,
        *,
        log: StepLog,
        source: RequestSource,
        ledger: Ledger,
        router: Router,
        reads_prompts: bool,
        stop_after_finished: int | None,
        stop_after_tokens: int | None,
    ) -> None:
        self.env = env
        self.ranks: list[Rank] = []
        self.alive: list[Rank] = []
        self.pool: PrefillPool | None = None
        self.watch: Watch | None = None
        self.ledger = ledger
        self.submitted = 0
        self.ended = ""
        self.findings: list[str] = []
        self.stop = simpy.Event(env)
        self._in_system = 0
        self._area_s = 0.0
        self._changed_s = 0.0
        self._source, self._router, self._log = source, router, log
        self._reads_prompts = reads_prompts
        self._stop_after = stop_after_finished
        self._stop_after_tokens = stop_after_tokens
        self._stop_when_closed: int | None = None
        self._then: Callable[[Request], None] | None = None
        self._feeding = self._ends = False
        self._thinking = 0
        self._transferring = 0
        self._returns = 0
        self._unserved = 0  # requests that have left since the last one finished
        self._stranded: deque[Request] = deque()

    # Who sends work

    def closed_loop(self, users: int, think_s: Callable[[], float] | None) -> None:
        """Let `users` submit at time 0, and again `think_s()` after each answer (None: at once)."""

        def again(request: Request) -> None:
            if request.status is Status.FAILED:
                return  # nobody asks again for what cannot be served
            if think_s is None:
                self._submit(user=request.user)
            else:
                self._thinking += 1
                self.env.process(self._think(request.user, think_s()))

        self._then = again
        self._ends = True  # only if every user has gone
        self.env.process(self._at_once(users, closed=True))

    def open_stream(self, gaps_s: Iterable[float]) -> None:
        """Submit one request after each gap, whatever the cluster does."""
        self.env.process(self._stream(gaps_s))

    def batch(self, num_requests: int) -> None:
        """Submit everything at time 0; stop when all of it has finished."""
        self._stop_when_closed = num_requests
        self.env.process(self._at_once(num_requests, closed=False))

    def feed(self, arrivals: Iterator[Arrival]) -> None:
        """Submit what a feed says, and the later turns of its sessions; stop when all is done."""
        self._then = self._next_turn
        self._feeding = self._ends = True
        self.env.process(self._feed(arrivals))

    def _at_once(self, count: int, *, closed: bool) -> Generator[simpy.Event, None, None]:
        yield after(self.env, 0.0, Order.ARRIVAL)
        self._feeding = True
        for i in range(count):
            self._submit(user=i if closed else -1)
        self._feeding = False
        self._end_if_done()

    def _think(self, user: int, seconds: float) -> Generator[simpy.Event, None, None]:
        yield after(self.env, seconds, Order.ARRIVAL)
        self._thinking -= 1
        self._submit(user=user)

    def _stream(self, gaps_s: Iterable[float]) -> Generator[simpy.Event, None, None]:
        for gap_s in gaps_s:
            yield after(self.env, gap_s, Order.ARRIVAL)
            self._submit(user=-1)

    def _feed(self, arrivals: Iterator[Arrival]) -> Generator[simpy.Event, None, None]:
        for arrival in arrivals:
            if arrival.at_s > self.env.now:
                yield after(self.env, arrival.at_s - self.env.now, Order.ARRIVAL)
            self._submit(user=-1, arrival=arrival)
        self._feeding = False
        self._end_if_done()

    def _next_turn(self, request: Request) -> None:
        """Let a session go on after an answer; one that got none ends there."""
        if request.status is Status.FINISHED and request.arrival is not None:
            turn = request.arrival.follow_up(self.env.now)
            if turn is not None:
                self._thinking += 1
                self.env.process(self._later(turn))

    def _later(self, turn: Arrival) -> Generator[simpy.Event, None, None]:
        yield after(self.env, max(0.0, turn.at_s - self.env.now), Order.ARRIVAL)
        self._thinking -= 1
        self._submit(user=-1, arrival=turn)

    # The way of a request

    def _submit(self, *, user: int, arrival: Arrival | None = None) -> None:
        request = self._source.next(arrival_s=self.env.now, user=user, arrival=arrival)
        self.submitted += 1
        self._count(1)
        self.ledger.open[request.index] = request
        if not self.ranks[0].fits(request):
            self._close(request, Status.FAILED, None)
            return
        if self.watch is not None:
            self.watch.submitted(request)
        self._send(request)

    def _send(self, request: Request) -> None:
        """Send a request that has no KV anywhere on its way: prefill first, then a rank."""
        if self._reads_prompts:
            request.to_prefill = request.prompt_tokens
            if request.saved is not None:
                request.to_prefill += int(request.saved[Slot.EMITTED])
        if self.pool is not None:
            self.pool.submit(request)
        else:
            self._route(request)

    def _route(self, request: Request) -> None:
        if self.alive:
            self._router.route(request, self.alive)
        elif self._returns:
            self._stranded.append(request)
            request.queue = self._stranded
        else:
            self._close(request, Status.FAILED, request.saved)

    def prefilled(self, request: Request) -> None:
        """Give a request of the prefill pool its first token, and send its KV on."""
        if request.first_token_s != request.first_token_s:
            request.first_token_s = self.env.now
        if request.output_tokens == 1:
            self.finished(request, None)
            return
        request.status = Status.WAITING
        request.transferred = True
        self._transferring += 1
        self.env.process(self._transfer(request))

    def _transfer(self, request: Request) -> Generator[simpy.Event, None, None]:
        assert self.pool is not None
        spec = self.pool.spec
        tokens = request.prompt_tokens
        if request.saved is not None:
            tokens += int(request.saved[Slot.EMITTED])
        yield after(self.env, spec.transfer_s + tokens * spec.transfer_s_per_token, Order.ARRIVAL)
        self._transferring -= 1
        if request.leaving is not None:
            self.left(request, request.saved)
        else:
            self._route(request)

    def put_back(self, request: Request, queue: Queue) -> None:
        """Take back a request that was preempted from the batch that admits from `queue`."""
        if request.leaving is not None:
            self.left(request, request.saved)
        elif request.swapped:
            request.queue = queue
            queue.appendleft(request)
        elif self.pool is not None:
            request.to_prefill = self._context(request)
            self.pool.submit(request, first=True)
        else:
            if self._reads_prompts:
                request.to_prefill = self._context(request)
            request.queue = queue
            queue.appendleft(request)
            for rank in self.alive:  # one that shares the queue may have room
                if rank.queue is queue and rank.idle:
                    rank.wake()
                    break

    @staticmethod
    def _context(request: Request) -> int:
        emitted = 0 if request.saved is None else int(request.saved[Slot.EMITTED])
        return request.prompt_tokens + emitted

    # The end of a request

    def finished(self, request: Request, slot_F: IntArray | None) -> None:
        """Close a request that emitted its last token and let its user go on."""
        request.finish_s = self.env.now
        self.ledger.emitted += request.output_tokens
        self._close(request, Status.FINISHED, slot_F)

    def left(self, request: Request, slot_F: IntArray | None = None) -> None:
        """Close a request that left before its end, as `request.leaving` says."""
        assert request.leaving is not None
        self._close(request, request.leaving, request.saved if slot_F is None else slot_F)

    def withdraw(self, request: Request, status: Status) -> None:
        """Take a request back, at once if no forward holds it."""
        if request.index not in self.ledger.open or request.leaving is not None:
            return
        request.leaving = status
        if request.queue is not None:
            request.queue.remove(request)
            request.queue = None
            self.left(request, request.saved)
        elif request.status is Status.RUNNING and request.rank >= 0:
            self.ranks[request.rank].leave(request)
        # else it is in a prefill rank's forward or on its way: noticed when that ends

    def _close(self, request: Request, status: Status, slot_F: IntArray | None) -> None:
        request.status = status
        request.closed_s = self.env.now
        self._count(-1)
        self.ledger.close(request, slot_F)
        self._unserved = 0 if status is Status.FINISHED else self._unserved + 1
        if self._unserved >= LIVELOCK_AFTER and self._waits_for_output:
            self._livelock()
        elif status is Status.FINISHED and self.ledger.closed[status] == self._stop_after:
            self.end("requests")
        elif self._then is not None:
            self._then(request)
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._feeding or self._thinking or self.ledger.open:
            return
        if self._ends or self.submitted == self._stop_when_closed:
            self.end("all done")

    # Ranks that die

    def deaths(self, planned: Sequence[Death]) -> None:
        """Let ranks die, and come back, as planned."""
        for death in planned:
            self._returns += death.back_s is not None
            self.env.process(self._die(death))

    def _die(self, death: Death) -> Generator[simpy.Event, None, None]:
        yield after(self.env, death.at_s, Order.ARRIVAL)
        rank = self.ranks[death.rank]
        shared = any(other.queue is rank.queue for other in self.alive if other is not rank)
        self.alive.remove(rank)
        orphans = rank.die()
        if not shared:
            orphans += list(rank.queue)
            rank.queue.clear()
        self.findings.append(
            f"rank {rank.index} died at {self.env.now:g} s with its step; {len(orphans)} requests "
            "were sent elsewhere"
        )
        for request in orphans:
            request.queue, request.status, request.swapped = None, Status.WAITING, False
            request.reroutes += 1
            if request.leaving is not None:
                self.left(request, request.saved)
            else:
                self._send(request)
        if death.back_s is None:
            return
        yield after(self.env, death.back_s - death.at_s, Order.ARRIVAL)
        self._returns -= 1
        self.alive = [other for other in self.ranks if other.alive or other is rank]
        rank.come_back()
        stranded, self._stranded = self._stranded, deque()
        for request in stranded:
            self._route(request)

    # Counting

    def spiral(self, rank: int, preemptions: int) -> None:
        """End a run whose rank puts requests back again and again without finishing any."""
        self.findings.append(
            f"preemption spiral: rank {rank} put requests back {preemptions} times since it last "
            f"finished one; the run was ended at {self.env.now:g} s with "
            f"{self.ledger.closed[Status.FINISHED]} of {self.submitted} requests finished; more "
            "KV blocks, a higher watermark or worst_case admission avoids it"
        )
        self.end("preemption spiral")

    @property
    def _waits_for_output(self) -> bool:
        return self._stop_after is not None or self._stop_after_tokens is not None

    def _livelock(self) -> None:
        """End a run that nobody's end can end: requests come and leave, and none is served."""
        left = ", ".join(
            f"{self.ledger.closed[status]} {status.name.lower().replace('_', ' ')}"
            for status in (Status.TIMED_OUT, Status.CANCELLED, Status.FAILED)
            if self.ledger.closed[status]
        )
        self.findings.append(
            f"livelock: the last {self._unserved} requests all left unserved (in all {left}); the "
            f"run was ended at {self.env.now:g} s; longer patience, more KV blocks or more ranks "
            "would let some finish"
        )
        self.end("livelock")

    def request_seconds(self) -> float:
        """Return the integral of requests in the system over time, up to now (Little's law)."""
        self._count(0)
        return self._area_s

    def _count(self, change: int) -> None:
        self._area_s += self._in_system * (self.env.now - self._changed_s)
        self._changed_s = self.env.now
        self._in_system += change

    def step_ended(self) -> None:
        """Stop the run if its tokens have been emitted."""
        if self._stop_after_tokens is not None and self._log.emitted >= self._stop_after_tokens:
            self.end("tokens")

    def end(self, why: str) -> None:
        """Stop the run at this instant."""
        if not self.stop.triggered:
            self.ended = why
            self.stop.succeed()

    def where(self) -> dict[str, int]:
        """Count every request where it is: ranks, queues, prefill, transfers and the ledger.

        Nothing here reads a request's own `status`, so that the two can be held against each other.
        """
        queues = {id(rank.queue): len(rank.queue) for rank in self.ranks}
        running = sum(rank.num_running for rank in self.ranks)
        waiting = sum(queues.values()) + self._transferring + len(self._stranded)
        if self.pool is not None:
            running += self.pool.num_running
            waiting += len(self.pool.queue)
        closed = {
            status.name.lower(): count
            for status, count in zip(Status, self.ledger.closed, strict=True)
            if status > Status.RUNNING
        }
        return {"waiting": waiting, "running": running, **closed}

    def check_conservation(self) -> None:
        """Hold arrivals against where they are, and that against what each request says of itself.

        Raises:
            AssertionError: a request was lost, is counted twice, or says something else.
        """
        where = self.where()
        assert sum(where.values()) == self.submitted, f"{where} of {self.submitted} submitted"
        said = [request.status for request in self.ledger.open.values()]
        assert said.count(Status.RUNNING) == where["running"], f"{where}: status differs"
        assert said.count(Status.WAITING) == where["waiting"], f"{where}: status differs"

    def latest(self) -> Columns:
        """Return a row for every request that is not in the ledger's log yet, by index.

        Of a log that is not bounded that is every one. NaN stands for what has not happened.
        """
        running: dict[int, IntArray] = {}
        for rank in self.ranks:
            running |= rank.running_slots()
        return self.ledger.latest(running)


def starved(requests: Columns, now_s: float) -> list[str]:
    """Name the classes whose oldest waiting request many later ones have passed.

    Args:
        requests: rows of all requests from the oldest open one on.
        now_s: simulated seconds.
    """
    found: list[str] = []
    admitted_N = np.isfinite(requests["admitted_s"])
    waiting_N = (requests["status"] == Status.WAITING) & ~admitted_N
    index_N = requests["request"][admitted_N]
    for priority in np.unique(requests["priority"][waiting_N]).tolist():
        class_N = np.flatnonzero(waiting_N & (requests["priority"] == priority))
        oldest = class_N[0]
        passed = int((index_N > requests["request"][oldest]).sum())
        if passed >= STARVED_BY:
            found.append(
                f"starvation: {len(class_N)} requests of class {priority} wait, the oldest for "
                f"{now_s - requests['arrival_s'][oldest]:g} s; {passed} that came later went before"
            )
    return found
