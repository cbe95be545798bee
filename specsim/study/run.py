"""`specsim run`: every policy of a scenario under every load of its question."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import specsim
from specsim.engine.run import RunColumns, run
from specsim.metrics.account import account
from specsim.metrics.catalog import measure, summarise
from specsim.metrics.record import Bounded
from specsim.report.loads import load_name
from specsim.scenario.build import build_arm, profiles_of, run_input
from specsim.scenario.check import build_arms
from specsim.scenario.load import LoadedScenario, load_scenario, scenario_hash
from specsim.scenario.locate import find_scenario
from specsim.scenario.schema import FrontierQuestion, PointQuestion, Scenario
from specsim.study.answer import summary_of
from specsim.study.executor import make_executor, run_tasks
from specsim.study.folder import require_writable, scratch
from specsim.study.shares import time_parts, time_shares
from specsim.study.store import TABLES, Rows, Spool, is_complete, write_run
from specsim.workload.arrivals import BatchConfig

Progress = Callable[[int, int, str], None]
"""Told `(done, total, what)` after every finished point."""


@dataclass(frozen=True, slots=True)
class PointTask:
    """One policy under one load.

    Attributes:
        scenario: the scenario.
        folder: where the names of its files start.
        policy: the policy's name.
        concurrency: closed-loop users a rank, or None.
        spool: a folder for what the scenario records and is too much to keep; None if
            nobody wants it.
    """

    scenario: Scenario
    folder: Path
    policy: str
    concurrency: int | None
    spool: Path | None = None


@dataclass(frozen=True, slots=True)
class PointResult:
    """What one point gave.

    Attributes:
        policy: the policy's name.
        concurrency: closed-loop users a rank, or None.
        metrics: `metrics.catalog.summarise` of the measured window.
        position_acceptance: share of all request-steps that accepted at least 1, 2, .. gamma
            drafts; None without drafts.
        requests: the ledger, or the file that it was too long for; None if the scenario does not
            record it.
        steps: the step log, likewise.
        ended: why the run ended.
        findings: what a reader must know: ranks that died, preemption spirals, starvation.
    """

    policy: str
    concurrency: int | None
    metrics: dict[str, float | None]
    position_acceptance: list[float] | None
    requests: Rows | None
    steps: Rows | None
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
    spool = Spool(task.spool)
    recorded = {"requests": scenario.record != "none", "steps": scenario.record == "steps"}
    keep = Bounded(
        priced=lambda steps: time_parts(steps, arm.cost),
        steps=spool.sink("steps") if recorded["steps"] else None,
        requests=spool.sink("requests") if recorded["requests"] else None,
    )
    try:
        out = run(replace(run_input(scenario, arm, concurrency=task.concurrency), record=keep))
    finally:
        files = spool.close()
    window = measure(
        steps=out.steps,
        requests=out.requests,
        end_s=out.end_s,
        ranks=scenario.cluster.ranks,
        gpus_per_rank=scenario.cluster.gpus_per_rank,
        cut_warmup=not isinstance(scenario.workload.arrivals, BatchConfig),
        requests_each=out.requests_each,
    )
    metrics = summarise(window) | time_shares(window, arm.cost)
    metrics |= account(out.request_counts, out.steps)
    forward_T = out.steps.get("forward_tokens", out.steps["num_requests"] + out.steps["verified"])
    metrics["longest_forward_tokens"] = float(forward_T.max(initial=0))
    if isinstance(scenario.workload.arrivals, BatchConfig):
        metrics["makespan_s"] = out.end_s
    return PointResult(
        task.policy,
        task.concurrency,
        metrics,
        _position_acceptance(out.rounds_K),
        files.get("requests", out.requests) if recorded["requests"] else None,
        files.get("steps", out.steps) if recorded["steps"] else None,
        out.ended,
        (*out.findings, *_kept(out)),
    )


def _position_acceptance(rounds_K: NDArray[np.int64]) -> list[float] | None:
    at_least_K = rounds_K[::-1].cumsum()[::-1]
    if at_least_K[0] == 0 or len(rounds_K) == 1:
        return None
    return [float(share) for share in at_least_K[1:] / at_least_K[0]]


def _kept(out: RunColumns) -> Iterator[str]:
    """Say what of a long run was not kept as it was."""
    if out.steps_each > 1:
        yield (
            f"long run: sums over {out.steps_each} steps were kept, and one gap between chunks of "
            "each"
        )
    if out.requests_each > 1:
        yield (
            f"long run: one request in {out.requests_each:.0f} was kept; latencies, mean_waiting "
            f"and requests_finished are estimated from these {len(out.requests['request'])}"
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
    profiles = profiles_of(arms.values())
    digest = scenario_hash(scenario, profiles)
    folder = loaded.path.parent.resolve()
    require_writable(out)
    directory = out / digest[:12]
    with scratch(directory) as spool:
        tasks = [
            PointTask(scenario, folder, policy, concurrency, spool)
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
                    name: [
                        (r.policy, r.concurrency, rows)
                        for r in done
                        if (rows := getattr(r, name)) is not None
                    ]
                    for name in TABLES
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
                    progress(n, len(tasks), f"{result.policy} at {load_name(result.concurrency)}")
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
