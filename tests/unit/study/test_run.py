"""Whole runs of a tiny scenario: same bytes whatever the processes, interrupts, bad policies."""

from __future__ import annotations

import errno
from functools import partial

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from specsim.acceptance.trace import save_trace
from specsim.cost.table import Provenance, StepTable, curve, save_table
from specsim.errors import InputError, ScenarioError
from specsim.metrics.record import Bounded
from specsim.study.rerun import rerun
from specsim.study.run import run_scenario
from specsim.study.store import Spool, read_manifest, read_summary
from tests.engine_world import random_trace

SCENARIO = """
name: tiny
question:
  kind: frontier
  concurrency: [2, 4, 9]
  slo_tok_s_user: [200, 250]
  headline_slo: 250
  baseline: plain
seed: 3
stop: {kind: requests, num_requests: 60}
cluster: {gpus_per_rank: 2, max_requests_per_rank: 16}
workload:
  arrivals: {kind: closed_loop}
  prompt_tokens: {kind: fixed, tokens: 10}
  output_tokens: {kind: uniform, min: 2, max: 40}
acceptance: {kind: trace, trace: t.npz}
cost: {table: s.json, read: linear}
policies:
  plain: {scheduler: {kind: none}, gamma: 0}
  fixed: {scheduler: {kind: fixed, k: 2}, gamma: 4}
  topk: {scheduler: {kind: async_topk}, gamma: 4}
"""


@pytest.fixture
def scenario(tmp_path):
    save_trace(random_trace(), tmp_path / "t.npz")
    table = StepTable(
        name="s",
        provenance=Provenance(status="synthetic", source="test", date="2026-01-01", licence="none"),
        verify=curve([1, 8, 64], [0.004, 0.005, 0.02]),
        includes=frozenset({"draft", "attention", "host"}),
    )
    save_table(table, tmp_path / "s.json")
    path = tmp_path / "tiny.yaml"
    path.write_text(SCENARIO)
    return path


def test_the_same_bytes_whatever_the_number_of_processes(scenario, tmp_path) -> None:
    one = run_scenario(str(scenario), out=tmp_path / "one", jobs=1)
    two = run_scenario(str(scenario), out=tmp_path / "two", jobs=2)
    assert one.directory.name == two.directory.name
    for name in ("summary.json", "requests.parquet", "steps.parquet"):
        assert (one.directory / name).read_bytes() == (two.directory / name).read_bytes(), name
    assert {p.name for p in one.directory.iterdir()} == {
        "manifest.json",
        "summary.json",
        "requests.parquet",
        "steps.parquet",
        "frontier.png",
        "frontier.svg",
    }


@pytest.mark.parametrize(("record", "kept"), [("requests", {"requests.parquet"}), ("none", set())])
def test_what_is_recorded_changes_what_is_stored_and_no_number(
    scenario, tmp_path, record, kept
) -> None:
    whole = run_scenario(str(scenario), out=tmp_path / "whole")
    found = run_scenario(str(scenario), overrides=[f"record={record}"], out=tmp_path / "less")
    assert {path.name for path in found.directory.glob("*.parquet")} == kept
    for name in ("summary.json", *kept):
        assert (found.directory / name).read_bytes() == (whole.directory / name).read_bytes()
    again = rerun(found.directory, beside=scenario.parent)
    assert again.same
    assert set(again.files) == {"summary.json", *kept}


def test_the_answer_is_cut_from_the_lines(scenario, tmp_path) -> None:
    summary = run_scenario(str(scenario), out=tmp_path).summary
    answer = {(a["policy"], a["slo_tok_s_user"]): a for a in summary["answer"]}
    held = answer["topk", 250.0]
    assert held["tok_s_gpu"] > answer["plain", 200.0]["tok_s_gpu"] > 0
    assert held["users_per_gpu"] == pytest.approx(held["tok_s_gpu"] / 250)
    assert answer["plain", 250.0]["tok_s_gpu"] is None
    assert "never reaches 250" in answer["plain", 250.0]["reason"]
    assert {c["candidate"] for c in summary["comparison"]} == {"fixed", "topk"}
    assert summary["policies"]["topk"]["labels"] == ["synthetic cost"]


def test_a_change_by_set_changes_the_run_and_its_name(scenario, tmp_path) -> None:
    first = run_scenario(str(scenario), out=tmp_path)
    other = run_scenario(str(scenario), out=tmp_path, overrides=["seed=4"])
    assert first.directory != other.directory
    assert first.summary["answer"] != other.summary["answer"]


def test_an_interrupt_leaves_an_incomplete_run_that_can_be_read(scenario, tmp_path) -> None:
    def interrupt(done: int, total: int, what: str) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_scenario(str(scenario), out=tmp_path / "runs", progress=interrupt)
    (directory,) = (tmp_path / "runs").iterdir()
    assert read_manifest(directory)["status"] == "incomplete"
    assert read_manifest(directory)["points"] == {"done": 4, "of": 9}
    assert read_summary(directory)["status"] == "incomplete"
    done = run_scenario(str(scenario), out=tmp_path / "runs")
    assert done.directory == directory
    assert read_manifest(directory)["status"] == "complete"


