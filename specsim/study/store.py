"""Run directories: `runs/<hash>/{manifest.json, summary.json, requests.parquet, steps.parquet}`.

A directory appears whole or not at all: everything is written beside it and then renamed. What was
interrupted is stored the same way, with `status: incomplete` in its manifest. Several processes may
write the same directory at once: the last one's stays. What a killed process had not yet renamed
stays hidden (`.<hash>.*`), and goes with the next run of that directory on the same machine.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specsim.errors import InputError
from specsim.metrics.record import Columns


def to_json(value: Any) -> str:
    """Write JSON the same way every time: keys in their order, no NaN, a newline at the end."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def _write_points(path: Path, parts: Sequence[tuple[str, int | None, Columns]]) -> None:
    """Write the columns of many points, `policy` and `concurrency` in front, a row group each.

    One point at a time is turned into Arrow, so that memory does not grow with their number.
    """
    # Imported where a run is written: the processes that simulate do without it.
    import pyarrow as pa
    import pyarrow.parquet as pq

    policies = sorted({name for name, _, _ in parts})
    writer: pq.ParquetWriter | None = None
    try:
        for name, users, columns in parts:
            length = len(next(iter(columns.values())))
            codes = pa.array(np.full(length, policies.index(name), dtype=np.int32))
            table = pa.table(
                {
                    "policy": pa.DictionaryArray.from_arrays(codes, pa.array(policies)),
                    "concurrency": pa.array([users] * length, pa.int64()),
                    **{key: pa.array(column) for key, column in columns.items()},
                }
            )
            if writer is None:
                writer = pq.ParquetWriter(path, table.schema, compression="zstd")
            writer.write_table(table)
        if writer is None:
            pq.write_table(pa.table({"policy": pa.array([], pa.string())}), path)
    finally:
        if writer is not None:
            writer.close()


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
    partial = _beside(directory, "partial")
    try:
        partial.mkdir(parents=True)
        (partial / "manifest.json").write_text(to_json(manifest), encoding="utf-8")
        (partial / "summary.json").write_text(to_json(summary), encoding="utf-8")
        _write_points(partial / "requests.parquet", requests)
        _write_points(partial / "steps.parquet", steps)
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


def require_writable(folder: Path) -> None:
    """Make the folder of run directories, before there is anything to lose.

    Raises:
        InputError: it cannot be made, or nothing can be written in it.
    """
    probe = _beside(folder / "probe", "partial")
    try:
        probe.mkdir(parents=True)
        probe.rmdir()
    except OSError as error:
        raise InputError(
            f"{folder}: runs cannot be written there: {error.strerror or error}; choose another "
            "place with --out"
        ) from error


def _beside(directory: Path, what: str) -> Path:
    """Name a hidden folder beside `directory` that nobody else uses, and that tells its owner."""
    owner = f"{os.uname().nodename}.{os.getpid()}"
    return directory.with_name(f".{directory.name}.{owner}.{uuid.uuid4().hex[:8]}.{what}")


def _swap(partial: Path, directory: Path) -> None:
    """Put `partial` in the place of `directory`, whoever else does so at the same time.

    A reader sees the old one or the new one, or for an instant none; never a part of one.
    """
    while True:
        try:
            partial.rename(directory)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        old = _beside(directory, "old")
        try:
            directory.rename(old)
        except FileNotFoundError:
            continue  # another process has just moved it away
        shutil.rmtree(old, ignore_errors=True)
    _sweep_up(directory)


def _sweep_up(directory: Path) -> None:
    """Remove what killed processes of this machine left beside `directory`."""
    for path in directory.parent.glob(f".{directory.name}.{os.uname().nodename}.*.*.*"):
        pid = path.name.split(".")[-3]
        if pid.isdecimal() and not _alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


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


def is_complete(directory: Path) -> bool:
    """Say whether a whole run is stored in `directory`."""
    try:
        return read_manifest(directory).get("status") == "complete"
    except InputError:
        return False


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{path.parent}: holds no run ({path.name} is missing)") from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: cannot be read: it holds no JSON object")
    return found
