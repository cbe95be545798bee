"""One run: a policy on a cluster under a load, until its stop rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from simpy.core import Environment

from specsim.acceptance.blocks import Blocks
from specsim.engine.cluster import Cluster
from specsim.engine.rank import Rank, StepCost
from specsim.engine.request import LengthLaw, RequestSource
from specsim.engine.router import RouterKind, make_router
from specsim.metrics.record import Columns, StepLog
from specsim.rng import stream
from specsim.schedulers.base import SchedulerFactory

_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`users` over the whole cluster, each with one request at a time.

    Attributes:
        think_s: mean seconds between an answer and the next request; 0 is at once.
        thinking: whether the think time is a constant or exponential.
    """

    users: int
    think_s: float = 0.0
    thinking: Literal["constant", "exponential"] = "constant"


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent arrivals at `rate_per_s` over the whole cluster."""

    rate_per_s: float


@dataclass(frozen=True, slots=True)
class Batch:
    """`num_requests` at time 0 and none afterwards; the run ends with the last of them."""

    num_requests: int


@dataclass(frozen=True, slots=True)
class Stop:
    """When a run ends: whichever comes first. None means never.

    Attributes:
        requests: finished requests over the cluster.
        tokens: emitted tokens over the cluster.
        seconds: simulated seconds.
    """

    requests: int | None = None
    tokens: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RunInput:
    """Everything that one run needs, as objects.

    Attributes:
        blocks: the acceptance source.
        scheduler: makes each rank's scheduler.
        cost: what steps cost.
        load: who sends work.
        prompt: law of prompt lengths.
        output: law of output lengths; the first token belongs to the prefill.
        domain_weights_D: how often a request belongs to each of the blocks' domains.
        ranks: number of independent ranks.
        capacity: requests that may run at once on one rank.
        router: how requests find a rank.
        seed: all randomness of the run.
        stop: when it ends.
    """

    blocks: Blocks
    scheduler: SchedulerFactory
    cost: StepCost
    load: ClosedLoop | Poisson | Batch
    prompt: LengthLaw
    output: LengthLaw
    domain_weights_D: NDArray[np.float64]
    ranks: int
    capacity: int
    router: RouterKind
    seed: int
    stop: Stop


@dataclass(frozen=True, slots=True)
class RunColumns:
    """What a run leaves behind.

    Attributes:
        requests: one row a submitted request, finished or not.
        steps: one row a step, in the order of their ends.
        end_s: simulated time at the end.
        request_seconds: integral of the requests in the system (waiting and running) over the
            run, counted as they come and go.
    """

    requests: Columns
    steps: Columns
    end_s: float
    request_seconds: float


def run(given: RunInput) -> RunColumns:
    """Simulate; the same input gives the same output, to the byte.

    Raises:
        SchedulerFault: the scheduler broke its contract.
    """
    env = Environment()
    router = make_router(given.router, given.ranks)
    log = StepLog()
    cluster = Cluster(
        env,
        log=log,
        source=RequestSource(
            seed=given.seed,
            prompt=given.prompt,
            output=given.output,
            domain_weights_D=given.domain_weights_D,
        ),
        router=router,
        stop_after_finished=given.stop.requests,
        stop_after_tokens=given.stop.tokens,
    )
    cluster.ranks.extend(
        Rank(
            env,
            index=index,
            blocks=given.blocks,
            scheduler=given.scheduler(),
            cost=given.cost,
            capacity=given.capacity,
            queue=router.queue_for(index),
            log=log,
            on_finish=cluster.finished,
            on_step=cluster.step_ended,
        )
        for index in range(given.ranks)
    )
    _start(cluster, given)
    if given.stop.seconds is not None:
        deadline = env.timeout(given.stop.seconds)
        env.run(until=cluster.stop | deadline)
    else:
        env.run(until=cluster.stop)
    return RunColumns(
        requests=cluster.columns(),
        steps=log.columns(),
        end_s=float(env.now),
        request_seconds=cluster.request_seconds(),
    )


def _start(cluster: Cluster, given: RunInput) -> None:
    match given.load:
        case ClosedLoop(users, think_s, thinking):
            cluster.closed_loop(users, _thinking(given.seed, think_s, thinking))
        case Poisson(rate_per_s):
            cluster.open_stream(_exponential(given.seed, "arrivals", 1 / rate_per_s))
        case Batch(num_requests):
            cluster.batch(num_requests)


def _thinking(seed: int, mean_s: float, law: str) -> Callable[[], float] | None:
    if mean_s == 0:
        return None
    if law == "constant":
        return lambda: mean_s
    return _exponential(seed, "think", mean_s).__next__


def _exponential(seed: int, name: str, mean_s: float) -> Iterator[float]:
    rng = stream(seed, name)
    while True:
        yield from rng.exponential(mean_s, _CHUNK).tolist()
