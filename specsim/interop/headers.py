"""Column names of timings: what a header means, in which unit, and whether its values can be meant.

A unit is read from the name (`tpot_ms`, `TPOT (s)`) and never guessed from the values; but values
that no engine shows under the unit named are refused, with what they look like.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from specsim.errors import Problem, ScenarioError

UNITS: Mapping[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
"""Seconds of each unit that a name may end in."""
_SPELT = {"sec": "s", "secs": "s", "second": "s", "seconds": "s", "msec": "ms", "usec": "us",
          "millisecond": "ms", "milliseconds": "ms", "microseconds": "us", "µs": "us",
          "μs": "us"}  # fmt: skip
_OTHER = {
    "max_concurrency": "concurrency",
    "users": "concurrency",
    "time_per_output_token": "tpot",
    "mean_tpot": "tpot",
    "median_tpot": "tpot",
    "inter_token_latency": "itl",
    "mean_itl": "itl",
    "median_itl": "itl",
}
LEAST_S, MOST_S = 0.2e-3, 1.0
"""Step times and TPOTs outside of this are taken for a mistake of units."""


def plain(name: str) -> str:
    """Return a column's name as specsim writes it: `TPOT (ms)` is tpot_ms, `Concurrency` is lower.

    Names that mean nothing here come back in lower case.
    """
    words = re.sub(r"[^0-9a-zµμ]+", "_", name.strip().lower()).strip("_").split("_")
    unit = _SPELT.get(words[-1], words[-1])
    if len(words) > 1 and unit in UNITS:
        stem = "_".join(words[:-1])
        return f"{_OTHER.get(stem, stem)}_{unit}"
    whole = "_".join(words)
    return _OTHER.get(whole, whole) or name


def time_column(columns: Iterable[str], stems: tuple[str, ...], where: str) -> tuple[str, float]:
    """Return the one column that holds a time, and the seconds of its unit.

    Args:
        columns: plain names.
        stems: names of the time without its unit, the preferred one first.
        where: the file's name in errors.

    Raises:
        ScenarioError: there is none, there are several, or none says its unit.
    """
    legal = {f"{stem}_{unit}": scale for stem in stems for unit, scale in UNITS.items()}
    legal |= {"seconds": 1.0} if "step" in stems else {}
    found = [name for name in columns if name in legal]
    if len(found) == 1:
        return found[0], legal[found[0]]
    bare = next((name for name in columns if name in stems), None)
    names = ", ".join(list(legal)[:3]) + (" or seconds" if "seconds" in legal else "")
    if bare is not None:
        message = f"does not say its unit; call it {names}: a unit is never guessed"
        raise ScenarioError([Problem(f"{where}:1", bare, message)])
    message = f"give exactly one of the columns {names}; a unit is never guessed"
    if found:
        message = (
            f"{' and '.join(found)} are all times of a step: keep one of them; a unit is never "
            "guessed"
        )
    raise ScenarioError([Problem(f"{where}:1", "", message)])


def time_columns(*stems: str) -> tuple[str, ...]:
    """Return the names that a time may have, with every unit and bare."""
    return (*(f"{stem}_{unit}" for stem in stems for unit in ("ms", "s", "us")), *stems)


def told_once(problems: Sequence[Problem]) -> list[Problem]:
    """Return the first of problems that are all of one cause, with how many more there are."""
    if len(problems) < 2:
        return list(problems)
    first, more = problems[0], len(problems) - 1
    rows = f"{more} more row{'' if more == 1 else 's'}"
    return [replace(first, message=f"{first.message}; and so in {rows}")]


def implausible(value: float, scale: float, place: str, column: str) -> Problem | None:
    """Say what is wrong with a time that no engine shows.

    Args:
        value: as it stands in the file.
        scale: seconds of its unit.
        place: where it stands.
        column: under which name.
    """
    seconds = value * scale
    if LEAST_S <= seconds <= MOST_S:
        return None
    short = {1.0: "s", 1e-3: "ms", 1e-6: "us"}
    looks = next(
        (unit for unit, other in UNITS.items() if other != scale and 1e-3 <= value * other <= 0.5),
        None,
    )
    side = "below 0.2 ms" if seconds < LEAST_S else "above 1 s"
    hint = "check the unit"
    if looks is not None:
        ratio = UNITS[looks] / scale
        change = f"multiply by {ratio:g}" if ratio > 1 else f"divide by {1 / ratio:g}"
        words = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}[looks]
        hint = f"looks like {words}: {change}, or name the column by its unit"
    message = f"{value:g} {short[scale]} is {side}, which no engine is believed to take"
    return Problem(place, column, message, f"{hint}; if it is right, say --any-step-time")
