"""Mutation testing of `specsim/lossless` and `specsim/schedulers` on a copy of the tree.

    python scripts/mutate.py --seed 2 --count 150 --cpu-s 12 --out mutation.json

The tests run once on the unchanged tree, recording which test executes which line and how long it
takes. Then the tests are collected once, and for each mutant of a seeded sample over all modules of
both packages a forked child gives the changed function its new code and runs the tests that execute
its line, fastest first, then the other tests that enter the module, until one fails or `--cpu-s`
seconds of tests were tried. Where the line already ran during import or collection, the child
starts before that and imports the changed module afresh, and tests that noticed such a mutant
before come first. A mutant on a line that no test executes survives untried. A test that takes ten
times its usual time and 20 s more counts as failed ("timeout"). What cannot be seen here: numba is
off (kernels run as plain Python), and tests that start `specsim` in a process of its own see no
mutant.

`--again FILE` tries only the survivors of an earlier record, on the tree as it is now.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import types
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).resolve().parent))

from mutants import Mutant, change, mutants  # noqa: E402 - a neighbour of this script

TESTS = [
    "tests/lossless",
    "tests/conformance",
    "tests/unit/lossless",
    "tests/unit/schedulers",
    "tests/unit/study/test_montecarlo.py",
    "tests/cli/test_lossless_cli.py",
    "tests/laws/test_policy_laws.py",
    "tests/unit/scenario/test_scenario_load.py",
]
PYTEST = ["-q", "-m", "not slow and not cuda", "-p", "no:cacheprovider", "-p", "no:randomly"]
MEMORY_BYTES = 6 << 30


@dataclass
class Record:
    """What the unchanged tests do: seconds of each, the lines they run, and those that fail."""

    seconds: dict[str, float] = field(default_factory=dict)
    runs: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def runs_early(self, module: str, mutant: Mutant) -> bool:
        """Say whether the lines run before any test, during import or collection."""
        lines = self.runs.get(module, {})
        return mutant.imported or any("" in lines.get(line, ()) for line in mutant.lines)

    def tests_of(self, module: str, mutant: Mutant) -> tuple[list[str], list[str]]:
        """Return the tests that run a mutant's lines, and the others that enter its module.

        All tests come first for lines that run early.
        """
        lines = self.runs.get(module, {})
        direct = {test for line in mutant.lines for test in lines.get(line, ())} - {""}
        entering = {test for tests in lines.values() for test in tests} - {""}
        if self.runs_early(module, mutant):
            # Who only reads what an import has made, such as a schema, enters no line of it.
            direct = set(self.seconds)
        sound = sorted(self.seconds, key=self.seconds.__getitem__)
        return (
            [test for test in sound if test in direct],
            [test for test in sound if test in entering - direct],
        )


class Recorder:
    """Switches the coverage context with each test and keeps its CPU seconds."""

    def __init__(self, cover) -> None:
        self.cover, self.record = cover, Record()

    def pytest_runtest_logstart(self, nodeid, location):
        self.cover.switch_context(nodeid)
        self.began = time.process_time()

    def pytest_runtest_logfinish(self, nodeid, location):
        self.record.seconds[nodeid] = time.process_time() - self.began
        self.cover.switch_context("")

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.record.failed.append(report.nodeid)


class Limit:
    """Ends this process, with word of it, when one test takes too long."""

    def __init__(self, seconds: dict[str, float], pipe: int) -> None:
        self.seconds, self.pipe, self.failed = seconds, pipe, ""
        signal.signal(signal.SIGPROF, self._too_long)

    def _too_long(self, number, frame):
        os.write(self.pipe, json.dumps(["timeout", self.now]).encode())
        os._exit(1)

    def pytest_runtest_logstart(self, nodeid, location):
        self.now = nodeid
        signal.setitimer(signal.ITIMER_PROF, 20 + 10 * self.seconds[nodeid])

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed = report.nodeid


class Chosen(Limit):
    """Keeps only the named tests, in their order."""

    def __init__(self, tests: list[str], seconds: dict[str, float], pipe: int) -> None:
        super().__init__(seconds, pipe)
        self.order = {test: n for n, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items):
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order),
            key=lambda item: self.order[item.nodeid],
        )


class Collected:
    """Hands the collected tests to `work` instead of running them."""

    def __init__(self, work) -> None:
        self.work = work

    def pytest_runtestloop(self, session):
        self.work(session)
        return True


class MutantFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves one module from a changed tree."""

    def __init__(self, name: str, tree: ast.Module, path: str) -> None:
        self.name, self.tree, self.path = name, tree, path

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.name:
            return None
        folder = [str(Path(self.path).parent)] if self.path.endswith("__init__.py") else None
        spec = importlib.machinery.ModuleSpec(
            fullname, self, origin=self.path, is_package=folder is not None
        )
        if folder:
            spec.submodule_search_locations = folder
        return spec

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__file__ = self.path
        exec(compile(self.tree, self.path, "exec"), module.__dict__)  # noqa: S102 - the mutant


