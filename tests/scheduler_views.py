"""Views for scheduler tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from specsim.schedulers.base import BatchView, History, StepOutcome


def make_view(
    confidence: Any,
    *,
    lagged: Any = None,
    table: Any = None,
    fixed_s: float = 0.0,
    base: int | None = None,
    step: int = 0,
    ids: Any = None,
    **more: Any,
) -> BatchView:
    """A view of these live confidences; the lagged survivals are the live ones unless given."""
    c = np.asarray(confidence, dtype=np.float64)
    count, gamma = c.shape
    survival = np.cumprod(c, axis=1)
    base = count if base is None else base
    return BatchView(
        step=step,
        gamma=gamma,
        request_id_R=np.arange(count) if ids is None else np.asarray(ids),
        base_tokens=base,
        verify_s_B=np.ones(base + c.size + 2) if table is None else np.asarray(table, dtype=float),
        fixed_s=fixed_s,
        confidence_RG=c,
        survival_RG=survival,
        lagged_survival_RG=survival if lagged is None else np.asarray(lagged, dtype=np.float64),
        history=History(*(np.zeros(count, dtype=np.int64) for _ in range(3))),
        **more,
    )


def outcome(verified: Any, accepted: Any, *, seconds: float = 1.0, ids: Any = None) -> StepOutcome:
    """What a step showed."""
    verified = np.asarray(verified, dtype=np.int64)
    return StepOutcome(
        step=0,
        request_id_R=np.arange(len(verified)) if ids is None else np.asarray(ids),
        verify_len_R=verified,
        num_accepted_R=np.asarray(accepted, dtype=np.int64),
        duration_s=seconds,
    )
