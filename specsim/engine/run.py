"""One run: a policy on a cluster under a load, until its stop rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from simpy.core import Environment

from specsim.acceptance.blocks import Blocks
from specsim.cost.model import StepCost as TableCost
from specsim.engine.cluster import Cluster, starved
from specsim.engine.costs import StepCost
from specsim.engine.faults import Death, Patience, Watch
from specsim.engine.fused import FusedRun, rule_of
from specsim.engine.fused_state import Layout as FusedLayout
from specsim.engine.fused_state import Router as FusedRouter
from specsim.engine.kv import KvSpec
from specsim.engine.ledger import Ledger
from specsim.engine.lockstep import Group, Lockstep
from specsim.engine.prefill import DisaggregatedPrefill, MixedPrefill, PrefillPool
from specsim.engine.queue import make_queue
from specsim.engine.rank import Rank
from specsim.engine.refusals import refuse
from specsim.engine.request import LengthLaw, RequestSource
from specsim.engine.router import RouterKind, make_router
from specsim.metrics.record import Bounded, Columns
from specsim.metrics.requestlog import RequestLog
from specsim.metrics.steplog import StepLog
from specsim.rng import stream
from specsim.schedulers.base import SchedulerFactory
from specsim.schedulers.kernels import Rule
from specsim.workload.feed import FeedFactory, PairLaw

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
class Feed:
    """Requests that bring their own times and lengths; the run ends with the last of them.

    Attributes:
        arrivals: `arrivals(seed)` makes a fresh iterator of `workload.feed.Arrival`.
    """

    arrivals: FeedFactory


Load = ClosedLoop | Poisson | Batch | Feed


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
        ranks: number of ranks.
        capacity: requests that may run at once on one rank.
        router: how requests find a rank.
        seed: all randomness of the run.
        stop: when it ends.
        lockstep: how the ranks step together; None for independent ranks.
        kv: KV memory of each rank; None for no limit.
        prefill: where prompts are read; None if that takes no time.
        patience: when requests are taken back; None for never.
        priority_shares_C: share of each priority class, the first served first; empty for one.
        deaths: ranks that die.
        pairs: joint law of prompt and output lengths, in place of `prompt` and `output`.
        record: whether the step log is kept (with `none`, `RunColumns.steps` has no rows), or kept
            bounded however long the run.
    """

    blocks: Blocks
    scheduler: SchedulerFactory
    cost: StepCost
    load: Load
    prompt: LengthLaw
    output: LengthLaw
    domain_weights_D: NDArray[np.float64]
    ranks: int
    capacity: int
    router: RouterKind
    seed: int
    stop: Stop
    lockstep: Lockstep | None = None
    kv: KvSpec | None = None
    prefill: MixedPrefill | DisaggregatedPrefill | None = None
    patience: Patience | None = None
    priority_shares_C: tuple[float, ...] = ()
    deaths: tuple[Death, ...] = ()
    pairs: PairLaw | None = None
    record: Literal["steps", "none"] | Bounded = "steps"


@dataclass(frozen=True, slots=True)
class RunColumns:
    """What a run leaves behind.

    Attributes:
        requests: one row a submitted request, finished or not; of a long bounded run a sample.
        steps: one row a step, in the order of their ends; of a long bounded run one for several
            (`metrics.steplog.merged`).
        end_s: simulated time at the end.
        request_seconds: integral of the requests in the system (waiting and running) over the
            run, counted as they come and go.
        prefill_steps: one row a step of the disaggregated prefill ranks; empty columns without.
        ended: why the run ended.
        findings: what a reader must know: ranks that died, spirals, starvation.
        requests_each: how many requests each row of `requests` stands for.
        steps_each: how many steps a row of `steps` is made of, the last rows perhaps of less.
        request_counts: `metrics.account.count_requests` of all requests.
        rounds_K: request-steps by the drafts that they accepted, int64 `[gamma + 1]`.
    """

    requests: Columns
    steps: Columns
    end_s: float
    request_seconds: float
    prefill_steps: Columns
    ended: str
    findings: tuple[str, ...]
    requests_each: float
    steps_each: int
    request_counts: Counter[str]
    rounds_K: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Simulation:
    """A run that has not been run: the clock, the cluster and its logs."""

    env: Environment
    cluster: Cluster
    log: StepLog
    prefill_log: StepLog


