"""The study verbs from the command line: exit codes, output, and what they leave behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specsim.cli import main
from tests.study_world import FRONTIER, write_scenario, write_study


def call(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from specsim.study.run import run_scenario

    folder = tmp_path_factory.mktemp("cli")
    path = write_scenario(folder, question=FRONTIER, requests=50)
    return run_scenario(str(path), out=folder / "runs").directory


def test_sweep_and_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write_study(tmp_path, replications=1, requests=20)
    code, out, err = call(capsys, "sweep", study, "--out", tmp_path / "runs", "--jobs", "1")
    assert (code, err) == (0, "")
    assert "16 points, 12 run now, 0 failed" in out
    directory = next((tmp_path / "runs").glob("tiny_study-*"))
    code, out, _ = call(capsys, "report", directory)
    assert code == 0
    assert Path(out.strip()).read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_failed_point_sets_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path, replications=1, requests=20)
    study.write_text(study.read_text().replace("lag: [1, 2]", "lag: [1, -3]"))
    code, out, _ = call(capsys, "sweep", study, "--out", tmp_path / "runs", "--jobs", "1")
    assert code == 1
    assert "failed: " in out


def test_capacity_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_scenario(tmp_path, requests=40)
    code, out, _ = call(
        capsys, "capacity", path, "--slo", "tok_s_user>=250", "--policy", "topk",
        "--replications", "1", "--jobs", "1", "--json",
    )  # fmt: skip
    assert code == 0
    found = json.loads(out)["policies"]["topk"]
    assert found["runs"] == found["evaluations"]


def test_pareto_of_a_stored_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "pareto", run, "--axes", "inferencex")
    assert code == 0
    assert "1 / median TPOT" in out
    assert (run / "pareto.svg").is_file()


def test_compare_two_policies_and_its_page(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(
        capsys, "compare", f"{run}:none", f"{run}:topk", "--page", tmp_path / "page.html"
    )
    assert code == 0
    assert "topk - none" in out
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_export_and_import_meet(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(
        capsys, "export", run, "--format", "vllm", "--policy", "topk", "--out", tmp_path
    )
    assert code == 0
    points = tmp_path / "points.csv"
    code, out, _ = call(capsys, "import", "vllm", out.strip(), "--gpus", "1", "--out", points)
    assert code == 0
    assert json.loads(out)[0]["source"] == "vllm"
    code, out, _ = call(capsys, "pareto", run, "--measured", points)
    assert code == 0
    assert "under it: tiny/topk/48" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sweep", "lagg"], 'did you mean "lag"'),
        (["sweep", "lag", "--executor", "dask"], "belong together"),
        (["report", "nowhere"], "holds no run"),
        (["capacity", "hello", "--slo", "x"], "is no SLO"),
        (["compare", "a", "b"], "no such folder"),
        (
            ["compare", "runs/a", "runs/b", "runs/c"],
            "takes two runs, A and B, not 3 (runs/a, runs/b",
        ),
        (["compare"], "takes two runs, A and B, not 0:"),
        (["sweep", "lag", "domains"], "`specsim sweep` takes no more names: domains is too many"),
        (["profile", "show", "a", "b"], "`specsim profile show` takes no more names: b"),
        (["import", "vllm", "nowhere.json"], "cannot be read"),
        (["pareto", "hello"], "no frontier"),
        (["tune", "hello", "--policy", "x", "--search", "a"], "path=low:high"),
    ],
)
def test_mistakes_end_with_2_and_say_what_to_do(
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert said in err
