"""`specsim tune`: search a policy's parameters for the most throughput under an SLO.

The searcher is Optuna's TPE with the scenario's seed, so the same study gives the same trials. Each
trial is one variant of the scenario, found on disk if it was run before. The value of a frontier
question is the throughput at its headline SLO; of a point question the throughput, where the user's
speed holds the SLO. A trial that misses the SLO is worth its shortfall below 0, so that the search
knows which way is out.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specsim.errors import InputError, MissingDependencyError, SpecsimError, nearest
from specsim.jsontext import read_json
from specsim.report.pareto import frontier
from specsim.scenario.load import validate
from specsim.scenario.locate import find_scenario
from specsim.scenario.schema import FrontierQuestion, Scenario
from specsim.scenario.source import Source, read
from specsim.study.executor import Place, settle_tasks
from specsim.study.grid import Range
from specsim.study.points import read_shard, run_stored, stored_point
from specsim.study.run import PointTask
from specsim.study.sweep import POINTS

Progress = Callable[[int, int, str], None]
Choice = Sequence[Any]
Space = Mapping[str, Range | Choice]


def parse_space(texts: Sequence[str]) -> dict[str, Range | Choice]:
    """Read `path=low:high`, `path=low:high:log`, `path=low:high:int`, or `path=a,b,c`.

    Raises:
        InputError: a text is none of these.
    """
    space: dict[str, Range | Choice] = {}
    for text in texts:
        path, equals, rest = text.partition("=")
        parts = rest.split(":")
        if not equals or not rest or not path.strip():
            raise InputError(_form(text))
        if len(parts) == 1:
            space[path] = [_value(part) for part in rest.split(",")]
            continue
        flags = set(parts[2:])
        if len(parts) > 4 or flags - {"log", "int"}:
            raise InputError(_form(text))
        try:
            low, high = float(parts[0]), float(parts[1])
        except ValueError as error:
            raise InputError(_form(text)) from error
        if not math.isfinite(low - high):
            raise InputError(f'"{text}": both ends must be finite')
        if not low < high or ("log" in flags and low <= 0):
            raise InputError(f'"{text}": low < high is needed, and above 0 for log')
        scale = "log" if "log" in flags else "linear"
        space[path] = Range(low=low, high=high, scale=scale, whole="int" in flags)
    if not space:
        raise InputError(
            "nothing to search; say for example --search policies.threshold.scheduler."
            "threshold=0.1:0.9"
        )
    return space


def _form(text: str) -> str:
    return f'"{text}": write path=low:high, path=low:high:log, path=low:high:int or path=a,b,c'


def _value(text: str) -> Any:
    value, problem = read_json(text, where="")
    return text if problem is not None else value


def tune(
    scenario_path_or_name: str,
    policy: str,
    space: Space,
    *,
    slo_tok_s_user: float | None = None,
    trials: int,
    overrides: Sequence[str] = (),
    out: Path,
    place: Place,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Search, and return the best trial and all others.

    Args:
        scenario_path_or_name: the scenario.
        policy: whose throughput counts; the paths searched may be of anything.
        space: what to vary.
        slo_tok_s_user: least speed of one user; a frontier's headline SLO if None.
        trials: how many.
        overrides: `a.b=value` each, under the searched values.
        out: folder of run directories, whose points are shared with sweeps.
        place: where points run.
        progress: told of every trial.

    Raises:
        MissingDependencyError: Optuna is not installed.
        SpecsimError: the scenario, the policy or a path is wrong (in every trial).
    """
    try:
        import optuna
    except ImportError as error:
        raise MissingDependencyError(
            'tuning needs the package optuna; install "specsim-serving[tune]"'
        ) from error
    file = find_scenario(scenario_path_or_name)
    base = read(file)
    for text in overrides:
        base.override(text)
    start = validate(copy.deepcopy(base))
    if policy not in start.policies:
        close = nearest(policy, start.policies)
        raise InputError(
            f'no policy "{policy}"{"; " + close if close else ""}; legal are '
            f"{', '.join(start.policies)}"
        )
    slo = slo_tok_s_user
    if slo is None:
        if not isinstance(start.question, FrontierQuestion):
            raise InputError("a point question has no SLO of its own; give --slo")
        slo = start.question.headline_slo
    folder = file.parent.resolve()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=start.seed)
    )
    records: list[dict[str, Any]] = []
    for number in range(trials):
        trial = study.ask()
        values = {path: _suggest(trial, path, axis) for path, axis in space.items()}
        record = _trial(base, values, policy, slo, folder, out, place)
        records.append({"trial": number, "values": values, **record})
        if record["value"] is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, record["value"])
        if progress is not None:
            said = record["tok_s_gpu"]
            progress(number + 1, trials, "-" if said is None else f"{said:,.0f} tok/s/GPU")
    known = [r for r in records if r["value"] is not None]
    if not known:
        raise InputError(f"every trial failed; the first: {records[0]['error']}")
    best = max(known, key=lambda r: (r["value"], -r["trial"]))
    return {
        "scenario": start.name,
        "policy": policy,
        "slo_tok_s_user": slo,
        "best": best,
        "holds_slo": best["value"] >= 0,
        "as_it_was": _trial(base, {}, policy, slo, folder, out, place),
        "trials": records,
    }


