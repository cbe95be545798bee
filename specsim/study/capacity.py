"""`specsim capacity`: the largest load that holds an SLO, in as few runs as it takes.

The load is the users a rank (closed loop, whole numbers) or the arrival rate. Every load is run
under the same seeds, so that two loads differ by the load and not by luck. The search keeps a load
that holds and one that does not, and tries the one where the line between their margins crosses 0
(regula falsi with the Illinois rule, on the logarithm of the load), or the middle where that is no
help. It assumes that an SLO which fails at one load fails at every larger one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specsim.errors import InputError, nearest
from specsim.scenario.check import build_arms
from specsim.scenario.load import load_scenario
from specsim.scenario.locate import find_scenario
from specsim.scenario.schema import Scenario
from specsim.stats.intervals import mean_interval
from specsim.study.executor import Place, run_tasks
from specsim.study.run import PointTask, run_point
from specsim.study.slo import Evidence, Judgement, Slo, evidence, judge, parse_slo
from specsim.workload.arrivals import ClosedLoopConfig

Progress = Callable[[int, int, str], None]
RESOLUTION = 0.01
"""The answer is within this share of the largest load that holds (and within one user)."""
_MOST = 40
_Judge = Callable[[float], tuple[Judgement, Sequence[float]]]


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a search.

    Attributes:
        load: the largest load known to hold; None if the least one asked does not.
        fails_at: the least load known to fail; None if the largest asked holds.
        evaluations: loads that were tried.
        margins_low, margins_high: margins by seed at `load` and at `fails_at`.
    """

    load: float | None
    fails_at: float | None
    evaluations: int
    margins_low: Sequence[float] = ()
    margins_high: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class _LoadTask:
    point: PointTask
    slo: Slo


def search(
    at: _Judge, *, low: float, high: float, whole: bool, resolution: float = RESOLUTION
) -> Found:
    """Find the largest load in `[low, high]` that holds.

    Args:
        at: judges a load; returns margins by seed too.
        low, high: where to look; both are tried.
        whole: whether loads are whole numbers.
        resolution: how close to come, as a share of the load.
    """
    tries = 1
    first, seeds_low = at(low)
    if not first.holds:
        return Found(None, low, tries, (), seeds_low)
    if low >= high:
        return Found(low, None, tries, seeds_low)
    tries += 1
    last, seeds_high = at(high)
    if last.holds:
        return Found(high, None, tries, seeds_high)
    below, above = first.margin, last.margin
    kept = 0  # how often the same end stayed, for the Illinois rule
    halve = False
    while high / low > 1 + resolution and not (whole and high - low <= 1) and tries < _MOST:
        width = high / low
        share = 0.5 if halve else below / (below - above)
        middle = _between(low, high, share, whole=whole)
        found, seeds = at(middle)
        tries += 1
        if found.holds:
            low, seeds_low, below = middle, seeds, found.margin
            above = above / 2 if kept > 0 else above
            kept = max(1, kept + 1)
        else:
            high, seeds_high, above = middle, seeds, found.margin
            below = below / 2 if kept < 0 else below
            kept = min(-1, kept - 1)
        # A guess that took off less than half is followed by one that takes off half.
        halve = not halve and math.log(high / low) > 0.5 * math.log(width)
    return Found(low, high, tries, seeds_low, seeds_high)


def _between(low: float, high: float, share: float, *, whole: bool) -> float:
    # Never so close to an end that a wrong guess leaves the bracket as wide as it was.
    share = min(max(share, 0.04), 0.96)
    middle = math.exp(math.log(low) + share * math.log(high / low))
    if whole:
        return float(min(max(round(middle), math.floor(low) + 1), math.ceil(high) - 1))
    return middle


