"""How the compiled loop plans and prices a step, as `forward` and the schedulers do."""

from __future__ import annotations

import numpy as np
from numba import njit

from specsim.engine.fused_state import Cell, Clock, Layout, Phase, RankState, RankTime, Sim, Spec
from specsim.schedulers.kernels import RuleKind, admit, sort_survivals, walk


@njit(cache=True, nogil=True)
def plan(sim: Sim, d: int) -> None:
    """Plan the step that rank d has formed, and schedule its end."""
    spec, rank_I, plan_C = sim.spec, sim.rank_DI[d], sim.plan_DC[d]
    count, gamma = rank_I[RankState.COUNT], spec[Spec.GAMMA]
    fixed_s = _fixed_s(sim, count, rank_I[RankState.KV])
    if spec[Spec.RULE] == RuleKind.FIXED:
        for r in range(count):
            plan_C[r] = spec[Spec.LENGTH]
    elif spec[Spec.RULE] == RuleKind.THRESHOLD:
        _plan_threshold(sim, d)
    else:
        _plan_walk(sim, d, fixed_s)
    drafts = 0
    longest = 0
    for r in range(count):
        drafts += plan_C[r]
        longest = max(longest, plan_C[r])
    charged = count + drafts
    if spec[Spec.LAYOUT] == Layout.PADDED:
        charged = count * (1 + longest)
    elif spec[Spec.LAYOUT] == Layout.CAP_ACCEPT:
        charged = count * (1 + gamma)
    duration_s = sim.verify_s_B[charged] + fixed_s
    rank_I[RankState.CHARGED] = charged
    rank_I[RankState.PHASE] = Phase.STEPPING
    sim.rank_s_DI[d, RankTime.DURATION] = duration_s
    sim.rank_s_DI[d, RankTime.NEXT] = sim.clock[Clock.NOW] + duration_s


@njit(cache=True, nogil=True, error_model="numpy")
def _fixed_s(sim: Sim, num_requests: int, kv_tokens: int) -> float:
    """Do what `cost.model.StepCost.fixed_s` does."""
    context = kv_tokens / num_requests
    segment = 0
    last = sim.slope_CR.shape[0] - 1
    while segment < last and context > sim.context_C[segment + 1]:
        segment += 1
    attention_s = sim.attention_CR[segment, num_requests] + sim.slope_CR[segment, num_requests] * (
        context - sim.context_C[segment]
    )
    seconds: float = sim.flat_s_R[num_requests] + max(0.0, attention_s)
    return seconds


@njit(cache=True, nogil=True)
def _plan_threshold(sim: Sim, d: int) -> None:
    row_C, plan_C = sim.cell_DFC[d, Cell.ROW], sim.plan_DC[d]
    threshold, conditional = sim.threshold[0], sim.spec[Spec.CONDITIONAL]
    for r in range(sim.rank_DI[d, RankState.COUNT]):
        row = row_C[r]
        length = 0
        while length < sim.spec[Spec.GAMMA]:
            survival = sim.block_NG1[row, 1 + length]
            score = sim.confidence_NG[row, length] if conditional else survival
            if not (score >= threshold and survival > 0.0):
                break
            length += 1
        plan_C[r] = length


@njit(cache=True, nogil=True)
def _plan_walk(sim: Sim, d: int, fixed_s: float) -> None:
    """Budget from the survivals of `lag` steps ago (or the live ones), filled by the live top-K.

    A step's survivals are sorted once: for the live top-K now, and for the walk `lag` steps later.
    Requests that left in between are crossed out of the sorted list, those that came count as 1.
    """
    spec, row_C, survival_X = sim.spec, sim.cell_DFC[d, Cell.ROW], sim.survival_X
    count, gamma, lag = sim.rank_DI[d, RankState.COUNT], spec[Spec.GAMMA], spec[Spec.LAG]
    total = count * gamma
    for r in range(count):
        row = row_C[r]
        for k in range(gamma):
            survival_X[r * gamma + k] = sim.block_NG1[row, 1 + k]
    if lag:
        at = sim.rank_DI[d, RankState.STEP] % lag
        sorted_X = sim.ring_key_DLX[d, at]
        rows_then, left = sim.ring_rows_DL[d, at], sim.ring_left_DL[d, at]
        gone_X = sim.ring_gone_DLX[d, at, : left * gamma]
        if left:
            gone_X.sort()
        num_sorted, num_certain = rows_then * gamma, (count - (rows_then - left)) * gamma
    else:
        sorted_X = sim.ring_key_DLX[d, 0]
        sort_survivals(sim.key_X, total, sorted_X, sim.scratch_X, sim.digit_W)
        gone_X = survival_X[:0]
        num_sorted, num_certain = total, 0
    k_admitted = walk(
        sorted_X.view(np.float32),
        num_sorted,
        gone_X,
        num_certain,
        count,
        count,
        sim.verify_s_B,
        fixed_s,
        spec[Spec.PATIENCE],
    )
    if lag:
        sort_survivals(sim.key_X, total, sorted_X, sim.scratch_X, sim.digit_W)
        sim.ring_rows_DL[d, at] = count
        sim.ring_left_DL[d, at] = 0
        for r in range(count):
            sim.ring_row_DLC[d, at, r] = row_C[r]
    if k_admitted:
        least = sorted_X.view(np.float32)[total - k_admitted]
        admit(survival_X, count, gamma, least, k_admitted, sim.plan_DC[d])
    else:
        sim.plan_DC[d, :count] = 0