def run(given: RunInput) -> RunColumns:
    """Simulate; the same input gives the same output, to the byte.

    A run in which nothing but arrivals and steps can happen goes through the compiled loop, any
    other through SimPy (`simulate`); what comes out does not depend on the way.

    Raises:
        SchedulerFault: the scheduler broke its contract.
        InputError: parts of the input contradict each other.
    """
    first = given.scheduler()
    fused = fused_run(given, rule_of(first))
    if fused is not None:
        return fused
    schedulers = chain([first], iter(given.scheduler, None))  # each rank its own, none to waste
    return simulate(replace(given, scheduler=schedulers.__next__))


def simulate(given: RunInput) -> RunColumns:
    """Do what `run` does event by event, whatever the input.

    Raises:
        SchedulerFault: the scheduler broke its contract.
        InputError: parts of the input contradict each other.
    """
    simulation = prepare(given)
    env, cluster = simulation.env, simulation.cluster
    if given.stop.seconds is not None:
        deadline = env.timeout(given.stop.seconds)
        env.run(until=cluster.stop | deadline)
    else:
        env.run(until=cluster.stop)
    cluster.check_conservation()
    latest, request_log = cluster.latest(), cluster.ledger.log
    findings = (*cluster.findings, *starved(latest, env.now))
    request_log.add(latest)
    return RunColumns(
        requests=request_log.columns(),
        steps=simulation.log.columns(),
        end_s=float(env.now),
        request_seconds=cluster.request_seconds(),
        prefill_steps=simulation.prefill_log.columns(),
        ended=cluster.ended or "seconds",
        findings=findings,
        requests_each=request_log.each,
        steps_each=simulation.log.each,
        request_counts=request_log.counts,
        rounds_K=np.sum([rank.batch.rounds_K for rank in cluster.ranks], axis=0),
    )


def fused_run(given: RunInput, rule: Rule | None) -> RunColumns | None:
    """Go through the compiled loop if nothing but arrivals and steps can happen; None if not.

    Args:
        given: the run.
        rule: what its scheduler's plan follows; None if that is not known.
    """
    load = given.load
    plain = (
        isinstance(given.cost, TableCost)
        and given.cost.layout.upper() in FusedLayout.__members__
        and (given.cost.layout != "cap_accept" or given.cost.gamma == given.blocks.gamma)
        and (given.ranks == 1 or given.router.upper() in FusedRouter.__members__)
        and (given.lockstep, given.kv, given.prefill, given.patience) == (None,) * 4
        and len(given.priority_shares_C) <= 1
        and not given.deaths
    )
    if not plain or rule is None:
        return None
    gaps_s: Iterator[NDArray[np.float64]] | None = None
    match load:
        case ClosedLoop(users, think_s) if think_s == 0 and users > 0:
            at_once = users
        case Batch(num_requests) if num_requests > 0:
            at_once = num_requests
        case Poisson(rate_per_s):
            at_once, gaps_s = 0, _exponential_chunks(given.seed, "arrivals", 1 / rate_per_s)
        case _:
            return None
    log, request_log = StepLog(keep=given.record), RequestLog(keep=given.record)
    fused = FusedRun(
        given,
        rule,
        source=_source(given),
        log=log,
        request_log=request_log,
        closed=isinstance(load, ClosedLoop),
        at_once=at_once,
        gaps_s=gaps_s,
    )
    fused.run()
    latest = fused.latest()
    findings = tuple(starved(latest, fused.now_s))
    request_log.add(latest)
    return RunColumns(
        requests=request_log.columns(),
        steps=log.columns(),
        end_s=fused.now_s,
        request_seconds=fused.request_seconds(),
        prefill_steps=StepLog().columns(),
        ended=fused.ended,
        findings=findings,
        requests_each=request_log.each,
        steps_each=log.each,
        request_counts=request_log.counts,
        rounds_K=fused.rounds_K,
    )