def test_every_bad_policy_is_named_at_its_place(scenario, tmp_path) -> None:
    text = SCENARIO.replace("kind: none}, gamma: 0", "kind: fixed, k: 1}, gamma: 9")
    text = text.replace("{kind: async_topk}, gamma: 4", "{kind: async_topk}, gamma: 7")
    scenario.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        run_scenario(str(scenario), out=tmp_path)
    first, second = map(str, caught.value.problems)
    assert "gamma 9 is larger than the trace's 4" in first
    assert "policies.plain" in first
    assert "tiny.yaml:19" in first
    assert "gamma 7" in second


def test_unsafe_schedulers_run_only_when_asked_and_are_marked(scenario, tmp_path) -> None:
    unsafe = "{scheduler: {kind: global}, gamma: 4%s}"
    base = SCENARIO.replace("{scheduler: {kind: async_topk}, gamma: 4}", "UNSAFE")
    scenario.write_text(base.replace("UNSAFE", unsafe % ""))
    with pytest.raises(ScenarioError, match="unsafe: true"):
        run_scenario(str(scenario), out=tmp_path)
    scenario.write_text(base.replace("UNSAFE", unsafe % ", unsafe: true"))
    summary = run_scenario(str(scenario), out=tmp_path).summary
    assert "unsafe" in summary["policies"]["topk"]["labels"]
    assert any("unsafe" in warning for warning in summary["warnings"])


def test_an_interrupt_leaves_a_complete_run_alone(scenario, tmp_path) -> None:
    before = run_scenario(str(scenario), out=tmp_path).summary

    def interrupt(done: int, total: int, what: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_scenario(str(scenario), out=tmp_path, progress=interrupt)
    (directory,) = (p for p in tmp_path.iterdir() if (p / "manifest.json").exists())
    assert read_manifest(directory)["status"] == "complete"
    assert read_summary(directory) == before


def test_a_place_that_cannot_be_written_is_found_before_running(scenario, tmp_path) -> None:
    told: list[str] = []
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(InputError, match="choose another place with --out"):
        run_scenario(
            str(scenario), out=tmp_path / "runs", progress=lambda done, of, what: told.append(what)
        )
    assert told == []


def test_another_version_of_a_users_scheduler_is_another_run(
    scenario, tmp_path, monkeypatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "own_scheduler_of_a_test.py"
    text = (
        "import numpy as np\n"
        "class Mine:\n"
        "    reads, lag, lossless = frozenset(), 0, True\n"
        "    def plan(self, view):\n"
        "        return np.full(view.num_requests, 1)\n"
    )
    scenario.write_text(SCENARIO.replace("{kind: fixed, k: 2}", f'{{kind: "{module.stem}:Mine"}}'))
    names = set()
    for version in (text, text + "# changed\n"):
        module.write_text(version)
        names.add(run_scenario(str(scenario), out=tmp_path / "runs").directory.name)
    assert len(names) == 2


def test_requests_that_nobody_serves_are_told(tmp_path) -> None:
    changes = ["cluster.kv={blocks_per_rank: 1, block_tokens: 1}", "stop.num_requests=20"]
    summary = run_scenario("hello", overrides=changes, out=tmp_path).summary
    told = [w for w in summary["warnings"] if "could not be served" in w]
    everyone = ", ".join(summary["policies"])
    (line,) = told
    assert line.startswith(f"{everyone} at 32 users a rank: of 32 requests 32 could not be")


def test_a_long_run_is_stored_whole_and_summarised_from_what_fits(
    scenario, tmp_path, monkeypatch
) -> None:
    small = partial(Bounded, most_steps=256, most_requests=40)
    whole = run_scenario(str(scenario), out=tmp_path / "whole")
    monkeypatch.setattr("specsim.study.run.Bounded", small)
    found = run_scenario(str(scenario), out=tmp_path / "long")
    assert {path.name for path in (tmp_path / "long").iterdir()} == {found.directory.name}
    for table in ("requests", "steps"):
        stored, wanted = (
            pq.read_table(run.directory / f"{table}.parquet").to_pandas() for run in (found, whole)
        )
        assert len(stored) > 300
        pd.testing.assert_frame_equal(stored, wanted, check_exact=True)
    points = whole.summary["policies"]["topk"]["points"]
    for wanted, got in zip(points, found.summary["policies"]["topk"]["points"], strict=True):
        for name in ("tok_s_gpu", "tok_s_user", "budget_tokens", "longest_forward_tokens"):
            assert got[name] == pytest.approx(wanted[name], rel=0.02)
        assert got["all_finished"] == wanted["all_finished"]
    assert "long run: one request in " in str(found.summary)
    assert "long run: sums over 4 steps" in str(found.summary)


def test_a_full_disk_under_a_long_run_is_told(scenario, tmp_path, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("specsim.study.run.Bounded", partial(Bounded, most_requests=40))
    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(InputError, match=r"requests of a long run.*No space left.*--out"):
        run_scenario(str(scenario), out=tmp_path / "long")
    assert not list((tmp_path / "long").iterdir())


def test_a_disk_that_fills_at_the_end_of_a_file_is_told(tmp_path, monkeypatch) -> None:
    spool = Spool(tmp_path / "spool")
    for table in ("requests", "steps"):
        sink = spool.sink(table)
        assert sink is not None
        sink({"end_s": np.arange(3.0)})
    closed, really_close = [], pq.ParquetWriter.close

    def full(writer: pq.ParquetWriter) -> None:
        really_close(writer)
        closed.append(id(writer))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "close", full)
    with pytest.raises(InputError, match=r"of a long run.*No space left.*--out"):
        spool.close()
    assert len(set(closed)) == 2
