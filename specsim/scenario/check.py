"""Everything that only building a scenario shows: profiles missing or wrong, gamma too large."""

from __future__ import annotations

import re
from dataclasses import replace

from specsim.cost.table import load_table
from specsim.errors import Problem, ScenarioError, SpecsimError
from specsim.scenario.build import Arm, build_arm
from specsim.scenario.load import LoadedScenario
from specsim.scenario.locate import locator
from specsim.scenario.schema import AcceptanceConfig, PolicyConfig
from specsim.scenario.source import Keys

_PATH = re.compile(r"^([a-z_]+(?:\.[\w+-]+)*): ")


def build_arms(loaded: LoadedScenario) -> dict[str, Arm]:
    """Build every policy of a scenario.

    Returns:
        The arms by policy name, in the scenario's order.

    Raises:
        ScenarioError: all that is wrong with any of them, each with its place in the file.
    """
    scenario, folder = loaded.scenario, loaded.path.parent.resolve()
    arms: dict[str, Arm] = {}
    found: dict[tuple[str, str], Problem] = {}

    def keep(error: SpecsimError, *keys: str) -> None:
        for problem in _problems(loaded, error, keys):
            found.setdefault((problem.where, problem.message), problem)

    # The table first and once: it is the same for every policy.
    table_text = ""
    try:
        load_table(locator(folder)("steps", scenario.cost.table))
    except SpecsimError as error:
        table_text = str(error)
        keep(error, "cost", "table")
    for name, policy in scenario.policies.items():
        try:
            arms[name] = build_arm(scenario, name, folder=folder)
        except SpecsimError as error:
            acceptance = _acceptance_error(policy.acceptance or scenario.acceptance, loaded, policy)
            if acceptance is not None:
                own = ("policies", name) if policy.acceptance else ()
                keep(acceptance, *own, "acceptance")
            elif str(error) != table_text:
                keep(error, "policies", name)
    if found:
        raise ScenarioError(list(found.values()))
    return arms


def _acceptance_error(
    config: AcceptanceConfig, loaded: LoadedScenario, policy: PolicyConfig
) -> SpecsimError | None:
    """Say whether it is the acceptance that a policy cannot be built with."""
    try:
        config.build(
            seed=loaded.scenario.seed,
            gamma=max(policy.gamma, 1),
            locate=locator(loaded.path.parent.resolve()),
        )
    except SpecsimError as error:
        return error
    return None


def _problems(loaded: LoadedScenario, error: SpecsimError, keys: Keys) -> list[Problem]:
    """Place an error: by the path that its message begins with, else at `keys`."""
    # Paths as the user named the folder.
    whole, named_as = f"{loaded.path.parent.resolve()}/", f"{loaded.path.parent}/"
    shorter = "" if named_as == "./" else named_as
    if isinstance(error, ScenarioError):
        return [
            replace(
                problem,
                where=problem.where.replace(whole, shorter),
                message=problem.message.replace(whole, shorter),
            )
            for problem in error.problems
        ]
    text = str(error).replace(whole, shorter)
    path = _PATH.match(text)
    if path:
        named: Keys = tuple(path.group(1).split("."))
        if named[0] in type(loaded.scenario).model_fields:
            keys, text = named, text[path.end() :]
    if keys[0] == "policies" and text.startswith("gamma "):
        keys = (*keys, "gamma")
    return [loaded.problem(keys, text)]
