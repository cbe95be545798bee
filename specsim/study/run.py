"""`specsim run`: every policy of a scenario under every load of its question."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import specsim
from specsim.engine.run import run
from specsim.metrics.account import account
from specsim.metrics.catalog import measure, summarise
from specsim.metrics.record import Columns
from specsim.scenario.build import build_arm, run_input
from specsim.scenario.check import build_arms
from specsim.scenario.load import LoadedScenario, load_scenario, scenario_hash
from specsim.scenario.locate import find_scenario
from specsim.scenario.schema import FrontierQuestion, PointQuestion, Scenario
from specsim.study.answer import summary_of
from specsim.study.executor import make_executor, run_tasks
from specsim.study.folder import require_writable
from specsim.study.shares import time_shares
from specsim.study.store import is_complete, write_run
from specsim.workload.arrivals import BatchConfig

Progress = Callable[[int, int, str], None]
"""Told `(done, total, what)` after every finished point."""


@dataclass(frozen=True, slots=True)
class PointTask:
    """One policy under one load."""

    scenario: Scenario
    folder: Path
    policy: str
    concurrency: int | None


@dataclass(frozen=True, slots=True)
class PointResult:
    """What one point gave.

    Attributes:
        policy: the policy's name.
        concurrency: closed-loop users a rank, or None.
        metrics: `metrics.catalog.summarise` of the measured window.
        requests: the ledger; None if the scenario does not record it.
        steps: the step log, likewise.
        ended: why the run ended.
        findings: what a reader must know: ranks that died, preemption spirals, starvation.
    """

    policy: str
    concurrency: int | None
    metrics: dict[str, float | None]
    requests: Columns | None
    steps: Columns | None
    ended: str = ""
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished run: its summary, and where it is stored."""

    summary: dict[str, Any]
    directory: Path


def run_point(task: PointTask) -> PointResult:
    """Build and simulate one point; a function of its argument alone."""
    scenario = task.scenario
    arm = build_arm(scenario, task.policy, folder=task.folder)
    out = run(run_input(scenario, arm, concurrency=task.concurrency))
    window = measure(
        steps=out.steps,
        requests=out.requests,
        end_s=out.end_s,
        ranks=scenario.cluster.ranks,
        gpus_per_rank=scenario.cluster.gpus_per_rank,
        cut_warmup=not isinstance(scenario.workload.arrivals, BatchConfig),
    )
    metrics = summarise(window) | time_shares(window, arm.cost)
    metrics |= account(out.requests, out.steps)
    longest = int((out.steps["num_requests"] + out.steps["verified"]).max(initial=0))
    metrics["longest_forward_tokens"] = float(longest)
    if isinstance(scenario.workload.arrivals, BatchConfig):
        metrics["makespan_s"] = out.end_s
    return PointResult(
        task.policy,
        task.concurrency,
        metrics,
        None if scenario.record == "none" else out.requests,
        out.steps if scenario.record == "steps" else None,
        out.ended,
        out.findings,
    )


def run_scenario(
    scenario_path_or_name: str,
    *,
    overrides: Sequence[str] = (),
    out: Path,
    jobs: int = 1,
    progress: Progress | None = None,
) -> RunResult:
    """Run a scenario and store the result under `out`.

    Args:
        scenario_path_or_name: a file, or the name of a shipped scenario.
        overrides: `a.b=value` each.
        out: folder of run directories.
        jobs: processes; the result does not depend on it.
        progress: told of every finished point.

    Raises:
        SpecsimError: the scenario is wrong, or the place cannot be written.
        KeyboardInterrupt: interrupted; what was finished is stored as an incomplete run, unless a
            complete one of the same scenario is there already.
    """
    loaded = load_scenario(find_scenario(scenario_path_or_name), overrides=overrides)
    return run_loaded(loaded, out=out, jobs=jobs, progress=progress)


def run_loaded(
    loaded: LoadedScenario, *, out: Path, jobs: int = 1, progress: Progress | None = None
) -> RunResult:
    """Run a scenario that is loaded already; as `run_scenario`."""
    started = time.perf_counter()
    scenario = loaded.scenario
    arms = build_arms(loaded)
    profiles = list(dict.fromkeys(path for arm in arms.values() for path in arm.profiles))
    digest = scenario_hash(scenario, profiles)
    folder = loaded.path.parent.resolve()
    require_writable(out)
    directory = out / digest[:12]
    tasks = [
        PointTask(scenario, folder, policy, concurrency)
        for policy in scenario.policies
        for concurrency in _loads(scenario)
    ]
    results: list[PointResult | None] = [None] * len(tasks)

    def store(status: str) -> RunResult:
        done = [result for result in results if result is not None]
        summary = summary_of(scenario, arms, done) | {"hash": digest, "status": status}
        rows = next(iter(arms.values())).workload.report
        if rows is not None:
            summary["workload_rows"] = rows.lines()
        manifest = {
            "status": status,
            "points": {"done": len(done), "of": len(tasks)},
            "specsim": specsim.__version__,
            "hash": digest,
            "scenario": scenario.model_dump_json(),
            "scenario_file": loaded.path.name,
            "overrides": list(loaded.overrides),
            "profiles": [path.name for path in profiles],
            "seed": scenario.seed,
            "wall_s": round(time.perf_counter() - started, 3),
            "jobs": jobs,
        }
        write_run(
            directory,
            manifest=manifest,
            summary=summary,
            tables={
                "requests": [(r.policy, r.concurrency, r.requests) for r in done if r.requests],
                "steps": [(r.policy, r.concurrency, r.steps) for r in done if r.steps],
            },
            files=_pictures(summary) if status == "complete" else {},
        )
        return RunResult(summary, directory)

    executor = make_executor(min(jobs, len(tasks)))
    # The slowest points (many requests) first, so that no process is left with one at the end.
    order = sorted(range(len(tasks)), key=lambda i: -(tasks[i].concurrency or 0))
    try:
        for n, (index, result) in enumerate(
            run_tasks(executor, run_point, [tasks[i] for i in order]), start=1
        ):
            results[order[index]] = result
            if progress is not None:
                progress(n, len(tasks), f"{result.policy} at {result.concurrency or 'its load'}")
    except KeyboardInterrupt:
        executor.shutdown(wait=False, cancel_futures=True)
        if not is_complete(directory):
            store("incomplete")
        raise
    finally:
        # Waiting ends the processes, so that their memory is free before the run is written.
        executor.shutdown(wait=True, cancel_futures=True)
    return store("complete")


def _loads(scenario: Scenario) -> Sequence[int | None]:
    match scenario.question:
        case FrontierQuestion(concurrency=grid):
            return grid
        case PointQuestion(concurrency=users):
            return [users]
    raise AssertionError(f"unknown question {scenario.question!r}")


def _pictures(summary: dict[str, Any]) -> dict[str, bytes]:
    if summary["question"]["kind"] != "frontier":
        return {}
    from specsim.report.figures import frontier_files  # matplotlib is slow to import

    files: dict[str, bytes] = frontier_files(summary)
    return files
