"""A run directory is there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from specsim.errors import InputError
from specsim.study.folder import require_writable, write_folder
from specsim.study.store import is_complete, read_manifest, read_summary, write_run

COLUMNS = {"end_s": np.array([1.0, 2.0]), "rank": np.array([0, 0])}


def _write(directory, **changes) -> None:
    given = {
        "manifest": {"status": "complete"},
        "summary": {"x": 1.5},
        "tables": {
            "requests": [("a", 4, COLUMNS), ("b", None, COLUMNS)],
            "steps": [("a", 4, COLUMNS)],
        },
        "files": {"frontier.svg": b"<svg/>"},
    }
    write_run(directory, **(given | changes))


def test_a_run_is_written_and_read_back(tmp_path) -> None:
    _write(tmp_path / "deep" / "abc")
    assert read_summary(tmp_path / "deep" / "abc") == {"x": 1.5}
    assert read_manifest(tmp_path / "deep" / "abc")["status"] == "complete"
    frame = pd.read_parquet(tmp_path / "deep" / "abc" / "requests.parquet")
    assert frame["policy"].tolist() == ["a", "a", "b", "b"]
    assert frame["concurrency"].isna().tolist() == [False, False, True, True]
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["abc"]


def test_a_second_run_replaces_the_first(tmp_path) -> None:
    _write(tmp_path / "abc")
    _write(tmp_path / "abc", summary={"x": 2})
    assert read_summary(tmp_path / "abc") == {"x": 2}
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failure_leaves_the_old_run_and_nothing_else(tmp_path) -> None:
    _write(tmp_path / "abc")
    with pytest.raises(ValueError, match="Out of range float"):
        _write(tmp_path / "abc", summary={"x": float("nan")})
    assert read_summary(tmp_path / "abc") == {"x": 1.5}
    assert [p.name for p in tmp_path.iterdir()] == ["abc"]


def test_a_place_that_cannot_be_written_is_named(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="choose another place with --out"):
        _write(tmp_path / "file" / "abc")


def test_reading_what_is_no_run_says_so(tmp_path) -> None:
    with pytest.raises(InputError, match="holds no run"):
        read_summary(tmp_path)
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        read_summary(tmp_path)


def test_equal_content_gives_equal_bytes(tmp_path) -> None:
    _write(tmp_path / "one")
    _write(tmp_path / "two")
    for name in ("summary.json", "requests.parquet", "steps.parquet"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert json.loads((tmp_path / "one" / "summary.json").read_text()) == {"x": 1.5}


def _write_often(folder: str, times: int) -> None:
    for i in range(times):
        _write(Path(folder) / "abc", summary={"x": i})


def test_processes_that_write_the_same_run_at_once_all_succeed(tmp_path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_often, args=(str(tmp_path), 25)) for _ in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        with contextlib.suppress(InputError):  # between two renames there is none
            assert read_summary(tmp_path / "abc")["x"] in range(25)
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert read_summary(tmp_path / "abc") == {"x": 24}
    assert [p.name for p in tmp_path.iterdir()] == ["abc"]


def test_what_a_killed_process_left_goes_with_the_next_run(tmp_path) -> None:
    gone = multiprocessing.get_context("fork").Process(target=int)
    gone.start()
    gone.join()
    host = os.uname().nodename
    dead = tmp_path / f".abc.{host}.{gone.pid}.12345678.partial"
    alive = tmp_path / f".abc.{host}.{os.getpid()}.12345678.partial"
    elsewhere = tmp_path / f".abc.{host}-2.{gone.pid}.12345678.old"
    for folder in (dead, alive, elsewhere):
        folder.mkdir()
    _write(tmp_path / "abc")
    assert sorted(tmp_path.iterdir()) == sorted([alive, elsewhere, tmp_path / "abc"])


def test_a_folder_for_runs_is_tried_before_running(tmp_path) -> None:
    require_writable(tmp_path / "new" / "runs")
    assert list((tmp_path / "new" / "runs").iterdir()) == []
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "file", tmp_path / "file" / "runs", tmp_path / ("x" * 300)):
        with pytest.raises(InputError, match="choose another place with --out"):
            require_writable(wrong)


@pytest.mark.parametrize("text", ["[1]", "3", "", "[" * 100_000])
def test_a_damaged_manifest_is_no_complete_run(tmp_path, text) -> None:
    (tmp_path / "manifest.json").write_text(text)
    assert not is_complete(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        read_manifest(tmp_path)


def _die_at_rename(folder: str, number: int) -> None:
    """Write x = 2 over a run, and die by SIGKILL just before the rename of this number."""
    made, left = Path.rename, [number]

    def rename(path: Path, target: Path) -> Path:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return made(path, target)

    Path.rename = rename  # type: ignore[method-assign]
    _write(Path(folder) / "abc", summary={"x": 2})


@pytest.mark.parametrize(("renames", "there"), [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2)])
def test_killed_between_any_two_renames_a_whole_run_is_found(tmp_path, renames, there) -> None:
    # whole; in vain onto the old one; old aside; the new one in its place.
    _write(tmp_path / "abc", summary={"x": 1})
    process = multiprocessing.get_context("fork").Process(
        target=_die_at_rename, args=(str(tmp_path), renames)
    )
    process.start()
    process.join()
    assert (process.exitcode == -signal.SIGKILL) == (renames < 4)
    assert read_summary(tmp_path / "abc") == {"x": there}
    _write(tmp_path / "abc", summary={"x": 3})
    assert [path.name for path in tmp_path.iterdir()] == ["abc"]
    assert read_summary(tmp_path / "abc") == {"x": 3}


def test_a_folder_that_is_being_exchanged_is_left_to_its_owner(tmp_path) -> None:
    _write(tmp_path / "abc")
    (tmp_path / "abc").rename(tmp_path / f".abc.{os.uname().nodename}.{os.getpid()}.1.whole")
    with pytest.raises(InputError, match="holds no run"):
        read_summary(tmp_path / "abc")


def test_a_full_disk_leaves_the_run_before_it(tmp_path) -> None:
    _write(tmp_path / "abc", summary={"x": 1})

    def fill(partial: Path) -> None:
        (partial / "summary.json").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(InputError, match=r"the run cannot be written: No space left.*--out"):
        write_folder(tmp_path / "abc", fill, what="run")
    assert read_summary(tmp_path / "abc") == {"x": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["abc"]
