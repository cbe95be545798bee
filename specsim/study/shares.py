"""Where the time of a run goes, as shares of all rank-seconds of the measured window."""

from __future__ import annotations

import math

import numpy as np

from specsim.cost.model import StepCost
from specsim.metrics.catalog import Window
from specsim.metrics.record import Columns

PARTS = ("verify", "prefill", "attention", "draft", "host", "rank_wait", "idle")
"""Parts in the order in which figures stack them."""


def time_parts(steps: Columns, cost: StepCost) -> Columns:
    """Price each step by part: `verify_s`, `prefill_s`, `draft_s` and `host_s`, seconds `[T]`.

    Args:
        steps: the step log.
        cost: what its steps cost.
    """
    requests_T = steps["num_requests"]
    prefill_T = steps.get("prefill_tokens", np.zeros_like(requests_T))
    charged_T = steps.get("charged", np.zeros_like(requests_T))
    charged_T = np.where(charged_T > 0, charged_T, requests_T + steps["verified"])
    last = len(cost.verify_s_B) - 1
    forward_T = cost.verify_s_B[np.minimum(charged_T, last)]
    decode_T = cost.verify_s_B[np.minimum(np.maximum(charged_T - prefill_T, 0), last)]
    draft_R = np.array([cost.draft_s(r) for r in range(cost.max_requests + 1)])
    return {
        "verify_s": decode_T,
        "prefill_s": forward_T - decode_T,
        "draft_s": draft_R[requests_T],
        "host_s": cost.host_s_R[requests_T],
    }


def time_shares(window: Window, cost: StepCost) -> dict[str, float | None]:
    """Split the window's time: `time_<part>_share` for every part of `PARTS`, summing to 1.

    `verify` is the target forward, `prefill` what prompt tokens add to it, `rank_wait` the waiting
    of a lockstep group for its slowest rank, `idle` time without a step. A term inside the table's
    verify curve counts as `verify` (the cost sources say so).

    Args:
        window: the measured part of the run; merged rows bring their `time_parts` along.
        cost: what its steps cost.
    """
    steps = window.steps
    total_s = window.span_s * window.ranks
    if total_s <= 0 or len(steps["end_s"]) == 0:
        return {f"time_{part}_share": None for part in PARTS}
    parts = steps if "verify_s" in steps else time_parts(steps, cost)
    verify_s, prefill_s, draft_s, host_s = (
        float(parts[name].sum()) for name in ("verify_s", "prefill_s", "draft_s", "host_s")
    )
    own_s = float(steps.get("own_s", steps["duration_s"]).sum())
    attention_s = own_s - verify_s - prefill_s - draft_s - host_s
    if abs(attention_s) < 1e-6 * own_s:
        attention_s = 0.0  # what is left over by rounding
    if attention_s < 0:
        # Something in the step is charged otherwise than this table says: call it all verify.
        verify_s += attention_s
        attention_s = 0.0
    wait_s = float(steps["duration_s"].sum()) - own_s
    found = {
        "verify": verify_s,
        "prefill": prefill_s,
        "attention": attention_s,
        "draft": draft_s,
        "host": host_s,
        "rank_wait": wait_s,
        # A step that straddles the window's start counts whole, so this may be a hair below 0.
        "idle": max(0.0, total_s - own_s - wait_s),
    }
    whole_s = math.fsum(found.values())  # sum rounds otherwise from Python 3.12 on
    return {f"time_{part}_share": found[part] / whole_s for part in PARTS}
