"""Sampling real models: a target and a drafter as functions, in numpy or torch, of any vocabulary.

p = target law, q = draft law. Streams are named as in `montecarlo`. torch is not imported here: its
tensors are only asked to become arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from specsim.errors import InputError
from specsim.lossless.montecarlo import Sampled, Streams, judged
from specsim.lossless.probe import ask, frozen_array, survival
from specsim.lossless.rejection import Floats, Ints
from specsim.schedulers.base import BatchView, SchedulerFactory

SUM_TOLERANCE = 0.02
"""A softmax in bfloat16 over a large vocabulary may be this far from one."""

LawOf = Callable[[Ints], Any]
"""Laws `[S, V]` of the token after each of the prefixes `[S, L]`; numpy or torch, on any device."""

DraftOf = Callable[[Ints, int], Any]
"""The same for draft k (from 0), or confidences `[S]`."""


@dataclass(frozen=True, slots=True)
class Models:
    """A real target and drafter, as functions from token prefixes.

    Attributes:
        target: p after a prefix.
        draft: q of draft k after a prefix that ends with drafts 1..k-1.
        confidence: c of draft k after the same prefix.
        believed_draft: q as the verifier computes it, if that is another function.
    """

    target: LawOf
    draft: DraftOf
    confidence: DraftOf
    believed_draft: DraftOf | None = None


def _numpy(values: Any) -> Floats:
    """Return a numpy or torch array as float64."""
    if hasattr(values, "detach"):
        values = values.detach().double().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


def _laws(values: Any, name: str, request: int) -> Floats:
    """Return a model's laws `[S, V]` in float64, as they are.

    Raises:
        InputError: a mass is negative or no number, or a sum is further from one than rounding to
            16 bits explains.
    """
    law_SV = _numpy(values)
    if law_SV.ndim != 2:
        raise InputError(
            f"{name} of request {request} has shape {law_SV.shape}; [prefixes, V] is due"
        )
    if not (law_SV >= 0).all():
        worst = law_SV[~(law_SV >= 0)][0]
        raise InputError(
            f"{name} of request {request} has a mass of {worst}; masses are at least 0 (give "
            "probabilities, not logits)"
        )
    sum_S = law_SV.sum(axis=1)
    if not (np.abs(sum_S - 1) <= SUM_TOLERANCE).all():
        worst = sum_S[np.argmax(np.abs(sum_S - 1))]
        raise InputError(
            f"{name} of request {request} sums to {worst:g}; a law must sum to 1 within "
            f"{SUM_TOLERANCE:g} (give probabilities, not logits)"
        )
    return law_SV


def _confidence(values: Any, k: int, request: int) -> Floats:
    confidence_S: Floats = _numpy(values).ravel()
    if not ((confidence_S >= 0) & (confidence_S <= 1)).all():
        worst = confidence_S[~((confidence_S >= 0) & (confidence_S <= 1))][0]
        raise InputError(
            f"confidence of draft {k + 1} of request {request} is {worst}, not between 0 and 1"
        )
    return confidence_S


def sample_models(
    models: Models,
    factory: SchedulerFactory,
    *,
    contexts: tuple[tuple[int, ...], ...],
    gamma: int,
    verify_s_B: Floats,
    num_samples: int,
    seed: int = 0,
    chunk: int = 20_000,
) -> Sampled:
    """Sample the first output token of the first context, with the others beside it in the batch.

    One step, token-level verification. Distinct prefixes are sent to the models once.

    Args:
        models: target, drafter and confidences.
        factory: makes a fresh scheduler; one that reads `lagged` sees ones, as in a first step.
        contexts: token prefix of each request; the law of the first one's next token is tested.
        gamma: drafts a block.
        verify_s_B: step table, at least R (1 + gamma) + 1 entries.
        num_samples: independent blocks.
        seed: of the named streams.
        chunk: blocks handled at once.

    Raises:
        InputError: nothing to sample, or a model that returns no laws or confidences.
        SchedulerFault: the scheduler raised or returned something illegal.
    """
    if not contexts or gamma < 1 or num_samples < 1:
        raise InputError(
            f"{len(contexts)} contexts, gamma {gamma}, {num_samples} samples: each at least 1"
        )
    streams = Streams(seed)
    prefix = np.array([contexts[0]], dtype=np.int64)
    p_V = _laws(models.target(prefix), "target p", 0)[0]
    p_V = p_V / p_V.sum()
    q_V = _laws((models.believed_draft or models.draft)(prefix, 0), "draft q, draft 1", 0)[0]
    left_V = np.maximum(p_V - q_V, 0.0)
    counts_V = np.zeros(len(p_V), dtype=np.int64)
    for start in range(0, num_samples, chunk):
        size = min(chunk, num_samples - start)
        drafts, confidence_SRG = _draft_blocks(models, contexts, gamma, size, streams)
        verify_len_S = _plan_first(factory, confidence_SRG, verify_s_B)
        accept_S, pick_S = streams["accept"].random(size), streams["pick"].random(size)
        draft_S = drafts[0][:, 0]
        verified_S = verify_len_S > 0
        accepted_S = verified_S & (accept_S * q_V[draft_S] < p_V[draft_S])
        corrected_S = verified_S & ~accepted_S
        token_S = np.where(accepted_S, draft_S, _invert(p_V, pick_S))
        if left_V.sum() > 0:
            token_S = np.where(corrected_S, _invert(left_V, pick_S), token_S)
        counts_V += np.bincount(token_S, minlength=len(p_V))
    return judged(counts_V, p_V)


def _invert(mass_V: Floats, pick_S: Floats) -> Ints:
    cumulative_V = np.cumsum(mass_V)
    token_S = np.searchsorted(cumulative_V, pick_S * cumulative_V[-1], side="right")
    last = int(np.flatnonzero(mass_V > 0)[-1])
    inverted_S: Ints = np.minimum(token_S, last)
    return inverted_S


def _draft_blocks(
    models: Models,
    contexts: tuple[tuple[int, ...], ...],
    gamma: int,
    size: int,
    streams: Streams,
) -> tuple[list[Ints], Floats]:
    """Return each request's drafts `[S, G]` and the confidences `[S, R, G]`."""
    drafts, confidence_SRG = [], np.empty((size, len(contexts), gamma))
    for row, context in enumerate(contexts):
        prefix = np.tile(np.array(context, dtype=np.int64), (size, 1))
        for k in range(gamma):
            unique, inverse_S = np.unique(prefix, axis=0, return_inverse=True)
            inverse_S = inverse_S.ravel()
            confidence_SRG[:, row, k] = _confidence(models.confidence(unique, k), k, row)[inverse_S]
            law_UV = _laws(models.draft(unique, k), f"draft q, draft {k + 1}", row)
            pick_S = streams[f"draft/{row}/{k}"].random(size)
            token_S = np.empty(size, dtype=np.int64)
            for at, law_V in enumerate(law_UV):
                mine = np.flatnonzero(inverse_S == at) if len(law_UV) > 1 else slice(None)
                token_S[mine] = _invert(law_V, pick_S[mine])
            prefix = np.concatenate([prefix, token_S[:, None]], axis=1)
        drafts.append(prefix[:, len(context) :])
    return drafts, confidence_SRG


