"""Mutation testing of `specsim/lossless` and `specsim/schedulers` on a copy of the tree.

    python scripts/mutate.py --count 200 --out reports/lossless/mutation.json

Each mutant changes one operator, constant, condition or return of one module; a forked child runs
the quick tests of that module against it and stops at the first failure. A mutant that no test
notices survives. Numba is off (its kernels run as plain Python), string constants, annotations and
module-level constants are left alone.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
UNIT = "tests/unit/lossless"
CATALOGUE = "tests/lossless/test_lossless_catalogue.py"
SUITE = "tests/conformance/test_conformance_suite.py"
WORLDS = f"{UNIT}/test_lossless_worlds.py"
ENUMERATE = f"{UNIT}/test_enumerate_worlds.py"
POLICIES = "tests/lossless/test_policies.py"
KERNELS = "tests/unit/schedulers/test_kernels.py"

TESTS: dict[str, list[str]] = {
    "lossless/rejection": [f"{UNIT}/test_rejection_rules.py", CATALOGUE],
    "lossless/rejection_torch": [f"{UNIT}/test_rejection_rules.py"],
    "lossless/wrong_rules": [f"{UNIT}/test_rejection_rules.py", CATALOGUE],
    "lossless/worlds": [WORLDS, CATALOGUE],
    "lossless/random_worlds": [WORLDS],
    "lossless/leaks": [CATALOGUE, WORLDS],
    "lossless/enumerate": [ENUMERATE, CATALOGUE, "tests/lossless/test_lagged.py"],
    "lossless/peek": [ENUMERATE, CATALOGUE],
    "lossless/probe": [ENUMERATE, SUITE + "::test_each_check_catches_what_it_is_for", CATALOGUE],
    "lossless/significance": [f"{UNIT}/test_significance.py"],
    "lossless/montecarlo": [f"{UNIT}/test_montecarlo.py"],
    "lossless/battery": [WORLDS, SUITE],
    "lossless/conformance": [SUITE],
    "lossless/liars": [CATALOGUE, SUITE],
    "lossless/models": [f"{UNIT}/test_montecarlo.py"],
    "lossless/case": [CATALOGUE],
    "lossless/catalogue": [CATALOGUE],
    "lossless/rule_cases": [CATALOGUE],
    "lossless/report": [CATALOGUE, "tests/cli/test_lossless_cli.py"],
    "lossless/notes": [f"{UNIT}/test_lossless_kinds.py", CATALOGUE],
    "lossless/kinds": [f"{UNIT}/test_lossless_kinds.py", CATALOGUE],
    "schedulers/base": [ENUMERATE, SUITE + "::test_each_check_catches_what_it_is_for", KERNELS],
    "schedulers/kernels": [KERNELS, CATALOGUE],
    "schedulers/greedy": [CATALOGUE, KERNELS],
    "schedulers/topk": [CATALOGUE, KERNELS],
    "schedulers/static": [CATALOGUE, KERNELS],
    "schedulers/threshold": [CATALOGUE, KERNELS],
    "schedulers/feedback": ["tests/unit/schedulers/test_feedback.py"],
    "schedulers/guarded": ["tests/unit/schedulers/test_guarded.py", POLICIES],
}
# Without numba the capacity kernel adds float32 survivals in float32, its twin in float64.
JIT_ONLY = "--deselect=tests/unit/schedulers/test_kernels.py::test_capacity_equals_its_twin"
DEFAULT_SCHEDULER_TESTS = ["tests/unit/schedulers", CATALOGUE]

COMPARE = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
BINARY = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
NAMES = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "minimum": "maximum",
    "maximum": "minimum",
    "argmax": "argmin",
    "floor": "ceil",
    "ceil": "floor",
    "cumsum": "cumprod",
    "cumprod": "cumsum",
}


def mutable(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield (node, kind of change) for every place worth changing."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if (part := getattr(node, name, None)) is not None:
                skipped.update(id(inner) for inner in ast.walk(part))
        for decorator in getattr(node, "decorator_list", []):
            skipped.update(id(inner) for inner in ast.walk(decorator))
        if isinstance(node, ast.keyword) and node.arg == "strict":
            # Lengths agree by construction; `strict` only says so.
            skipped.update(id(inner) for inner in ast.walk(node))
        if isinstance(node, ast.Raise | ast.JoinedStr):
            # The texts of errors are tested by their words, not by each of their numbers.
            skipped.update(id(inner) for inner in ast.walk(node))
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Import | ast.ImportFrom):
            skipped.update(id(inner) for inner in ast.walk(statement))
        if isinstance(statement, ast.If):
            skipped.update(id(inner) for inner in ast.walk(statement))
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARE:
            yield node, "compare"
        elif isinstance(node, ast.BinOp) and type(node.op) in BINARY:
            yield node, "binary"
        elif isinstance(node, ast.BoolOp):
            yield node, "boolean"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
            yield node, "unary"
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            yield node, "constant"
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            yield node, "condition"
        elif isinstance(node, ast.Name | ast.Attribute):
            if isinstance(node.ctx, ast.Load) and _called(node) in NAMES:
                yield node, "name"
        elif isinstance(node, ast.AugAssign) and type(node.op) in BINARY:
            yield node, "augmented"
        elif isinstance(node, ast.Break | ast.Continue):
            yield node, "jump"


def _called(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def change(tree: ast.Module, index: int) -> tuple[ast.Module, int, str]:
    """Return a changed copy, the line, and the change in words."""
    made = copy.deepcopy(tree)
    node, kind = list(mutable(made))[index]
    before = ast.unparse(node).splitlines()[0]
    if kind == "compare":
        node.ops[0] = COMPARE[type(node.ops[0])]()
    elif kind in ("binary", "augmented"):
        node.op = BINARY[type(node.op)]()
    elif kind == "boolean":
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif kind == "unary":
        node.op = ast.UAdd() if isinstance(node.op, ast.USub) else node.op
        if isinstance(node.op, ast.Not):
            node.operand = ast.UnaryOp(ast.Not(), node.operand)
        elif isinstance(node.op, ast.Invert):
            node.operand = ast.UnaryOp(ast.Invert(), node.operand)
    elif kind == "constant":
        value = node.value
        node.value = (not value) if isinstance(value, bool) else value + 1
    elif kind == "condition":
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif kind == "name":
        if isinstance(node, ast.Attribute):
            node.attr = NAMES[node.attr]
        else:
            node.id = NAMES[node.id]
    elif kind == "jump":
        swapped = ast.Continue() if isinstance(node, ast.Break) else ast.Break()
        for parent in ast.walk(made):
            for field, value in ast.iter_fields(parent):
                if isinstance(value, list) and node in value:
                    getattr(parent, field)[value.index(node)] = ast.copy_location(swapped, node)
        return ast.fix_missing_locations(made), node.lineno, f"{before} -> {ast.unparse(swapped)}"
    ast.fix_missing_locations(made)
    return made, node.lineno, f"{before} -> {ast.unparse(node).splitlines()[0]}"


class MutantFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves one module from a changed tree."""

    def __init__(self, name: str, tree: ast.Module, path: str) -> None:
        self.name, self.tree, self.path = name, tree, path

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.name:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=self.path)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__file__ = self.path
        exec(compile(self.tree, self.path, "exec"), module.__dict__)  # noqa: S102 - the mutant


