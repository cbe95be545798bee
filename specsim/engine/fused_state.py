"""What the compiled loop of `engine.fused` works on: arrays, and what their rows mean."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple


class Layout(IntEnum):
    """Layouts that it knows, under the names of `cost.model.Layout` in small letters."""

    RAGGED = 0
    PADDED = 1
    CAP_ACCEPT = 2


class Router(IntEnum):
    """Routers that it knows, under the names of `router.RouterKind` in small letters."""

    LEAST_LOADED = 0
    ROUND_ROBIN = 1
    CENTRAL_QUEUE = 2


class Ending(IntEnum):
    """Why a run ended."""

    NOT_YET = 0
    REQUESTS = 1
    TOKENS = 2
    ALL_DONE = 3
    SECONDS = 4


class Phase(IntEnum):
    """What a rank waits for: work, its turn to form a step, or the end of one."""

    IDLE = 0
    WOKEN = 1
    STEPPING = 2


class Spec(IntEnum):
    """What does not change in a run."""

    GAMMA = 0
    CAPACITY = 1
    RANKS = 2
    LAYOUT = 3
    RULE = 4  # `schedulers.kernels.RuleKind`
    LENGTH = 5  # k of a fixed rule
    CONDITIONAL = 6  # whether a threshold looks at confidences, not survivals
    LAG = 7
    PATIENCE = 8
    ROUTER = 9
    CLOSED = 10  # whether a finished request's user submits again at once
    STOP_REQUESTS = 11  # -1 for never, as for the next two
    STOP_TOKENS = 12
    ALL = 13  # requests in the arrays after which an empty system ends the run
    RECORD = 14  # whether steps are logged


class State(IntEnum):
    """Whole numbers that change."""

    SUBMITTED = 0  # requests in the arrays so far
    DRAWN = 1  # those whose attributes are there
    IN_SYSTEM = 2
    FINISHED = 3
    EMITTED = 4
    FORMING = 5  # rank whose step is being formed; -1 for none
    TURN = 6  # of the round robin
    LOGGED = 7  # rows of the log
    ENDED = 8  # `Ending`
    ARRIVED = 9  # of the arrival times at hand


class Clock(IntEnum):
    """Times that change."""

    NOW = 0
    DEADLINE = 1
    AREA = 2  # integral of the requests in the system
    CHANGED = 3  # when their number last changed


class RankState(IntEnum):
    """Whole numbers of one rank."""

    COUNT = 0  # requests decoding
    KV = 1  # their KV tokens
    CHARGED = 2  # tokens of the forward under way
    STEP = 3
    PHASE = 4
    FIRST = 5  # first and last request of its queue, and how many
    LAST = 6
    WAITING = 7


class RankTime(IntEnum):
    """Times of one rank."""

    NEXT = 0  # when its step ends or it forms one; infinite while it is idle
    DURATION = 1


class Cell(IntEnum):
    """Whole numbers of one running request."""

    REQUEST = 0
    ROW = 1
    SEQUENCE = 2
    LEFT = 3
    ROUNDS = 4
    VERIFIED = 5
    ACCEPTED = 6
    END = 7  # one past its sequence's last whole block


class Count(IntEnum):
    """Whole numbers of every request; `DOMAIN` to `OUTPUT` are there before it is submitted."""

    USER = 0
    DOMAIN = 1
    SEQUENCE = 2
    PROMPT = 3
    OUTPUT = 4
    RANK = 5
    ROUNDS = 6
    VERIFIED = 7
    ACCEPTED = 8
    EMITTED = 9
    STATUS = 10
    NEXT = 11  # behind it in its queue


class Time(IntEnum):
    """Times of every request."""

    ARRIVAL = 0
    FIRST_TOKEN = 1
    FINISH = 2
    ADMITTED = 3
    CLOSED = 4


class Sim(NamedTuple):
    """Everything of one run: N trace rows, S sequences, D ranks, C slots, X = C * gamma, L = lag.

    Attributes:
        spec: int64 `[Spec]`.
        threshold: of a threshold rule, float32 `[1]`.
        state: int64 `[State]`.
        clock: float64 `[Clock]`.
        block_NG1: accepted drafts and survivals of each block, float32 `[N, 1 + gamma]`.
        confidence_NG: for a threshold on confidences, float32 `[N, gamma]`; else `[1, 1]`.
        first_row_S, end_row_S, next_sequence_S: see `acceptance.blocks.Blocks`.
        verify_s_B: seconds of a forward by tokens.
        flat_s_R, context_C, attention_CR, slope_CR: see `cost.model.StepCost.fixed_arrays`.
        rank_DI: int64 `[D, RankState]`.
        rank_s_DI: float64 `[D, RankTime]`.
        cell_DFC: int64 `[D, Cell, C or a little more]`.
        plan_DC: verify lengths of the steps under way, int64.
        ring_key_DLX: sorted bits of the survivals of the last L (at least 1) steps, uint32.
        ring_gone_DLX: survivals among them whose requests have left since, float32.
        ring_rows_DL: how many requests each of those steps had, int64.
        ring_left_DL: how many of them have left since, int64.
        ring_row_DLC: the trace row that each running request stood on then, -1 for none, int64.
        scratch_X, key_X: uint32; `survival_X`: the same memory as `key_X`, float32.
        digit_W: uint32 `[kernels.DIGITS]`.
        done_2C: slots of the requests that a step finished, and the requests, int64 `[2, C]`.
        count_NQ: int64 `[requests, Count]`: all of a request in one place.
        time_NQ: float64 `[requests, Time]`.
        arrival_s_A: the next arrivals' times; empty if there are none but those at time 0.
        rounds_K: request-steps by the drafts that they accepted, int64 `[gamma + 1]`.
        log_s, log_i: the step log, as `metrics.steplog.StepLog.block`.
    """

    spec: Any
    threshold: Any
    state: Any
    clock: Any
    block_NG1: Any
    confidence_NG: Any
    first_row_S: Any
    end_row_S: Any
    next_sequence_S: Any
    verify_s_B: Any
    flat_s_R: Any
    context_C: Any
    attention_CR: Any
    slope_CR: Any
    rank_DI: Any
    rank_s_DI: Any
    cell_DFC: Any
    plan_DC: Any
    ring_key_DLX: Any
    ring_gone_DLX: Any
    ring_rows_DL: Any
    ring_left_DL: Any
    ring_row_DLC: Any
    scratch_X: Any
    key_X: Any
    survival_X: Any
    digit_W: Any
    done_2C: Any
    count_NQ: Any
    time_NQ: Any
    arrival_s_A: Any
    rounds_K: Any
    log_s: Any
    log_i: Any
