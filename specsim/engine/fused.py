"""Runs in which nothing but arrivals and steps can happen, in one compiled loop.

With no prefill, KV limit, patience, deaths or lockstep, and a plan that is a `Rule`, all that SimPy
would schedule are arrivals and the ends of steps. Such a run goes through `fused_loop` and gives
the same columns as the general engine, to the byte (docs/decisions/0006).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specsim.cost.model import StepCost
from specsim.engine import fused_loop
from specsim.engine.fused_state import (
    Cell,
    Clock,
    Count,
    Ending,
    Layout,
    RankState,
    RankTime,
    Router,
    Sim,
    Spec,
    State,
    Time,
)
from specsim.engine.ledger import empty_columns
from specsim.engine.request import RequestSource
from specsim.metrics.record import Columns, Status
from specsim.metrics.requestlog import RequestLog
from specsim.metrics.steplog import StepLog
from specsim.schedulers.base import Scheduler
from specsim.schedulers.kernels import DIGITS, Fusible, Rule, RuleKind

if TYPE_CHECKING:
    from specsim.engine.run import RunInput

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
NEVER = -1
_LOG_ROWS = 8192
_FLUSH_ROWS = 1 << 14
_FROM_CELL = (
    (Count.ROUNDS, Cell.ROUNDS),
    (Count.VERIFIED, Cell.VERIFIED),
    (Count.ACCEPTED, Cell.ACCEPTED),
)


def rule_of(scheduler: Scheduler) -> Rule | None:
    """Return the rule that a scheduler's plan follows, None if it is not known to follow one.

    A subclass with a `plan` of its own does not follow the rule that it inherits.
    """
    if not isinstance(scheduler, Fusible):
        return None
    for kind in type(scheduler).__mro__:
        if "plan" in vars(kind) or "rule" in vars(kind):
            return scheduler.rule() if {"plan", "rule"} <= vars(kind).keys() else None
    return None


class FusedRun:
    """One run through the compiled loop.

    Args:
        given: the run.
        rule: what its scheduler's plan follows.
        source: draws the requests.
        log: gets the steps.
        request_log: gets rows of requests when the arrays would grow; of a bounded run alone.
        at_once: requests that are there at time 0.
        closed: whether their users submit again as soon as they are answered.
        gaps_s: gaps between later arrivals, chunk by chunk; None for no later ones.
    """

    def __init__(
        self,
        given: RunInput,
        rule: Rule,
        *,
        source: RequestSource,
        log: StepLog,
        request_log: RequestLog,
        at_once: int,
        closed: bool,
        gaps_s: Iterator[FloatArray] | None,
    ) -> None:
        cost, stop = given.cost, given.stop
        assert isinstance(cost, StepCost)
        self._given, self._source, self._gaps_s = given, source, gaps_s
        self._log, self._request_log = log, request_log
        self._first = 0  # request that row 0 of the arrays belongs to
        spec = np.zeros(len(Spec), dtype=np.int64)
        spec[Spec.GAMMA], spec[Spec.CAPACITY] = given.blocks.gamma, given.capacity
        spec[Spec.RANKS] = given.ranks
        spec[Spec.LAYOUT] = Layout[cost.layout.upper()]
        spec[Spec.RULE], spec[Spec.LENGTH] = rule.kind, min(rule.k, given.blocks.gamma)
        spec[Spec.CONDITIONAL] = rule.conditional
        spec[Spec.LAG], spec[Spec.PATIENCE] = rule.lag, rule.patience
        # With one rank all routers are alike.
        spec[Spec.ROUTER] = Router[given.router.upper()] if given.ranks > 1 else 0
        spec[Spec.CLOSED] = closed
        spec[Spec.STOP_REQUESTS] = NEVER if stop.requests is None else stop.requests
        spec[Spec.STOP_TOKENS] = NEVER if stop.tokens is None else stop.tokens
        spec[Spec.ALL] = NEVER if closed or gaps_s is not None else at_once
        spec[Spec.RECORD] = given.record != "none"
        self._sim = _arrays(given, rule, cost, spec)
        self._new_log()
        self._draw(max(at_once, given.capacity))
        fused_loop.submit_at_once(self._sim, at_once)

    def run(self) -> None:
        """Go on until the end."""
        if self._gaps_s is not None:
            self._arrive()
        while (why := fused_loop.loop(self._sim)) != fused_loop.DONE:
            if why == fused_loop.NEEDS_LOG:
                self._store()
                self._new_log()
            elif why == fused_loop.NEEDS_ARRIVALS:
                self._arrive()
            else:
                self._draw(self._given.capacity)
        self._store()
        self._conserve()

    @property
    def now_s(self) -> float:
        """Simulated seconds so far."""
        return float(self._sim.clock[Clock.NOW])

    @property
    def ended(self) -> str:
        """Why the run ended."""
        return Ending(self._sim.state[State.ENDED]).name.lower().replace("_", " ")

    @property
    def rounds_K(self) -> IntArray:
        """Request-steps by the drafts that they accepted, `[gamma + 1]`."""
        rounds_K: IntArray = self._sim.rounds_K
        return rounds_K

    def request_seconds(self) -> float:
        """Return the integral of requests in the system over time (Little's law)."""
        clock = self._sim.clock
        return float(
            clock[Clock.AREA]
            + int(self._sim.state[State.IN_SYSTEM]) * (clock[Clock.NOW] - clock[Clock.CHANGED])
        )

    def latest(self) -> Columns:
        """Return rows of the ledger, by index, for the requests that are not in its log yet."""
        count_NQ = self._sim.count_NQ
        for rank, cell_FC in enumerate(self._sim.cell_DFC):
            running = cell_FC[:, : self._sim.rank_DI[rank, RankState.COUNT]]
            at = running[Cell.REQUEST]
            for count, cell in _FROM_CELL:
                count_NQ[at, count] = running[cell]
            count_NQ[at, Count.EMITTED] = count_NQ[at, Count.OUTPUT] - 1 - running[Cell.LEFT]
        return self._rows(int(self._sim.state[State.SUBMITTED]))

    def _rows(self, count: int) -> Columns:
        """Return rows of the ledger for the first requests in the arrays."""
        count_NQ, time_NQ = self._sim.count_NQ[:count], self._sim.time_NQ[:count]
        return empty_columns(count) | {
            "request": np.arange(self._first, self._first + count, dtype=np.int64),
            "user": count_NQ[:, Count.USER].copy(),
            "domain": count_NQ[:, Count.DOMAIN].copy(),
            "rank": count_NQ[:, Count.RANK].copy(),
            "arrival_s": time_NQ[:, Time.ARRIVAL].copy(),
            "first_token_s": time_NQ[:, Time.FIRST_TOKEN].copy(),
            "finish_s": time_NQ[:, Time.FINISH].copy(),
            "prompt_tokens": count_NQ[:, Count.PROMPT].copy(),
            "output_tokens": count_NQ[:, Count.OUTPUT].copy(),
            "rounds": count_NQ[:, Count.ROUNDS].copy(),
            "verified": count_NQ[:, Count.VERIFIED].copy(),
            "accepted": count_NQ[:, Count.ACCEPTED].copy(),
            "emitted": count_NQ[:, Count.EMITTED].copy(),
            "status": count_NQ[:, Count.STATUS].copy(),
            "admitted_s": time_NQ[:, Time.ADMITTED].copy(),
            "closed_s": time_NQ[:, Time.CLOSED].copy(),
            "session": count_NQ[:, Count.USER].copy(),
        }

    # What the loop asks for

    def _draw(self, at_least: int) -> None:
        """Draw attributes of at least so many requests more; the arrays grow by doubling."""
        drawn = int(self._sim.state[State.DRAWN])
        wanted = int(self._sim.state[State.SUBMITTED]) + at_least
        blocks = self._given.blocks
        first_D, width_D = (
            np.array([first for first, _ in blocks.sequence_range_D], dtype=np.int64),
            np.array([end - first for first, end in blocks.sequence_range_D], dtype=np.int64),
        )
        while drawn < wanted:
            chunk = self._source.chunk()
            size = len(chunk.domain)
            if drawn + size > len(self._sim.count_NQ):
                gone = self._flush()
                drawn, wanted = drawn - gone, wanted - gone
            if drawn + size > len(self._sim.count_NQ):
                self._grow(max(2 * drawn, drawn + size))
            new = self._sim.count_NQ[drawn : drawn + size]
            new[:, Count.DOMAIN] = chunk.domain
            within = (chunk.sequence_u * width_D[chunk.domain]).astype(np.int64)
            new[:, Count.SEQUENCE] = first_D[chunk.domain] + within
            new[:, Count.PROMPT], new[:, Count.OUTPUT] = chunk.prompt_tokens, chunk.output_tokens
            new[:, Count.RANK] = -1
            drawn += size
        self._sim.state[State.DRAWN] = drawn

    def _grow(self, size: int) -> None:
        old = len(self._sim.count_NQ)
        count_NQ = np.zeros((size, len(Count)), dtype=np.int64)
        time_NQ = np.full((size, len(Time)), np.nan)
        count_NQ[:old], time_NQ[:old] = self._sim.count_NQ, self._sim.time_NQ
        self._sim = self._sim._replace(count_NQ=count_NQ, time_NQ=time_NQ)

    def _flush(self) -> int:
        """Hand a bounded log the requests before the oldest open one, if they are many.

        Returns:
            How many; the rest have moved up by that much.
        """
        sim, submitted = self._sim, int(self._sim.state[State.SUBMITTED])
        open_N = sim.count_NQ[:submitted, Count.STATUS] != Status.FINISHED
        gone = int(open_N.argmax()) if open_N.any() else submitted
        if not self._request_log.bounded or gone < max(_FLUSH_ROWS, len(sim.count_NQ) // 2):
            return 0
        self._request_log.add(self._rows(gone))
        self._first += gone
        for array in (sim.count_NQ, sim.time_NQ):
            array[:-gone] = array[gone:].copy()
        sim.count_NQ[-gone:], sim.time_NQ[-gone:] = 0, np.nan
        sim.count_NQ[:, Count.NEXT] -= gone
        sim.cell_DFC[:, Cell.REQUEST] -= gone
        sim.rank_DI[:, [RankState.FIRST, RankState.LAST]] -= gone
        sim.state[[State.SUBMITTED, State.DRAWN]] -= gone
        sim.spec[Spec.ALL] -= gone
        return gone

    def _arrive(self) -> None:
        """Put the next chunk of arrivals at hand: times add up gap by gap, as a clock's do."""
        assert self._gaps_s is not None
        arrival_s_A = self._sim.arrival_s_A
        last_s = arrival_s_A[-1] if len(arrival_s_A) else 0.0
        arrival_s_A = np.cumsum(np.concatenate([[last_s], next(self._gaps_s)]))[1:]
        self._sim = self._sim._replace(arrival_s_A=np.ascontiguousarray(arrival_s_A))
        self._sim.state[State.ARRIVED] = 0

    def _new_log(self) -> None:
        rows = _LOG_ROWS if self._sim.spec[Spec.RECORD] else 0
        log_s, log_i = StepLog.block(rows)
        self._sim = self._sim._replace(log_s=log_s, log_i=log_i)
        self._sim.state[State.LOGGED] = 0

    def _store(self) -> None:
        logged = int(self._sim.state[State.LOGGED])
        self._log.add_block(self._sim.log_s[:logged], self._sim.log_i[:logged])

    def _conserve(self) -> None:
        """Hold arrivals against where they are."""
        submitted, finished = (int(self._sim.state[s]) for s in (State.SUBMITTED, State.FINISHED))
        status = self._sim.count_NQ[:submitted, Count.STATUS]
        finished -= self._first  # those that the log has are finished
        running = int(self._sim.rank_DI[:, RankState.COUNT].sum())
        waiting = int(self._sim.rank_DI[:, RankState.WAITING].sum())
        assert (
            submitted
            == finished + running + waiting
            == finished + int(self._sim.state[State.IN_SYSTEM])
        ), f"{finished} finished, {running} running, {waiting} waiting of {submitted} submitted"
        said = [int((status == s).sum()) for s in (Status.FINISHED, Status.RUNNING, Status.WAITING)]
        assert said == [finished, running, waiting], f"status differs: {said}"


def _arrays(given: RunInput, rule: Rule, cost: StepCost, spec: IntArray) -> Sim:
    """Return the arrays of a run that has not begun, without its requests and its log."""
    blocks, ranks, capacity, lag = given.blocks, given.ranks, given.capacity, rule.lag
    width = capacity * blocks.gamma
    depth = max(lag, 1) if rule.kind is RuleKind.WALK else 0
    state = np.zeros(len(State), dtype=np.int64)
    state[State.FORMING] = -1
    clock = np.zeros(len(Clock))
    clock[Clock.DEADLINE] = np.inf if given.stop.seconds is None else given.stop.seconds
    key_X = np.zeros(width, dtype=np.uint32)
    flat_s_R, context_C, attention_CR, slope_CR = cost.fixed_arrays()
    return Sim(
        spec=spec,
        threshold=np.array([rule.threshold], dtype=np.float32),
        state=state,
        clock=clock,
        block_NG1=blocks.block_NG1,
        confidence_NG=(
            blocks.confidence_NG if rule.conditional else np.zeros((1, 1), dtype=np.float32)
        ),
        first_row_S=blocks.first_row_S,
        end_row_S=blocks.end_row_S,
        next_sequence_S=blocks.next_sequence_S,
        verify_s_B=cost.verify_s_B,
        flat_s_R=flat_s_R,
        context_C=context_C,
        attention_CR=attention_CR,
        slope_CR=slope_CR,
        rank_DI=np.zeros((ranks, len(RankState)), dtype=np.int64),
        rank_s_DI=np.full((ranks, len(RankTime)), np.inf),
        cell_DFC=np.zeros((ranks, len(Cell), _apart(capacity)), dtype=np.int64),
        plan_DC=np.zeros((ranks, capacity), dtype=np.int64),
        ring_key_DLX=np.zeros((ranks, depth, width), dtype=np.uint32),
        ring_gone_DLX=np.zeros((ranks, lag, width), dtype=np.float32),
        ring_rows_DL=np.zeros((ranks, lag), dtype=np.int64),
        ring_left_DL=np.zeros((ranks, lag), dtype=np.int64),
        ring_row_DLC=np.zeros((ranks, lag, capacity), dtype=np.int64),
        scratch_X=np.zeros(width, dtype=np.uint32),
        key_X=key_X,
        survival_X=key_X.view(np.float32),
        digit_W=np.zeros(DIGITS, dtype=np.uint32),
        done_2C=np.zeros((2, capacity), dtype=np.int64),
        count_NQ=np.zeros((0, len(Count)), dtype=np.int64),
        time_NQ=np.full((0, len(Time)), np.nan),
        arrival_s_A=np.zeros(0),
        rounds_K=np.zeros(blocks.gamma + 1, dtype=np.int64),
        log_s=np.zeros((0, 0)),
        log_i=np.zeros((0, 0), dtype=np.int64),
    )


def _apart(capacity: int) -> int:
    """Return a row length of at least `capacity` words that is far from whole 4 KiB pages.

    Rows a page apart make a processor take a load for one that waits for the store before it: at
    512 slots the commit took 5.9 us for 256 requests, and 2.0 us with longer rows (measured).
    """
    page = 512
    return -(-capacity // page) * page + 9