def capacity(
    scenario_path_or_name: str,
    slo_texts: Sequence[str],
    *,
    overrides: Sequence[str] = (),
    policies: Sequence[str] = (),
    low: float | None = None,
    high: float | None = None,
    replications: int = 3,
    place: Place,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Find every policy's capacity under an SLO.

    Args:
        scenario_path_or_name: the scenario; its question is not asked.
        slo_texts: terms of the SLO, see `slo`.
        overrides: `a.b=value` each.
        policies: which; all if empty.
        low: least load; 1 user, or a hundredth of the scenario's rate.
        high: largest; the cap on requests, or a hundred times the scenario's rate.
        replications: seeds of each load.
        place: where runs run.
        progress: told of every load tried.

    Returns:
        `slo`, `load` (users or rate), `policies`: for each `capacity`, `holds_to` and `fails_at`
        (the bracket), `ci95` (over seeds), `settled`, `why`, `evaluations` and `runs`.

    Raises:
        SpecsimError: the scenario or the SLO is wrong.
    """
    slo = parse_slo(slo_texts)
    loaded = load_scenario(find_scenario(scenario_path_or_name), overrides=overrides)
    scenario = loaded.scenario
    build_arms(loaded)
    for name in policies:
        if name not in scenario.policies:
            close = nearest(name, scenario.policies)
            raise InputError(
                f'no policy "{name}"{"; " + close if close else ""}; legal are '
                f"{', '.join(scenario.policies)}"
            )
    whole = isinstance(scenario.workload.arrivals, ClosedLoopConfig)
    if not whole and not hasattr(scenario.workload.arrivals, "rate_per_s"):
        raise InputError(
            f'workload.arrivals: "{scenario.workload.arrivals.kind}" has no rate to vary; '
            "capacity needs closed_loop arrivals, or ones with rate_per_s"
        )
    low, high = _range(scenario, low, high, whole=whole)
    folder = loaded.path.parent.resolve()
    executor = place.make()
    answers = {}
    try:
        for name in policies or list(scenario.policies):
            answers[name] = _one_policy(
                scenario,
                name,
                slo,
                folder,
                executor,
                low=low,
                high=high,
                whole=whole,
                replications=replications,
                progress=progress,
            )
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
    return {
        "scenario": scenario.name,
        "slo": slo.text,
        "load": "users a rank" if whole else "requests a second over the cluster",
        "gpus": scenario.cluster.ranks * scenario.cluster.gpus_per_rank,
        "seeds": replications,
        "asked": [low, high],
        "policies": answers,
    }


def _range(
    scenario: Scenario, low: float | None, high: float | None, *, whole: bool
) -> tuple[float, float]:
    for load in (low, high):
        if load is not None and not 0 < load < math.inf:
            raise InputError(f"the loads to look at go from --low to --high; {load:g} is no load")
    if whole:
        cap = scenario.cluster.max_requests_per_rank
        least, most = low or 1.0, high or float(cap)
        if most > cap:
            raise InputError(
                f"--high {most:g} is more than cluster.max_requests_per_rank = {cap}; the others "
                "would only wait"
            )
        least, most = float(round(least)), float(round(most))
    else:
        rate = float(scenario.workload.arrivals.rate_per_s)  # type: ignore[attr-defined]
        least, most = low or rate / 100, high or rate * 100
    if not 0 < least <= most:
        raise InputError(f"the loads go from {least:g} to {most:g}; 0 < low <= high is needed")
    return least, most


def _one_policy(
    scenario: Scenario,
    policy: str,
    slo: Slo,
    folder: Path,
    executor: Executor,
    *,
    low: float,
    high: float,
    whole: bool,
    replications: int,
    progress: Progress | None,
) -> dict[str, Any]:
    tried: dict[float, Judgement] = {}

    def at(load: float) -> tuple[Judgement, Sequence[float]]:
        tasks = [
            _LoadTask(point_at(scenario, policy, folder, load, seed=scenario.seed + n), slo)
            for n in range(replications)
        ]
        runs: list[Evidence | None] = [None] * replications
        for index, found in run_tasks(executor, _evidence_of, tasks):
            runs[index] = found
        known = [run for run in runs if run is not None]
        tried[load] = judge(slo, known)
        if progress is not None:
            verdict = "holds" if tried[load].holds else "fails"
            progress(len(tried), 0, f"{policy}: {load:g} {verdict}")
        return tried[load], [judge(slo, [run]).margin for run in known]

    found = search(at, low=low, high=high, whole=whole)
    decided = tried[found.load if found.load is not None else low]
    return {
        "capacity": found.load,
        "holds_to": found.load,
        "fails_at": found.fails_at,
        "ci95": _interval(found),
        "settled": decided.settled and (found.fails_at is None or tried[found.fails_at].settled),
        "why": tried[found.fails_at].why if found.fails_at is not None else "the largest asked",
        "evaluations": found.evaluations,
        "runs": found.evaluations * replications,
        "tried": [
            {"load": load, "holds": j.holds, "settled": j.settled, "margin": j.margin, "why": j.why}
            for load, j in sorted(tried.items())
        ],
    }


def point_at(scenario: Scenario, policy: str, folder: Path, load: float, *, seed: int) -> PointTask:
    """Return the point of one policy under one load and seed."""
    # Percentiles over requests are judged by the requests themselves.
    seeded = scenario.model_copy(update={"seed": seed, "record": "requests"})
    if isinstance(scenario.workload.arrivals, ClosedLoopConfig):
        return PointTask(seeded, folder, policy, int(load))
    arrivals = scenario.workload.arrivals.model_copy(update={"rate_per_s": load})
    workload = scenario.workload.model_copy(update={"arrivals": arrivals})
    return PointTask(seeded.model_copy(update={"workload": workload}), folder, policy, None)


def _evidence_of(task: _LoadTask) -> Evidence:
    result = run_point(task.point)
    assert isinstance(result.requests, dict), "see point_at, which gives no place for a file"
    from_s = result.metrics.get("warmup_s") or 0.0
    return evidence(task.slo, result.metrics, result.requests, from_s=from_s)


def _interval(found: Found) -> list[float] | None:
    """Return a 95 % interval of the capacity from where each seed's own margin crosses 0."""
    if found.load is None or found.fails_at is None or len(found.margins_low) < 2:
        return None
    low_N, high_N = np.array(found.margins_low), np.array(found.margins_high)
    fall_N = low_N - high_N
    usable = fall_N > 1e-9
    if usable.sum() < 2:
        return None
    width = found.fails_at - found.load
    cross_N = found.load + width * low_N[usable] / fall_N[usable]
    interval = mean_interval(cross_N)
    return [interval.mean - interval.half_width, interval.mean + interval.half_width]