def _plan_first(factory: SchedulerFactory, confidence_SRG: Floats, verify_s_B: Floats) -> Ints:
    """Return the first request's planned length in each sample, planning each view once."""
    size, num_requests, gamma = confidence_SRG.shape
    flat = np.ascontiguousarray(confidence_SRG.reshape(size, -1))
    unique, inverse_S = np.unique(flat, axis=0, return_inverse=True)
    table_B = frozen_array(verify_s_B, np.float64)
    lengths = np.empty(len(unique), dtype=np.int64)
    for at, row in enumerate(unique):
        scheduler = factory()
        reads = scheduler.reads
        confidence_RG = frozen_array(row.reshape(num_requests, gamma), np.float64)
        view = BatchView(
            step=0,
            gamma=gamma,
            request_id_R=frozen_array(range(num_requests), np.int64),
            base_tokens=num_requests,
            verify_s_B=table_B,
            fixed_s=0.0,
            confidence_RG=confidence_RG if "live" in reads else None,
            survival_RG=survival(confidence_RG) if "live" in reads else None,
            lagged_survival_RG=(
                frozen_array(np.ones_like(confidence_RG), np.float64) if "lagged" in reads else None
            ),
        )
        lengths[at] = ask(scheduler, view)[0]
    return lengths[inverse_S.ravel()]
