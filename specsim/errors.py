"""What specsim raises when the user can put it right.

Every message answers: where, what was found, what is legal, and what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class SpecsimError(ValueError):
    """A mistake in what the user gave. The command line prints it without a traceback, exit 2."""


class InputError(SpecsimError):
    """A bad value, file or combination, named in one message that says what to do."""


class MissingDependencyError(SpecsimError):
    """An optional package is needed and absent; the message names the extra to install."""


class UnsafeSchedulerError(SpecsimError):
    """A scheduler that biases the output was asked to run without `unsafe: true`."""


class SchedulerFault(SpecsimError):
    """A scheduler broke its contract; the message names the step, the request and the value."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input file.

    Attributes:
        where: `file:line:column`, as far as known.
        path: dotted path of the value inside the file, such as `policies.greedy.gamma`.
        message: what is wrong and what is legal, the value included.
        hint: what to do, such as the nearest right name; empty if there is nothing to add.
    """

    where: str
    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        head = f"{self.where}: {self.path}: " if self.path else f"{self.where}: "
        return head + self.message + (f" ({self.hint})" if self.hint else "")


class ScenarioError(SpecsimError):
    """Everything wrong with one input file, all at once."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def in_one_line(error: BaseException) -> str:
    """Return the type and the message of an error that is not ours, shortened to one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 300 else text[:297] + "..."


def nearest(name: str, names: Iterable[str]) -> str:
    """Return `did you mean "x"?` for the closest of `names`, or an empty string."""
    found = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f'did you mean "{found[0]}"?' if found else ""