def _source(given: RunInput) -> RequestSource:
    return RequestSource(
        seed=given.seed,
        prompt=given.prompt,
        output=given.output,
        domain_weights_D=given.domain_weights_D,
        priority_shares_C=given.priority_shares_C,
        pairs=given.pairs,
    )


def prepare(given: RunInput) -> Simulation:
    """Put a run together without running it.

    Raises:
        InputError: parts of the input contradict each other.
    """
    refuse(given)
    env = Environment()
    keep = given.record
    apart_keep = replace(keep, priced=None, steps=None) if isinstance(keep, Bounded) else keep
    ledger = Ledger(RequestLog(keep=keep))
    log, prefill_log = StepLog(keep=keep), StepLog(keep=apart_keep)
    classes = max(1, len(given.priority_shares_C))
    router = make_router(
        given.router,
        given.ranks,
        classes=classes,
        rng=stream(given.seed, "router"),
        mean_output_tokens=lambda: ledger.mean_output_tokens,
    )
    cluster = Cluster(
        env,
        log=log,
        source=_source(given),
        ledger=ledger,
        router=router,
        reads_prompts=given.prefill is not None,
        stop_after_finished=given.stop.requests,
        stop_after_tokens=given.stop.tokens,
    )
    mixed = given.prefill if isinstance(given.prefill, MixedPrefill) else None
    apart = given.prefill if isinstance(given.prefill, DisaggregatedPrefill) else None
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
            home=cluster,
            kv=given.kv,
            mixed=mixed,
            first_round=1.0 if apart is None else apart.first_round,
        )
        for index in range(given.ranks)
    )
    cluster.alive.extend(cluster.ranks)
    if given.lockstep is None:
        for rank in cluster.ranks:
            rank.start()
    else:
        Group(env, cluster.ranks, given.lockstep)
    if apart is not None:
        cluster.pool = PrefillPool(
            env,
            apart,
            queue=make_queue(classes),
            log=prefill_log,
            on_prefilled=cluster.prefilled,
            on_left=cluster.left,
        )
    if given.patience is not None:
        cluster.watch = Watch(env, given.patience, seed=given.seed, withdraw=cluster.withdraw)
    cluster.deaths(given.deaths)
    _start(cluster, given)
    return Simulation(env, cluster, log, prefill_log)


def _start(cluster: Cluster, given: RunInput) -> None:
    match given.load:
        case ClosedLoop(users, think_s, thinking):
            cluster.closed_loop(users, _thinking(given.seed, think_s, thinking))
        case Poisson(rate_per_s):
            cluster.open_stream(_exponential(given.seed, "arrivals", 1 / rate_per_s))
        case Batch(num_requests):
            cluster.batch(num_requests)
        case Feed(arrivals):
            cluster.feed(arrivals(given.seed))


def _thinking(seed: int, mean_s: float, law: str) -> Callable[[], float] | None:
    if mean_s == 0:
        return None
    if law == "constant":
        return lambda: mean_s
    return _exponential(seed, "think", mean_s).__next__


def _exponential(seed: int, name: str, mean_s: float) -> Iterator[float]:
    for chunk in _exponential_chunks(seed, name, mean_s):
        yield from chunk.tolist()


def _exponential_chunks(seed: int, name: str, mean_s: float) -> Iterator[NDArray[np.float64]]:
    rng = stream(seed, name)
    while True:
        yield rng.exponential(mean_s, _CHUNK)
