"""How long it takes until something happens, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.benchmark(group="start-up")
CLI = (sys.executable, "-c", "from specsim.cli import main; main()")


@pytest.mark.parametrize("verb", [("--help",), ("run", "--help"), ("list", "scenarios")])
def test_cli(benchmark, verb: tuple[str, ...]) -> None:
    benchmark.pedantic(
        subprocess.run,
        ((*CLI, *verb),),
        {"check": True, "capture_output": True},
        rounds=3,
        warmup_rounds=1,
    )


def test_hello(benchmark, tmp_path) -> None:
    command = (*CLI, "run", "hello", "--quiet", "--jobs", "1", "--out", str(tmp_path))
    benchmark.pedantic(
        subprocess.run,
        (command,),
        {"check": True, "capture_output": True},
        rounds=3,
        warmup_rounds=1,
    )
