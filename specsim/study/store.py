"""Run directories: `runs/<hash>/{manifest.json, summary.json, requests.parquet, steps.parquet}`.

A directory appears whole or not at all: everything is written beside it and then renamed. What was
interrupted is stored the same way, with `status: incomplete` in its manifest.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from specsim.errors import InputError
from specsim.metrics.record import Columns


def to_json(value: Any) -> str:
    """Write JSON the same way every time: keys in their order, no NaN, a newline at the end."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def _table(parts: Sequence[tuple[str, int | None, Columns]]) -> pa.Table:
    """Put the columns of many points into one table, with `policy` and `concurrency` in front."""
    names = [name for name, _, _ in parts]
    lengths = [len(next(iter(columns.values()))) for _, _, columns in parts]
    policies = sorted(set(names))
    codes = np.repeat([policies.index(name) for name in names], lengths).astype(np.int32)
    load = np.repeat([-1 if users is None else users for _, users, _ in parts], lengths)
    columns: dict[str, Any] = {
        "policy": pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(policies)),
        "concurrency": pa.array(load.astype(np.int64), mask=load < 0),
    }
    for key in parts[0][2] if parts else ():
        columns[key] = pa.array(np.concatenate([part[key] for _, _, part in parts]))
    return pa.table(columns)


def write_run(
    directory: Path,
    *,
    manifest: Mapping[str, Any],
    summary: Mapping[str, Any],
    requests: Sequence[tuple[str, int | None, Columns]],
    steps: Sequence[tuple[str, int | None, Columns]],
    files: Mapping[str, bytes],
) -> None:
    """Write a run directory, replacing one of the same name.

    Args:
        directory: its final path.
        manifest: what was run, from what, how it ended.
        summary: what came out; the same scenario and seed give the same bytes.
        requests: (policy, concurrency, columns) of every point.
        steps: likewise.
        files: further files by name, such as pictures.

    Raises:
        InputError: the place cannot be written.
    """
    partial = directory.with_name(f".{directory.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True, exist_ok=True)
        (partial / "manifest.json").write_text(to_json(manifest), encoding="utf-8")
        (partial / "summary.json").write_text(to_json(summary), encoding="utf-8")
        pq.write_table(_table(requests), partial / "requests.parquet", compression="zstd")
        pq.write_table(_table(steps), partial / "steps.parquet", compression="zstd")
        for name, content in files.items():
            (partial / name).write_bytes(content)
        _swap(partial, directory)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise InputError(
            f"{directory}: the run cannot be written: {error.strerror or error}; choose another "
            "place with --out"
        ) from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _swap(partial: Path, directory: Path) -> None:
    """Put `partial` in the place of `directory`; a reader sees the old one or the new one."""
    old = directory.with_name(f".{directory.name}.{os.getpid()}.old")
    if directory.exists():
        directory.rename(old)
    partial.rename(directory)
    shutil.rmtree(old, ignore_errors=True)


def read_summary(directory: Path) -> dict[str, Any]:
    """Return the summary of a stored run.

    Raises:
        InputError: there is no run in `directory`, or it is damaged.
    """
    return _read_json(directory / "summary.json")


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the manifest of a stored run.

    Raises:
        InputError: there is no run in `directory`, or it is damaged.
    """
    return _read_json(directory / "manifest.json")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path.parent}: holds no run ({path.name} is missing)") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    return found
