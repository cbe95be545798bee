"""What a step-table file may say, and every way in which one can be wrong, with its place.

The checks run on the text, so that an error can name file, line and column; `cost/table.py` makes
the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from specsim.errors import Problem, ScenarioError, nearest
from specsim.registry import Config

FORMAT = "specsim.steps/1"
Term = Literal["draft", "attention", "host"]
Status = Literal["measured", "derived", "fitted", "synthetic"]


LABELS = ("measured", "derived", "fitted", "assumed", "synthetic")
"""What a number can rest on, from the best to the worst."""


def worst_label(labels: Iterable[str]) -> str:
    """Return the worst of some labels: a sum is worth no more than its worst part."""
    return max(labels, key=LABELS.index)


class Provenance(Config):
    """Where the numbers of a table come from, kept inside its file.

    Attributes:
        status: measured, derived (computed from measurements), fitted or synthetic.
        source: document, repository and file, or command, that they come from.
        date: day of the measurement or derivation, YYYY-MM-DD.
        licence: licence of the numbers.
        left_out: parts of a step's time that no curve of the table covers.
        notes: anything else a reader must know.
        split_open_at: tokens a request of all the steps behind the table, if they were the same in
            all of them: what a token costs beside what a request costs is then a choice.
    """

    status: Status
    source: str = Field(min_length=1)
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    licence: str = Field(min_length=1)
    left_out: list[str] = Field(default_factory=list)
    notes: str = ""
    split_open_at: float | None = Field(default=None, ge=1, le=1e9)


LEAST_S, MOST_S = 1e-9, 1e6
"""What a step can take: further out, times no longer add up in a run's clock."""


def _measurable(seconds: float) -> float:
    if seconds < LEAST_S:
        raise PydanticCustomError("measurable", "must be at least 1e-09, a nanosecond")
    return seconds


_Seconds = Annotated[float, Field(gt=0, le=MOST_S), AfterValidator(_measurable)]
_Count = Annotated[int, Field(ge=1, le=10**9)]


class TokenCurve(Config):
    """Seconds by tokens in the forward, at strictly increasing probes."""

    batch_tokens: list[_Count] = Field(min_length=1)
    seconds: list[_Seconds] = Field(min_length=1)


class RequestCurve(Config):
    """Seconds by requests of the step, at strictly increasing probes."""

    num_requests: list[_Count] = Field(min_length=1)
    seconds: list[_Seconds] = Field(min_length=1)


class AttentionSurface(Config):
    """Seconds of decode attention, `seconds[context][requests]`."""

    num_requests: list[_Count] = Field(min_length=1)
    context_tokens: list[_Count] = Field(min_length=1)
    seconds: list[list[_Seconds]] = Field(min_length=1)


class TableFile(Config):
    """The whole file, before the checks that look at several values at once."""

    format: Literal["specsim.steps/1"]
    name: str = Field(min_length=1)
    provenance: Provenance
    verify: TokenCurve
    graph_limit_tokens: _Count | None = None
    past_limit: TokenCurve | None = None
    draft: RequestCurve | None = None
    attention: AttentionSurface | None = None
    host: RequestCurve | None = None
    includes: list[Term] = Field(default_factory=list)


def parse_file(text: str, *, where: str) -> TableFile:
    """Check the text of a table file and return its content.

    Args:
        text: the file's text, JSON.
        where: the file's name in errors.

    Raises:
        ScenarioError: not JSON or wrong; names every problem, with file, line and key.
    """
    if text.startswith("version https://git-lfs"):
        message = "is a Git LFS pointer, not the table itself"
        raise ScenarioError([Problem(where, "", message, "fetch it with `git lfs pull`")])
    duplicates: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in items]
        duplicates.extend(sorted({key for key in keys if keys.count(key) > 1}))
        return dict(items)

    try:
        data = json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        problem = Problem(f"{where}:{error.lineno}:{error.colno}", "", f"not JSON: {error.msg}")
        raise ScenarioError([problem]) from error
    except (ValueError, RecursionError) as error:
        why = (
            "is nested too deep" if isinstance(error, RecursionError) else "holds too long a number"
        )
        raise ScenarioError([Problem(where, "", f"not a step table: {why}")]) from error
    found: list[tuple[tuple[str | int, ...], str, str]] = [
        ((key,), f'key "{key}" is given twice', "keep one") for key in duplicates
    ]
    if not isinstance(data, dict):
        found.append(((), f"must be an object with format {FORMAT}, not {_shown(data)}", ""))
    else:
        found.extend(_structure_faults(data))
        if not found:
            found.extend(_value_faults(TableFile.model_validate(data, strict=True)))
    if found:
        locate = _locator(text, where)
        raise ScenarioError(
            [Problem(locate(path), _dotted(path), message, hint) for path, message, hint in found]
        )
    return TableFile.model_validate(data, strict=True)


