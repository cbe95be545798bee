"""Which rank a request goes to. A router sees the ranks that are alive, in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np

from specsim.engine.queue import Queue, make_queue
from specsim.engine.rank import Rank
from specsim.engine.request import Request

RouterKind = Literal[
    "least_loaded",
    "central_queue",
    "round_robin",
    "least_kv",
    "shortest_work",
    "power_of_two",
    "session_affinity",
]


class Router(Protocol):
    """Puts an arriving request into a queue and wakes the rank that should look."""

    def queue_for(self, rank_index: int) -> Queue:
        """Return the queue from which that rank admits."""
        ...

    def route(self, request: Request, ranks: Sequence[Rank]) -> None:
        """Enqueue `request` at one of `ranks`, which are not empty."""
        ...


class CentralQueue:
    """One queue for all; an idle rank is woken at once, the first of them."""

    def __init__(self, *, classes: int = 1) -> None:
        self._queue = make_queue(classes)

    def queue_for(self, rank_index: int) -> Queue:
        """Return the shared queue, whatever the rank."""
        return self._queue

    def route(self, request: Request, ranks: Sequence[Rank]) -> None:
        """Join the shared queue."""
        request.queue = self._queue
        self._queue.append(request)
        for rank in ranks:
            if rank.idle:
                rank.wake()
                return


class OwnQueues:
    """A queue a rank; a request joins the rank that `pick` says, at its arrival."""

    def __init__(self, num_ranks: int, *, classes: int = 1) -> None:
        self._queues: tuple[Queue, ...] = tuple(make_queue(classes) for _ in range(num_ranks))

    def queue_for(self, rank_index: int) -> Queue:
        """Return the rank's own queue."""
        return self._queues[rank_index]

    def pick(self, request: Request, ranks: Sequence[Rank]) -> Rank:
        """Choose one of `ranks`: here the one with the fewest requests, the first of equals."""
        return min(ranks, key=lambda rank: rank.load)

    def route(self, request: Request, ranks: Sequence[Rank]) -> None:
        """Join the queue of the rank that `pick` says."""
        rank = self.pick(request, ranks)
        request.queue = rank.queue
        rank.queue.append(request)
        rank.wake()


class LeastLoaded(OwnQueues):
    """The rank with the fewest requests, running and waiting, the first of equals."""


class RoundRobin(OwnQueues):
    """One rank after the other."""

    def __init__(self, num_ranks: int, *, classes: int = 1) -> None:
        super().__init__(num_ranks, classes=classes)
        self._next = 0

    def pick(self, request: Request, ranks: Sequence[Rank]) -> Rank:
        """Choose the next rank."""
        rank = ranks[self._next % len(ranks)]
        self._next += 1
        return rank


class LeastKv(OwnQueues):
    """The rank with the fewest KV tokens: resident, and prompts on their way in."""

    def pick(self, request: Request, ranks: Sequence[Rank]) -> Rank:
        """Choose the emptiest memory."""
        return min(ranks, key=lambda rank: rank.kv_load)


class ShortestWork(OwnQueues):
    """The rank with the fewest decode tokens expected to come.

    An output is expected to be as long as those that have finished so far were on average (before
    the first, all are alike); nobody looks ahead.
    """

    def __init__(
        self, num_ranks: int, mean_output_tokens: Callable[[], float], *, classes: int = 1
    ) -> None:
        super().__init__(num_ranks, classes=classes)
        self._mean = mean_output_tokens

    def pick(self, request: Request, ranks: Sequence[Rank]) -> Rank:
        """Choose the least work."""
        mean = self._mean()
        return min(ranks, key=lambda rank: rank.work_tokens(mean))


class PowerOfTwo(OwnQueues):
    """Two ranks at random, the one of them with fewer requests."""

    def __init__(self, num_ranks: int, rng: np.random.Generator, *, classes: int = 1) -> None:
        super().__init__(num_ranks, classes=classes)
        self._rng = rng

    def pick(self, request: Request, ranks: Sequence[Rank]) -> Rank:
        """Choose the better of two different ranks; the first drawn of equals."""
        if len(ranks) == 1:
            return ranks[0]
        first = int(self._rng.integers(len(ranks)))
        second = (first + 1 + int(self._rng.integers(len(ranks) - 1))) % len(ranks)
        return min(ranks[first], ranks[second], key=lambda rank: rank.load)


class SessionAffinity(OwnQueues):
    """The rank that served the session's (or the user's) last request; else the least loaded."""

    def __init__(self, num_ranks: int, *, classes: int = 1) -> None:
        super().__init__(num_ranks, classes=classes)
        self._home: dict[int, int] = {}

    def pick(self, request: Request, ranks: Sequence[Rank]) -> Rank:
        """Choose the session's rank if it is alive."""
        if request.session < 0:
            return super().pick(request, ranks)
        home = self._home.get(request.session)
        rank = next((rank for rank in ranks if rank.index == home), None)
        if rank is None:
            rank = super().pick(request, ranks)
            self._home[request.session] = rank.index
        return rank


def make_router(
    kind: RouterKind,
    num_ranks: int,
    *,
    classes: int,
    rng: np.random.Generator,
    mean_output_tokens: Callable[[], float],
) -> Router:
    """Make the router of that kind.

    Args:
        kind: which.
        num_ranks: ranks of the cluster.
        classes: priority classes.
        rng: for routers that draw.
        mean_output_tokens: mean output of the requests that have finished so far.
    """
    match kind:
        case "central_queue":
            return CentralQueue(classes=classes)
        case "round_robin":
            return RoundRobin(num_ranks, classes=classes)
        case "least_kv":
            return LeastKv(num_ranks, classes=classes)
        case "shortest_work":
            return ShortestWork(num_ranks, mean_output_tokens, classes=classes)
        case "power_of_two":
            return PowerOfTwo(num_ranks, rng, classes=classes)
        case "session_affinity":
            return SessionAffinity(num_ranks, classes=classes)
    return LeastLoaded(num_ranks, classes=classes)
