"""A simulated run as Prometheus text, under vLLM's metric names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0,
                7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
TPOT_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
                10.0, 20.0, 40.0, 80.0)  # fmt: skip
E2E_BUCKETS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
               120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)  # fmt: skip


def prometheus_text(
    requests: Mapping[str, np.ndarray[Any, Any]],
    steps: Mapping[str, np.ndarray[Any, Any]],
    *,
    model: str,
) -> str:
    """Write counters, gauges and histograms of a whole run, as they stand at its end.

    There is no counter of drafts verified by position in vLLM, so
    `accepted_tokens_per_pos / num_drafts` mixes acceptance with scheduling; it is left out here
    rather than made up.

    Args:
        requests: ledger columns.
        steps: step columns.
        model: value of the label model_name.
    """
    done = np.isfinite(requests["finish_s"])
    label = f'{{model_name="{_escape(model)}"}}'
    lines: list[str] = []

    def one(name: str, kind: str, text: str, value: float) -> None:
        lines.extend((f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name}{label} {value!r}"))

    last = {key: float(column[-1]) if len(column) else 0.0 for key, column in steps.items()}
    counters = (
        ("spec_decode_num_drafts", "Request-steps.", float(steps["num_requests"].sum())),
        ("spec_decode_num_draft_tokens", "Drafts verified.", float(steps["verified"].sum())),
        ("spec_decode_num_accepted_tokens", "Drafts accepted.", float(steps["accepted"].sum())),
        ("prompt_tokens", "Prompt tokens.", float(requests["prompt_tokens"].sum())),
        ("generation_tokens", "Tokens generated.", float(requests["emitted"].sum() + done.sum())),
        ("request_success", "Finished requests.", float(done.sum())),
    )
    for name, text, value in counters:
        one(f"vllm:{name}_total", "counter", text, value)
    one("vllm:num_requests_running", "gauge", "Requests in the batch.", last["num_requests"])
    one("vllm:num_requests_waiting", "gauge", "Requests waiting.", last["waiting"])
    ended = {key: column[done] for key, column in requests.items()}
    ttft_N = ended["first_token_s"] - ended["arrival_s"]
    e2e_N = ended["finish_s"] - ended["arrival_s"]
    many = ended["output_tokens"] > 1
    tpot_N = (e2e_N - ttft_N)[many] / (ended["output_tokens"][many] - 1)
    for name, text, sample, buckets in (
        ("time_to_first_token_seconds", "Time to first token.", ttft_N, TTFT_BUCKETS),
        ("request_time_per_output_token_seconds", "Per request.", tpot_N, TPOT_BUCKETS),
        ("e2e_request_latency_seconds", "Arrival to last token.", e2e_N, E2E_BUCKETS),
    ):
        full = f"vllm:{name}"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} histogram"]
        for edge in buckets:
            count = int((sample <= edge).sum())
            lines.append(f'{full}_bucket{{le="{edge}",model_name="{_escape(model)}"}} {count}')
        lines += [
            f'{full}_bucket{{le="+Inf",model_name="{_escape(model)}"}} {len(sample)}',
            f"{full}_sum{label} {float(sample.sum())!r}",
            f"{full}_count{label} {len(sample)}",
        ]
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
