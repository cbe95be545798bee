"""`specsim sweep`: every point of a study, once, in one table.

    runs/points/<2 digits>/<key>.parquet    finished points, shared by all studies
    runs/<study>-<12 digits>/               manifest.json, summary.json, table.parquet, table.csv

The table depends on the study alone: not on how often it was interrupted, on how many processes or
which machines ran it, or on the order in which points ended.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import specsim
from specsim.errors import InputError, SpecsimError
from specsim.report.loads import at_loads
from specsim.stats.intervals import mean_interval
from specsim.study.executor import Place, settle_tasks
from specsim.study.folder import recover, write_folder
from specsim.study.grid import Point, Study, load_study
from specsim.study.points import StoredPoint, read_shard, run_stored, stored_point, variant_text
from specsim.study.run import PointTask
from specsim.study.store import to_json

Progress = Callable[[int, int, str], None]
POINTS = "points"
_LABELS = ("point", "status", "error", "policy", "concurrency", "replication", "seed")


@dataclass(frozen=True, slots=True)
class SweepResult:
    """A finished sweep.

    Attributes:
        directory: where it is stored.
        summary: what `summary.json` holds.
        table: one row a point.
        ran: points that were run now; the others were found.
    """

    directory: Path
    summary: dict[str, Any]
    table: pd.DataFrame
    ran: int


def run_sweep(
    study_path: Path,
    *,
    out: Path,
    place: Place,
    retry_failed: bool = False,
    progress: Progress | None = None,
) -> SweepResult:
    """Run what is missing of a study and write its table.

    Args:
        study_path: the study's file.
        out: folder of run directories and of the shared points.
        place: where points run.
        retry_failed: run points again that failed before.
        progress: told `(done, total, what)`; what was found on disk counts as done.

    Raises:
        SpecsimError: the study is wrong, or the place cannot be written.
        KeyboardInterrupt: interrupted; finished points stay, and the next run goes on from them.
    """
    started = time.perf_counter()
    study = load_study(study_path)
    store = (out / POINTS).resolve()
    stored: dict[int, StoredPoint] = {}
    errors: dict[int, str] = {}
    for point in study.points:
        if point.scenario is None:
            errors[point.index] = point.error
            continue
        task = PointTask(point.scenario, study.folder, point.policy, point.concurrency)
        try:
            stored[point.index] = stored_point(task, store=store)
        except SpecsimError as error:
            errors[point.index] = str(error)
    if errors and not stored:
        raise InputError(next(iter(errors.values())))
    missing = _missing(stored, retry_failed=retry_failed)
    done, total = len(study.points) - len(missing), len(study.points)
    if progress is not None:
        progress(done, total, "found on disk")
    for settled in settle_tasks(place, run_stored, list(missing.values())):
        done += 1
        first = list(missing)[settled.index]
        if settled.error is not None:
            if isinstance(settled.error, SpecsimError):
                raise settled.error
            errors[first] = f"{type(settled.error).__name__}: {settled.error}"
        if progress is not None:
            progress(done, total, _what(study.points[first]))
    table = _table(study, stored, errors)
    digest = _digest(study, stored)
    directory = out / f"{study.config.name}-{digest[:12]}"
    summary = summary_of(study, table) | {"hash": digest}
    manifest = {
        "study": study.path.name,
        "scenario_file": study.scenario.name,
        "specsim": specsim.__version__,
        "config": study.config.model_dump(mode="json"),
        "points": len(study.points),
        "ran_now": len(missing),
        "wall_s": round(time.perf_counter() - started, 3),
        "jobs": place.jobs,
        "cluster": place.scheduler is not None,
        "keys": [stored[i].key if i in stored else None for i in range(len(study.points))],
    }
    _write(directory, manifest=manifest, summary=summary, table=table)
    return SweepResult(directory, summary, table, len(missing))


def _missing(stored: Mapping[int, StoredPoint], *, retry_failed: bool) -> dict[int, StoredPoint]:
    """Return the points to run, each key once, the largest loads first."""
    first: dict[str, int] = {}
    for index, point in stored.items():
        first.setdefault(point.key, index)
    wanted = {}
    for index in first.values():
        point = stored[index]
        found = read_shard(point.shard) if point.shard.exists() else None
        if found is not None and found.status == "failed" and retry_failed:
            point.shard.unlink(missing_ok=True)
            found = None
        if found is None:
            wanted[index] = point
    order = sorted(wanted, key=lambda i: (-(wanted[i].task.concurrency or 0), i))
    return {index: wanted[index] for index in order}


def _what(point: Point) -> str:
    load = f" {at}" if (at := at_loads([point.concurrency])) else ""
    return f"{point.policy}{load}, seed {point.scenario.seed if point.scenario else '-'}"


def _table(
    study: Study, stored: Mapping[int, StoredPoint], errors: Mapping[int, str]
) -> pd.DataFrame:
    rows = []
    for point in study.points:
        row: dict[str, Any] = {
            "point": point.index,
            "status": "failed",
            "error": errors.get(point.index, ""),
            "policy": point.policy,
            "concurrency": point.concurrency,
            "replication": point.replication,
            "seed": None if point.scenario is None else point.scenario.seed,
        }
        row |= {path: _cell(point.variant.get(path)) for path in study.axes}
        found = read_shard(stored[point.index].shard) if point.index in stored else None
        if found is not None:
            row |= {"status": found.status, "error": found.error} | found.metrics
        elif not row["error"]:
            row["error"] = "its process died"
        rows.append(row)
    table = pd.DataFrame(rows)
    whole = table.columns.intersection(["concurrency", "seed", "replication"])
    return table.astype(dict.fromkeys(whole, "Int64"))


def _cell(value: Any) -> Any:
    """Write a value of an axis so that a column has one type of it."""
    return variant_text(value) if isinstance(value, dict | list) else value


def _digest(study: Study, stored: Mapping[int, StoredPoint]) -> str:
    digest = hashlib.sha256(study.config.model_dump_json().encode())
    for index in range(len(study.points)):
        digest.update(stored[index].key.encode() if index in stored else b"-")
    return digest.hexdigest()


def summary_of(study: Study, table: pd.DataFrame) -> dict[str, Any]:
    """Put together what a study's `summary.json` holds.

    `rows` has one record for each variant, policy and load: the mean of every shown metric over its
    seeds, and `<metric>_ci95`, the half-width of the t interval over them (for one seed that of the
    run itself, where it has one).
    """
    shown = [name for name in study.config.metrics if name in table.columns]
    unknown = sorted(set(study.config.metrics) - set(shown))
    good = table[table["status"] == "ok"]
    by = [*study.axes, "policy", "concurrency"]
    rows = []
    for keys, group in good.groupby(by, dropna=False, sort=False):
        record: dict[str, Any] = {
            name: None if pd.Series([key]).isna().item() else _plain(key)
            for name, key in zip(by, keys, strict=True)
        }
        record["seeds"] = len(group)
        for metric in shown:
            record |= _over_seeds(metric, group)
        rows.append(record)
    failed = table[table["status"] != "ok"]
    counts = failed["error"].value_counts(sort=False)
    return {
        "study": study.config.name,
        "description": study.config.description,
        "scenario_file": study.scenario.name,
        "axes": list(study.axes),
        "metrics": shown,
        "points": len(table),
        "failed": len(failed),
        "failures": [{"error": str(text), "points": int(n)} for text, n in counts.items()],
        "warnings": [f'no metric "{name}"' for name in unknown],
        "rows": rows,
    }


def _over_seeds(metric: str, group: pd.DataFrame) -> dict[str, float | None]:
    sample_N = group[metric].dropna().to_numpy(np.float64)
    if len(sample_N) == 0:
        return {metric: None, f"{metric}_ci95": None}
    found = mean_interval(sample_N)
    half = found.half_width
    own = f"{metric}_ci95"
    if len(sample_N) == 1 and own in group.columns:
        half = float(group[own].astype(np.float64).iloc[0])
    return {metric: found.mean, own: half if np.isfinite(half) else None}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _write(
    directory: Path,
    *,
    manifest: Mapping[str, Any],
    summary: Mapping[str, Any],
    table: pd.DataFrame,
) -> None:

    def fill(partial: Path) -> None:
        (partial / "manifest.json").write_text(to_json(manifest), encoding="utf-8")
        (partial / "summary.json").write_text(to_json(summary), encoding="utf-8")
        table.to_parquet(partial / "table.parquet", index=False)
        table.to_csv(partial / "table.csv", index=False, float_format="%.10g")

    write_folder(directory, fill, what="study")


def read_table(directory: Path) -> pd.DataFrame:
    """Return the table of a stored study.

    Raises:
        InputError: there is none.
    """
    recover(directory)
    path = directory / "table.parquet"
    if not path.is_file():
        raise InputError(f"{directory}: holds no study (table.parquet is missing)")
    return pd.read_parquet(path)


def axis_values(summary: Mapping[str, Any], axis: str) -> Sequence[Any]:
    """Return the values that an axis takes, in the order in which they first appear."""
    return list({json.dumps(row[axis]): row[axis] for row in summary["rows"]}.values())