def _suggest(trial: Any, path: str, axis: Range | Choice) -> Any:
    if not isinstance(axis, Range):
        return trial.suggest_categorical(path, list(axis))
    log = axis.scale == "log"
    if axis.whole:
        return trial.suggest_int(path, round(axis.low), round(axis.high), log=log)
    return float(f"{trial.suggest_float(path, axis.low, axis.high, log=log):.6g}")


def _trial(
    base: Source,
    values: Mapping[str, Any],
    policy: str,
    slo: float,
    folder: Path,
    out: Path,
    place: Place,
) -> dict[str, Any]:
    nothing: dict[str, Any] = {"value": None, "tok_s_gpu": None, "tok_s_user": None}
    try:
        source = copy.deepcopy(base)
        for path, value in values.items():
            source.override(f"{path}={json.dumps(value)}")
        scenario = validate(source)
        stored = [
            stored_point(PointTask(scenario, folder, policy, load), store=(out / POINTS).resolve())
            for load in _loads(scenario)
        ]
    except SpecsimError as error:
        return nothing | {"error": str(error)}
    missing = [point for point in stored if read_shard(point.shard) is None]
    for settled in settle_tasks(place, run_stored, missing):
        if settled.error is not None:
            return nothing | {"error": f"{type(settled.error).__name__}: {settled.error}"}
    rows = []
    for point in stored:
        found = read_shard(point.shard)
        if found is None or found.status != "ok":
            return nothing | {"error": found.error if found else "its process died"}
        rows.append({"concurrency": point.task.concurrency, **found.metrics})
    return _worth(rows, slo, scenario) | {"error": ""}


def _loads(scenario: Scenario) -> Sequence[int | None]:
    question = scenario.question
    if isinstance(question, FrontierQuestion):
        return question.concurrency
    return [question.concurrency]


def _worth(rows: list[dict[str, Any]], slo: float, scenario: Scenario) -> dict[str, Any]:
    """Return what a trial is worth: throughput under the SLO, or the shortfall below 0."""
    if isinstance(scenario.question, FrontierQuestion):
        line = frontier("trial", rows)
        cut = line.throughput_at(slo)
        if cut.value is not None:
            return {"value": cut.value, "tok_s_gpu": cut.value, "tok_s_user": slo}
        if len(line.rows) and line.speed_P[0] > slo:
            # Faster than asked under every load: at least its heaviest load's throughput.
            best, speed = float(line.throughput_P[0]), float(line.speed_P[0])
            return {"value": best, "tok_s_gpu": best, "tok_s_user": speed}
        speed = float(line.speed_P[-1]) if len(line.rows) else 0.0
        return {"value": speed / slo - 1, "tok_s_gpu": None, "tok_s_user": speed}
    total, own = rows[0].get("tok_s_gpu"), rows[0].get("tok_s_user")
    if total is None or own is None:
        return {"value": -1.0, "tok_s_gpu": None, "tok_s_user": own}
    value = total if own >= slo else own / slo - 1
    return {"value": value, "tok_s_gpu": total, "tok_s_user": own}
