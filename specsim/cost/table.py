"""A step-cost table: seconds of one target forward by the tokens in it, and how to read between.

The file (`specsim.steps/1`, JSON) holds what was measured, derived or fitted, and nothing else: the
verify curve over B tokens, and where known the draft curve over R requests, the decode-attention
surface over R requests and their context, and the host's own time. `includes` names the terms that
are already inside the verify curve.

Reading between probes (`read`):

- `floor`: the probe at or below B (SGLang). Below the first probe: the first probe.
- `linear`: between the neighbours (TensorRT-LLM). Below the first probe: the first probe.
- `ceil`: the probe at or above B, the next captured graph size (vLLM).

Past the last probe every reading goes on linearly, by the slope of the last segment; a segment is
at least an eighth of the curve's range, so that noise between two close probes is not blown up, and
a falling one counts as flat. Past `graph_limit_tokens` only the `past_limit` points count: linearly
between them, the first of them below it (the two regimes are never blended, as in vLLM).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specsim.cost.table_file import (
    FORMAT,
    Provenance,
    RequestCurve,
    Status,
    TableFile,
    Term,
    parse_file,
    worst_label,
)
from specsim.errors import Problem, ScenarioError
from specsim.inputs import why

__all__ = [
    "Curve",
    "Provenance",
    "Read",
    "Status",
    "StepTable",
    "Surface",
    "Term",
    "check_table",
    "curve",
    "load_table",
    "parse_table",
    "save_table",
    "surface",
    "worst_label",
]

Read = Literal["floor", "linear", "ceil"]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_SEGMENT_SHARE = 8  # a slope is taken over at least 1/8 of the curve's range


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Seconds over a count (tokens or requests), at strictly increasing probes.

    Attributes:
        probes_N: int64 `[N]`, each at least 1.
        seconds_N: float64 `[N]`, each above 0.
    """

    probes_N: IntArray
    seconds_N: FloatArray

    @property
    def last(self) -> int:
        """The largest probe."""
        return int(self.probes_N[-1])

    def tail_slope(self) -> float:
        """Seconds per count past the last probe, at least 0; 0 for a single probe."""
        return _slope(self.probes_N, self.seconds_N)

    def dense(self, read: Read, max_count: int, *, running_max: bool = False) -> FloatArray:
        """Read the curve at 0, 1, .. max_count: float64 `[max_count + 1]`, seconds; 0 at 0.

        Args:
            read: how to read between probes; past the last one always linear.
            max_count: last count wanted.
            running_max: raise each probe to the largest before it first, as vLLM installs tables.
        """
        seconds_N = np.maximum.accumulate(self.seconds_N) if running_max else self.seconds_N
        return _dense(self.probes_N, seconds_N, read, max_count)


@dataclass(frozen=True, slots=True, eq=False)
class Surface:
    """Decode attention of R requests that each hold the same context.

    Attributes:
        num_requests_R: int64 `[R]`, strictly increasing.
        context_tokens_C: int64 `[C]`, strictly increasing.
        seconds_CR: float64 `[C, R]`.
    """

    num_requests_R: IntArray
    context_tokens_C: IntArray
    seconds_CR: FloatArray

    def dense(self, max_requests: int) -> FloatArray:
        """Read every context row at R = 0 .. max_requests, linearly: float64 `[C, R + 1]`."""
        rows = [
            _dense(self.num_requests_R, seconds_R, "linear", max_requests)
            for seconds_R in self.seconds_CR
        ]
        return np.stack(rows)


@dataclass(frozen=True, slots=True, eq=False)
class StepTable:
    """What one step of one rank costs, as far as somebody measured, derived or fitted it.

    Attributes:
        name: name of the table.
        provenance: where its numbers come from.
        verify: target forward over B tokens (anchors, drafts and prefill tokens together).
        graph_limit_tokens: largest captured graph; None if there is no such limit.
        past_limit: measured points past that limit.
        draft: drafting over R requests.
        attention: decode attention over R requests and their context.
        host: scheduler, sampler and launch time over R requests.
        includes: terms that are already inside `verify`.
    """

    name: str
    provenance: Provenance
    verify: Curve
    graph_limit_tokens: int | None = None
    past_limit: Curve | None = None
    draft: Curve | None = None
    attention: Surface | None = None
    host: Curve | None = None
    includes: frozenset[Term] = frozenset()

    @property
    def last_tokens(self) -> int:
        """The largest B that was probed; readings past it are extrapolated."""
        return self.past_limit.last if self.past_limit is not None else self.verify.last

    def dense(self, read: Read, max_tokens: int, *, running_max: bool = False) -> FloatArray:
        """Seconds of one forward at B = 0 .. max_tokens: float64 `[max_tokens + 1]`; 0 at 0.

        Args:
            read: how to read between probes up to the graph limit; past it always linear.
            max_tokens: last B wanted. Values past `last_tokens` are extrapolated.
            running_max: raise each probe to the largest before it first, as vLLM installs tables.
        """
        dense_B = self.verify.dense(read, max_tokens, running_max=running_max)
        limit = self.graph_limit_tokens
        if limit is None or self.past_limit is None or max_tokens <= limit:
            return dense_B
        past_N = self.past_limit.seconds_N
        if running_max:
            past_N = np.maximum(np.maximum.accumulate(past_N), self.verify.seconds_N.max())
        past_B = _dense(self.past_limit.probes_N, past_N, "linear", max_tokens)
        dense_B[limit + 1 :] = past_B[limit + 1 :]
        return dense_B

    def to_json(self) -> dict[str, Any]:
        """Return the content of the table's file, absent parts left out."""
        provenance = self.provenance.model_dump()
        if provenance["split_open_at"] is None:
            del provenance["split_open_at"]
        data: dict[str, Any] = {
            "format": FORMAT,
            "name": self.name,
            "provenance": provenance,
            "verify": _curve_json(self.verify, "batch_tokens"),
        }
        if self.graph_limit_tokens is not None:
            data["graph_limit_tokens"] = self.graph_limit_tokens
        if self.past_limit is not None:
            data["past_limit"] = _curve_json(self.past_limit, "batch_tokens")
        if self.draft is not None:
            data["draft"] = _curve_json(self.draft, "num_requests")
        if self.attention is not None:
            data["attention"] = {
                "num_requests": self.attention.num_requests_R.tolist(),
                "context_tokens": self.attention.context_tokens_C.tolist(),
                "seconds": self.attention.seconds_CR.tolist(),
            }
        if self.host is not None:
            data["host"] = _curve_json(self.host, "num_requests")
        if self.includes:
            data["includes"] = sorted(self.includes)
        return data


