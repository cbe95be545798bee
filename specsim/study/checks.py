"""What is wrong with any file that users write or make: scenarios, studies, tables, traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specsim.acceptance.lint import lint, rounds_of_trace
from specsim.acceptance.trace import load_trace
from specsim.cost.table import load_table
from specsim.errors import InputError, Problem, ScenarioError, SpecsimError
from specsim.scenario.build import profiles_of
from specsim.scenario.check import build_arms
from specsim.scenario.load import load_scenario, scenario_hash
from specsim.scenario.locate import find_scenario
from specsim.scenario.source import read
from specsim.study.grid import load_study, study_names


@dataclass(frozen=True, slots=True)
class Checked:
    """A file that is right.

    Attributes:
        file: its path.
        kind: scenario, study, table or trace.
        says: what it holds, in a few words.
        notes: what its user should know all the same.
    """

    file: str
    kind: str
    says: str
    notes: list[str] = field(default_factory=list)


def check_files(names: Sequence[str], *, overrides: Sequence[str] = ()) -> list[Checked]:
    """Check files of any kind, told by their suffix and content.

    Args:
        names: paths, or names of shipped scenarios and studies.
        overrides: `a.b=value` each, laid over scenarios.

    Raises:
        SpecsimError: what is wrong; of several wrong files all of it.
    """
    if not names:
        raise InputError("nothing to check; give scenario, study, table or trace files")
    found: list[Checked] = []
    wrong: list[SpecsimError] = []
    for name in names:
        try:
            found.append(_check(name, overrides))
        except SpecsimError as error:
            wrong.append(error)
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        raise ScenarioError([problem for error in wrong for problem in _problems(error)])
    return found


def _problems(error: SpecsimError) -> list[Problem]:
    if isinstance(error, ScenarioError):
        return list(error.problems)
    where, colon, rest = str(error).partition(": ")
    return [Problem(where, "", rest) if colon else Problem("specsim", "", where)]


def _check(name: str, overrides: Sequence[str]) -> Checked:
    path = Path(name)
    if path.suffix == ".npz":
        return _trace(path)
    if path.suffix == ".json":
        table = load_table(path)
        words = f"{table.provenance.status} step table, 1 to {table.last_tokens} tokens"
        return Checked(name, "table", words)
    studies = dict(study_names())
    try:
        file = find_scenario(name)
    except InputError:
        if name not in studies:
            raise
        return _study(studies[name])
    data = read(file).data
    if isinstance(data, dict) and "scenario" in data and "workload" not in data:
        return _study(file)
    loaded = load_scenario(file, overrides=overrides)
    arms = build_arms(loaded)
    # As the folder of its run: of the files behind it too, not of their names alone.
    digest = scenario_hash(loaded.scenario, profiles_of(arms.values()))[:12]
    return Checked(str(loaded.path), "scenario", f"{len(arms)} policies; content {digest}")


def _study(path: Path) -> Checked:
    study = load_study(path)
    wrong = sorted({point.error for point in study.points if point.error})
    return Checked(str(path), "study", f"{len(study.points)} points", wrong)


def _trace(path: Path) -> Checked:
    trace = load_trace(path)
    findings = lint(rounds_of_trace(trace))
    impossible = [f"{f.check}: {f.message}" for f in findings if f.error]
    if impossible:
        raise ScenarioError([Problem(str(path), "", text) for text in impossible])
    words = f"trace of {trace.num_anchors} anchors, gamma {trace.gamma}"
    return Checked(str(path), "trace", words, [f"{f.check}: {f.message}" for f in findings])
