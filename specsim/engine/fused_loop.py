"""The compiled loop behind `engine.fused`: steps of plain ranks, one after the other.

It does what `cluster`, `router`, `rank`, `batch` and `forward` do together in a run in which
nothing but arrivals and steps can happen, in the order that `clock` states, with the same
arithmetic in the same order. Those modules are its twin: tests compare the two to the byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from specsim.engine.fused_plan import plan
from specsim.engine.fused_state import (
    Cell,
    Clock,
    Count,
    Ending,
    Phase,
    RankState,
    RankTime,
    Router,
    Sim,
    Spec,
    State,
    Time,
)
from specsim.metrics.record import Status

DONE, NEEDS_REQUESTS, NEEDS_LOG, NEEDS_ARRIVALS = 0, 1, 2, 3
"""Why the loop returns: the run is over, or Python must see to something first."""


@njit(cache=True, nogil=True)
def loop(sim: Sim) -> int:
    """Run until the end, or until Python must draw requests or arrivals or empty the log."""
    spec, state, clock, rank_DI, rank_s_DI = (
        sim.spec,
        sim.state,
        sim.clock,
        sim.rank_DI,
        sim.rank_s_DI,
    )
    arrivals = len(sim.arrival_s_A)
    while True:
        d = state[State.FORMING]
        if d >= 0:
            if not _form(sim, d):
                return NEEDS_REQUESTS
            state[State.FORMING] = -1
            if rank_DI[d, RankState.COUNT]:
                plan(sim, d)
            else:
                rank_DI[d, RankState.PHASE] = Phase.IDLE
                rank_s_DI[d, RankTime.NEXT] = np.inf
            if state[State.ENDED]:
                return DONE
        d = 0
        for rank in range(1, spec[Spec.RANKS]):
            if rank_s_DI[rank, RankTime.NEXT] < rank_s_DI[d, RankTime.NEXT]:
                d = rank
        at_s = rank_s_DI[d, RankTime.NEXT]
        if arrivals:
            if state[State.ARRIVED] == arrivals:
                return NEEDS_ARRIVALS
            if sim.arrival_s_A[state[State.ARRIVED]] <= at_s:
                d, at_s = -1, sim.arrival_s_A[state[State.ARRIVED]]
        if at_s >= clock[Clock.DEADLINE]:
            clock[Clock.NOW] = clock[Clock.DEADLINE]
            state[State.ENDED] = Ending.SECONDS
            return DONE
        if d < 0:
            if state[State.SUBMITTED] == state[State.DRAWN]:
                return NEEDS_REQUESTS
            clock[Clock.NOW] = at_s
            state[State.ARRIVED] += 1
            submit(sim, -1)
            continue
        if rank_DI[d, RankState.PHASE] == Phase.STEPPING:
            at_hand = state[State.DRAWN] - state[State.SUBMITTED]
            if spec[Spec.CLOSED] and at_hand < rank_DI[d, RankState.COUNT]:
                return NEEDS_REQUESTS
            if spec[Spec.RECORD] and state[State.LOGGED] == len(sim.log_s):
                return NEEDS_LOG
            clock[Clock.NOW] = at_s
            _commit(sim, d)
        clock[Clock.NOW] = at_s
        state[State.FORMING] = d


@njit(cache=True, nogil=True)
def submit_at_once(sim: Sim, count: int) -> None:
    """Submit that many requests, each of a user of its own in a closed loop."""
    for user in range(count):
        submit(sim, user if sim.spec[Spec.CLOSED] else -1)


@njit(cache=True, nogil=True)
def submit(sim: Sim, user: int) -> None:
    """Submit the next request and send it to a rank's queue, waking the rank."""
    state, rank_DI, ranks = sim.state, sim.rank_DI, sim.spec[Spec.RANKS]
    request = state[State.SUBMITTED]
    state[State.SUBMITTED] += 1
    _count(sim, 1)
    sim.count_NQ[request, Count.USER] = user
    sim.time_NQ[request, Time.ARRIVAL] = sim.clock[Clock.NOW]
    queue = 0
    if sim.spec[Spec.ROUTER] == Router.CENTRAL_QUEUE:
        woken = 0
        while woken < ranks - 1 and rank_DI[woken, RankState.PHASE] != Phase.IDLE:
            woken += 1
    elif sim.spec[Spec.ROUTER] == Router.ROUND_ROBIN:
        queue = woken = state[State.TURN] % ranks
        state[State.TURN] += 1
    else:
        least = rank_DI[0, RankState.COUNT] + rank_DI[0, RankState.WAITING]
        for rank in range(1, ranks):
            load = rank_DI[rank, RankState.COUNT] + rank_DI[rank, RankState.WAITING]
            if load < least:
                least = load
                queue = rank
        woken = queue
    sim.count_NQ[request, Count.NEXT] = -1
    if rank_DI[queue, RankState.WAITING]:
        sim.count_NQ[rank_DI[queue, RankState.LAST], Count.NEXT] = request
    else:
        rank_DI[queue, RankState.FIRST] = request
    rank_DI[queue, RankState.LAST] = request
    rank_DI[queue, RankState.WAITING] += 1
    if rank_DI[woken, RankState.PHASE] == Phase.IDLE:
        rank_DI[woken, RankState.PHASE] = Phase.WOKEN
        sim.rank_s_DI[woken, RankTime.NEXT] = sim.clock[Clock.NOW]


