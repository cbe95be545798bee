"""Run every policy on three engines and two workloads; write reports/policies/.

    python scripts/policy_regret.py [--seeds 4] [--only WORKLOAD] [--report-only]

Closed loop at several loads, common random numbers over policies. For each policy: tokens a second
and GPU at the speed that fixed k = 3 gives 48 users (interpolated between loads), and its regret
against `optimal` and `oracle` at that speed, with 95 % intervals over seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from specsim.cost.table import load_table
from specsim.engine.run import RunColumns, Stop, run
from specsim.report.pareto import frontier
from specsim.scenario.build import build_arm, run_input
from specsim.scenario.schema import Scenario
from specsim.stats.intervals import mean_interval

ROOT = Path(__file__).parent.parent
HERE = ROOT / "reports" / "policies"
LOADS = (8, 16, 32, 48, 80, 128, 192, 256)
COMMON_LOAD = 48
WARMUP = 0.25
SPREADS = "v4_flash_fig7"
BOUNDS = ("optimal", "oracle")


def load(name: str) -> dict[str, Any]:
    return json.loads(json.dumps(YAML(typ="safe").load((HERE / name).read_text())))


def fit(name: str) -> dict[str, Any]:
    return dict(json.loads((ROOT / "profiles" / "fits" / f"{name}.json").read_text()))


def fitted_cost(cost: dict[str, Any]) -> dict[str, Any]:
    """Put the numbers of profiles/fits where a term says `{fit: NAME}`."""
    filled = dict(cost)
    for term in ("draft", "host"):
        name = cost.get(term, {}).get("fit")
        if name is None:
            continue
        found = fit(name)
        filled[term] = {"label": "fitted", "source": f"profiles/fits/{name}.json"}
        if term == "draft":
            numbers = found["numbers"]
            filled[term] |= {
                "base_ms": numbers["draft_base_ms"],
                "per_request_us": numbers["draft_per_request_us"],
            }
        else:
            filled[term] |= {
                "base_ms": 0,
                "at_requests": found["loads"],
                "ms": [round(1e3 * seconds, 4) for seconds in found["chosen"]["host_s"]],
            }
    return filled


def draft_us(cost: dict[str, Any]) -> float:
    """What drafting for one more request takes: the fitted term, or the slope of the table's."""
    filled = fitted_cost(cost)
    if "draft" in filled:
        return float(filled["draft"]["per_request_us"])
    curve = load_table(ROOT / "profiles" / "steps" / f"{cost['table']}.json").draft
    assert curve is not None, f"{cost['table']}: no draft term"
    rise_s = float(curve.seconds_N[-1] - curve.seconds_N[0])
    return round(1e6 * rise_s / float(curve.probes_N[-1] - curve.probes_N[0]), 2)


def scenario(engine: dict[str, Any], workload: dict[str, Any], seed: int) -> Scenario:
    policies = load("policies.yaml")
    gamma = engine["gamma"]
    spreads = fit(SPREADS)["numbers"]

    def policy(name: str, scheduler: dict[str, Any]) -> dict[str, Any]:
        drafts = 0 if name == "no_speculation" else gamma
        if scheduler.get("draft_us_per_request") == "engine":
            scheduler = scheduler | {"draft_us_per_request": draft_us(engine["cost"])}
        return {"scheduler": scheduler, "gamma": drafts, "unsafe": name in policies["bounds"]}

    return Scenario.model_validate(
        {
            "name": "policies",
            "question": {"kind": "point", "concurrency": COMMON_LOAD},
            "seed": seed,
            "stop": {"kind": "requests", "num_requests": 1},
            "cluster": {
                "gpus_per_rank": engine["gpus_per_rank"],
                "max_requests_per_rank": max(LOADS),
            },
            "workload": {
                "arrivals": {"kind": "closed_loop"},
                "prompt_tokens": workload["prompt_tokens"],
                "output_tokens": workload["output_tokens"],
            },
            "acceptance": {
                "kind": "parametric",
                "calibration": "domains",
                "mix": workload["mix"],
                "difficulty_sd": spreads["difficulty_sd"],
                "noise_sd": spreads["noise_sd"],
                "sequences": 128,
                "anchors": 512,
                "label": "fitted",
                "source": f"spreads: profiles/fits/{SPREADS}.json",
            },
            "cost": fitted_cost(engine["cost"]),
            "policies": {
                name: policy(name, scheduler)
                for group in ("policies", "bounds")
                for name, scheduler in policies[group].items()
            },
        }
    )


def measured(out: RunColumns, gpus: int) -> dict[str, float]:
    """Throughput and speed after the first quarter of the run."""
    steps = out.steps
    inside = steps["end_s"] > WARMUP * out.end_s
    span_s = float(steps["duration_s"][inside].sum())
    emitted = float(steps["emitted"][inside].sum())
    seconds = float((steps["num_requests"] * steps["duration_s"])[inside].sum())
    rounds = float(steps["num_requests"][inside].sum())
    return {
        "tok_s_gpu": emitted / span_s / gpus,
        "tok_s_user": emitted / seconds,
        "budget_tokens": 1 + float(steps["verified"][inside].sum()) / rounds,
    }


