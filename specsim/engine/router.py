"""Which rank a request goes to."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal, Protocol

from specsim.engine.rank import Rank
from specsim.engine.request import Request

RouterKind = Literal["least_loaded", "central_queue"]


class Router(Protocol):
    """Puts an arriving request into a queue and wakes the rank that should look."""

    def queue_for(self, rank_index: int) -> deque[Request]:
        """Return the queue from which that rank admits."""
        ...

    def route(self, request: Request, ranks: Sequence[Rank]) -> None:
        """Enqueue `request`."""
        ...


class LeastLoaded:
    """A queue a rank; a request joins the rank with the fewest requests, the first of equals."""

    def __init__(self, num_ranks: int) -> None:
        self._queues: tuple[deque[Request], ...] = tuple(deque() for _ in range(num_ranks))

    def queue_for(self, rank_index: int) -> deque[Request]:
        """Return the rank's own queue."""
        return self._queues[rank_index]

    def route(self, request: Request, ranks: Sequence[Rank]) -> None:
        """Join the shortest rank, running and waiting counted."""
        rank = min(ranks, key=lambda rank: rank.load)
        rank.queue.append(request)
        rank.wake()


class CentralQueue:
    """One queue for all; an idle rank is woken at once, the first of them."""

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()

    def queue_for(self, rank_index: int) -> deque[Request]:
        """Return the shared queue, whatever the rank."""
        return self._queue

    def route(self, request: Request, ranks: Sequence[Rank]) -> None:
        """Join the shared queue."""
        self._queue.append(request)
        for rank in ranks:
            if rank.idle:
                rank.wake()
                return


def make_router(kind: RouterKind, num_ranks: int) -> Router:
    """Make the router of that kind."""
    return LeastLoaded(num_ranks) if kind == "least_loaded" else CentralQueue()
