"""What a sweep runs: a study file, and the points it stands for.

A point is one variant of a scenario (values laid over its file), one policy, one load and one seed.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Discriminator, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError
from scipy.stats import qmc

from specsim.errors import InputError, Problem, ScenarioError, nearest
from specsim.registry import Config
from specsim.rng import stream
from specsim.scenario.load import validate
from specsim.scenario.locate import find_scenario, shipped
from specsim.scenario.schema import FrontierQuestion, Name, PointQuestion, Scenario, Users
from specsim.scenario.source import Source, dotted, read

MAX_SWEEP = 100_000
Value = bool | int | float | str | dict[str, Any] | list[Any] | None
Variant = Mapping[str, Value]
"""Values by path, as `--set` lays them over a scenario."""


class Grid(Config):
    """Every combination of the values of every axis; the last axis changes fastest."""

    kind: Literal["grid"]
    axes: dict[str, Annotated[list[Value], Field(min_length=1)]] = Field(min_length=1)

    def variants(self) -> Iterator[Variant]:
        """Yield the combinations."""
        for values in itertools.product(*self.axes.values()):
            yield dict(zip(self.axes, values, strict=True))


class Range(Config):
    """Numbers between two ends, both included.

    Attributes:
        low: least.
        high: most.
        scale: `log` draws equally by factor.
        whole: round to whole numbers.
    """

    low: float
    high: float
    scale: Literal["linear", "log"] = "linear"
    whole: bool = False

    def at(self, share: float) -> float | int:
        """Return the number at `share` of the way, 0 to 1."""
        if self.scale == "log":
            value = float(np.exp(np.log(self.low) + share * np.log(self.high / self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        if self.whole:
            return min(round(self.high), max(round(self.low), round(value)))
        return float(f"{value:.6g}")


def _ordered(ranges: dict[str, Range]) -> dict[str, Range]:
    for path, found in ranges.items():
        if not found.low < found.high or (found.scale == "log" and found.low <= 0):
            raise PydanticCustomError(
                "range",
                '"{path}" goes from {low} to {high}; low < high is needed, and above 0 for log',
                {"path": path, "low": found.low, "high": found.high},
            )
    return ranges


class LatinHypercube(Config):
    """Few points that spread over a box: each axis is cut into `samples` parts, each used once."""

    kind: Literal["latin_hypercube"]
    samples: int = Field(ge=1, le=10_000)
    seed: int = Field(default=1, ge=0)
    ranges: Annotated[dict[str, Range], AfterValidator(_ordered)] = Field(min_length=1)

    def variants(self) -> Iterator[Variant]:
        """Yield the samples; the same seed gives the same ones."""
        rng = stream(self.seed, "study/latin_hypercube")
        share_SA = qmc.LatinHypercube(len(self.ranges), rng=rng).random(self.samples)
        for share_A in share_SA:
            yield {
                path: axis.at(float(share))
                for (path, axis), share in zip(self.ranges.items(), share_A, strict=True)
            }


class Listed(Config):
    """The variants one by one; all must set the same paths."""

    kind: Literal["list"]
    points: list[dict[str, Value]] = Field(min_length=1)

    def variants(self) -> Iterator[Variant]:
        """Yield them in order."""
        yield from self.points


class StudyConfig(Config):
    """A study file.

    Attributes:
        name: its name.
        description: what it asks.
        scenario: a scenario file beside it, or the name of a shipped one.
        set: values laid over the scenario for every point.
        plan: which values change; left out, the scenario is run as it is.
        policies: which of the scenario's policies to run; all if left out.
        concurrency: users a rank; those of the scenario's question if left out.
        replications: seeds of each point: the scenario's, and the next ones.
        metrics: metrics shown first in tables and figures.
    """

    name: Name
    description: str = Field(default="", max_length=2000)
    scenario: str = Field(min_length=1)
    set: dict[str, Value] = Field(default_factory=dict)
    plan: Annotated[Grid | LatinHypercube | Listed, Discriminator("kind")] | None = None
    policies: list[str] | None = Field(default=None, min_length=1)
    concurrency: list[Users] | None = Field(default=None, min_length=1)
    replications: int = Field(default=1, ge=1, le=1000)
    metrics: list[str] = Field(default=["tok_s_gpu", "tok_s_user", "budget_tokens"], min_length=1)


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a study.

    Attributes:
        index: its place in the study.
        variant: what differs from the scenario.
        policy: the policy run.
        concurrency: users a rank, None for other arrivals.
        replication: 0, 1, ..
        scenario: the scenario of this point: this variant, this seed.
        error: why it cannot run; empty if it can.
    """

    index: int
    variant: Variant
    policy: str
    concurrency: int | None
    replication: int
    scenario: Scenario | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Study:
    """A loaded study and its points.

    Attributes:
        config: what the file says.
        path: the study's file.
        folder: where its scenario lies, which profiles are looked for beside.
        scenario: the scenario's file.
        points: every point, right or wrong.
    """

    config: StudyConfig
    path: Path
    folder: Path
    scenario: Path
    points: tuple[Point, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """Paths that any variant sets, in the file's order."""
        return tuple(dict.fromkeys(path for point in self.points for path in point.variant))


def find_study(name: str) -> Path:
    """Return the file of a study: a path, or a name in ./scenarios/studies or a shipped one.

    Raises:
        InputError: there is none.
    """
    given = Path(name)
    if given.is_file():
        return given
    known = dict(study_names())
    if name in known:
        return known[name]
    close = nearest(given.stem, known)
    raise InputError(
        f"{name}: no such study file{'; ' + close if close else ''}; shipped studies: "
        f"{', '.join(sorted(known)) or 'none'}"
    )


def study_names() -> list[tuple[str, Path]]:
    """Return name and file of every study in ./scenarios/studies and among the shipped ones."""
    known: dict[str, Path] = {}
    for folder in (shipped("scenarios") / "studies", Path("scenarios/studies")):
        known |= {path.stem: path for path in sorted(folder.glob("*.y*ml"))}
    return sorted(known.items())


def load_study(path: Path) -> Study:
    """Read a study and lay out its points.

    A variant that makes no valid scenario becomes points with an `error`; if all of them do, the
    study itself is wrong.

    Raises:
        ScenarioError: the file, its scenario, or every point is wrong.
        InputError: there is no such scenario, or the study has too many points.
    """
    source = read(path)
    try:
        config = TypeAdapter(StudyConfig).validate_json(json.dumps(source.data), strict=True)
    except ValidationError as error:
        raise ScenarioError([_problem(source, detail) for detail in error.errors()]) from error
    beside = path.parent / config.scenario
    file = beside if beside.is_file() else find_scenario(config.scenario)
    base = read(file)
    variants = list(config.plan.variants()) if config.plan else [{}]
    points: list[Point] = []
    wrong: list[ScenarioError] = []
    for variant in variants:
        try:
            scenario = _with(base, {**config.set, **variant})
            _known_policies(config, scenario, source)
        except ScenarioError as error:
            wrong.append(error)
            message = "; ".join(str(problem) for problem in error.problems)
            for name in config.policies or ["-"]:
                points.append(Point(len(points), variant, name, None, 0, None, message))
            continue
        for name, users, replication in itertools.product(
            config.policies or scenario.policies, _loads(config, scenario), _times(config)
        ):
            seeded = scenario.model_copy(update={"seed": scenario.seed + replication})
            points.append(Point(len(points), variant, name, users, replication, seeded))
        if len(points) > MAX_SWEEP:
            raise InputError(f"{path}: more than {MAX_SWEEP} points; use fewer values or seeds")
    if len(wrong) == len(variants):
        raise wrong[0]
    return Study(config, path, file.parent.resolve(), file, tuple(points))


def _times(config: StudyConfig) -> range:
    return range(config.replications)


def _loads(config: StudyConfig, scenario: Scenario) -> list[int | None]:
    if config.concurrency is not None:
        return list(config.concurrency)
    match scenario.question:
        case FrontierQuestion(concurrency=grid):
            return list(grid)
        case PointQuestion(concurrency=users):
            return [users]
    raise AssertionError(f"unknown question {scenario.question!r}")


def _with(base: Source, values: Variant) -> Scenario:
    source = copy.deepcopy(base)
    for path, value in values.items():
        source.override(f"{path}={json.dumps(value)}")
    return validate(source)


def _known_policies(config: StudyConfig, scenario: Scenario, source: Source) -> None:
    wrong = [
        Problem(
            source.where(("policies", n)),
            f"policies.{n}",
            f'is "{name}", which is no policy; legal are {", ".join(scenario.policies)}',
            nearest(name, scenario.policies),
        )
        for n, name in enumerate(config.policies or ())
        if name not in scenario.policies
    ]
    cap = scenario.cluster.max_requests_per_rank
    wrong += [
        Problem(
            source.where(("concurrency", n)),
            f"concurrency.{n}",
            f"is {users}, more users than cluster.max_requests_per_rank = {cap}",
        )
        for n, users in enumerate(config.concurrency or ())
        if users > cap
    ]
    if wrong:
        raise ScenarioError(wrong)


def _problem(source: Source, detail: Any) -> Problem:
    loc = detail["loc"]
    # Under a discriminated union, pydantic puts the kind between the field and what is inside.
    keys = (loc[0], *loc[2:]) if loc[:1] == ("plan",) else loc
    fields = list(StudyConfig.model_fields)
    hint = nearest(str(keys[-1]), fields) if detail["type"] == "extra_forbidden" else ""
    message = detail["msg"]
    if detail["type"] == "extra_forbidden":
        message = f"is no field of a study; legal are {', '.join(fields)}"
    return Problem(source.where(keys), dotted(keys), message, hint)
