"""The command line's shell: exit codes, lazy imports, and what the small verbs print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import specsim.cli
from specsim.cli import VERBS, main
from specsim.errors import InputError, Problem, ScenarioError

ROOT = Path(__file__).parents[2]
HEAVY = ("numpy", "numba", "pandas", "pyarrow", "matplotlib", "scipy", "torch", "pydantic", "simpy")


def process(*argv: str, **more: Any) -> subprocess.CompletedProcess[str]:
    code = "import sys; from specsim.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, *more.pop("python", ()), "-c", code, *argv],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **more,
    )


def test_help_imports_nothing_heavy() -> None:
    done = process("--help", python=("-X", "importtime"))
    assert done.returncode == 0
    assert "run" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "cyclopts" in imported  # else the line above reads another format
    assert not [name for name in imported if name.partition(".")[0] in HEAVY]


def test_every_verb_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, _, _ in VERBS:
        assert name in text


def test_no_arguments_is_a_call_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "Usage" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == specsim.__version__


# Exit codes


def answer(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """Run a verb whose code raises `error`."""

    def make_app() -> Any:
        def app(tokens: list[str], **_: Any) -> None:
            raise error

        return app

    monkeypatch.setattr(specsim.cli, "make_app", make_app)
    return main(["run", "x"])


def test_a_mistake_is_2_without_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(monkeypatch, InputError("table x is wrong")) == 2
    assert capsys.readouterr().err == "specsim: error: table x is wrong\n"


def test_many_mistakes_are_counted_and_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = [Problem("f.yaml:1:2", "a.b", "is 3", "use 4"), Problem("f.yaml:2:1", "", "is odd")]
    assert answer(monkeypatch, ScenarioError(problems)) == 2
    assert capsys.readouterr().err.splitlines() == [
        "specsim: 2 errors",
        "  f.yaml:1:2: a.b: is 3 (use 4)",
        "  f.yaml:2:1: is odd",
    ]


def test_an_interrupt_is_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "specsim: interrupted\n"


def test_a_fault_is_70_with_the_innermost_frames_and_a_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(monkeypatch, ZeroDivisionError("oh")) == 70
    text = capsys.readouterr().err
    assert "ZeroDivisionError: oh" in text
    assert "Please report it" in text
    assert len(text.splitlines()) < 40


@pytest.mark.parametrize(("package", "extra"), [("torch", "drafter"), ("perfetto", "trace")])
def test_a_missing_extra_is_named(
    package: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The parser wraps the import error of a verb's module in another one.
    error = ImportError("Cannot import module")
    error.__cause__ = ModuleNotFoundError(f"No module named '{package}'", name=f"{package}.nn")
    assert answer(monkeypatch, error) == 2
    assert f"specsim-serving[{extra}]" in capsys.readouterr().err


def test_a_missing_module_of_our_own_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ModuleNotFoundError("No module named 'specsim.nothing'", name="specsim.nothing")
    assert answer(monkeypatch, error) == 70


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["lst"], 'there is no command "lst"; did you mean "list"?'),
        (["--hlep"], 'did you mean "--help"?'),
        (["run"], "SCENARIO requires an argument"),
        (["run", "a", "b"], "b"),
        (["run", "a", "--jsno"], "--json"),
        (["run", "a", "--jobs", "0"], ">= 1"),
        (["run", "a", "--jobs", "many"], "many"),
        (["run", "a", "--set"], "--set requires an argument"),
        (["list", "scenario"], "scenarios"),
    ],
)
def test_wrong_arguments_are_2_in_one_line(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.startswith("specsim: error: ")
    assert len(err.splitlines()) == 1


def test_the_working_directory_comes_last_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    main(["--version"])
    assert sys.path[-1] == str(tmp_path)


# Verbs


def test_list_names_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    for what, words in (
        ("schedulers", ["async_topk", "module:Class"]),
        ("profiles", ["steps: vllm/v4_flash_tp4_b300", "traces: smollm2_markov_t1"]),
        ("scenarios", ["hello"]),
    ):
        assert main(["list", what]) == 0
        lines = capsys.readouterr().out.splitlines()
        for word in words:
            assert any(line.startswith(word) for line in lines)


def test_list_into_a_closed_pipe_is_no_fault() -> None:
    code = "from specsim.cli import main; import sys; sys.exit(main(['schema']))"
    command = f'{sys.executable} -c "{code}" | head -c 10'
    done = subprocess.run(  # noqa: S602, a pipe is what is tested
        command,
        shell=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert len(done.stdout) == 10
    assert "Traceback" not in done.stderr


def test_check_says_that_a_scenario_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(ROOT / "scenarios" / "hello.yaml"), "--set", "seed=5"]) == 0
    out, err = capsys.readouterr()
    assert "right; 3 policies" in out
    assert err == ""


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Scenario"


def test_run_prints_json_alone_on_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    scenario = str(ROOT / "scenarios" / "hello.yaml")
    few = ["--set", "stop.num_requests=40", "--jobs", "1", "--out", str(tmp_path)]
    assert main(["run", scenario, *few, "--json"]) == 0
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert summary["scenario"] == "hello"
    assert err == ""
    stored = tmp_path / summary["hash"][:12] / "summary.json"
    assert json.loads(stored.read_text(encoding="utf-8")) == summary


def test_run_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = str(ROOT / "scenarios" / "hello.yaml")
    few = ["--set", "stop.num_requests=40", "--jobs", "1", "--out", str(tmp_path)]
    assert main(["run", scenario, *few]) == 0
    out = capsys.readouterr().out
    for words in ("no_speculation", "tok/s/GPU", "stored in"):
        assert words in out


def test_the_parser_does_not_swallow_interrupts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import specsim.scenario.load

    def interrupted() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(specsim.scenario.load, "schema_json", interrupted)
    assert main(["schema"]) == 130
    assert capsys.readouterr().err == "specsim: interrupted\n"


def test_a_full_disk_behind_stdout_is_said_without_a_traceback() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    code = "import sys; from specsim.cli import main; sys.exit(main())"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, "list", "schedulers"],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("specsim: error: the output cannot be written")
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_that_is_gone_is_no_fault(tmp_path, monkeypatch, capsys) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["nonsense"]) == 2
    assert "there is no command" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)


def test_a_name_that_is_not_utf8_is_shown_escaped(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check", "a\udcffb"]) == 2
    assert "no such scenario file" in capsys.readouterr().err
