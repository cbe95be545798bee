"""What every verb has, and what a newcomer meets first: init, check, completion, rerun."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App

from specsim.cli import VERBS, main, make_app
from specsim.scenario.template import ENGINES, WORKLOADS

ROOT = Path(__file__).parents[2]
NO_JSON = {"schema", "completion"}
"""Their output is for other programs already."""


def commands() -> Iterator[tuple[str, set[str]]]:
    """Yield every command and its flags."""

    def walk(app: App, path: str) -> Iterator[tuple[str, set[str]]]:
        if app.default_command is not None:
            names = {n for a in app.assemble_argument_collection() for n in a.names}
            yield path, names
        for name in app:
            if name not in ("--help", "-h", "--version"):
                yield from walk(app[name], f"{path} {name}")

    app = make_app()
    for name, _, _ in VERBS:
        yield from walk(app[name], name)


def test_every_command_takes_json_and_quiet() -> None:
    found = dict(commands())
    assert len(found) > 25
    assert not [name for name, flags in found.items() if "--quiet" not in flags]
    assert {name for name, flags in found.items() if "--json" not in flags} == NO_JSON


# init


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_what_init_writes_is_right(engine, workload, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["my dir/my scenario.yaml", "--engine", engine, "--workload", workload]
    assert main(["init", *given]) == 0
    assert "next: specsim check" in capsys.readouterr().out
    assert main(["check", given[0], "--json"]) == 0
    (checked,) = json.loads(capsys.readouterr().out)
    assert checked["kind"] == "scenario"
    assert "4 policies" in checked["says"]


def test_init_replaces_nothing_unasked(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scenario.yaml").write_text("mine")
    assert main(["init"]) == 2
    assert "--force" in capsys.readouterr().err
    assert Path("scenario.yaml").read_text() == "mine"
    assert main(["init", "--force", "--table", "vllm/v4_flash_tp4_b300"]) == 0
    assert "table: vllm/v4_flash_tp4_b300" in Path("scenario.yaml").read_text()


@pytest.mark.parametrize("engine", [*ENGINES, "slow", "fast"])
def test_init_asks_what_the_table_can_answer(engine: str, tmp_path, monkeypatch, capsys) -> None:
    """Whatever the engine, no speculation holds the SLO under some load and not under the last."""
    monkeypatch.chdir(tmp_path)
    given = ["init", "lab.yaml", "--quiet"]
    if engine in ENGINES:
        given += ["--engine", engine]
    else:
        factor = {"slow": 40, "fast": 1}[engine]
        rows = [f"{n},{factor * (3 + 0.05 * n)}" for n in (1, 8, 32, 64, 128, 256)]
        Path("loads.csv").write_text("\n".join(["concurrency,tpot_ms", *rows]) + "\n")
        fit = ["profile", "fit", "loads.csv", "--kind", "telemetry", "--form", "linear"]
        assert main([*fit, "--source", "made up", "--out", "t.json"]) == 0
        given += ["--table", "t.json"]
    assert main(given) == 0
    text = Path("lab.yaml").read_text()
    assert ("  draft: {base_ms: 0.6" in text) == (engine in ("h100-8b", "h100-70b", "slow", "fast"))
    assert text.count("# What a drafter adds") == text.count("  draft: {base_ms")
    few = "stop.num_requests=150" if engine != "fast" else "stop.num_requests=300"
    capsys.readouterr()
    assert main(["run", "lab.yaml", "--set", few, "--json", "--quiet"]) == 0
    summary = json.loads(capsys.readouterr().out)
    (base,) = [r for r in summary["answer"] if r["policy"] == "no_speculation"]
    assert base["tok_s_gpu"] is not None
    speeds = [row["tok_s_user"] for row in summary["policies"]["no_speculation"]["points"]]
    assert max(speeds) > base["slo_tok_s_user"] > min(speeds)
    marks = summary["policies"]["greedy"]["labels"]
    assert "assumed cost" in marks or "draft: {" not in text
    told = any("what one more costs is a choice of its fit" in w for w in summary["warnings"])
    assert told == (engine in ("slow", "fast"))


# check


def test_check_tells_four_kinds_of_files(tmp_path, capsys) -> None:
    table = ROOT / "profiles" / "steps" / "vllm" / "v4_flash_tp4_b300.json"
    trace = ROOT / "profiles" / "traces" / "smollm2_markov_t1.npz"
    assert main(["check", "hello", "lag", str(table), str(trace), "--json", "--quiet"]) == 0
    out, err = capsys.readouterr()
    kinds = [row["kind"] for row in json.loads(out)]
    assert kinds == ["scenario", "study", "table", "trace"]
    assert err == ""


def test_check_names_the_content_by_the_files_behind_it_too(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = ROOT / "profiles/steps/v4_flash/fig7_mtp1.json"
    said = []
    for text in (table.read_text(), table.read_text().replace('"name": "', '"name": "my_')):
        Path("table.json").write_text(text)
        assert main(["init", "lab.yaml", "--table", "table.json", "--force", "--quiet"]) == 0
        capsys.readouterr()
        assert main(["check", "lab.yaml"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] != said[1]
    assert main(["run", "lab.yaml", "--set", "stop.num_requests=20"]) == 0
    capsys.readouterr()
    assert main(["check", "lab.yaml", "--set", "stop.num_requests=20"]) == 0
    (folder,) = Path("runs").iterdir()
    assert f"content {folder.name}" in capsys.readouterr().out


def test_check_says_what_is_wrong_with_each_of_several(tmp_path, capsys) -> None:
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.npz").write_bytes(b"PK")
    assert main(["check", "hello", str(tmp_path / "a.json"), str(tmp_path / "b.npz")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == "specsim: 2 errors"
    assert "a.json:1:2: not JSON" in lines[1]
    assert "b.npz: cannot be read as an npz trace" in lines[2]


def test_check_of_nothing_is_a_mistake(capsys) -> None:
    assert main(["check"]) == 2
    assert "FILES" in capsys.readouterr().err


# completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_that_its_shell_takes(shell, tmp_path, capsys) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for words in ("rerun", "lossless", "--policy" if shell != "fish" else "policy"):
        assert words in script
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, timeout=60)


def test_bash_completes_verbs(tmp_path, capsys) -> None:
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    ask = "COMP_WORDS=(specsim re); COMP_CWORD=1; _specsim; printf '%s\\n' \"${COMPREPLY[@]}\""
    done = subprocess.run(
        ["bash", "-c", f"source {tmp_path / 'script'} 2>/dev/null; {ask}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert set(done.stdout.split()) == {"report", "rerun"}


# rerun


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rerun")
    few = ["--set", "stop.num_requests=40", "--jobs", "1", "--out", str(folder)]
    assert main(["run", "hello", *few]) == 0
    (run,) = folder.iterdir()
    return run


def test_a_rerun_gives_the_same_bytes(stored, capsys) -> None:
    assert main(["rerun", str(stored), "--jobs", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["same"]
    assert set(found["files"]) == {"summary.json", "requests.parquet", "steps.parquet"}


def test_a_changed_run_is_told(stored, tmp_path, capsys) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(stored, copy)
    summary = copy / "summary.json"
    summary.write_text(summary.read_text().replace('"seed": 1', '"seed": 2'))
    (copy / "steps.parquet").unlink()
    assert main(["rerun", str(copy), "--jobs", "1", "--out", str(tmp_path / "runs")]) == 1
    out = capsys.readouterr().out
    assert "summary.json: differs" in out
    assert "steps.parquet: missing" in out
    assert "requests.parquet: same" in out
    assert (tmp_path / "runs" / stored.name / "manifest.json").is_file()


def test_a_rerun_needs_a_whole_run(tmp_path, capsys) -> None:
    assert main(["rerun", str(tmp_path)]) == 2
    (tmp_path / "manifest.json").write_text('{"status": "incomplete", "scenario": "{}"}')
    assert main(["rerun", str(tmp_path)]) == 2
    (tmp_path / "manifest.json").write_text('{"status": "complete", "scenario": "{}"}')
    assert main(["rerun", str(tmp_path)]) == 2
    assert "its scenario is none for specsim" in capsys.readouterr().err
