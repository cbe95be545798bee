"""Tuning finds what a grid finds, repeats itself, and uses points that were run before."""

from __future__ import annotations

from pathlib import Path

import pytest

from specsim.errors import InputError
from specsim.study.executor import Place
from specsim.study.grid import Range
from specsim.study.tune import parse_space, tune
from tests.study_world import write_scenario

pytest.importorskip("optuna", reason="optuna is not installed")


def test_the_best_fixed_length_is_found(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, requests=60)
    given = {"out": tmp_path / "runs", "place": Place(1), "slo_tok_s_user": 50.0}
    space = parse_space(["policies.fixed.scheduler.k=1:3:int"])
    found = tune(str(path), "fixed", space, trials=10, **given)  # type: ignore[arg-type]
    by_length = {r["values"]["policies.fixed.scheduler.k"]: r["value"] for r in found["trials"]}
    assert len(by_length) == 3, "the search did not try every length"
    assert found["best"]["value"] == max(by_length.values())
    shards = len(list((tmp_path / "runs" / "points").rglob("*.parquet")))
    assert shards == 3  # each length was run once; the scenario as it is, is one of them
    again = tune(str(path), "fixed", space, trials=10, **given)  # type: ignore[arg-type]
    assert again == found


def test_an_slo_out_of_reach_is_said(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, requests=30)
    found = tune(
        str(path),
        "topk",
        parse_space(["policies.topk.scheduler.lag=1,4"]),
        slo_tok_s_user=1e5,
        trials=2,
        out=tmp_path / "runs",
        place=Place(1),
    )
    assert not found["holds_slo"]
    assert -1 < found["best"]["value"] < 0


def test_spaces_are_read() -> None:
    assert parse_space(["a=0.1:0.9", "b=1:64:log:int", "c=1,x,null"]) == {
        "a": Range(low=0.1, high=0.9),
        "b": Range(low=1, high=64, scale="log", whole=True),
        "c": [1, "x", None],
    }
    for text in ("a", "a=", "a=1:2:3", "a=x:y", "a=2:1", "a=0:1:log", "a=1:2:log:int:x"):
        with pytest.raises(InputError, match="a"):
            parse_space([text])
    with pytest.raises(InputError, match="nothing to search"):
        parse_space([])


def test_mistakes(tmp_path: Path) -> None:
    path = str(write_scenario(tmp_path))
    given = {"trials": 1, "out": tmp_path, "place": Place(1)}
    with pytest.raises(InputError, match='did you mean "topk"'):
        tune(path, "topp", parse_space(["a=1,2"]), **given)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="give --slo"):
        tune(path, "topk", parse_space(["a=1,2"]), **given)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="every trial failed"):
        tune(path, "topk", parse_space(["nowhere=1,2"]), slo_tok_s_user=5.0, **given)  # type: ignore[arg-type]
