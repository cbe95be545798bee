"""Finished points on disk, found again by what they were made of.

A point's key is a digest of its scenario (this policy, this load and this seed alone), of every
file that it reads, and of the code that decides its numbers. Its shard is one Parquet row, written
by the process that ran it and never seen by the one that waits: a sweep on a cluster moves no
results through its scheduler, and a killed sweep finds what it had finished.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import specsim
from specsim.engine.config import DisaggregatedPrefillConfig
from specsim.errors import InputError, SpecsimError
from specsim.scenario.build import Recorder, build_arm
from specsim.scenario.load import canonical_json
from specsim.scenario.locate import Locator
from specsim.scenario.schema import PointQuestion, Scenario, WorkloadConfig
from specsim.scenario.workload import build_workload
from specsim.schedulers import UserConfig
from specsim.study.run import PointTask, run_point

_DECIDING = ("acceptance", "cost", "engine", "metrics", "schedulers", "stats", "workload")
_LABELS = ("key", "status", "error")


@dataclass(frozen=True, slots=True)
class StoredPoint:
    """A point to run and where its shard goes.

    Attributes:
        task: the point.
        key: its digest.
        store: folder of shards, the same for every process.
    """

    task: PointTask
    key: str
    store: Path

    @property
    def shard(self) -> Path:
        """The point's file."""
        return self.store / self.key[:2] / f"{self.key}.parquet"


@dataclass(frozen=True, slots=True)
class Finished:
    """What a shard says.

    Attributes:
        status: `ok` or `failed`.
        error: why it failed; empty otherwise.
        metrics: by name, None where one does not exist.
    """

    status: str
    error: str
    metrics: dict[str, float | None]


def stored_point(task: PointTask, *, store: Path) -> StoredPoint:
    """Find the key of a point.

    Raises:
        InputError: a file that it reads is missing.
    """
    alone = lone_scenario(task)
    digest = hashlib.sha256(canonical_json(alone).encode())
    for path in _inputs(alone, task.policy, task.folder):
        digest.update(_file_digest(path.resolve(), path.stat().st_mtime_ns, path.stat().st_size))
    digest.update(_code_digest().encode())
    return StoredPoint(task, digest.hexdigest()[:32], store)


def lone_scenario(task: PointTask) -> Scenario:
    """Return the scenario without what this point does not read: other policies, other loads.

    Its name and description go too, so that the same point of two studies is run once.
    """
    return task.scenario.model_copy(
        update={
            "name": "point",
            "description": "",
            "policies": {task.policy: task.scenario.policies[task.policy]},
            "question": PointQuestion(kind="point", concurrency=task.concurrency),
        }
    )


def run_stored(point: StoredPoint) -> str:
    """Run a point unless its shard is there, and write the shard; return its status.

    Whatever the point raises is written down as its failure; only being unable to write is raised.

    Raises:
        InputError: the shard cannot be written.
    """
    found = read_shard(point.shard)
    if found is not None:
        return found.status
    try:
        metrics = dict(run_point(point.task).metrics)
        finished = Finished("ok", "", metrics)
    except SpecsimError as error:
        finished = Finished("failed", str(error), {})
    except Exception as error:
        finished = Finished("failed", f"{type(error).__name__}: {error}", {})
    _write_shard(point, finished)
    return finished.status


def read_shard(path: Path) -> Finished | None:
    """Return what a shard says; None if it is missing or torn."""
    try:
        row = pq.read_table(path, partitioning=None).to_pylist()[0]
    except (OSError, pa.ArrowInvalid, IndexError):
        return None
    metrics = {name: value for name, value in row.items() if name not in _LABELS}
    return Finished(row["status"], row["error"], metrics)


def _write_shard(point: StoredPoint, finished: Finished) -> None:
    labels = {"key": point.key, "status": finished.status, "error": finished.error}
    columns = {name: pa.array([value], pa.string()) for name, value in labels.items()}
    columns |= {name: pa.array([value], pa.float64()) for name, value in finished.metrics.items()}
    path = point.shard
    partial = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), partial)
        partial.replace(path)
    except OSError as error:
        raise InputError(
            f"{path}: a point cannot be written: {error.strerror or error}; choose another place "
            "with --out"
        ) from error


def _inputs(scenario: Scenario, policy: str, folder: Path) -> Iterable[Path]:
    """Name every file that a point reads, without building it where the names say enough."""
    config = scenario.policies[policy]
    acceptance = config.acceptance or scenario.acceptance
    locate = Locator(folder)
    workload = scenario.workload
    yield from _workload_files(workload.model_dump_json(), type(workload), folder, Path.cwd())
    if isinstance(config.scheduler, UserConfig):
        yield config.scheduler.module_file()
    prefill = scenario.cluster.prefill
    if isinstance(prefill, DisaggregatedPrefillConfig) and prefill.cost is not None:
        yield locate("steps", prefill.cost.table)
    if acceptance.kind == "trace":
        yield locate("traces", str(acceptance.trace))  # type: ignore[attr-defined]
        yield locate("steps", scenario.cost.table)
    elif acceptance.kind == "parametric":
        yield locate("steps", scenario.cost.table)
    else:
        yield from build_arm(scenario, policy, folder=folder).profiles


@lru_cache(maxsize=256)
def _workload_files(
    text: str, kind: type[WorkloadConfig], folder: Path, here: Path
) -> tuple[Path, ...]:
    """Name what a workload reads, by reading it; the points of a study mostly share it."""
    del here  # part of the cache's key: files are also looked for, and named, from there
    recorder = Recorder(Locator(folder))
    build_workload(kind.model_validate_json(text), recorder)
    return tuple(recorder.found)


@lru_cache(maxsize=256)
def _file_digest(path: Path, changed_ns: int, size: int) -> bytes:
    del changed_ns, size  # part of the cache's key: a changed file is read again
    return hashlib.sha256(path.read_bytes()).digest()


@lru_cache(maxsize=1)
def _code_digest() -> str:
    package = Path(specsim.__file__).parent
    files = [package / "rng.py", package / "study" / "run.py", package / "scenario" / "build.py"]
    for name in _DECIDING:
        files += sorted((package / name).rglob("*.py"))
    digest = hashlib.sha256(specsim.__version__.encode())
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def variant_text(variant: Mapping[str, Any] | list[Any]) -> str:
    """Write a variant so that equal ones give the same text."""
    return json.dumps(variant, sort_keys=True, separators=(",", ":"))
