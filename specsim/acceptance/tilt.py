"""Tilt: move a real trace to another acceptance level by logit shifts, one for each position.

The trace keeps its order of easy and hard texts, tokens and positions, and every confidence and
every acceptance probability at position k moves by the same d_k in logits. Outcomes are coupled to
the recorded ones: an accepted draft stays accepted with probability p'/p if p' < p, a rejected one
becomes accepted with probability (p' - p)/(1 - p) if p' > p, so a tilt by 0 changes nothing.
Drafts past a recorded rejection were never judged; where a tilt reaches them they are drawn from
their confidence, corrected by the position's mean bias. What comes out is no measurement, and its
metadata says so.

p = target law, q = draft law; here p_k stands for the probability that draft k is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from specsim.acceptance.presets import PRESETS
from specsim.acceptance.trace import DenseTrace
from specsim.errors import InputError
from specsim.registry import Config

FloatArray = NDArray[np.float64]

_EDGE = 1e-6
_ROUNDS = 30


class TiltConfig(Config):
    """Where to move a trace: a published level, or conditional acceptances by position."""

    to: Literal["math", "code", "chat"] | None = Field(
        default=None, description="Domain of the paper's Figure 2 (Qwen3-4B, DSpark)."
    )
    conditional_acceptance: tuple[Annotated[float, Field(gt=0, lt=1)], ...] | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="P(draft k accepted | earlier ones were) at k = 1, 2, ..; the last goes on.",
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> TiltConfig:
        if (self.to is None) == (self.conditional_acceptance is None):
            raise PydanticCustomError(
                "cross_field",
                "exactly one of `to` and `conditional_acceptance` is needed",
                {"at": "to"},
            )
        return self

    def levels(self, gamma: int) -> FloatArray:
        """Return the wanted conditional acceptance at positions 1..gamma, `[gamma]`."""
        wanted = self.conditional_acceptance
        if wanted is None:
            assert self.to is not None
            wanted = PRESETS["domains"].conditional[self.to]
        return np.array([wanted[min(k, len(wanted) - 1)] for k in range(gamma)])


def tilt(
    trace: DenseTrace, wanted_G: Sequence[float] | FloatArray, *, rng: np.random.Generator
) -> DenseTrace:
    """Move `trace` so that replay with full verification shows `wanted_G`.

    Sequences are weighted by the rounds that replay makes in them (anchors / acceptance length),
    and blocks cut short by a sequence's end do not count.

    Args:
        trace: the trace; its `accept_rate_NG` is used where known, its confidence elsewhere.
        wanted_G: conditional acceptance at positions 1..gamma, each in (0, 1), `[gamma]`.
        rng: luck of the drafts that change.

    Returns:
        A trace of the same texts; `metadata.tilted` holds levels before and after and the shifts.

    Raises:
        InputError: no whole block reaches some position, so its level cannot be moved.
    """
    target_G = np.asarray(wanted_G, dtype=np.float64)
    if target_G.shape != (trace.gamma,) or not ((target_G > 0) & (target_G < 1)).all():
        raise InputError(
            f"tilt: levels {target_G.tolist()}; {trace.gamma} values inside (0, 1) are needed"
        )
    p_NG = _probabilities(trace)
    luck_NG = _luck(trace, p_NG, rng)
    whole_N = trace.whole_block_N()
    sequence_N = np.repeat(np.arange(trace.num_sequences), np.diff(trace.sequence_offset_S1))
    logit_NG = _logit(p_NG)
    before_G = _levels(
        trace.num_accepted_N, _rounds_N(trace.num_accepted_N, whole_N, sequence_N), trace.gamma
    )
    shift_G = np.zeros(trace.gamma)
    accepted_N = trace.num_accepted_N
    for _ in range(_ROUNDS):
        weight_N = _rounds_N(accepted_N, whole_N, sequence_N)
        alive_N = np.ones(trace.num_anchors, dtype=bool)
        new_N = np.zeros(trace.num_anchors, dtype=np.uint8)
        previous_G = shift_G.copy()
        for k in range(trace.gamma):
            counted_N = np.where(alive_N, weight_N, 0.0)
            if counted_N.sum() <= 0:
                raise InputError(
                    f"tilt: no block of the trace reaches draft {k + 1}, so its level cannot be "
                    "moved; use a longer trace or a higher level at the earlier positions"
                )
            shift_G[k] = _solve_shift(logit_NG[:, k], counted_N, float(target_G[k]), shift_G[k])
            alive_N &= luck_NG[:, k] < _sigmoid(logit_NG[:, k] + shift_G[k])
            new_N += alive_N
        accepted_N = new_N
        if np.abs(shift_G - previous_G).max() < 1e-6:
            break
    weight_N = _rounds_N(accepted_N, whole_N, sequence_N)
    judged_NG = np.arange(trace.gamma) <= accepted_N[:, None]
    rate_NG = np.where(judged_NG, _sigmoid(logit_NG + shift_G), np.nan)
    said_NG = _sigmoid(_logit(trace.confidence_NG) + shift_G)
    unmoved_G = shift_G == 0
    said_NG = np.where(unmoved_G, trace.confidence_NG, said_NG)
    return replace(
        trace,
        confidence_NG=said_NG.astype(trace.confidence_NG.dtype),
        num_accepted_N=accepted_N,
        accept_rate_NG=rate_NG.astype(np.float32),
        draft_prob_NG=None,  # the shifted laws have no draft probabilities
        metadata=dict(trace.metadata)
        | {
            "tilted": {
                "logit_shift": shift_G.tolist(),
                "wanted": target_G.tolist(),
                "before": before_G.tolist(),
                "after": _levels(accepted_N, weight_N, trace.gamma).tolist(),
            }
        },
    )


def _probabilities(trace: DenseTrace) -> FloatArray:
    """P(draft k accepted) as far as known; past a rejection the corrected confidence, `[N, G]`."""
    said_NG = np.clip(np.asarray(trace.confidence_NG, dtype=np.float64), _EDGE, 1 - _EDGE)
    judged_NG = np.arange(trace.gamma) <= trace.num_accepted_N[:, None]
    accepted_NG = np.arange(trace.gamma) < trace.num_accepted_N[:, None]
    p_NG = np.empty_like(said_NG)
    for k in range(trace.gamma):
        judged_N = judged_NG[:, k]
        logit_N = _logit(said_NG[:, k])
        if judged_N.any():
            level = float(np.clip(accepted_NG[judged_N, k].mean(), 1e-4, 1 - 1e-4))
            bias = _solve_shift(logit_N, judged_N.astype(np.float64), level, 0.0)
            p_NG[:, k] = _sigmoid(logit_N + bias)
        else:
            p_NG[:, k] = said_NG[:, k]
    if trace.accept_rate_NG is not None:
        rate_NG = np.asarray(trace.accept_rate_NG, dtype=np.float64)
        p_NG = np.where(judged_NG & np.isfinite(rate_NG), rate_NG, p_NG)
    return np.clip(p_NG, _EDGE, 1 - _EDGE)


def _luck(trace: DenseTrace, p_NG: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Uniforms that reproduce the recorded outcomes: below p if accepted, above if rejected."""
    uniform_NG = rng.random(p_NG.shape)
    position_G = np.arange(trace.gamma)
    accepted_NG = position_G < trace.num_accepted_N[:, None]
    rejected_NG = position_G == trace.num_accepted_N[:, None]
    luck_NG = np.where(accepted_NG, uniform_NG * p_NG, uniform_NG)
    return np.where(rejected_NG, p_NG + uniform_NG * (1 - p_NG), luck_NG)


