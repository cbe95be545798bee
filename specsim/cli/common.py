"""What every verb shares: `--json`, `--quiet`, `--set`, `--jobs`, and how an answer is written."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated, Any

from cyclopts import Parameter, validators

Json = Annotated[
    bool,
    Parameter(
        name="--json",
        negative=(),
        show_default=False,
        help="Print JSON, and nothing else on stdout.",
    ),
]
Quiet = Annotated[
    bool,
    Parameter(
        name="--quiet", negative=(), show_default=False, help="Nothing on stderr but errors."
    ),
]
Set = Annotated[tuple[str, ...], Parameter(name="--set", negative=(), show_default=False)]


def within(
    *, above: float = -math.inf, least: float = -math.inf, most: float = math.inf
) -> Parameter:
    """Say which numbers a flag takes; NaN and infinity are none of them."""
    words = [f"above {above:g}"] if above > -math.inf else []
    words += [f"at least {least:g}"] if least > -math.inf else []
    words += [f"at most {most:g}"] if most < math.inf else []

    def check(type_: Any, value: float | None) -> None:
        del type_
        if value is not None and not (
            math.isfinite(value) and above < value and least <= value <= most
        ):
            raise ValueError(f"Must be {' and '.join(words) or 'a number'}.")

    return Parameter(validator=check)


MOST_SEED = 2**63 - 1
Seed = Annotated[int, within(least=0, most=MOST_SEED)]
Jobs = Annotated[int | None, Parameter(validator=validators.Number(gte=1, lte=512))]


def answer(value: Any, text: str, *, json: bool) -> None:
    """Write one answer on stdout: `value` as JSON if asked, else `text`."""
    if json:
        from specsim.study.store import to_json

        sys.stdout.write(to_json(value))
    else:
        sys.stdout.write(text)


def beware(text: str, *, quiet: bool) -> None:
    """Say on stderr what the reader of an answer should know."""
    if not quiet:
        sys.stderr.write(f"beware: {text}\n")


def progress(*, quiet: bool) -> AbstractContextManager[Callable[[int, int, str], None]]:
    """Return a progress bar on stderr, where that is a terminal."""
    from specsim.cli.progress import progress_bar

    return progress_bar(show=not quiet and sys.stderr.isatty())


def cores(jobs: int | None) -> int:
    """Return how many processes to use: as many as there are processors unless told."""
    return jobs or os.cpu_count() or 1
