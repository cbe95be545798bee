"""Run directories: `runs/<hash>/{manifest.json, summary.json, requests.parquet, steps.parquet}`.

A directory appears whole or not at all (`study.folder`). What was interrupted is stored the same
way, with `status: incomplete` in its manifest.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from specsim.errors import InputError
from specsim.inputs import why
from specsim.jsontext import read_json
from specsim.metrics.record import Columns, Sink
from specsim.study.folder import recover, write_folder

TABLES = ("requests", "steps")
Rows = Columns | Path
"""Rows of one table of one point, or the file that holds them (`Spool`)."""


def to_json(value: Any) -> str:
    """Write JSON the same way every time: keys in their order, no NaN, a newline at the end."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


class Spool:
    """Parquet files for the rows of one point that are too many to keep in memory.

    Args:
        folder: where they go, made when the first rows come; None takes nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder, self._stem = folder, uuid.uuid4().hex
        self._writers: dict[str, Any] = {}

    def sink(self, table: str) -> Sink | None:
        """Return what takes rows of `table`, None if nothing does.

        The sink raises `InputError` if they cannot be written.
        """
        if self._folder is None:
            return None
        folder = self._folder

        def take(rows: Columns) -> None:
            import pyarrow as pa
            import pyarrow.parquet as pq

            columns = pa.table({name: _arrow(column) for name, column in rows.items()})
            path = folder / self._name(table)
            with _told(path, table):
                if table not in self._writers:
                    folder.mkdir(parents=True, exist_ok=True)
                    self._writers[table] = pq.ParquetWriter(
                        path, columns.schema, compression="zstd"
                    )
                self._writers[table].write_table(columns)

        return take

    def close(self) -> dict[str, Path]:
        """End the files; return those that hold rows, by table.

        Raises:
            InputError: the end of one cannot be written.
        """
        folder = cast("Path", self._folder)
        files = {table: folder / self._name(table) for table in self._writers}
        with ExitStack() as stack:
            for table, writer in self._writers.items():
                stack.enter_context(_told(files[table], table))
                stack.callback(writer.close)
        return files

    def _name(self, table: str) -> str:
        return f"{self._stem}.{table}.parquet"


@contextmanager
def _told(path: Path, table: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path}: the {table} of a long run cannot be written: {error.strerror or error}; "
            "choose another place with --out, or record less"
        ) from error


def _write_points(path: Path, parts: Sequence[tuple[str, int | None, Rows]]) -> None:
    """Write the columns of many points, `policy` and `concurrency` in front, a row group each.

    One point at a time, or one part of a long one, is turned into Arrow, so that memory does not
    grow with their number.
    """
    # Imported where a run is written: the processes that simulate do without it.
    import pyarrow as pa
    import pyarrow.parquet as pq

    policies = sorted({name for name, _, _ in parts})
    writer: pq.ParquetWriter | None = None
    try:
        for name, users, columns in _in_memory(parts):
            length = len(next(iter(columns.values())))
            codes = _arrow(np.full(length, policies.index(name), dtype=np.int32))
            table = pa.table(
                {
                    "policy": pa.DictionaryArray.from_arrays(codes, pa.array(policies)),
                    "concurrency": pa.array([users] * length, pa.int64()),
                    **{key: _arrow(column) for key, column in columns.items()},
                }
            )
            if writer is None:
                writer = pq.ParquetWriter(path, table.schema, compression="zstd")
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _in_memory(
    parts: Sequence[tuple[str, int | None, Rows]],
) -> Iterator[tuple[str, int | None, Columns]]:
    import pyarrow.parquet as pq

    for name, users, rows in parts:
        if not isinstance(rows, Path):
            yield name, users, rows
            continue
        file = pq.ParquetFile(rows)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            yield name, users, {key: table[key].to_numpy() for key in table.column_names}


def _arrow(column: NDArray[Any]) -> Any:
    """Wrap a column of numbers without a copy, and without importing pandas as `pa.array` does."""
    import pyarrow as pa

    buffer = pa.py_buffer(np.ascontiguousarray(column))
    return pa.Array.from_buffers(pa.from_numpy_dtype(column.dtype), len(column), [None, buffer])


def write_run(
    directory: Path,
    *,
    manifest: Mapping[str, Any],
    summary: Mapping[str, Any],
    tables: Mapping[str, Sequence[tuple[str, int | None, Rows]]],
    files: Mapping[str, bytes],
) -> None:
    """Write a run directory, replacing one of the same name.

    Args:
        directory: its final path.
        manifest: what was run, from what, how it ended.
        summary: what came out; the same scenario and seed give the same bytes.
        tables: `TABLES`: (policy, concurrency, rows) of every point; none of them, no file.
        files: further files by name, such as pictures.

    Raises:
        InputError: the place cannot be written.
    """

    def fill(partial: Path) -> None:
        (partial / "manifest.json").write_text(to_json(manifest), encoding="utf-8")
        (partial / "summary.json").write_text(to_json(summary), encoding="utf-8")
        for name, points in tables.items():
            if points:
                _write_points(partial / f"{name}.parquet", points)
        for name, content in files.items():
            (partial / name).write_bytes(content)

    write_folder(directory, fill, what="run")


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
    recover(path.parent)
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{path.parent}: holds no run ({path.name} is missing)") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {why(error)}") from error
    found, problem = read_json(text, where=str(path))
    if problem is not None:
        raise InputError(f"{problem}; the run cannot be read: run it again")
    if not isinstance(found, dict):
        raise InputError(f"{path}: cannot be read: it holds no JSON object")
    return found
