"""A scenario file to a validated, frozen `Scenario`, or every error in it at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from specsim.errors import InputError, Problem, ScenarioError
from specsim.scenario import explain
from specsim.scenario.rules import breaches
from specsim.scenario.schema import PolicyConfig, Scenario
from specsim.scenario.source import Keys, Source, dotted, read, show


@dataclass(frozen=True, slots=True)
class LoadedScenario:
    """A valid scenario and the file it came from.

    Attributes:
        scenario: the typed, frozen content.
        path: the file.
        overrides: what `--set` laid over it.
        source: positions, for errors that only building shows.
    """

    scenario: Scenario
    path: Path
    overrides: tuple[str, ...]
    source: Source

    @contextmanager
    def blame(self, *keys: str | int) -> Iterator[None]:
        """Give an `InputError` raised inside the position of the value at `keys`.

        Raises:
            ScenarioError: in place of the `InputError`.
        """
        try:
            yield
        except ScenarioError:
            raise
        except InputError as error:
            raise ScenarioError([self.problem(keys, str(error))]) from error

    def problem(self, keys: Keys, message: str, hint: str = "") -> Problem:
        """Make a problem that points at the value at `keys`."""
        return Problem(self.source.where(keys), dotted(keys), message, hint)


def load_scenario(path: Path, *, overrides: Sequence[str] = ()) -> LoadedScenario:
    """Read, override and validate a scenario file.

    Args:
        path: the YAML file; see `locate.find_scenario` for names.
        overrides: `a.b=value` each, laid over the file in order.

    Raises:
        ScenarioError: all that is wrong with it.
    """
    source = read(path)
    wrong: list[Problem] = []
    for text in overrides:
        try:
            source.override(text)
        except ScenarioError as error:
            wrong += error.problems
    scenario: Scenario | None = None
    try:
        scenario = validate(source)
    except ScenarioError as error:
        wrong += error.problems
    if scenario is None or wrong:
        raise ScenarioError(wrong)
    return LoadedScenario(scenario, path, tuple(overrides), source)


def validate(source: Source) -> Scenario:
    """Turn plain data into a `Scenario`.

    Raises:
        ScenarioError: all that is wrong with it.
    """
    data = source.data
    if not isinstance(data, dict):
        message = f"holds {show(data)}; a mapping with name, question, policies, .. is needed"
        raise ScenarioError([Problem(source.where(()), "", message)])
    wrong: list[Problem] = []
    scenario: Scenario | None = None
    try:
        # Through JSON, where strict mode takes a list for a tuple and nothing else for anything.
        scenario = Scenario.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        wrong = explain.problems(error, Scenario, source)
    if scenario is not None:
        parts = {name: getattr(scenario, name) for name in Scenario.model_fields}
        policies = dict(scenario.policies)
    else:
        parts, policies = _valid_parts(data)
    wrong += [
        Problem(source.where(breach.keys), dotted(breach.keys), breach.message, breach.hint)
        for breach in breaches(data, parts, policies)
    ]
    if scenario is None or wrong:
        raise ScenarioError(sorted(wrong, key=_in_file_order))
    return scenario


def _valid_parts(data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, PolicyConfig]]:
    """Validate each top-level value and each policy alone, and keep those that are right."""
    parts: dict[str, Any] = {}
    for name, field in Scenario.model_fields.items():
        if name in data:
            adapter: TypeAdapter[Any] = TypeAdapter(field.rebuild_annotation())
            found = _valid(adapter, data[name])
            if found is not None:
                parts[name] = found
    raw = data.get("policies")
    policy = TypeAdapter(PolicyConfig)
    policies = {
        name: found
        for name, value in (raw.items() if isinstance(raw, dict) else ())
        if (found := _valid(policy, value)) is not None
    }
    return parts, policies


def _valid(adapter: TypeAdapter[Any], value: Any) -> Any:
    try:
        return adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError:
        return None


def _in_file_order(problem: Problem) -> tuple[bool, int, int]:
    """Order by line and column; overrides last, in their order."""
    parts = problem.where.rsplit(":", 2)
    if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit():
        return False, int(parts[1]), int(parts[2])
    return True, 0, 0


def canonical_json(scenario: Scenario) -> str:
    """Write what is simulated, so that files that say the same give the same text."""
    return json.dumps(
        scenario.model_dump(mode="json", exclude={"record"}),
        sort_keys=True,
        separators=(",", ":"),
        allow_nan=False,
    )


def scenario_hash(scenario: Scenario, profiles: Sequence[Path] = ()) -> str:
    """Return 64 hex digits that stand for a scenario and the profiles it reads.

    Comments, the order of keys and the way a value came in (file or `--set`) do not matter, nor
    does `record`: it says what is kept of a run, not what is run. Take the first 12 digits as a
    folder's name.

    Args:
        scenario: what is run.
        profiles: files whose content counts too, in the order in which the scenario names them.
    """
    digest = hashlib.sha256(canonical_json(scenario).encode())
    for path in profiles:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


SCHEMA_NAME = "scenario.schema.json"


def schema_json() -> str:
    """Return the JSON schema of scenario files, for editors."""
    schema = Scenario.model_json_schema()
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"
