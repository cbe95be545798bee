"""`specsim list`: what there is to name in a scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from specsim.cli.common import Json, Quiet, answer


def listing(
    what: Literal["scenarios", "profiles", "schedulers", "studies"],
    /,
    *,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """List shipped scenarios, profiles, schedulers or studies.

    Parameters
    ----------
    what
        What to list. Files of the working directory count too.
    """
    del quiet  # it says nothing on stderr
    lines = {
        "scenarios": _scenarios,
        "profiles": _profiles,
        "schedulers": _schedulers,
        "studies": _studies,
    }[what]()
    width = max((len(name) for name, _ in lines), default=0)
    text = "".join(f"{name:<{width}}  {about}".rstrip() + "\n" for name, about in lines)
    answer([{"name": name, "about": about} for name, about in lines], text, json=json)
    return 0


def _scenarios() -> list[tuple[str, str]]:
    from specsim.scenario.locate import scenario_names

    return [(name, str(path)) for name, path in scenario_names()]


def _studies() -> list[tuple[str, str]]:
    from specsim.study.grid import study_names

    return [(name, str(path)) for name, path in study_names()]


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