@njit(cache=True, nogil=True)
def _count(sim: Sim, change: int) -> None:
    """Keep the integral of the requests in the system, before their number changes."""
    clock, state = sim.clock, sim.state
    clock[Clock.AREA] += state[State.IN_SYSTEM] * (clock[Clock.NOW] - clock[Clock.CHANGED])
    clock[Clock.CHANGED] = clock[Clock.NOW]
    state[State.IN_SYSTEM] += change


@njit(cache=True, nogil=True)
def _form(sim: Sim, d: int) -> bool:
    """Admit from the queue up to the cap; False if the drawn requests ran out on the way."""
    spec, state, rank_I, cell_FC = sim.spec, sim.state, sim.rank_DI[d], sim.cell_DFC[d]
    count_NQ, time_NQ, now_s = sim.count_NQ, sim.time_NQ, sim.clock[Clock.NOW]
    queue_I = sim.rank_DI[0 if spec[Spec.ROUTER] == Router.CENTRAL_QUEUE else d]
    while queue_I[RankState.WAITING] and rank_I[RankState.COUNT] < spec[Spec.CAPACITY]:
        request = queue_I[RankState.FIRST]
        output = count_NQ[request, Count.OUTPUT]
        if output == 1 and state[State.SUBMITTED] == state[State.DRAWN]:
            return False
        queue_I[RankState.FIRST] = count_NQ[request, Count.NEXT]
        queue_I[RankState.WAITING] -= 1
        count_NQ[request, Count.RANK] = d
        count_NQ[request, Count.STATUS] = Status.RUNNING
        time_NQ[request, Time.ADMITTED] = now_s
        time_NQ[request, Time.FIRST_TOKEN] = now_s
        if output == 1:  # the prefill's token was all of it
            _close(sim, request)
            continue
        slot = rank_I[RankState.COUNT]
        rank_I[RankState.COUNT] += 1
        rank_I[RankState.KV] += count_NQ[request, Count.PROMPT]
        sequence = count_NQ[request, Count.SEQUENCE]
        cell_FC[Cell.REQUEST, slot] = request
        cell_FC[Cell.ROW, slot] = sim.first_row_S[sequence]
        cell_FC[Cell.SEQUENCE, slot] = sequence
        cell_FC[Cell.END, slot] = sim.end_row_S[sequence]
        cell_FC[Cell.LEFT, slot] = output - 1
        cell_FC[Cell.ROUNDS, slot] = 0
        cell_FC[Cell.VERIFIED, slot] = 0
        cell_FC[Cell.ACCEPTED, slot] = 0
        for age in range(spec[Spec.LAG]):
            sim.ring_row_DLC[d, age, slot] = -1
    return True


@njit(cache=True, nogil=True)
def _close(sim: Sim, request: int) -> None:
    """Close a request that emitted its last token, and let its user go on."""
    spec, state = sim.spec, sim.state
    sim.count_NQ[request, Count.EMITTED] = sim.count_NQ[request, Count.OUTPUT] - 1
    sim.count_NQ[request, Count.STATUS] = Status.FINISHED
    sim.time_NQ[request, Time.FINISH] = sim.clock[Clock.NOW]
    sim.time_NQ[request, Time.CLOSED] = sim.clock[Clock.NOW]
    _count(sim, -1)
    state[State.FINISHED] += 1
    if state[State.FINISHED] == spec[Spec.STOP_REQUESTS]:
        if state[State.ENDED] == Ending.NOT_YET:
            state[State.ENDED] = Ending.REQUESTS
    elif spec[Spec.CLOSED]:
        submit(sim, sim.count_NQ[request, Count.USER])
    all_done = state[State.IN_SYSTEM] == 0 and state[State.SUBMITTED] == spec[Spec.ALL]
    if all_done and state[State.ENDED] == Ending.NOT_YET:
        state[State.ENDED] = Ending.ALL_DONE


