"""The coverage gate of `make test`: what it counts, and that it can fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GATE = ROOT / "scripts" / "coverage_gate.py"
PURE = {"schedulers", "cost", "acceptance", "lossless", "stats", "engine", "metrics", "workload"}

MODULE = """\
def njit(function):
    return function


@njit
def compiled(x):
    for i in range(x):
        if i > 3:
            return i
    return 0


def plain(x):
    if x > 3:
        return 1
    return 0
"""
HALF = "from pure import mod; mod.plain(1)"
WHOLE = "from pure import mod; mod.plain(1); mod.plain(5)"


def python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("COV", "PYTHONPATH"))}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=inherited | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with our rules of exclusion and one pure package."""
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]
    left_out = json.dumps(ours["report"]["exclude_also"])
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.coverage.run]\nbranch = true\nsource = ["top/pure"]\n'
        f"[tool.coverage.report]\nexclude_also = {left_out}\n"
    )
    package = tmp_path / "top" / "pure"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "mod.py").write_text(MODULE)
    return tmp_path


@pytest.mark.parametrize(("code", "exit_code"), [(HALF, 1), (WHOLE, 0)])
def test_a_branch_that_no_test_takes_fails_and_is_named(
    project: Path, code: str, exit_code: int
) -> None:
    (project / "some_test.py").write_text(f"import sys; sys.path.insert(0, 'top')\n{code}\n")
    ran = python("-m", "coverage", "run", "some_test.py", folder=project)
    assert ran.returncode == 0, ran.stderr
    done = python(str(GATE), folder=project)
    assert done.returncode == exit_code, done.stdout + done.stderr
    # The compiled function has branches too; they are not counted.
    assert f"top/pure  {2 - exit_code:4} of    2 branches" in done.stdout
    hint = "python -m coverage report -m --include='top/pure/*'"
    named = "top/pure/mod.py: 1 branches not taken, 1 lines not run"
    for words in (hint, named, "LACKS", "NOT enough"):
        assert (words in done.stdout) == bool(exit_code)


def test_nothing_measured_is_no_success(project: Path) -> None:
    done = python(str(GATE), folder=project)
    assert done.returncode == 1
    assert "run `make test`" in done.stderr


def test_a_package_that_was_not_measured_is_no_success(project: Path) -> None:
    config = project / "pyproject.toml"
    (project / "some_test.py").write_text(f"import sys; sys.path.insert(0, 'top')\n{WHOLE}\n")
    python("-m", "coverage", "run", "some_test.py", folder=project)
    config.write_text(config.read_text().replace('"top/pure"', '"top/pure", "top/other"'))
    done = python(str(GATE), folder=project)
    assert done.returncode == 1
    assert "nothing was measured of top/other" in done.stderr


def test_the_gate_watches_the_pure_packages_and_leaves_out_compiled_code_alone() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]
    assert set(tool["run"]["source"]) == {f"specsim/{name}" for name in PURE}
    assert tool["run"]["branch"] is True
    assert "omit" not in tool["run"]
    assert tool["report"] == {"exclude_also": [r"^ *@njit\b"]}


def test_no_pragma_hides_a_line_of_a_pure_package() -> None:
    found = [
        str(path)
        for name in sorted(PURE)
        for path in (ROOT / "specsim" / name).rglob("*.py")
        if "pragma: no" in path.read_text(encoding="utf-8")
    ]
    assert not found
