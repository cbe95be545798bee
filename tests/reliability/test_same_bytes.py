"""The same bytes under every Python: what `scripts/same_bytes.py` compares, and a known trap."""

from __future__ import annotations

import builtins
import copy
import importlib.util
import math
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from specsim.study.run import run_scenario

SCRIPT = Path(__file__).parents[2] / "scripts" / "same_bytes.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("same_bytes", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def otherwise(values: Iterable[Any], /, start: Any = 0) -> Any:
    """Sum floats to another last digit: Python 3.12 and 3.11 do not round them alike either."""
    terms = [start, *values]
    if any(isinstance(one, float) for one in terms):
        total = 0.0
        for one in terms:
            total += one
        exact = math.fsum(terms)
        return exact if exact != total else math.nextafter(total, math.inf)
    total = start
    for one in terms[1:]:
        total = total + one
    return total


@pytest.mark.parametrize("case", ["published", "fleet"])
def test_no_result_hangs_on_how_python_rounds_a_sum(
    script: ModuleType, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario, overrides = script.CASES[case]
    overrides = [*overrides, "stop.num_requests=60"]
    first = run_scenario(scenario, overrides=overrides, out=tmp_path / "first")
    monkeypatch.setattr(builtins, "sum", otherwise)
    assert sum([0.5, 0.5]) > 1.0  # planted
    second = run_scenario(scenario, overrides=overrides, out=tmp_path / "second")
    monkeypatch.undo()
    assert script.digests(first.directory) == script.digests(second.directory)


def test_a_difference_is_told(script: ModuleType) -> None:
    cases = {name: dict.fromkeys(script.PARTS, "0" * 64) for name in script.CASES}
    run = {"python": "3.11.0", "libraries": {"numpy": "2"}, "cases": cases}
    text, good = script.told([run, copy.deepcopy(run)])
    assert good
    assert "DIFFERS" not in text
    other = copy.deepcopy(run)
    other["cases"]["fleet"]["integers"] = "1" * 64
    text, good = script.told([run, other])
    assert not good
    (line,) = [line for line in text.splitlines() if "DIFFERS" in line]
    assert line.split() == ["fleet", "integers", "DIFFERS", "0" * 16, "1" * 16]


def test_floats_are_no_part_of_the_integers(script: ModuleType) -> None:
    one = {"a": 1, "b": [2, 0.5, {"c": 1e-9, "d": True}], "e": "x"}
    other = {"a": 1, "b": [2, 0.25, {"c": 2.0, "d": True}], "e": "x"}
    assert script.without_floats(one) == script.without_floats(other)
    assert script.without_floats(one) != script.without_floats(one | {"a": 2})