@njit(cache=True, nogil=True)
def _commit(sim: Sim, d: int) -> None:
    """Accept and emit, record the step, and let go of what has finished."""
    spec, state, rank_I, cell_FC, plan_C = (
        sim.spec,
        sim.state,
        sim.rank_DI[d],
        sim.cell_DFC[d],
        sim.plan_DC[d],
    )
    count = rank_I[RankState.COUNT]
    verified = accepted = emitted = ceiling = finished = 0
    for r in range(count):
        row, left = cell_FC[Cell.ROW, r], cell_FC[Cell.LEFT, r]
        recorded = int(sim.block_NG1[row, 0])
        taken = min(plan_C[r], recorded)
        sim.rounds_K[taken] += 1
        out = min(taken + 1, left)
        left -= out
        cell_FC[Cell.LEFT, r] = left
        cell_FC[Cell.ROUNDS, r] += 1
        cell_FC[Cell.VERIFIED, r] += plan_C[r]
        cell_FC[Cell.ACCEPTED, r] += taken
        row += taken + 1
        if row >= cell_FC[Cell.END, r]:
            sequence = sim.next_sequence_S[cell_FC[Cell.SEQUENCE, r]]
            row = sim.first_row_S[sequence]
            cell_FC[Cell.SEQUENCE, r] = sequence
            cell_FC[Cell.END, r] = sim.end_row_S[sequence]
        cell_FC[Cell.ROW, r] = row
        ceiling += recorded
        verified += plan_C[r]
        accepted += taken
        emitted += out
        if left == 0:
            sim.done_2C[0, finished] = r
            finished += 1
    rank_I[RankState.KV] += emitted
    rank_I[RankState.STEP] += 1
    state[State.EMITTED] += emitted
    if spec[Spec.RECORD]:
        queue = 0 if spec[Spec.ROUTER] == Router.CENTRAL_QUEUE else d
        at = state[State.LOGGED]
        state[State.LOGGED] += 1
        sim.log_s[at, 0] = sim.clock[Clock.NOW]
        sim.log_s[at, 1] = sim.rank_s_DI[d, RankTime.DURATION]
        sim.log_s[at, 2] = sim.rank_s_DI[d, RankTime.DURATION]
        sim.log_i[at, 0] = d
        sim.log_i[at, 1] = count
        sim.log_i[at, 2] = verified
        sim.log_i[at, 3] = accepted
        sim.log_i[at, 4] = emitted
        sim.log_i[at, 5] = sim.rank_DI[queue, RankState.WAITING]
        sim.log_i[at, 6] = rank_I[RankState.KV]
        sim.log_i[at, 7] = ceiling
        sim.log_i[at, 8] = rank_I[RankState.CHARGED]
    if finished:
        _drop(sim, d, finished)
        for i in range(finished):
            _close(sim, sim.done_2C[1, i])
    stop_tokens = spec[Spec.STOP_TOKENS]
    if 0 <= stop_tokens <= state[State.EMITTED] and state[State.ENDED] == Ending.NOT_YET:
        state[State.ENDED] = Ending.TOKENS


@njit(cache=True, nogil=True)
def _drop(sim: Sim, d: int, finished: int) -> None:
    """Take the requests of the finished slots out, in order; close the gaps."""
    rank_I, cell_FC, gamma = sim.rank_DI[d], sim.cell_DFC[d], sim.spec[Spec.GAMMA]
    lag, count_NQ, slot_C = sim.spec[Spec.LAG], sim.count_NQ, sim.done_2C[0]
    for i in range(finished):
        slot = slot_C[i]
        request = cell_FC[Cell.REQUEST, slot]
        count_NQ[request, Count.ROUNDS] = cell_FC[Cell.ROUNDS, slot]
        count_NQ[request, Count.VERIFIED] = cell_FC[Cell.VERIFIED, slot]
        count_NQ[request, Count.ACCEPTED] = cell_FC[Cell.ACCEPTED, slot]
        context = count_NQ[request, Count.PROMPT] + count_NQ[request, Count.OUTPUT] - 1
        rank_I[RankState.KV] -= context
        for age in range(lag):
            row = sim.ring_row_DLC[d, age, slot]
            if row >= 0:
                first = sim.ring_left_DL[d, age] * gamma
                for k in range(gamma):
                    sim.ring_gone_DLX[d, age, first + k] = sim.block_NG1[row, 1 + k]
                sim.ring_left_DL[d, age] += 1
        sim.done_2C[1, i] = request
    kept = slot_C[0]
    for i in range(finished):
        first = slot_C[i] + 1
        length = (slot_C[i + 1] if i + 1 < finished else rank_I[RankState.COUNT]) - first
        for f in range(cell_FC.shape[0]):
            _move(cell_FC[f], first, kept, length)
        for age in range(lag):
            _move(sim.ring_row_DLC[d, age], first, kept, length)
        kept += length
    rank_I[RankState.COUNT] = kept


@njit(cache=True, nogil=True)
def _move(cell_C: Any, first: int, to: int, length: int) -> None:
    """Move a stretch of slots down."""
    for i in range(length):
        cell_C[to + i] = cell_C[first + i]