def simulate(only: str | None, seeds: int) -> None:
    plan = load("engines.yaml")
    for seed in range(1, seeds + 1):
        for engine_name, engine in plan["engines"].items():
            for workload_name, workload in plan["workloads"].items():
                path = HERE / "points" / f"{engine_name}-{workload_name}-{seed}.json"
                if path.exists() or only not in (None, workload_name):
                    continue
                rows = one_seed(scenario(engine, workload, seed))
                path.parent.mkdir(exist_ok=True)
                path.write_text(json.dumps(rows, indent=0, sort_keys=True) + "\n")
                sys.stderr.write(f"{path.name}\n")


def one_seed(given: Scenario) -> list[dict[str, Any]]:
    rows = []
    mean = given.workload.output_tokens.mean  # type: ignore[union-attr]
    for name in given.policies:
        arm = build_arm(given, name, folder=ROOT)
        for users in LOADS:
            tokens = int(max(3 * users * mean, 20_000))
            task = replace(run_input(given, arm, concurrency=users), stop=Stop(tokens=tokens))
            found = measured(run(task), given.cluster.gpus_per_rank)
            rows.append({"policy": name, "concurrency": users, **found})
    return rows


def at_speed(rows: list[dict[str, Any]], name: str, speed: float) -> float:
    line = frontier(name, [row for row in rows if row["policy"] == name])
    value = line.throughput_at(speed).value
    return float("nan") if value is None else value


def tell(rows: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Compare the policies of one engine and workload over its seeds."""
    speeds = [
        next(
            row["tok_s_user"]
            for row in one
            if row["policy"] == "fixed_3" and row["concurrency"] == COMMON_LOAD
        )
        for one in rows
    ]
    speed = float(np.mean(speeds))
    names = list(dict.fromkeys(row["policy"] for row in rows[0]))
    throughput = {name: np.array([at_speed(one, name, speed) for one in rows]) for name in names}

    def interval(values: np.ndarray) -> list[float | None]:
        if not np.isfinite(values).all():
            return [None, None]
        found = mean_interval(values, level=0.95)
        return [found.mean, found.half_width]

    def same_load(one: list[dict[str, Any]], name: str) -> float:
        return float(np.mean([row["tok_s_gpu"] for row in one if row["policy"] == name]))

    answer: dict[str, Any] = {"speed_tok_s_user": speed, "seeds": len(rows), "policies": {}}
    for name in names:
        record: dict[str, Any] = {"tok_s_gpu": interval(throughput[name])}
        for bound in BOUNDS:
            record[f"regret_{bound}"] = interval(1 - throughput[name] / throughput[bound])
        record["against_fixed_3"] = interval(throughput[name] / throughput["fixed_3"] - 1)
        record["regret_optimal_same_load"] = interval(
            np.array([1 - same_load(one, name) / same_load(one, "optimal") for one in rows])
        )
        answer["policies"][name] = record
    return answer


def report() -> None:
    plan = load("engines.yaml")
    results: dict[str, Any] = {}
    for engine in plan["engines"]:
        for workload in plan["workloads"]:
            paths = sorted((HERE / "points").glob(f"{engine}-{workload}-*.json"))
            if len(paths) >= 2:
                rows = [json.loads(path.read_text()) for path in paths]
                results[f"{engine}/{workload}"] = tell(rows)
    (HERE / "results.json").write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    text = (HERE / "head.md").read_text() + "".join(table(k, v) for k, v in results.items())
    (HERE / "README.md").write_text(text)


def table(name: str, answer: dict[str, Any]) -> str:
    def show(value: list[float | None], scale: float = 1.0, digits: int = 0) -> str:
        if value[0] is None or value[1] is None:
            return "never so fast"
        return f"{value[0] * scale:,.{digits}f} ± {value[1] * scale:.{digits}f}"

    ranked = sorted(
        ((n, r) for n, r in answer["policies"].items() if n not in BOUNDS),
        key=lambda item: -(item[1]["tok_s_gpu"][0] or 0),
    )
    ranked += [(n, answer["policies"][n]) for n in BOUNDS]
    lines = [
        f"\n## {name}, at {answer['speed_tok_s_user']:.0f} tok/s/user ({answer['seeds']} seeds)\n",
        "| policy | tok/s/GPU | against fixed k = 3, % | regret to optimal, % | "
        "regret to oracle, % | regret to optimal at equal users, % |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for policy, record in ranked:
        shown = f"*{policy}* (bound)" if policy in BOUNDS else policy
        lines.append(
            f"| {shown} | {show(record['tok_s_gpu'])} | "
            f"{show(record['against_fixed_3'], 100, 1)} | "
            f"{show(record['regret_optimal'], 100, 1)} | {show(record['regret_oracle'], 100, 1)} | "
            f"{show(record['regret_optimal_same_load'], 100, 1)} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--only")
    parser.add_argument("--report-only", action="store_true")
    given = parser.parse_args()
    if not given.report_only:
        simulate(given.only, given.seeds)
    report()


if __name__ == "__main__":
    main()
