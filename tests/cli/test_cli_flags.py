"""Every verb and flag of the command line, frozen in `flags.txt`.

Options live in the scenario (`--set path=value`), so a flag more is a decision: take it by renewing
the file, `python tests/cli/test_cli_flags.py > tests/cli/flags.txt`, and let the diff be read.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from cyclopts import App

from specsim.cli import VERBS, make_app

FROZEN = Path(__file__).parent / "flags.txt"
_COMMON = {"--help", "-h", "--version"}


def lines() -> Iterator[str]:
    """Yield `verb ARGUMENT --flag ..` of every command, in the order of the help."""
    app = make_app()
    for name, target, _ in VERBS:
        if importlib.util.find_spec(target.partition(":")[0]) is None:
            yield f"{name} (absent)"
        else:
            yield from commands(app[name], name)


def commands(app: App, path: str) -> Iterator[str]:
    if app.default_command is not None:
        names = [argument.names[0] for argument in app.assemble_argument_collection()]
        yield " ".join([path, *names])
    for name in app:
        if name not in _COMMON:
            yield from commands(app[name], f"{path} {name}")


def test_flags_are_frozen() -> None:
    assert list(lines()) == FROZEN.read_text(encoding="utf-8").splitlines(), (
        "renew it: python tests/cli/test_cli_flags.py > tests/cli/flags.txt"
    )


def test_run_has_its_flags() -> None:
    # Else an empty list could be frozen.
    assert "run SCENARIO --set --json --quiet --out --jobs" in set(lines())


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines()) + "\n")
