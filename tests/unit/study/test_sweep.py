"""A study gives one table, however it is run, killed and resumed."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from specsim.errors import ScenarioError
from specsim.scenario.load import load_scenario
from specsim.scenario.schema import Scenario
from specsim.study.executor import Place
from specsim.study.grid import Grid, LatinHypercube, Range, load_study
from specsim.study.points import read_shard, stored_point
from specsim.study.run import PointTask
from specsim.study.sweep import POINTS, SweepResult, read_table, run_sweep
from tests.study_world import POINT, specsim, write_scenario, write_study


def sweep(study: Path, out: Path, *, jobs: int = 1, retry: bool = False) -> SweepResult:
    return run_sweep(study, out=out, place=Place(jobs), retry_failed=retry)


def table_bytes(result: SweepResult) -> bytes:
    return (result.directory / "table.csv").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SweepResult]:
    folder = tmp_path_factory.mktemp("whole")
    study = write_study(folder)
    return study, sweep(study, folder / "runs")


def test_a_sweep_runs_each_point_once(whole: tuple[Path, SweepResult]) -> None:
    study, first = whole
    assert len(first.table) == 4 * 2 * 2 * 2  # variants, policies, loads, seeds
    assert (first.table["status"] == "ok").all()
    # The lag of topk is no part of a point of `fixed`, so that point is run once for both lags.
    assert first.ran == 16 + 8
    again = sweep(study, first.directory.parent)
    assert again.ran == 0
    assert table_bytes(again) == table_bytes(first)


def test_processes_give_the_same_table(whole: tuple[Path, SweepResult], tmp_path: Path) -> None:
    study, first = whole
    assert table_bytes(sweep(study, tmp_path, jobs=2)) == table_bytes(first)


def test_the_parquet_table_holds_the_same_as_the_csv(whole: tuple[Path, SweepResult]) -> None:
    _, first = whole
    parquet = read_table(first.directory)
    csv = pd.read_csv(first.directory / "table.csv")
    assert list(parquet.columns) == list(csv.columns)
    np.testing.assert_allclose(parquet["tok_s_gpu"], csv["tok_s_gpu"], rtol=1e-9)


BOMB = """\
import os, signal
import numpy as np
from pathlib import Path
class Bomb:
    reads, lag, lossless = frozenset(), 0, True
    def plan(self, view):
        done = len(list(Path("runs/points").rglob("*.parquet")))
        if done >= 9 and not Path("exploded").exists():
            Path("exploded").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return np.ones(view.num_requests, dtype=np.int64)
