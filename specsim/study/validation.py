"""`specsim validate NAME`: shipped comparisons with laws and with published measurements."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specsim.errors import InputError, nearest

_WHERE = {
    "queueing": "specsim.study.validate_queueing:validate",
    "replay": "specsim.study.validate_replay:validate",
    "dspark_fig7": "specsim.study.validate_fig7:validate",
    "vllm_b300": "specsim.study.validate_vllm_b300:validate",
    "inferencemax": "specsim.study.validate_inferencemax:validate",
}
_OF_A_FILE = frozenset({"inferencemax"})
"""Validations of measurements that are not shipped: they take a file of points."""


@dataclass(frozen=True, slots=True)
class Check:
    """One number held against its limits.

    Attributes:
        name: what it is, with its unit.
        value: what came out.
        low: least that passes; None for no limit.
        high: most that passes; None for no limit.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the value lies within its limits (NaN does not)."""
        above = self.low is None or self.value >= self.low
        below = self.high is None or self.value <= self.high
        return above and below and self.value == self.value


@dataclass(frozen=True, slots=True)
class Validation:
    """The outcome of one comparison.

    Attributes:
        name: its name.
        checks: every number, those without limits for information.
        fitted_on: what was fitted, and on what; empty if nothing was.
        predicted: what was not fitted and is judged.
    """

    name: str
    checks: Sequence[Check]
    fitted_on: str
    predicted: str

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `--json` prints."""
        return {
            "name": self.name,
            "metrics": {check.name: check.value for check in self.checks},
            "limits": {
                check.name: {"low": check.low, "high": check.high}
                for check in self.checks
                if check.low is not None or check.high is not None
            },
            "failed": [check.name for check in self.checks if not check.passed],
            "fitted_on": self.fitted_on,
            "predicted": self.predicted,
            "pass": self.passed,
        }


def names() -> list[str]:
    """Return the names of all validations."""
    return sorted(_WHERE)


def validate(name: str, *, points: Path | None = None) -> Validation:
    """Run the validation `name`.

    Args:
        name: which one.
        points: measured points, for a validation of a file.

    Raises:
        InputError: there is no such validation, or it does not take a file.
    """
    if name not in _WHERE:
        raise InputError(
            f'no validation "{name}"; there are {", ".join(names())} {nearest(name, names())}'
        )
    if points is not None and name not in _OF_A_FILE:
        raise InputError(
            f'validation "{name}" has its own measurements; points are for: '
            f"{', '.join(sorted(_OF_A_FILE))}"
        )
    module, _, function = _WHERE[name].partition(":")
    found: Callable[..., Validation] = getattr(importlib.import_module(module), function)
    return found(points) if name in _OF_A_FILE else found()
