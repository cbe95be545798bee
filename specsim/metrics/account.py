"""What became of all requests of a run, and what its memory and prefill did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from specsim.metrics.record import Columns, Status

ACCOUNT: Mapping[str, str] = {
    "requests_submitted": "All requests: the sum of the statuses below and `all_finished`.",
    "all_finished": "Requests that finished, those of the warm-up among them.",
    "requests_waiting": "Requests still in a queue when the run ended.",
    "requests_running": "Requests still in a batch when the run ended.",
    "requests_cancelled": "Requests that their user took back.",
    "requests_timed_out": "Requests that waited longer than their user would.",
    "requests_failed": "Requests that could not be served: too large for memory, or no rank alive.",
    "preemptions": "Times that a request was put back because memory ran out.",
    "reroutes": "Times that a request was sent to another rank because its own had died.",
    "prefill_tokens": "Prompt tokens that forwards read.",
    "prefill_again_share": "Share of `prefill_tokens` that had been read before.",
    "prefix_hit_share": "Share of prompt tokens that the prefix cache spared.",
    "trimmed_share": "Share of planned drafts that a step's token budget cut.",
    "lost_drafts_share": "Drafts that would have been accepted and were not verified, as a share "
    "of all that would have been.",
    "lockstep_wait_share": "Share of step time spent waiting for the slowest rank.",
    "kv_blocks_peak": "Most KV blocks held on a rank; null without a KV limit.",
}
"""What `account` counts, with definitions."""


def count_requests(requests: Columns) -> Counter[str]:
    """Add up what `account` needs of some rows of the ledger; sums of parts add up to the whole."""
    status = requests["status"]
    found = Counter({kind.name: int((status == kind).sum()) for kind in Status})
    for name in ("preemptions", "reroutes", "prefilled", "cached"):
        found[name] = int(requests[name].sum())
    whole = requests["prefilled"] + requests["cached"]
    again = np.maximum(whole - requests["prompt_tokens"], 0)
    found["prefilled_again"] = int(np.minimum(again, requests["prefilled"]).sum())
    return found


def account(requests: Counter[str], steps: Columns) -> dict[str, float | None]:
    """Count every request of the whole run, warm-up included, and what was done twice.

    Keys: those of `ACCOUNT`.

    Args:
        requests: `count_requests` of the whole ledger.
        steps: the whole step log.
    """
    found: dict[str, float | None] = {
        "requests_submitted": float(sum(requests[kind.name] for kind in Status)),
        "all_finished": float(requests[Status.FINISHED.name]),
    }
    for kind in Status:
        if kind is not Status.FINISHED:
            found[f"requests_{kind.name.lower()}"] = float(requests[kind.name])
    found["preemptions"] = float(requests["preemptions"])
    found["reroutes"] = float(requests["reroutes"])
    prefilled, cached = float(requests["prefilled"]), float(requests["cached"])
    found["prefill_tokens"] = prefilled
    found["prefill_again_share"] = _share(float(requests["prefilled_again"]), prefilled)
    found["prefix_hit_share"] = _share(cached, prefilled + cached)
    trimmed = float(steps["trimmed"].sum())
    found["trimmed_share"] = _share(trimmed, trimmed + float(steps["verified"].sum()))
    ceiling = float(steps["ceiling"].sum())
    found["lost_drafts_share"] = _share(ceiling - float(steps["accepted"].sum()), ceiling)
    duration_s = float(steps["duration_s"].sum())
    found["lockstep_wait_share"] = _share(duration_s - float(steps["own_s"].sum()), duration_s)
    peak = int(steps["kv_blocks"].max(initial=0))
    found["kv_blocks_peak"] = float(peak) if peak else None
    return found


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
