"""The winning policy as configuration of an engine that can run it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specsim.acceptance.calibration import calibrate, records_of_trace, to_sglang
from specsim.acceptance.trace import DenseTrace
from specsim.cost.table import StepTable
from specsim.errors import InputError
from specsim.interop.sglang import sglang_json, to_additive, to_sps


@dataclass(frozen=True, slots=True)
class Exported:
    """Files of a policy, and what an engine cannot do of it.

    Attributes:
        files: content by name.
        flags: command-line flags and environment.
        notes: differences between the policy simulated and the one exported.
    """

    files: Mapping[str, str]
    flags: Sequence[str]
    notes: Sequence[str]


def vllm_policy(policy: Mapping[str, Any], lengths: Sequence[tuple[int, int]] = ()) -> Exported:
    """Write a policy as vLLM's `--speculative-config`.

    Adaptive schedulers become `enable_adaptive_verification`; fixed lengths by load become
    `num_speculative_tokens_per_batch_size`.

    Args:
        policy: entry of a run's summary (`scheduler`, `gamma`, `lossless`).
        lengths: (requests from here on, drafts), by rising requests, for a length by load.

    Raises:
        InputError: vLLM has no such policy, or it biases the output.
    """
    _lossless(policy)
    scheduler, gamma = policy["scheduler"], int(policy["gamma"])
    notes: list[str] = []
    config: dict[str, Any] = {"method": "dspark", "num_speculative_tokens": gamma}
    match scheduler["kind"]:
        case "none":
            return Exported({}, [], ["no speculation: leave --speculative-config out"])
        case "async_topk" | "stale" | "greedy" | "patience":
            config |= {"draft_sample_method": "probabilistic", "enable_adaptive_verification": True}
            if scheduler["kind"] != "stale":
                config_lag = scheduler.get("lag", 0)
                notes.append(
                    "vLLM takes the global argmax for the budget, on confidences of the previous "
                    f"finished step; the policy simulated is {scheduler['kind']}, lag {config_lag}"
                )
            notes.append("vLLM measures its cost curves itself, at start")
        case "fixed":
            config["num_speculative_tokens"] = int(scheduler["k"])
            if int(scheduler["k"]) != gamma:
                notes.append(
                    f"the policy drafts {gamma} and verifies {scheduler['k']}; vLLM drafts as many "
                    "as it verifies, which is cheaper"
                )
        case kind:
            raise InputError(
                f'vLLM has no policy like "{kind}"; those with a counterpart are none, fixed, '
                "async_topk, stale, greedy, patience"
            )
    if lengths:
        config["num_speculative_tokens_per_batch_size"] = _ranges(lengths)
        config["num_speculative_tokens"] = max(k for _, k in lengths)
    text = json.dumps(config, indent=2) + "\n"
    one_line = json.dumps(config, separators=(",", ":"))
    return Exported(
        {"speculative_config.json": text}, [f"--speculative-config '{one_line}'"], notes
    )


def _ranges(lengths: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Write (from, drafts) as vLLM's [from, to, k]; the first starts at 1, the last goes on."""
    starts = [start for start, _ in lengths]
    if starts[0] != 1 or sorted(set(starts)) != starts:
        raise InputError(
            f"lengths by load must start at 1 request and rise, not {', '.join(map(str, starts))}"
        )
    ends = [start - 1 for start in starts[1:]] + [65_536]
    return [[start, end, k] for (start, k), end in zip(lengths, ends, strict=True)]


def sglang_policy(
    policy: Mapping[str, Any],
    table: StepTable,
    trace: DenseTrace | None,
    *,
    context_tokens: int | None,
    tokens_per_request: float,
    seed: int,
) -> Exported:
    """Write a policy as SGLang's flags, SPS table and calibration file.

    Args:
        policy: entry of a run's summary.
        table: the step table that the policy planned with.
        trace: calibrate on this one's confidences; None writes no calibration.
        context_tokens: context for the table's attention, if it has any.
        tokens_per_request: B / R of the steps, for terms that depend on R.
        seed: splits the trace for the calibration.

    Raises:
        InputError: SGLang has no such policy, it biases the output, or a context is needed.
    """
    _lossless(policy)
    scheduler, gamma = policy["scheduler"], int(policy["gamma"])
    kind = scheduler["kind"]
    if kind not in ("async_topk", "stale", "greedy", "patience", "fixed"):
        raise InputError(
            f'SGLang has no policy like "{kind}"; those with a counterpart are fixed, async_topk, '
            "stale, greedy, patience"
        )
    files: dict[str, str] = {}
    flags = [
        "--speculative-algorithm DSPARK",
        f"--speculative-dspark-block-size {gamma}",
    ]
    notes: list[str] = []
    if kind == "fixed":
        flags.append("SGLANG_RAGGED_VERIFY_MODE=static")
        if int(scheduler["k"]) != gamma:
            notes.append(
                f"static mode verifies the whole block of {gamma}; the policy verifies "
                f"{scheduler['k']}: train or cut the block to that"
            )
        return Exported(files, flags, notes)
    lag = int(scheduler.get("lag", 0))
    flags.append("SGLANG_RAGGED_VERIFY_MODE=compact")
    if lag:
        flags.append(f"SGLANG_DSPARK_CONFIDENCE_RELAY_LAG_STEPS={lag}")
    if kind != "async_topk":
        notes.append(f"SGLang takes the global argmax; the policy simulated is {kind}")
    if context_tokens is not None and table.attention is not None:
        files["dspark_sps.json"] = sglang_json(to_additive(table, context_tokens=context_tokens))
    else:
        files["dspark_sps.json"] = sglang_json(
            to_sps(table, context_tokens=context_tokens, tokens_per_request=tokens_per_request)
        )
        notes.append("the plain table is read at the probe below B, so it charges too little "
                     "just before a riser")  # fmt: skip
    flags.append("--speculative-dspark-sps-table-path dspark_sps.json")
    if trace is not None:
        rng = np.random.default_rng(seed)
        said = trace.metadata
        model, drafter = (said.get("target") or said.get("model", "?")), said.get("drafter", "?")
        dataset = f"specsim trace: {model}, drafter {drafter}"
        fitted, _, _ = calibrate(records_of_trace(_cut(trace, gamma)), rng, dataset=dataset)
        files["dspark_sts.json"] = to_sglang(fitted)
        flags.append("--speculative-dspark-confidence-sts-path dspark_sts.json")
        if said.get("status") in ("synthetic", "fitted", "assumed"):
            notes.append("the calibration is that of a model of a drafter, not of your drafter")
        else:
            notes.append(
                f"dspark_sts.json is calibrated on the confidences of {model} with the drafter "
                f"{drafter}; if yours is another, capture its trace and calibrate on that"
            )
    return Exported(files, flags, notes)


def _cut(trace: DenseTrace, gamma: int) -> DenseTrace:
    if gamma == trace.gamma:
        return trace
    # Confidences of exactly 0 or 1 say nothing about a temperature; the fit clips them itself.
    return DenseTrace(
        confidence_NG=trace.confidence_NG[:, :gamma],
        num_accepted_N=np.minimum(trace.num_accepted_N, gamma).astype(np.uint8),
        sequence_offset_S1=trace.sequence_offset_S1,
        sequence_domain_S=trace.sequence_domain_S,
        domain_names=trace.domain_names,
        metadata=trace.metadata,
    )


def _lossless(policy: Mapping[str, Any]) -> None:
    if not policy["lossless"]:
        raise InputError(
            f'"{policy["scheduler"]["kind"]}" changes the distribution of the output and is not '
            "exported"
        )