"""


def test_killed_and_resumed_gives_the_same_table(tmp_path: Path) -> None:
    (tmp_path / "bomb_scheduler.py").write_text(BOMB)
    study = write_study(tmp_path)
    scenario = tmp_path / "tiny.yaml"
    scenario.write_text(
        scenario.read_text() + "  bomb: {scheduler: {kind: 'bomb_scheduler:Bomb'}, gamma: 3}\n"
    )
    study.write_text(study.read_text().replace("[fixed, topk]", "[fixed, bomb]"))

    def run(out: str) -> int:
        process = specsim("sweep", study, "--out", out, "--jobs", "1", "--quiet", cwd=tmp_path)
        _, err = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), err
        return process.returncode

    assert run("runs") == -signal.SIGKILL
    kept = len(list((tmp_path / "runs" / POINTS).rglob("*.parquet")))
    assert 9 <= kept < 16
    assert not list((tmp_path / "runs").glob("tiny_study-*"))  # no half-written result
    assert run("runs") == 0
    assert run("whole") == 0
    tables = [
        next((tmp_path / out).glob("tiny_study-*")) / "table.csv" for out in ("runs", "whole")
    ]
    assert tables[0].read_bytes() == tables[1].read_bytes()
    assert len(read_table(tables[0].parent)) == 32


def test_a_torn_shard_is_run_again(whole: tuple[Path, SweepResult], tmp_path: Path) -> None:
    study, first = whole
    sweep(study, tmp_path)
    shard = sorted((tmp_path / POINTS).rglob("*.parquet"))[3]
    shard.write_bytes(shard.read_bytes()[:200])
    again = sweep(study, tmp_path)
    assert again.ran == 1
    assert table_bytes(again) == table_bytes(first)


def test_a_wrong_variant_fails_and_the_others_run(tmp_path: Path) -> None:
    study = write_study(tmp_path, replications=1)
    text = study.read_text().replace("lag: [1, 2]", "lag: [1, 0]")
    study.write_text(text)
    result = sweep(study, tmp_path / "runs")
    assert set(result.table["status"]) == {"ok", "failed"}
    failed = result.table[result.table["status"] == "failed"]
    assert failed["error"].str.contains("lag").all()
    assert result.summary["failed"] == len(failed)


def test_a_point_that_raises_is_recorded_and_retried_on_demand(tmp_path: Path) -> None:
    (tmp_path / "shaky_scheduler.py").write_text(
        "import numpy as np\n"
        "from pathlib import Path\n"
        "class Shaky:\n"
        "    reads, lag, lossless = frozenset(), 0, True\n"
        "    def plan(self, view):\n"
        "        if not Path('mended').exists():\n"
        "            raise RuntimeError('shaky')\n"
        "        return np.zeros(view.num_requests, dtype=np.int64)\n"
    )
    study = write_study(tmp_path, replications=1)
    scenario = tmp_path / "tiny.yaml"
    scenario.write_text(
        scenario.read_text() + "  shaky: {scheduler: {kind: 'shaky_scheduler:Shaky'}, gamma: 3}\n"
    )
    study.write_text(study.read_text().replace("[fixed, topk]", "[fixed, shaky]"))

    def run(*flags: str) -> str:
        process = specsim(
            "sweep", study, "--out", "runs", "--jobs", "1", "--quiet", *flags, cwd=tmp_path
        )
        out, err = process.communicate()
        assert process.returncode in (0, 1), err
        return out

    assert "failed" in run()
    table = read_table(next((tmp_path / "runs").glob("tiny_study-*")))
    assert set(table.loc[table["status"] == "failed", "policy"]) == {"shaky"}
    assert table["error"].str.contains("shaky_scheduler.py").any()  # says where
    (tmp_path / "mended").touch()
    assert "0 run now" in run()
    assert " 0 failed" in run("--retry-failed")


def test_a_changed_input_is_run_again(whole: tuple[Path, SweepResult], tmp_path: Path) -> None:
    study, _ = whole
    task = next(
        PointTask(p.scenario, tmp_path, p.policy, p.concurrency)
        for p in load_study(study).points
        if p.scenario
    )
    table = tmp_path / "profiles" / "steps" / "mine.json"
    table.parent.mkdir(parents=True)
    shipped = Path("profiles/steps/aiconfigurator/h100_llama31-8b_tp1_bf16.json").read_text()
    cost = task.scenario.cost.model_copy(update={"table": "mine"})
    scenario = task.scenario.model_copy(update={"cost": cost})
    keys = set()
    for text in (shipped, shipped + "\n"):
        table.write_text(text)
        keys.add(_key(scenario, task, tmp_path))
    assert len(keys) == 2


def _key(scenario: Scenario, task: PointTask, folder: Path) -> str:
    return stored_point(
        PointTask(scenario, folder, task.policy, task.concurrency), store=folder
    ).key


OPEN = "{kind: all_done}"
WORKLOADS = {
    "trace": (OPEN, "arrivals: {kind: replay, format: csv, file: t.csv, columns: {arrival_s: at, "
              "prompt_tokens: p, output_tokens: o}}"),
    "lengths": ("{kind: requests, num_requests: 60}",
                "arrivals: {kind: closed_loop}\n  prompt_tokens: {kind: fixed, tokens: 8}\n"
                "  output_tokens: {kind: empirical, file: t.csv, column: o}"),
    "clients": (OPEN, "arrivals: {kind: servegen, folder: clients}"),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_changed_workload_file_is_run_again(name: str, tmp_path: Path) -> None:
    stop, workload = WORKLOADS[name]
    (tmp_path / "t.csv").write_text("at,p,o\n0,9,5\n1,9,9\n")
    clients = tmp_path / "clients"
    clients.mkdir()
    (clients / "chunk-3-trace.csv").write_text("0,1,1,Gamma,1,1\n60,1,1,Gamma,1,1\n")
    window = {"input_tokens": "{9: 1}", "output_tokens": "{9: 1}"}
    (clients / "chunk-3-dataset.json").write_text(json.dumps({"0": window}))
    users = 8 if name == "lengths" else None
    path = write_scenario(tmp_path, question=POINT if users else "{kind: point}")
    text = path.read_text()
    text = text.replace("{kind: requests, num_requests: 60}", stop)
    start, end = text.index("  arrivals"), text.index("acceptance:")
    path.write_text(text[:start] + "  " + workload + "\n" + text[end:])
    task = PointTask(load_scenario(path).scenario, tmp_path, "topk", users)
    before = _key(task.scenario, task, tmp_path)
    assert before == _key(task.scenario, task, tmp_path)
    for file in ("t.csv", "clients/chunk-3-dataset.json"):
        changed = tmp_path / file
        changed.write_text(changed.read_text().replace("9", "88"))
    assert before != _key(task.scenario, task, tmp_path)


def test_the_points_hold_what_a_run_gives(whole: tuple[Path, SweepResult]) -> None:
    from specsim.study.run import run_point

    study, first = whole
    point = load_study(study).points[5]
    assert point.scenario is not None
    task = PointTask(point.scenario, study.parent, point.policy, point.concurrency)
    shard = read_shard(stored_point(task, store=first.directory.parent / POINTS).shard)
    assert shard is not None
    assert shard.metrics == run_point(task).metrics


def test_grid_order_and_latin_hypercube() -> None:
    grid = Grid(kind="grid", axes={"a": [1, 2], "b": ["x", "y"]})
    assert [tuple(v.values()) for v in grid.variants()] == [
        (1, "x"), (1, "y"), (2, "x"), (2, "y"),
    ]  # fmt: skip
    cube = LatinHypercube(
        kind="latin_hypercube",
        samples=10,
        seed=3,
        ranges={"a": Range(low=0, high=10), "b": Range(low=1, high=1000, scale="log", whole=True)},
    )
    found = list(cube.variants())
    assert found == list(cube.variants())
    assert sorted(int(v["a"]) for v in found) == list(range(10))  # each tenth once
    decades = np.log10([float(v["b"]) for v in found]) / 3 * 10
    assert len(np.unique(np.floor(decades + 0.02))) >= 9
    assert all(isinstance(v["b"], int) for v in found)


def test_a_study_error_names_file_line_and_value(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    study.write_text(study.read_text().replace("replications", "replication"))
    with pytest.raises(ScenarioError, match=r"study.yaml:10:\d+: replication: .*did you mean"):
        load_study(study)
    write_study(tmp_path)
    study.write_text(study.read_text().replace("cost.host.base_ms", "cost.host.base"))
    with pytest.raises(ScenarioError, match=r"cost.host.base"):
        load_study(study)


def test_a_dask_cluster_that_loses_a_worker_gives_the_same_table(
    whole: tuple[Path, SweepResult], tmp_path: Path
) -> None:
    distributed = pytest.importorskip("distributed", reason="dask[distributed] is not installed")
    study, first = whole
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        killed: list[int] = []

        def kill_one(done: int, total: int, what: str) -> None:
            if done >= total // 2 and not killed:
                worker = next(iter(cluster.workers.values()))
                killed.append(worker.pid)
                signal_to(worker.pid)

        result = run_sweep(
            study,
            out=tmp_path,
            place=Place(jobs=2, scheduler=cluster.scheduler_address),
            progress=kill_one,
        )
    assert killed
    assert result.ran == first.ran
    assert table_bytes(result) == table_bytes(first)


def signal_to(pid: int) -> None:
    import os

    os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_five_hundred_points_killed_half_way(tmp_path: Path) -> None:
    study = write_study(tmp_path, replications=32, requests=20)
    first = sweep(study, tmp_path / "whole", jobs=2)
    assert len(first.table) >= 500
    process = specsim("sweep", study, "--out", tmp_path / "cut", "--jobs", "2", "--quiet")
    points = tmp_path / "cut" / POINTS
    while len(list(points.rglob("*.parquet"))) < first.ran // 2:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(1.0)  # its workers end with it
    resumed = sweep(study, tmp_path / "cut", jobs=2)
    assert 0 < resumed.ran < first.ran
    assert table_bytes(resumed) == table_bytes(first)


def test_a_folded_description_is_plain_text(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    study.write_text("description: >-\n  one\n  two\n" + study.read_text())
    assert load_study(study).config.description == "one two"