def run_tests(tests: list[str], finder: MutantFinder | None, *, cpu_s: int) -> tuple[str, float]:
    """Run tests in a child; return how it ended and the seconds it took."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
        code = 99
        try:
            import pytest

            if finder is not None:
                sys.meta_path.insert(0, finder)
            code = int(
                pytest.main(
                    [
                        *("-x", "-q", "-m", "not slow and not cuda", "-p", "no:cacheprovider"),
                        *(JIT_ONLY, *tests),
                    ]
                )
            )
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    seconds = time.monotonic() - began
    if os.WIFSIGNALED(status):
        return f"signal {signal.Signals(os.WTERMSIG(status)).name}", seconds
    code = os.WEXITSTATUS(status)
    return {0: "survived", 1: "killed"}.get(code, f"exit {code}"), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="mutants to sample; 0 for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="modules whose path contains this")
    parser.add_argument("--first", action="store_true", help="only the first test file of each")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--cpu-s", type=int, default=120, help="limit of one mutant's tests")
    parser.add_argument("--out", type=Path, default=Path("mutation.json"))
    options = parser.parse_args()
    out = options.out.resolve()
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    copied = Path(tempfile.mkdtemp(prefix="mutants-"))
    for name in ("specsim", "tests", "examples", "profiles", "scenarios", "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copied / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, copied / name)
    os.chdir(copied)
    sys.path.insert(0, str(copied))
    # Heavy libraries are loaded once, before the forks; specsim itself never is.
    for name in ("numpy", "scipy.stats", "numba", "pydantic", "hypothesis", "pytest", "torch"):
        __import__(name)
    modules = [
        path.relative_to(copied / "specsim").with_suffix("").as_posix()
        for folder in ("lossless", "schedulers")
        for path in sorted((copied / "specsim" / folder).glob("*.py"))
        if path.stem != "__init__" and options.only in f"{folder}/{path.stem}"
    ]
    trees = {m: ast.parse((copied / f"specsim/{m}.py").read_text()) for m in modules}
    places = [(m, i) for m in modules for i in range(len(list(mutable(trees[m]))))]
    total = len(places)
    chosen = list(places)
    np.random.default_rng(options.seed).shuffle(chosen)
    if options.count:
        chosen = chosen[: options.count]
    rows: list[dict[str, object]] = []
    began = time.monotonic()
    sound: dict[str, bool] = {}
    for done, (module, index) in enumerate(chosen, start=1):
        if (time.monotonic() - began) / 60 > options.minutes:
            break
        tests = TESTS.get(module, DEFAULT_SCHEDULER_TESTS)[: 1 if options.first else None]
        key = " ".join(tests)
        if key not in sound:
            ended, seconds = run_tests(tests, None, cpu_s=600)
            sound[key] = ended == "survived"
            print(f"unchanged: {key}: {ended}, {seconds:.0f} s", flush=True)
        if not sound[key]:
            continue
        tree, line, text = change(trees[module], index)
        name = "specsim." + module.replace("/", ".")
        finder = MutantFinder(name, tree, str(copied / f"specsim/{module}.py"))
        ended, seconds = run_tests(tests, finder, cpu_s=options.cpu_s)
        rows.append({"module": module, "line": line, "change": text, "result": ended})
        killed = sum(row["result"] != "survived" for row in rows)
        print(
            f"{done}/{len(chosen)} {ended:<9} {seconds:5.1f} s {module}:{line} {text[:90]} "
            f"[{killed}/{len(rows)} killed]",
            flush=True,
        )
        out.write_text(
            json.dumps(
                {"places": total, "run": len(rows), "killed": killed, "mutants": rows}, indent=1
            )
            + "\n"
        )
    shutil.rmtree(copied)


if __name__ == "__main__":
    main()
