"""Everything that only building a scenario shows: profiles missing or wrong, gamma too large."""

from __future__ import annotations

import re

from specsim.cost.table import load_table
from specsim.errors import Problem, ScenarioError, SpecsimError
from specsim.scenario.build import Arm, build_arm
from specsim.scenario.load import LoadedScenario
from specsim.scenario.locate import locator
from specsim.scenario.source import Keys

_PATH = re.compile(r"^([a-z_]+(?:\.[\w+-]+)*): ")


def build_arms(loaded: LoadedScenario) -> dict[str, Arm]:
    """Build every policy of a scenario.

    Returns:
        The arms by policy name, in the scenario's order.

    Raises:
        ScenarioError: all that is wrong with any of them, each with its place in the file.
    """
    scenario, folder = loaded.scenario, loaded.path.parent
    arms: dict[str, Arm] = {}
    found: dict[tuple[str, str], Problem] = {}

    def keep(error: SpecsimError, keys: Keys) -> None:
        for problem in _problems(loaded, error, keys):
            found.setdefault((problem.where, problem.message), problem)

    # The table first and once: it is the same for every policy.
    table_error = False
    try:
        load_table(locator(folder)("steps", scenario.cost.table))
    except SpecsimError as error:
        table_error = True
        keep(error, ("cost", "table"))
    for name in scenario.policies:
        try:
            arms[name] = build_arm(scenario, name, folder=folder)
        except ScenarioError as error:
            keep(error, ("cost", "table"))
        except SpecsimError as error:
            if not (table_error and scenario.cost.table in str(error)):
                keep(error, ("policies", name))
    if found:
        raise ScenarioError(list(found.values()))
    return arms


def _problems(loaded: LoadedScenario, error: SpecsimError, keys: Keys) -> list[Problem]:
    """Place an error: by the path that its message begins with, else at `keys`."""
    if isinstance(error, ScenarioError):
        return list(error.problems)
    text = str(error)
    path = _PATH.match(text)
    if path:
        named: Keys = tuple(path.group(1).split("."))
        if named[0] in loaded.scenario.__class__.model_fields:
            keys, text = named, text[path.end() :]
    if len(keys) == 2 and keys[0] == "policies" and "gamma" in text:
        keys = (*keys, "gamma")
    return [loaded.problem(keys, text)]
