"""House rules that a linter does not know."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel, create_model

ROOT = Path(__file__).parents[2]
MAX_LINES = 450
OVERRIDES = {"shutdown"}
"""Methods whose signature a base class of the standard library gives."""


def modules() -> list[Path]:
    """Return the package's modules; in a git checkout the tracked ones only."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "specsim"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names = [ROOT / name for name in done.stdout.split("\0") if name.endswith(".py")]
    return sorted(path for path in names or (ROOT / "specsim").rglob("*.py") if path.is_file())


MODULES = modules()


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def tracked() -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("not a git checkout, so no list of tracked files")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def texts() -> Iterator[tuple[Path, str]]:
    for path in tracked():
        raw = path.read_bytes()
        if b"\0" not in raw[:8192]:
            yield path, raw.decode("utf-8", errors="replace")


DEBTS: dict[str, int] = {}
"""Modules that are longer all the same, and how long at most; the list may only shrink."""


def test_modules_hold_one_noun() -> None:
    count = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in MODULES
    }
    long = {name: n for name, n in count.items() if n > DEBTS.get(name, MAX_LINES)}
    assert not long, "look for the second noun in each"
    assert all(count.get(name, 0) > MAX_LINES for name in DEBTS), "strike it off"


def test_nothing_is_pickled() -> None:
    found = []
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            at = f"{path}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names]
                names.append(getattr(node, "module", None) or "")
                banned = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
                if banned & {name.partition(".")[0] for name in names}:
                    found.append(f"{at}: imports {names}")
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                given = {k.arg: ast.unparse(k.value) for k in node.keywords}
                if given.get("allow_pickle") == "True":
                    found.append(f"{at}: allow_pickle=True")
                if name == "np.load" and given.get("allow_pickle") != "False":
                    found.append(f"{at}: np.load without allow_pickle=False")
                if name == "torch.load" and given.get("weights_only") != "True":
                    found.append(f"{at}: torch.load without weights_only=True")
                if name.endswith(("read_pickle", "to_pickle")):
                    found.append(f"{at}: {name}")
    assert not found


def test_no_hidden_randomness() -> None:
    fine = {"Generator", "PCG64", "SeedSequence", "BitGenerator", "Philox"}
    found = []
    for path in MODULES:
        forked: set[ast.AST] = set()
        for node in ast.walk(tree := parsed(path)):
            if isinstance(node, ast.With) and "fork_rng" in ast.unparse(node.items[0]):
                forked |= set(ast.walk(node))
        for node in ast.walk(tree):
            at = f"{path}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import) and any(a.name == "random" for a in node.names):
                found.append(f"{at}: imports random")
            if isinstance(node, ast.Attribute):
                name = ast.unparse(node)
                match = re.fullmatch(r"(?:np|numpy)\.random\.(\w+)", name)
                if match and match.group(1) not in fine | {"default_rng"}:
                    found.append(f"{at}: {name}")
                # Inside fork_rng the global state is put back, and modules know no other.
                seeds = ("torch.manual_seed", "torch.seed", "torch.random.manual_seed")
                if name in seeds and node not in forked:
                    found.append(f"{at}: {name}")
            bare = isinstance(node, ast.Call) and not node.args and not node.keywords
            if bare and ast.unparse(node.func).endswith("default_rng"):
                found.append(f"{at}: default_rng() without a seed")
    assert not found


def test_no_mutable_state_on_classes() -> None:
    found = []
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.ClassDef):
                continue
            for item in node.body:
                value = item.value if isinstance(item, ast.Assign | ast.AnnAssign) else None
                if isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp):
                    found.append(f"{path}:{item.lineno}: {node.name}")
    assert not found


def test_booleans_are_given_by_name() -> None:
    found = []
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef) and node.name not in OVERRIDES:
                positional = [*node.args.posonlyargs, *node.args.args]
                defaults = node.args.defaults
                with_default = positional[len(positional) - len(defaults) :]
                for argument, default in zip(with_default, defaults, strict=True):
                    if isinstance(default, ast.Constant) and isinstance(default.value, bool):
                        found.append(f"{path}:{node.lineno}: {node.name}({argument.arg})")
    assert not found


def test_no_machine_paths_in_tracked_files() -> None:
    # Split, so that this file does not find itself.
    home = re.compile(r"(?<![\w.])/(?:" + "root|work|home/\\w+|Users/\\w+" + r")/[\w.-]+")
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path, text in texts()
        if path.name != Path(__file__).name
        for match in home.finditer(text)
    ]
    assert not found


def test_no_package_registry_is_named_in_tracked_files() -> None:
    # Which registry serves a machine is that machine's affair.
    option = re.compile(r"(?:extra-)?index-url|trusted-host|UV_INDEX|PIP_INDEX|GOPROXY|find-links")
    private = re.compile(
        r"https?://(?:[\w-]+(?:\.[\w-]+)*\.(?:internal|local|corp|lan|intranet)\b"
        r"|\d+\.\d+\.\d+\.\d+|[\w-]+(?:[:/]|$)|[\w.-]+:\d+)"
    )
    loopback = re.compile(r"https?://(?:localhost|127\.0\.0\.1|example\.\w+)")
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path, text in texts()
        if path.name != Path(__file__).name
        for pattern in (option, private)
        for match in pattern.finditer(text)
        if not loopback.match(match.group())
    ]
    assert not found


def test_no_large_or_pointer_files_are_tracked() -> None:
    for path in tracked():
        assert path.stat().st_size <= 40 * 2**20, path
        if "bad_inputs" not in path.parts:
            assert not path.read_bytes().startswith(b"version https://git-lfs"), path


def models_of(annotation: Any, seen: dict[str, type[BaseModel]]) -> dict[str, type[BaseModel]]:
    """Collect every model that can stand in a scenario."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation.__name__ not in seen:
            seen[annotation.__name__] = annotation
            for field in annotation.model_fields.values():
                models_of(field.annotation, seen)
    elif get_origin(annotation) is not None:
        for inner in get_args(annotation):
            models_of(inner, seen)
    return seen


def unread(models: dict[str, type[BaseModel]]) -> list[str]:
    """Return the fields that no code of the package names."""
    # Tracked or not: a model may come from a file that is still being written.
    files = (ROOT / "specsim").rglob("*.py")
    source = "\n".join(path.read_text(encoding="utf-8") for path in files)
    return [
        f"{name}.{field}"
        for name, model in models.items()
        for field in model.model_fields
        if not re.search(rf"\.{field}\b|\b{field}=\w|[\"\']{field}[\"\']", source)
    ]


def test_every_field_of_a_scenario_is_read_by_some_code() -> None:
    from specsim.scenario.schema import Scenario

    models = models_of(Scenario, {})
    assert len(models) > 15  # else the walk finds nothing
    assert not unread(models), "a field that no code reads is a promise that nobody keeps"


def test_an_unread_field_would_be_found() -> None:
    inner = create_model("Inner", nobody_reads_this_one=(int, 0), seed=(int, 0))
    outer = create_model("Outer", policies=(dict[str, inner | None], {}))  # type: ignore[valid-type]
    assert unread(models_of(outer, {})) == ["Inner.nobody_reads_this_one"]
