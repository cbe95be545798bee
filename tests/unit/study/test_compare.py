"""Differences are paired where they can be, and their intervals cover."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specsim.errors import InputError
from specsim.report.comparison import page_of_comparison
from specsim.report.html import html
from specsim.study.compare import compare
from specsim.study.executor import Place
from specsim.study.run import run_scenario
from specsim.study.sweep import run_sweep
from tests.study_world import write_scenario, write_study


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("compare")
    path = str(write_scenario(folder, requests=200))
    sets = {"a": [], "slow": ["cost.host.base_ms=0.8"], "luck": ["seed=2"]}
    return {
        name: run_scenario(path, overrides=given, out=folder / "runs").directory
        for name, given in sets.items()
    }


def test_a_run_differs_from_itself_by_nothing(runs: dict[str, Path]) -> None:
    found = compare(str(runs["a"]), str(runs["a"]))
    assert found["paired_by"].startswith("request")
    assert len(found["rows"]) >= 3 * 7
    assert {row["difference"] for row in found["rows"]} == {0.0}
    assert not any(row["clear"] for row in found["rows"])


def test_a_slower_host_is_seen_request_by_request(runs: dict[str, Path]) -> None:
    rows = compare(str(runs["a"]), str(runs["slow"]))["rows"]
    tpot = {r["policy"]: r for r in rows if r["metric"] == "mean_tpot_s"}
    assert tpot["none"]["difference"] == pytest.approx(0.3e-3, rel=0.02)  # 0.3 ms a step of 1 token
    assert all(r["clear"] and r["pairs"] > 100 for r in tpot.values())
    # Pairing pays: the spread between requests is far larger than the interval.
    assert tpot["topk"]["ci95"] < 0.05 * tpot["topk"]["a"]


def test_two_policies_of_one_run(runs: dict[str, Path]) -> None:
    found = compare(f"{runs['a']}:none", f"{runs['a']}:topk")
    assert {row["policy"] for row in found["rows"]} == {"topk - none"}
    speed = next(row for row in found["rows"] if row["metric"] == "tok_s_user")
    assert speed["ratio"] > 1.2
    assert speed["clear"]


def test_other_seeds_are_not_paired_and_it_is_said(runs: dict[str, Path]) -> None:
    found = compare(str(runs["a"]), str(runs["luck"]))
    assert found["paired_by"] == "nothing"
    assert "seeds differ" in found["notes"][0]
    clear = [row for row in found["rows"] if row["clear"]]
    assert len(clear) <= len(found["rows"]) // 4  # only luck differs


def test_studies_are_paired_by_seed(tmp_path: Path) -> None:
    study = write_study(tmp_path, replications=4)
    a = run_sweep(study, out=tmp_path / "runs", place=Place()).directory
    study.write_text(study.read_text() + "set: {cost.draft.base_ms: 0.9}\n")
    b = run_sweep(study, out=tmp_path / "runs", place=Place()).directory
    found = compare(str(a), str(b))
    assert found["paired_by"] == "seed"
    rows = [r for r in found["rows"] if r["metric"] == "tok_s_gpu"]
    assert len(rows) == 2 * 4 * 2
    assert all(r["pairs"] == 4 and r["clear"] and r["difference"] < 0 for r in rows)


def test_the_page_holds_every_row(runs: dict[str, Path]) -> None:
    found = compare(str(runs["a"]), str(runs["slow"]))
    text = html(page_of_comparison(found))
    assert len(re.findall(r"<tr><td", text)) == len(found["rows"])
    assert "differences are clear of chance" in text


def test_mistakes(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        compare("nowhere", str(runs["a"]))
    with pytest.raises(InputError, match='did you mean "topk"'):
        compare(f"{runs['a']}:topp", str(runs["a"]))
