"""The architecture as tests: imports go one way, pure packages are pure, torch stays in place."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "specsim"


def modules() -> list[Path]:
    """Return the package's modules; in a git checkout the tracked ones only."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "specsim"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names = [ROOT / name for name in done.stdout.split("\0") if name.endswith(".py")]
    return sorted(path for path in names or PACKAGE.rglob("*.py") if path.is_file())


MODULES = modules()

TIER = {
    "__main__": 9,
    "cli": 8,
    "report": 7,
    "study": 7,
    "interop": 7,
    "profiler": 7,
    "drafter": 7,
    "scenario": 6,
    "engine": 5,
    "lossless": 5,
    "schedulers": 4,
    "workload": 4,
    "acceptance": 4,
    "cost": 4,
    "metrics": 4,
    "stats": 3,
    "registry": 2,
    "inputs": 3,
    "rng": 1,
    "units": 1,
    "jsontext": 2,
    "archive": 2,
    "errors": 1,
    "": 0,
}
"""How high each part of specsim stands; imports go down. "" is the package itself (its version)."""

BESIDE = {
    # A study's summary holds the comparison, and its pictures are drawn when it is stored.
    ("study", "report"),
    # A report is drawn from what a study has stored or judged.
    ("report", "study"),
    # Validations hold runs against what other tools published, in their own formats.
    ("study", "interop"),
}
"""Imports between parts of equal height that are meant; single modules still make no cycle."""

PURE = ("schedulers", "cost", "acceptance", "lossless", "stats")
CLOCKLESS = (*PURE, "engine", "metrics", "workload", "scenario", "report", "interop")
FILES_OF_PURE = {Path("cost/table.py"), Path("acceptance/trace.py")}


def part(path: Path) -> str:
    inside = path.relative_to(PACKAGE)
    if len(inside.parts) > 1:
        return inside.parts[0]
    return "" if inside.stem == "__init__" else inside.stem


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and full name of everything that a module imports, lazily or not."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def wrong_direction(source: str, name: str) -> bool:
    """Say whether part `source` may not import `name`."""
    root, _, rest = name.partition(".")
    if root != "specsim":
        return False
    target = rest.partition(".")[0]
    target = target if target in TIER else ""
    if target in ("", source):
        return False
    return TIER[target] >= TIER[source] and (source, target) not in BESIDE


def test_every_part_has_a_height() -> None:
    assert {part(path) for path in MODULES} <= TIER.keys()


def test_the_rule_itself() -> None:
    assert wrong_direction("engine", "specsim.scenario.load")
    assert wrong_direction("engine", "specsim.lossless.worlds")
    assert wrong_direction("lossless", "specsim.engine.run")
    assert wrong_direction("interop", "specsim.study.run")
    assert wrong_direction("stats", "specsim.metrics.catalog")
    assert not wrong_direction("study", "specsim.report.pareto")
    assert not wrong_direction("engine", "specsim.schedulers.base")
    assert not wrong_direction("cli", "specsim.lossless.enumerate")


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    found = [
        f"{path}:{line}: {part(path)} imports {name}"
        for line, name in imports(path)
        if wrong_direction(part(path), name)
    ]
    assert not found


def test_modules_have_no_import_cycles() -> None:
    names = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in MODULES}
    edges: dict[str, set[str]] = {}
    for name, path in names.items():
        top = [n for n in tree(path).body if isinstance(n, ast.Import | ast.ImportFrom)]
        wanted: set[str] = set()
        for node in top:
            if isinstance(node, ast.ImportFrom) and node.module:
                wanted |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
        edges[name] = (wanted & names.keys()) - {name}
    done: set[str] = set()
    trail: list[str] = []

    def visit(name: str) -> None:
        assert name not in trail, f"cycle: {' -> '.join([*trail[trail.index(name) :], name])}"
        if name in done:
            return
        trail.append(name)
        for target in sorted(edges[name]):
            visit(target)
        trail.pop()
        done.add(name)

    for name in edges:
        visit(name)


def names_used(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of every attribute access and call of a plain name."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.lineno, f"{node.func.id}()"


@pytest.mark.parametrize("package", PURE)
def test_pure_packages_know_no_simulation_and_no_files(package: str) -> None:
    reads = (".open", ".read_text", ".read_bytes", ".write_text", ".write_bytes", "np.load")
    found = []
    for path in (path for path in MODULES if part(path) == package):
        for line, name in imports(path):
            if name.partition(".")[0] in ("simpy", "time", "datetime"):
                found.append(f"{path}:{line}: imports {name}")
        if path.relative_to(PACKAGE) in FILES_OF_PURE:
            continue
        for line, name in names_used(path):
            if name == "open()" or name.endswith(reads) or name.startswith("np.save"):
                found.append(f"{path}:{line}: {name}")
    assert not found


@pytest.mark.parametrize("package", CLOCKLESS)
def test_the_library_reads_no_clock_prints_nothing_and_does_not_exit(package: str) -> None:
    clocks = ("time.time", "time.perf_counter", "time.monotonic", "datetime.now", "date.today")
    found = []
    for path in (path for path in MODULES if part(path) == package):
        for line, name in names_used(path):
            if name in ("print()", "exit()", "quit()", "input()") or name == "sys.exit":
                found.append(f"{path}:{line}: {name}")
            if name.endswith(clocks):
                found.append(f"{path}:{line}: {name}")
    assert not found


def test_torch_stays_in_its_places() -> None:
    found = []
    for path in MODULES:
        torch = [line for line, name in imports(path) if name.partition(".")[0] == "torch"]
        if not torch or part(path) in ("drafter", "profiler"):
            continue
        found.append(str(path.relative_to(PACKAGE)))
    assert len(found) <= 1
    assert all(name.startswith("lossless/") and "torch" in name for name in found)


def test_nothing_but_drafter_and_profiler_needs_torch() -> None:
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in MODULES
        if part(path) not in ("drafter", "profiler")
        and path.name != "__init__.py"
        and "torch" not in path.stem
    ]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "print([n for n in ('torch', 'transformers', 'pyplot', 'matplotlib.pyplot', 'dask', "
        "'perfetto', 'gguf') if n in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
