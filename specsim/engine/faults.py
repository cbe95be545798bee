"""What goes wrong: users who give up, and ranks that die."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import simpy
from simpy.core import Environment

from specsim.engine.clock import Order, after
from specsim.engine.request import Request
from specsim.metrics.record import Status
from specsim.rng import stream


@dataclass(frozen=True, slots=True)
class Patience:
    """When a request is taken back before its end. None means never.

    A request in a queue or on its way leaves at once; one in a batch when its step ends, since a
    forward cannot be interrupted.

    Attributes:
        first_token_s: timed out if the first token is not there so long after arrival.
        total_s: timed out if the last token is not there so long after arrival.
        cancel_share: share of the requests that their users cancel.
        cancel_after_s: mean of the exponential time from arrival to that.
    """

    first_token_s: float | None = None
    total_s: float | None = None
    cancel_share: float = 0.0
    cancel_after_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Death:
    """A rank that dies, with its step, its KV and its batch, which start again elsewhere.

    Attributes:
        rank: its index.
        at_s: when.
        back_s: when it serves again, empty; None for never.
    """

    rank: int
    at_s: float
    back_s: float | None = None


class Watch:
    """Takes requests back when somebody's patience ends.

    Args:
        env: the simulation.
        patience: how long it lasts.
        seed: draws who cancels and when, by request index.
        withdraw: takes a request back, as cancelled or timed out, if it is still there.
    """

    def __init__(
        self,
        env: Environment,
        patience: Patience,
        *,
        seed: int,
        withdraw: Callable[[Request, Status], None],
    ) -> None:
        self._env, self._patience, self._withdraw = env, patience, withdraw
        self._rng = stream(seed, "request/cancel")

    def submitted(self, request: Request) -> None:
        """Start the clocks of a request; called in the order of their indices."""
        patience = self._patience
        cancels, wait = self._rng.random(), self._rng.exponential(patience.cancel_after_s)
        if cancels < patience.cancel_share:
            self._env.process(self._wait(request, wait, Status.CANCELLED))
        if patience.total_s is not None:
            self._env.process(self._wait(request, patience.total_s, Status.TIMED_OUT))
        if patience.first_token_s is not None:
            self._env.process(
                self._wait(request, patience.first_token_s, Status.TIMED_OUT, first=True)
            )

    def _wait(
        self, request: Request, seconds: float, status: Status, *, first: bool = False
    ) -> Generator[simpy.Event, None, None]:
        yield after(self._env, seconds, Order.ARRIVAL)
        has_token = request.first_token_s == request.first_token_s
        if not (first and has_token):
            self._withdraw(request, status)
