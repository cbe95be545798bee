"""A run directory is there whole or not at all."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from specsim.errors import InputError
from specsim.study.store import read_manifest, read_summary, write_run

COLUMNS = {"end_s": np.array([1.0, 2.0]), "rank": np.array([0, 0])}


def _write(directory, **changes) -> None:
    given = {
        "manifest": {"status": "complete"},
        "summary": {"x": 1.5},
        "requests": [("a", 4, COLUMNS), ("b", None, COLUMNS)],
        "steps": [("a", 4, COLUMNS)],
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
    with pytest.raises(InputError, match="cannot be read"):
        read_summary(tmp_path)


def test_equal_content_gives_equal_bytes(tmp_path) -> None:
    _write(tmp_path / "one")
    _write(tmp_path / "two")
    for name in ("summary.json", "requests.parquet", "steps.parquet"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert json.loads((tmp_path / "one" / "summary.json").read_text()) == {"x": 1.5}