_Fault = tuple[tuple[str | int, ...], str, str]
_LEGAL = {
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "literal_error": "must be {expected}",
    "missing": "is missing",
    "too_short": "must not be empty",
    "string_pattern_mismatch": "must look like {pattern}",
}


def _structure_faults(data: dict[str, Any]) -> list[_Fault]:
    try:
        TableFile.model_validate(data, strict=True)
    except ValidationError as error:
        faults: list[_Fault] = []
        for entry in error.errors():
            path = tuple(entry["loc"])
            if entry["type"] == "extra_forbidden":
                legal = _legal_keys(path)
                message = f"is not a key of a step table; legal here: {', '.join(legal)}"
                faults.append((path, message, nearest(str(path[-1]), legal)))
                continue
            message = _LEGAL.get(entry["type"], entry["msg"]).format_map(entry.get("ctx", {}))
            if entry["type"] != "missing":
                message += f", not {_shown(entry['input'])}"
            faults.append((path, message, ""))
        return faults
    return []


def _legal_keys(path: tuple[str | int, ...]) -> list[str]:
    inner: dict[str | int, type[Config]] = {
        "provenance": Provenance,
        "verify": TokenCurve,
        "past_limit": TokenCurve,
        "draft": RequestCurve,
        "host": RequestCurve,
        "attention": AttentionSurface,
    }
    model = inner[path[0]] if len(path) > 1 else TableFile
    return list(model.model_fields)


def _value_faults(file: TableFile) -> list[_Fault]:
    faults: list[_Fault] = []
    for key, part in (("verify", file.verify), ("past_limit", file.past_limit)):
        if part is not None:
            faults += _rising((key, "batch_tokens"), part.batch_tokens)
            faults += _equal_length((key, "seconds"), part.seconds, part.batch_tokens)
    for key, piece in (("draft", file.draft), ("host", file.host)):
        if piece is not None:
            faults += _rising((key, "num_requests"), piece.num_requests)
            faults += _equal_length((key, "seconds"), piece.seconds, piece.num_requests)
    if file.attention is not None:
        faults += _rising(("attention", "num_requests"), file.attention.num_requests)
        faults += _rising(("attention", "context_tokens"), file.attention.context_tokens)
        rows = file.attention.seconds
        faults += _equal_length(("attention", "seconds"), rows, file.attention.context_tokens)
        for row, seconds in enumerate(rows):
            faults += _equal_length(
                ("attention", "seconds", row), seconds, file.attention.num_requests
            )
    faults += _limit_faults(file)
    for term in ("draft", "attention", "host"):
        if term in file.includes and getattr(file, term) is not None:
            message = f'"{term}" has its own curve and is also named as inside verify'
            faults.append((("includes",), message, "it would be charged twice; drop one"))
    return faults


def _limit_faults(file: TableFile) -> list[_Fault]:
    limit, past = file.graph_limit_tokens, file.past_limit
    if (limit is None) != (past is None):
        given, absent = ("past_limit", "graph_limit_tokens")
        if limit is not None:
            given, absent = absent, given
        return [((given,), f"is given without {absent}", "give both or neither")]
    if limit is None or past is None:
        return []
    faults: list[_Fault] = []
    if file.verify.batch_tokens[-1] > limit:
        message = f"{file.verify.batch_tokens[-1]} lies past graph_limit_tokens {limit}"
        last = len(file.verify.batch_tokens) - 1
        hint = "points past the limit belong in past_limit"
        faults.append((("verify", "batch_tokens", last), message, hint))
    if past.batch_tokens[0] <= limit:
        message = f"{past.batch_tokens[0]} lies within graph_limit_tokens {limit}"
        faults.append((("past_limit", "batch_tokens", 0), message, "it belongs in verify"))
    return faults


def _rising(path: tuple[str | int, ...], values: Sequence[int]) -> list[_Fault]:
    return [
        ((*path, i), f"{values[i]} does not rise above {values[i - 1]} before it", "sort the rows")
        for i in range(1, len(values))
        if values[i] <= values[i - 1]
    ]


def _equal_length(
    path: tuple[str | int, ...], values: Sequence[Any], axis: Sequence[int]
) -> list[_Fault]:
    if len(values) == len(axis):
        return []
    return [(path, f"has {len(values)} entries for {len(axis)} probes", "one for each")]


def _dotted(path: tuple[str | int, ...]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _locator(text: str, where: str) -> Callable[[tuple[str | int, ...]], str]:
    """Return a function from a path in the file to `file:line:column` (JSON reads as YAML)."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    reader = YAML(typ="rt")
    reader.allow_duplicate_keys = True
    try:
        root: Any = reader.load(text)
    except (YAMLError, RecursionError):
        root = None

    def locate(path: tuple[str | int, ...]) -> str:
        node, place = root, ""
        for part in path:
            positions = getattr(getattr(node, "lc", None), "data", None) or {}
            if part not in positions:
                break
            line, column = positions[part][:2]
            place, node = f":{line + 1}:{column + 1}", node[part]
        return where + place

    return locate
