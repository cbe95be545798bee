"""One process, many places: a notebook changes its folder, and files are written anew under it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from specsim.acceptance.trace import DenseTrace, save_trace
from specsim.scenario.build import build_arm
from specsim.scenario.load import load_scenario
from specsim.study.points import stored_point
from specsim.study.run import PointTask

SCENARIO = """\
name: moved
question: {kind: point}
seed: 1
stop: {kind: all_done}
cluster: {gpus_per_rank: 1, max_requests_per_rank: 8}
workload: {arrivals: {kind: replay, format: csv, file: log.csv}}
acceptance: {kind: trace, trace: ours}
cost:
  table: aiconfigurator/h100_llama31-8b_tp1_bf16
  read: linear
  draft: {base_ms: 0.6, per_request_us: 2, label: assumed, source: test}
  host: {base_ms: 0.5, per_request_us: 5, label: assumed, source: test}
policies:
  fixed: {scheduler: {kind: fixed, k: 2}, gamma: 2}
"""


def write_trace(folder: Path, *, accepted: int) -> None:
    path = folder / "profiles" / "traces" / "ours.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    positions = 64
    save_trace(
        DenseTrace(
            confidence_NG=np.full((positions, 2), 0.5, np.float32),
            num_accepted_N=np.full(positions, accepted, np.uint8),
            sequence_offset_S1=np.array([0, positions], np.int64),
            sequence_domain_S=np.zeros(1, np.uint8),
            domain_names=("all",),
            metadata={},
        ),
        path,
    )


def write_log(folder: Path, *, requests: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"{n},20,{5 + n}\n" for n in range(requests))
    (folder / "log.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario" / "moved.yaml"
    path.parent.mkdir()
    path.write_text(SCENARIO)
    return path


def accepted(path: Path) -> int:
    loaded = load_scenario(path)
    arm = build_arm(loaded.scenario, "fixed", folder=path.parent)
    assert all(file.is_file() for file in arm.profiles)
    return int(arm.trace.num_accepted_N.max())


def requests(path: Path) -> int:
    loaded = load_scenario(path)
    return build_arm(loaded.scenario, "fixed", folder=path.parent).workload.report.rows


def key(path: Path, store: Path) -> str:
    task = PointTask(load_scenario(path).scenario, path.parent, "fixed", None)
    return stored_point(task, store=store).key


def test_profiles_are_those_of_the_folder_one_is_in(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = []
    for place, count in (("one", 1), ("two", 2)):
        write_trace(tmp_path / place, accepted=count)
        write_log(tmp_path / place, requests=10 * count)
        # As in a fresh checkout: the same size, written at the same instant.
        for file in (tmp_path / place).rglob("*.*"):
            os.utime(file, ns=(10**18, 10**18))
    for place, count in (("one", 1), ("two", 2), ("one", 1)):
        monkeypatch.chdir(tmp_path / place)
        assert accepted(scenario) == count
        assert requests(scenario) == 10 * count
        keys.append(key(scenario, tmp_path / "points"))
    assert keys[0] == keys[2] != keys[1]


def test_a_file_that_was_written_anew_is_read_anew(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = []
    for n, count in enumerate((1, 2)):
        write_trace(tmp_path, accepted=count)
        write_log(tmp_path, requests=10 * count)
        for file in (tmp_path / "log.csv", tmp_path / "profiles/traces/ours.npz"):
            os.utime(file, ns=(10**18 + n, 10**18 + n))
        assert accepted(scenario) == count
        assert requests(scenario) == 10 * count
        keys.append(key(scenario, tmp_path / "points"))
    assert keys[0] != keys[1]
