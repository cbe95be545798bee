"""The ranks, who sends them work, and the ledger of every request."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray
from simpy.core import Environment

from specsim.engine.clock import Order, after
from specsim.engine.rank import Rank
from specsim.engine.request import Request, RequestSource
from specsim.engine.router import Router
from specsim.engine.step import Slot
from specsim.metrics.record import Columns, StepLog

IntArray = NDArray[np.int64]

_REQUEST_COLUMNS = (
    ("request", np.int64),
    ("user", np.int64),
    ("domain", np.int64),
    ("rank", np.int64),
    ("arrival_s", np.float64),
    ("first_token_s", np.float64),
    ("finish_s", np.float64),
    ("prompt_tokens", np.int64),
    ("output_tokens", np.int64),
    ("rounds", np.int64),
    ("verified", np.int64),
    ("accepted", np.int64),
    ("emitted", np.int64),
)


class Cluster:
    """Submits requests, routes them, and keeps one ledger row for each.

    Args:
        env: the simulation.
        log: the step log that the ranks write.
        source: draws the requests.
        router: picks a rank.
        stop_after_finished: trigger `stop` when so many requests have finished; None for never.
        stop_after_tokens: trigger `stop` when so many tokens have been emitted; None for never.
    """

    def __init__(
        self,
        env: Environment,
        *,
        log: StepLog,
        source: RequestSource,
        router: Router,
        stop_after_finished: int | None,
        stop_after_tokens: int | None,
    ) -> None:
        self.env = env
        self.ranks: list[Rank] = []
        self.submitted = 0
        self.num_finished = 0
        self._in_system = 0
        self._area_s = 0.0
        self._changed_s = 0.0
        self.stop = simpy.Event(env)
        self._source, self._router = source, router
        self._log = log
        self._stop_after = stop_after_finished
        self._stop_after_tokens = stop_after_tokens
        self._rows: list[tuple[Any, ...]] = []
        self._open: dict[int, Request] = {}
        self._then: Callable[[Request], None] | None = None

    # Who sends work

    def closed_loop(self, users: int, think_s: Callable[[], float] | None) -> None:
        """Let `users` submit at time 0, and again `think_s()` after each answer (None: at once)."""

        def again(request: Request) -> None:
            if think_s is None:
                self._submit(user=request.user)
            else:
                self.env.process(self._think(request.user, think_s()))

        self._then = again
        self.env.process(self._at_once(users, closed=True))

    def open_stream(self, gaps_s: Iterable[float]) -> None:
        """Submit one request after each gap, whatever the cluster does."""
        self.env.process(self._stream(gaps_s))

    def batch(self, num_requests: int) -> None:
        """Submit everything at time 0; stop when all of it has finished."""
        self._stop_after = num_requests
        self.env.process(self._at_once(num_requests, closed=False))

    def _at_once(self, count: int, *, closed: bool) -> Generator[simpy.Event, None, None]:
        yield after(self.env, 0.0, Order.ARRIVAL)
        for i in range(count):
            self._submit(user=i if closed else -1)

    def _think(self, user: int, seconds: float) -> Generator[simpy.Event, None, None]:
        yield after(self.env, seconds, Order.ARRIVAL)
        self._submit(user=user)

    def _stream(self, gaps_s: Iterable[float]) -> Generator[simpy.Event, None, None]:
        for gap_s in gaps_s:
            yield after(self.env, gap_s, Order.ARRIVAL)
            self._submit(user=-1)

    def _submit(self, *, user: int) -> None:
        request = self._source.next(arrival_s=self.env.now, user=user)
        self.submitted += 1
        self._count(1)
        self._open[request.index] = request
        self._router.route(request, self.ranks)

    # The ledger

    def finished(self, request: Request, slot_F: IntArray) -> None:
        """Write the ledger row of a finished request and let its user go on."""
        del self._open[request.index]
        self._count(-1)
        self._rows.append(_row(request, slot_F))
        self.num_finished += 1
        if self.num_finished == self._stop_after:
            self._end()
        elif self._then is not None:
            self._then(request)

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
            self._end()

    def _end(self) -> None:
        if not self.stop.triggered:
            self.stop.succeed()

    def columns(self) -> Columns:
        """Return one row for every submitted request, by index; NaN for what has not happened."""
        none = np.zeros(len(Slot), dtype=np.int64)
        running: dict[int, IntArray] = {}
        for rank in self.ranks:
            running |= rank.running_slots()
        rows = self._rows + [
            _row(request, running.get(index, none)) for index, request in self._open.items()
        ]
        rows.sort()
        return {
            name: np.array([row[i] for row in rows], dtype=dtype)
            for i, (name, dtype) in enumerate(_REQUEST_COLUMNS)
        }


def _row(request: Request, slot_F: IntArray) -> tuple[Any, ...]:
    return (
        request.index,
        request.user,
        request.domain,
        request.rank,
        request.arrival_s,
        request.first_token_s,
        request.finish_s,
        request.prompt_tokens,
        request.output_tokens,
        int(slot_F[Slot.ROUNDS]),
        int(slot_F[Slot.VERIFIED]),
        int(slot_F[Slot.ACCEPTED]),
        int(slot_F[Slot.EMITTED]),
    )