def curve(probes: Sequence[int] | IntArray, seconds: Sequence[float] | FloatArray) -> Curve:
    """Make a read-only curve from two sequences of equal length (unchecked: `check_table`)."""
    probes_N = np.array(probes, dtype=np.int64)
    seconds_N = np.array(seconds, dtype=np.float64)
    probes_N.flags.writeable = seconds_N.flags.writeable = False
    return Curve(probes_N, seconds_N)


def surface(
    num_requests: Sequence[int] | IntArray,
    context_tokens: Sequence[int] | IntArray,
    seconds: Sequence[Sequence[float]] | FloatArray,
) -> Surface:
    """Make a read-only attention surface, `seconds[context][requests]`."""
    seconds_CR = np.array(seconds, dtype=np.float64)
    requests_R = np.array(num_requests, dtype=np.int64)
    context_C = np.array(context_tokens, dtype=np.int64)
    for array in (seconds_CR, requests_R, context_C):
        array.flags.writeable = False
    return Surface(requests_R, context_C, seconds_CR)


def load_table(path: str | Path) -> StepTable:
    """Load and check a table file.

    Raises:
        ScenarioError: unreadable, not JSON, or wrong; every problem is named with file, line,
            key, value and what is legal.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError([Problem(str(path), "", f"cannot be read: {why(error)}")]) from error
    return parse_table(text, where=str(path))


def parse_table(text: str, *, where: str) -> StepTable:
    """Check the text of a table file; `where` is the file's name in errors.

    Raises:
        ScenarioError: see `load_table`.
    """
    return _table(parse_file(text, where=where))


def check_table(table: StepTable, *, where: str = "table") -> StepTable:
    """Check a table made in memory by the rules of the file; return it.

    Raises:
        ScenarioError: every problem, named as in a file called `where`.
    """
    return parse_table(json.dumps(table.to_json()), where=where)


def save_table(table: StepTable, path: str | Path) -> None:
    """Check the table and write its file (whole or not at all), numbers of a list on one line.

    Raises:
        ScenarioError: the table breaks a rule; nothing is written.
    """
    path = Path(path)
    check_table(table, where=str(path))
    text = json.dumps(table.to_json(), indent=2, ensure_ascii=False)
    text = re.sub(r"\[[\s\d.,eE+-]+\]", _one_line, text)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)


def _one_line(match: re.Match[str]) -> str:
    return re.sub(r"\s+", " ", match[0]).replace("[ ", "[").replace(" ]", "]")


def _slope(probes_N: IntArray, seconds_N: FloatArray) -> float:
    if len(probes_N) < 2:
        return 0.0
    reach = max(1, (int(probes_N[-1]) - int(probes_N[0])) // _SEGMENT_SHARE)
    start = int(np.searchsorted(probes_N, probes_N[-1] - reach, side="right")) - 1
    rise_s = float(seconds_N[-1] - seconds_N[start])
    return max(0.0, rise_s / float(probes_N[-1] - probes_N[start]))


def _dense(probes_N: IntArray, seconds_N: FloatArray, read: Read, max_count: int) -> FloatArray:
    count_B = np.arange(max_count + 1)
    if read == "linear":
        dense_B = np.interp(count_B, probes_N, seconds_N)
    elif read == "ceil":
        index_B = np.searchsorted(probes_N, count_B, side="left")
        dense_B = seconds_N[np.minimum(index_B, len(probes_N) - 1)]
    else:
        index_B = np.searchsorted(probes_N, count_B, side="right") - 1
        dense_B = seconds_N[np.maximum(index_B, 0)]
    last = int(probes_N[-1])
    if max_count > last:
        past_B = np.arange(1, max_count - last + 1)
        dense_B[last + 1 :] = seconds_N[-1] + past_B * _slope(probes_N, seconds_N)
    dense_B[0] = 0.0
    return np.asarray(dense_B, dtype=np.float64)


def _curve_json(found: Curve, axis: str) -> dict[str, Any]:
    return {axis: found.probes_N.tolist(), "seconds": found.seconds_N.tolist()}


def _table(file: TableFile) -> StepTable:
    def requests(part: RequestCurve | None) -> Curve | None:
        return None if part is None else curve(part.num_requests, part.seconds)

    past, attention = file.past_limit, file.attention
    return StepTable(
        name=file.name,
        provenance=file.provenance,
        verify=curve(file.verify.batch_tokens, file.verify.seconds),
        graph_limit_tokens=file.graph_limit_tokens,
        past_limit=None if past is None else curve(past.batch_tokens, past.seconds),
        draft=requests(file.draft),
        attention=None
        if attention is None
        else surface(attention.num_requests, attention.context_tokens, attention.seconds),
        host=requests(file.host),
        includes=frozenset(file.includes),
    )
