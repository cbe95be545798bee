"""A file of raw rows that grows: what is there is kept, every row is written once it is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specsim.cost.rows import Row, load_rows
from specsim.errors import InputError
from specsim.profiler.manifest import check_same, read_manifest, write_manifest


def kept_rows(out: Path, manifest: Mapping[str, Any], same: Sequence[str]) -> list[Row]:
    """Return the rows of an earlier, interrupted run; a last line that was cut short is taken off.

    Args:
        out: the file; it need not exist.
        manifest: of this run.
        same: fields of the manifest that must not have changed.

    Raises:
        InputError: the rows there are of another set-up, or of an unknown one.
    """
    if not out.exists() or not out.stat().st_size:
        return []
    found = read_manifest(out)
    if found is None:
        raise InputError(f"{out} has rows but no manifest beside it; give another --out")
    check_same(out, found, manifest, same)
    whole = out.read_bytes()
    end = whole.rfind(b"\n") + 1
    if end < len(whole):
        with out.open("r+b") as file:
            file.truncate(end)
    return load_rows(out) if end else []


@contextmanager
def row_writer(out: Path, manifest: Mapping[str, Any]) -> Iterator[Callable[[Row], None]]:
    """Write the manifest, and yield what appends a row."""
    out.parent.mkdir(parents=True, exist_ok=True)
    write_manifest(out, {**manifest, "complete": False})
    with out.open("a", encoding="utf-8") as file:

        def on_row(row: Row) -> None:
            file.write(row.to_json() + "\n")
            file.flush()

        yield on_row
