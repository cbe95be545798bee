"""Every wrong input in `bad_inputs/`: one clear error each, exit code 2, no traceback.

A file there is a scenario whose last comments say what must be printed, a problem a line
(`# expect: file:line:column: path: message`), all of them and no others; ` ..` stands for anything.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specsim.cli import main

FOLDER = Path(__file__).parent / "bad_inputs"
CASES = sorted(FOLDER.glob("*.yaml"))


def expected(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.partition("expect: ")[2] for line in lines if line.startswith("# expect: ")]


def pattern_of(wanted: str) -> str:
    """Return what a line must begin with; ` ..` stands for anything, such as a list of kinds."""
    return ".*".join(re.escape(piece) for piece in wanted.split(" .."))


def problems(text: str) -> list[str]:
    """Take the problems out of what was printed on stderr."""
    lines = text.splitlines()
    if lines[0].endswith(" errors"):
        assert lines[0] == f"specsim: {len(lines) - 1} errors"
        return [line.removeprefix("  ") for line in lines[1:]]
    assert len(lines) == 1
    return [lines[0].removeprefix("specsim: error: ")]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_bad_input(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(FOLDER)
    assert main(["check", path.name]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    said, wanted = problems(err), expected(path)
    assert wanted, "the file says nothing of what is expected"
    assert len(said) == len(wanted)
    for line, pattern in zip(said, wanted, strict=True):
        assert re.match(pattern_of(pattern), line), line


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 80


def test_the_base_of_the_bad_inputs_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Without this, a mistake in what the files share would make every one of them pass.
    text = (FOLDER / "negative_seed.yaml").read_text(encoding="utf-8")
    (tmp_path / "good.yaml").write_text(text.replace("seed: -1", "seed: 1"), encoding="utf-8")
    monkeypatch.chdir(FOLDER)
    assert main(["check", str(tmp_path / "good.yaml")]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["everything_at_once", "table_not_positive"])
def test_in_a_process_of_its_own(name: str) -> None:
    code = "import sys; from specsim.cli import main; sys.exit(main())"
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code, "check", f"{name}.yaml"],
        cwd=FOLDER,
        env=os.environ | {"PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(problems(done.stderr)) == len(expected(FOLDER / f"{name}.yaml"))


def test_run_refuses_what_check_refuses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(FOLDER)
    for name in ("negative_seed", "unsafe_scheduler", "table_missing", "gamma_above_the_traces"):
        out = tmp_path / "runs"
        assert main(["run", f"{name}.yaml", "--out", str(out), "--jobs", "1"]) == 2
        assert not out.exists()
        err = capsys.readouterr().err
        assert f"{name}.yaml:" in err
        assert "Traceback" not in err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe\x00name", "is not UTF-8 text"),
        (b"name: caf\xe9\n", ":1:10: is not UTF-8 text"),
        (b"name: a\x00b\n", "unprintable character U+0000"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n", "git lfs pull"),
        (b"#" * (128 * 1024 + 1), "is larger than 131072 bytes"),
        (b"", "is empty"),
        (b"\xef\xbb\xbfnaem: x\n", 'did you mean "name"?'),
    ],
)
def test_files_that_are_no_text(
    content: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    assert main(["check", str(path)]) == 2
    assert words in capsys.readouterr().err


def test_no_such_file_folder_or_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("name: x\n", encoding="utf-8")
    for given, words in (
        (str(tmp_path / "mime.yaml"), 'mine.yaml"?'),
        (str(tmp_path), "is a folder"),
        ("helo", 'did you mean "hello"?'),
        ("x" * 400 + ".yaml", "no such scenario file"),
        ("", "is a folder"),
    ):
        assert main(["check", given]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("policies.test.gama=3", "--set policies.test.gama: policies.test.gama: unknown key"),
        ("seed=-3", "--set seed: seed: is -3; must be at least 0"),
        ("seed", "needs the form path=value"),
        ("=3", "needs the form path=value"),
        ("seed=", "needs the form path=value"),
        ("seed={", "--set seed:1:2: is not YAML"),
        ("seed.x=3", "which holds no keys"),
        (
            "cluster.gpus_per_rank=.nan",
            "--set cluster.gpus_per_rank: cluster.gpus_per_rank: is .nan",
        ),
        ("policies.new.gamma=3", "--set policies.new.gamma: policies.new.scheduler: is missing"),
        ("question.concurrency=17", "--set question.concurrency: question.concurrency: is 17"),
        ("cost.table=smal", '--set cost.table: cost.table: no step-cost table "smal"'),
    ],
)
def test_bad_overrides_are_named_as_such(
    override: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (FOLDER / "negative_seed.yaml").read_text(encoding="utf-8")
    (tmp_path / "good.yaml").write_text(text.replace("seed: -1", "seed: 1"), encoding="utf-8")
    monkeypatch.chdir(FOLDER)
    assert main(["check", str(tmp_path / "good.yaml"), "--set", override]) == 2
    assert words in capsys.readouterr().err
