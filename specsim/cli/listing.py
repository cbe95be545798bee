"""`specsim list`: what there is to name in a scenario."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal


def listing(what: Literal["scenarios", "profiles", "schedulers"], /) -> int:
    """List shipped scenarios, profiles, or schedulers.

    Parameters
    ----------
    what
        What to list. Files of the working directory count too.
    """
    lines = {"scenarios": _scenarios, "profiles": _profiles, "schedulers": _schedulers}[what]()
    width = max((len(name) for name, _ in lines), default=0)
    for name, text in lines:
        sys.stdout.write(f"{name:<{width}}  {text}\n".rstrip() + "\n")
    return 0


def _scenarios() -> list[tuple[str, str]]:
    from specsim.scenario.locate import scenario_names

    return [(name, str(path)) for name, path in scenario_names()]


def _profiles() -> list[tuple[str, str]]:
    from specsim.scenario.locate import locator

    find = locator(Path())
    return [
        (f"{group}: {name}", str(path))
        for group in ("steps", "traces")
        for name, path in find.names(group)
    ]


def _schedulers() -> list[tuple[str, str]]:
    from specsim.scenario.schema import scheduler_kinds

    return scheduler_kinds()
