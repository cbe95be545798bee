"""`specsim export`: a stored run in another tool's shape, or its policy as engine configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

import specsim
from specsim.errors import InputError, nearest
from specsim.interop.aiperf import aiperf_json
from specsim.interop.policy_export import Exported, sglang_policy, vllm_policy
from specsim.interop.prometheus import prometheus_text
from specsim.interop.vllm_bench import vllm_bench_json
from specsim.metrics.record import Columns
from specsim.report.loads import at_loads, load_name
from specsim.report.page import Stored
from specsim.report.pareto import frontier
from specsim.scenario.build import build_arm
from specsim.scenario.schema import Scenario
from specsim.study.store import read_manifest, read_summary

Format = Literal["vllm", "aiperf", "prometheus", "vllm-policy", "sglang-policy"]


def export(
    directory: Path,
    form: Format,
    *,
    policy: str | None = None,
    concurrency: int | None = None,
    context_tokens: int | None = None,
    scenario_folder: Path | None = None,
) -> Exported:
    """Return the files of an export.

    Args:
        directory: of a stored run.
        form: what to write.
        policy: which; the best lossless one of the run if None.
        concurrency: which load; the heaviest if None.
        context_tokens: context of the SPS table, where attention depends on it.
        scenario_folder: where its profiles are looked for; the working directory if None.

    Raises:
        InputError: no such run, policy or load, or the form cannot hold it.
    """
    summary, manifest = read_summary(directory), read_manifest(directory)
    name = policy or best_policy(summary)
    if name not in summary["policies"]:
        close = nearest(name, summary["policies"])
        raise InputError(
            f'no policy "{name}" in {directory}{"; " + close if close else ""}; it has '
            f"{', '.join(summary['policies'])}"
        )
    entry = summary["policies"][name]
    loads = [row["concurrency"] for row in entry["points"]]
    load = concurrency if concurrency is not None else (loads[-1] if loads else None)
    if load not in loads:
        raise InputError(f"{name} was not run at {load} users a rank; it was run {at_loads(loads)}")
    row = next(r for r in entry["points"] if r["concurrency"] == load)
    if form == "vllm-policy":
        return vllm_policy(entry)
    if form == "sglang-policy":
        scenario = Scenario.model_validate_json(manifest["scenario"])
        folder = scenario_folder or Path()
        arm = build_arm(scenario, name, folder=folder)
        return sglang_policy(
            entry,
            arm.cost.table,
            arm.trace,
            context_tokens=context_tokens,
            tokens_per_request=float(row.get("budget_tokens") or 1.0),
            seed=scenario.seed,
        )
    stored = Stored(directory, summary, manifest)

    def rows(table: str) -> Columns:
        found = stored.columns(table, name, load)
        if not found:
            raise InputError(
                f"{directory} has no {table} of {name}, which {form} is made of: the scenario said "
                f"record: {json.loads(manifest['scenario'])['record']}; run it again with "
                "--set record=steps"
            )
        return found

    requests = rows("requests")
    done = np.isfinite(requests["finish_s"])
    finished = {key: column[done] for key, column in requests.items()}
    if not done.any():
        raise InputError(f"{name} at {load_name(load)}: no request finished")
    label = f"{summary['scenario']}/{name}" + (f"/{load}" if load is not None else "")
    duration_s = float(finished["finish_s"].max() - finished["arrival_s"].min())
    if form == "prometheus":
        steps = rows("steps")
        return Exported(
            {"metrics.prom": prometheus_text(requests, steps, model=summary["scenario"])}, [], []
        )
    if form == "aiperf":
        data: Mapping[str, Any] = aiperf_json(
            label=label,
            concurrency=load,
            duration_s=duration_s,
            requests=finished,
            version=specsim.__version__,
        )
        return Exported({"profile_export_aiperf.json": _json(data)}, [], [])
    data = vllm_bench_json(
        label=label,
        concurrency=load,
        duration_s=duration_s,
        requests=finished,
        rounds=float(finished["rounds"].sum()),
        verified=float(finished["verified"].sum()),
        accepted=float(finished["accepted"].sum()),
        position_acceptance=row.get("position_acceptance"),
        detailed=True,
    )
    return Exported({"vllm_bench.json": _json(data)}, [], [])


def best_policy(summary: Mapping[str, Any]) -> str:
    """Return the lossless policy with the most throughput at the headline SLO, or at the load.

    A policy that is faster than the SLO under every load asked holds at least what it put out under
    the largest.

    Raises:
        InputError: none has a throughput.
    """
    slo = summary["question"].get("headline_slo")
    held: dict[str, float] = {}
    for name, policy in summary["policies"].items():
        if not policy["lossless"] or not policy["points"]:
            continue
        if slo is None:
            most = policy["points"][0].get("tok_s_gpu")
        else:
            cut = frontier(name, policy["points"]).throughput_at(slo)
            most = cut.at_least if cut.value is None else cut.value
        if most is not None:
            held[name] = most
    if not held:
        raise InputError("no lossless policy of the run has a throughput; name one with --policy")
    return max(held, key=held.__getitem__)


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=2, allow_nan=False) + "\n"