def give_new_code(name: str, tree: ast.Module, path: str, where: str) -> None:
    """Give the changed function of an imported module its new code.

    Raises:
        LookupError: it is not found, or its closure changed.
    """
    parts = where.split(".")
    holder: object = sys.modules[name]
    depth = 0
    while isinstance(vars(holder).get(parts[depth]), type):
        holder = vars(holder)[parts[depth]]
        depth += 1
    function = vars(holder).get(parts[depth])
    for inner in ("__func__", "fget", "__wrapped__"):
        function = getattr(function, inner, None) or function
    qualified = ".".join(parts[: depth + 1])
    waiting = [compile(tree, path, "exec")]
    while waiting:
        code = waiting.pop()
        if code.co_qualname == qualified:
            try:
                function.__code__ = code
            except (AttributeError, ValueError) as error:
                raise LookupError(where) from error
            return
        waiting += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    raise LookupError(where)


def in_child(task) -> list[object]:
    """Run `task(pipe)` in a forked child; return the JSON that it wrote, or that it died."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            os.write(writing, json.dumps(task(writing)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        text = told.read()
    status = os.waitpid(child, 0)[1]
    if text:
        return json.loads(text)
    return ["died", f"status {status}"]


def recorded(copied: Path, tests: list[str], kept: Path) -> Record:
    """Run all tests once under coverage in a child, unless `kept` says what they do already."""

    def run(pipe: int) -> list[object]:
        import coverage
        import pytest

        cover = coverage.Coverage(
            data_file=None,
            include=[str(copied / f"specsim/{name}/*") for name in ("lossless", "schedulers")],
        )
        cover.start()
        recorder = Recorder(cover)
        code = int(pytest.main([*PYTEST, *tests], plugins=[recorder]))
        cover.stop()
        data, record = cover.get_data(), recorder.record
        for path in data.measured_files():
            module = Path(path).relative_to(copied / "specsim").with_suffix("").as_posix()
            record.runs[module] = {
                line: list(names) for line, names in data.contexts_by_lineno(path).items()
            }
        kept.write_text(json.dumps([record.seconds, record.runs, record.failed]))
        return ["done", code]

    ended: list[object] = ["done", 0] if kept.exists() else in_child(run)
    if ended[0] != "done" or ended[1] not in (0, 1):
        raise SystemExit(f"the unchanged tests did not run: {ended}")
    seconds, runs, failed = json.loads(kept.read_text())
    for test in failed:
        seconds.pop(test, None)
    lines = {m: {int(n): names for n, names in rows.items()} for m, rows in runs.items()}
    return Record(seconds, lines, failed)


def affordable(tests: list[str], record: Record, cpu_s: float) -> list[str]:
    """Return the first tests that fit in so many seconds, at least one."""
    spent, chosen = 0.0, []
    for test in tests:
        spent += record.seconds[test]
        if chosen and spent > cpu_s:
            break
        chosen.append(test)
    return chosen


def tried_warm(session, mutant: Mutant, given, tests: list[str], record: Record) -> list[object]:
    """Run tests on a mutant in a child of the process that has collected them."""
    name, tree, path = given

    def run(pipe: int) -> list[object]:
        try:
            give_new_code(name, tree, path, mutant.where)
        except LookupError as error:
            return ["cold", str(error)]
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        limit = Limit(record.seconds, pipe)
        session.config.pluginmanager.register(limit)
        items = {item.nodeid: item for item in session.items}
        for test, following in zip(tests, [*tests[1:], None], strict=True):
            item = items[test]
            item.ihook.pytest_runtest_protocol(
                item=item, nextitem=items[following] if following else None
            )
            if limit.failed:
                return ["ended", 1, limit.failed]
        return ["ended", 0, ""]

    return in_child(run)


def tried_cold(given, tests: list[str], record: Record) -> list[object]:
    """Run tests on a mutant in a child that imports and collects everything itself."""
    name, tree, path = given

    def run(pipe: int) -> list[object]:
        import pytest

        for module in [m for m in sys.modules if m.partition(".")[0] in ("specsim", "tests")]:
            del sys.modules[module]
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        sys.meta_path.insert(0, MutantFinder(name, tree, path))
        plugin = Chosen(tests, record.seconds, pipe)
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        code = int(pytest.main(["-x", *PYTEST, *files], plugins=[plugin]))
        return ["ended", code, plugin.failed]

    return in_child(run)


def judged(ended: list[object]) -> tuple[str, str]:
    """Return how a mutant ended, and the test that noticed it."""
    if ended[0] == "timeout":
        return "timeout", str(ended[1])
    if ended[0] != "ended":
        return "crashed", str(ended[1])
    if ended[1] == 0:
        return "survived", ""
    return "killed", str(ended[2]) or f"pytest exit {ended[1]}"


def copied_tree() -> Path:
    """Return a private copy of what the tests need."""
    copied = Path(tempfile.mkdtemp(prefix="mutants-")).resolve()
    kept = ("specsim", "tests", "examples", "profiles", "scenarios", "reports/lossless")
    for name in (*kept, "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copied / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, copied / name)
    return copied


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=250, help="mutants to sample; 0 for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="modules whose path contains this")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="files and folders of tests")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--cpu-s", type=int, default=60, help="seconds of tests for a mutant")
    parser.add_argument("--again", type=Path, help="a record whose survivors are tried again")
    parser.add_argument(
        "--record", type=Path, help="what the tests do: written, or read if it is there"
    )
    parser.add_argument("--out", type=Path, default=Path("mutation.json"))
    options = parser.parse_args()
    out = options.out.resolve()
    kept_record = options.record.resolve() if options.record else None
    before = json.loads(options.again.read_text()) if options.again else None
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    copied = copied_tree()
    kept_record = kept_record or copied / "record.json"
    os.chdir(copied)
    sys.path.insert(0, str(copied))
    # Heavy libraries are loaded once, before the first fork.
    for name in (
        *(
            "numpy",
            "scipy.special",
            "numba",
            "pydantic",
            "hypothesis",
            "pytest",
            "torch",
            "cyclopts",
        ),
        *("coverage", "ruamel.yaml", "simpy"),
    ):
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    trees = {
        path.relative_to(copied / "specsim").with_suffix("").as_posix(): ast.parse(path.read_text())
        for folder in ("lossless", "schedulers")
        for path in sorted((copied / "specsim" / folder).glob("*.py"))
    }
    all_of = {module: mutants(tree) for module, tree in trees.items()}
    chosen = [(module, m) for module, found in all_of.items() for m in found]
    total = len(chosen)
    np.random.default_rng(options.seed).shuffle(chosen)
    chosen = [(module, m) for module, m in chosen if options.only in module]
    chosen = chosen[: options.count] if options.count else chosen
    kept: list[dict[str, object]] = []
    if before:
        names = {
            (row["module"], row["where"], row["change"], row["nth"])
            for row in before["mutants"]
            if row["result"] == "survived"
        }
        kept = [row for row in before["mutants"] if row["result"] != "survived"]
        chosen = [
            (module, m)
            for module, found in all_of.items()
            for m in found
            if (module, m.where, m.text, m.nth) in names
        ]
        if len(chosen) != len(names):
            print(f"{len(names) - len(chosen)} survivors of {options.again} are no longer there")
    began = time.monotonic()
    record = recorded(copied, options.tests, kept_record)
    print(
        f"{len(record.seconds)} tests in {sum(record.seconds.values()):.0f} CPU s; left out, "
        f"failing without numba: {record.failed}",
        flush=True,
    )
    rows: list[dict[str, object]] = []
    killers: Counter[str] = Counter()

    def note(row: dict[str, object], seconds: float) -> None:
        rows.append(row)
        counts = Counter(row["result"] for row in kept + rows)
        killed = sum(counts.values()) - counts["survived"]
        print(
            f"{len(rows)}/{len(chosen)} {row['result']:<9} {seconds:5.1f} s "
            f"{row['module']}:{row['line']} {row['change'][:80]} [{killed}/{sum(counts.values())}] "
            f"{row['by']}",
            flush=True,
        )
        told = {
            "seed": options.seed,
            "places": total,
            "run": sum(counts.values()),
            "killed": killed,
            "left_out": record.failed,
            "mutants": kept + rows,
        }
        out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")

    def work(session) -> None:
        for module, mutant in chosen:
            if (time.monotonic() - began) / 60 > options.minutes:
                break
            started = time.monotonic()
            direct, entering = record.tests_of(module, mutant)
            row = {
                "module": module,
                "line": mutant.line,
                "where": mutant.where,
                "change": mutant.text,
                "nth": mutant.nth,
            }
            if not direct:
                row |= {"result": "survived", "tests": 0, "by": "no test runs this line"}
            else:
                name = "specsim." + module.replace("/", ".").removesuffix(".__init__")
                given = (
                    name,
                    change(trees[module], mutant.index),
                    str(copied / f"specsim/{module}.py"),
                )
                if record.runs_early(module, mutant):
                    # Nobody knows who notices: those that often did come first.
                    direct.sort(key=lambda test: -killers[test])
                tests = affordable(direct + entering, record, options.cpu_s)
                ended: list[object] = ["cold"]
                if not record.runs_early(module, mutant):
                    ended = tried_warm(session, mutant, given, tests, record)
                if ended[0] == "cold":
                    ended = tried_cold(given, tests, record)
                result, by = judged(ended)
                if record.runs_early(module, mutant):
                    killers[by] += 1
                row |= {"result": result, "tests": len(tests), "by": by}
            note(row, time.monotonic() - started)

    import pytest

    pytest.main([*PYTEST, *options.tests], plugins=[Collected(work)])
    shutil.rmtree(copied)


if __name__ == "__main__":
    main()
