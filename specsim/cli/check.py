"""`specsim check`: everything that is wrong with a scenario, without running it."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter


def check(
    scenario: str,
    /,
    *,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative=(), show_default=False)] = (),
) -> int:
    """Say everything that is wrong with a scenario; run nothing.

    Parameters
    ----------
    scenario
        A scenario file, or the name of a shipped one.
    set_
        Change a value of the scenario, such as `--set policies.greedy.gamma=5`; may be repeated.
    """
    from specsim.scenario.check import build_arms
    from specsim.scenario.load import load_scenario, scenario_hash
    from specsim.scenario.locate import find_scenario

    loaded = load_scenario(find_scenario(scenario), overrides=set_)
    arms = build_arms(loaded)
    digest = scenario_hash(loaded.scenario)[:12]
    sys.stdout.write(f"{loaded.path}: right; {len(arms)} policies; content {digest}\n")
    return 0
