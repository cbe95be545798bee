"""What became of all requests of a run, and what its memory and prefill did."""

from __future__ import annotations

import numpy as np

from specsim.metrics.record import Columns, Status


def account(requests: Columns, steps: Columns) -> dict[str, float | None]:
    """Count every request of the whole run, warm-up included, and what was done twice.

    Keys: `requests_<status>` for every `Status` but finished ones (`all_finished`), which sum up to
    `requests_submitted`; `preemptions`, `reroutes`; `prefill_tokens` that forwards read,
    `prefill_again_share` of them that had been read before, `prefix_hit_share` of prompt tokens
    that the prefix cache spared; `trimmed_share` of planned drafts that a step's token budget cut;
    `lost_drafts_share`: drafts that would have been accepted and were not verified, of all that
    would have been; `lockstep_wait_share` of step time spent waiting for the slowest rank;
    `kv_blocks_peak` (None without a KV limit).

    Args:
        requests: the whole ledger.
        steps: the whole step log.
    """
    status = requests["status"]
    found: dict[str, float | None] = {
        "requests_submitted": float(len(status)),
        "all_finished": float((status == Status.FINISHED).sum()),
    }
    for kind in Status:
        if kind is not Status.FINISHED:
            found[f"requests_{kind.name.lower()}"] = float((status == kind).sum())
    found["preemptions"] = float(requests["preemptions"].sum())
    found["reroutes"] = float(requests["reroutes"].sum())
    prefilled = float(requests["prefilled"].sum())
    whole = requests["prefilled"] + requests["cached"]
    again = np.maximum(whole - requests["prompt_tokens"], 0)
    again = np.minimum(again, requests["prefilled"])
    found["prefill_tokens"] = prefilled
    found["prefill_again_share"] = _share(float(again.sum()), prefilled)
    cached = float(requests["cached"].sum())
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