def _rounds_N(
    accepted_N: NDArray[np.uint8], whole_N: NDArray[np.bool_], sequence_N: NDArray[np.int64]
) -> FloatArray:
    """Weight of each block: how often replay stands on it, on average over its sequence."""
    blocks_S = np.bincount(sequence_N, weights=whole_N)
    drafts_S = np.bincount(sequence_N, weights=np.where(whole_N, accepted_N, 0))
    length_S = 1 + drafts_S / np.maximum(blocks_S, 1)
    return np.where(whole_N, 1 / length_S[sequence_N], 0.0)


def _levels(accepted_N: NDArray[np.uint8], weight_N: FloatArray, gamma: int) -> FloatArray:
    """Conditional acceptance by position, `[G]`; NaN where no block arrives."""
    reach_G = np.array([weight_N[accepted_N >= k].sum() for k in range(gamma + 1)])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(reach_G[1:] / reach_G[:-1])


def _solve_shift(logit_N: FloatArray, weight_N: FloatArray, wanted: float, guess: float) -> float:
    """Find d with the weighted mean of sigmoid(logit + d) = wanted."""
    used = weight_N > 0
    logit_N, weight_N = logit_N[used], weight_N[used] / weight_N[used].sum()
    low, high, d = -60.0, 60.0, float(guess)
    for _ in range(200):
        p_N = _sigmoid(logit_N + d)
        found = float(weight_N @ p_N)
        if abs(found - wanted) < 1e-10:
            break
        low, high = (d, high) if found < wanted else (low, d)
        step = d + (wanted - found) / max(float(weight_N @ (p_N * (1 - p_N))), 1e-12)
        d = step if low < step < high else (low + high) / 2
    return d


def _logit(p: NDArray[np.floating[Any]]) -> FloatArray:
    clipped = np.clip(np.asarray(p, dtype=np.float64), _EDGE, 1 - _EDGE)
    return np.asarray(np.log(clipped / (1 - clipped)))


def _sigmoid(logit: FloatArray) -> FloatArray:
    return np.asarray(1 / (1 + np.exp(-logit)))
