"""Benchmark results of any tool in one vocabulary (docs: file formats and conventions).

Times in seconds, rates as fractions, acceptance lengths with the bonus token in. What a file does
not say is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.errors import InputError
from specsim.inputs import Node, json_lines, parse_json

FloatArray = NDArray[np.float64]
Latency = dict[str, float]
LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")


@dataclass(frozen=True, slots=True)
class Requests:
    """Single requests, where a file has them; NaN where one lacks a value.

    Attributes:
        input_tokens_N, output_tokens_N: counts, `[N]`.
        ttft_s_N, e2e_s_N: seconds, `[N]`.
    """

    input_tokens_N: FloatArray
    output_tokens_N: FloatArray
    ttft_s_N: FloatArray
    e2e_s_N: FloatArray

    def check(self, where: str) -> Requests:
        """Return it if every request has every value.

        Raises:
            InputError: the lists differ in length.
        """
        sizes = [len(getattr(self, name)) for name in self.__dataclass_fields__]
        if len(set(sizes)) > 1:
            raise InputError(
                f"{where}: {sizes[0]} input lengths, {sizes[1]} output lengths, {sizes[2]} TTFTs "
                f"and {sizes[3]} latencies; each request has one of each"
            )
        return self


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One benchmark run.

    Attributes:
        source: the tool.
        label: what the file calls the run.
        concurrency: most requests at once; None for no limit.
        request_rate_per_s: None for "as fast as it goes" (vLLM's "inf").
        gpus: accelerators, where the file says.
        duration_s, completed: length, finished requests.
        output_tok_per_s, total_tok_per_s, requests_per_s: over the whole run.
        latency_s: `ttft_s`, `tpot_s`, `itl_s`, `e2e_s`, each with any of mean, std, p50, p99, ..
        tok_s_user: output tokens/s of one user, by the tool's own definition.
        acceptance_length: tokens a step, bonus in; pooled over steps where a tool has both.
        draft_acceptance_rate: accepted over verified drafts, 0 to 1; bonus in neither.
        survival_G: share of steps in which draft k was accepted (unconditional), by k.
        requests: single requests.
        notes: what a reader must know, such as a rate that a file cannot be trusted on.
    """

    source: str
    label: str = ""
    concurrency: float | None = None
    request_rate_per_s: float | None = None
    gpus: int | None = None
    duration_s: float | None = None
    completed: int | None = None
    output_tok_per_s: float | None = None
    total_tok_per_s: float | None = None
    requests_per_s: float | None = None
    latency_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    tok_s_user: float | None = None
    acceptance_length: float | None = None
    draft_acceptance_rate: float | None = None
    survival_G: tuple[float, ...] = ()
    requests: Requests | None = None
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON, single requests left out."""
        return {
            name: value
            for name in self.__dataclass_fields__
            if name != "requests" and (value := getattr(self, name)) not in (None, (), "", {})
        }

    def frontier_row(self) -> dict[str, Any]:
        """Return `policy`, `tok_s_user`, `tok_s_gpu` for `specsim pareto --measured`.

        The user's speed is 1 / median TPOT (mean where there is no median).

        Raises:
            InputError: the file has no TPOT, throughput or number of GPUs.
        """
        tpot = self.latency_s.get("tpot_s", {})
        at = tpot.get("p50") or tpot.get("mean")
        if not at or self.output_tok_per_s is None:
            raise InputError(f"{self.source}: the file has no TPOT or output throughput")
        if not self.gpus:
            raise InputError(f"{self.source}: the file does not say the GPUs; give --gpus")
        return {
            "policy": self.label or self.source,
            "tok_s_user": 1 / at,
            "tok_s_gpu": self.output_tok_per_s / self.gpus,
        }


def conditional(survival: tuple[float, ...]) -> list[float]:
    """Turn unconditional acceptances by position into conditional ones.

    Raises:
        InputError: they rise along the block, or one is no share.
    """
    found, before = [], 1.0
    for k, value in enumerate(survival, start=1):
        if not 0 <= value <= before + 1e-9:
            raise InputError(
                f"position {k}: acceptance {value:g} after {before:g}; a prefix can only get "
                "rarer along a block"
            )
        found.append(value / before if before else 0.0)
        before = value
    return found


def opened(text: str, where: str) -> Node:
    """Return the JSON value of a file, to be read with its places."""
    return Node(parse_json(text, where), where)


def opened_lines(text: str, where: str) -> list[Node]:
    """Return the JSON value of each line of a file."""
    return [Node(value, place) for place, value in json_lines(text, where)]


def number(data: Node, key: str, *, least: float = 0.0, most: float = math.inf) -> float | None:
    """Return a number of an object; None where it is absent or null.

    Raises:
        InputError: something else stands there, or it is out of range.
    """
    found = data.maybe(key)
    return None if found is None else found.number(least=least, most=most)


def whole(data: Node, key: str) -> int | None:
    """Return a count of an object, rounded (averages stand there too); None where it is absent."""
    value = number(data, key)
    return None if value is None else round(value)


def rate(data: Node, key: str) -> float | None:
    """Return a request rate; None for "as fast as it goes", which files write as inf."""
    found = data.maybe(key)
    if found is None or str(found.value).lower() in ("inf", "infinity"):
        return None
    return found.number(least=0.0)


def milliseconds(data: Node, name: str, *, suffix: str = "_ms", scale: float = 1e-3) -> Latency:
    """Return `mean_<name>_ms`, `median_..`, `std_..`, `p<q>_..` in seconds; the median is p50."""
    found = {}
    for key, value_ms in data.entries():
        head, _, rest = key.partition("_")
        if rest == f"{name}{suffix}" and value_ms.value is not None:
            value = value_ms.number(least=0.0)
            found["p50" if head == "median" else head] = value * scale
    return found


def array(data: Node | None) -> FloatArray:
    """Return a list of numbers as an array, NaN for null; empty where it is absent."""
    values = [] if data is None else data.items()
    return np.array([np.nan if v.value is None else v.number(least=0.0) for v in values])


def gaps_s(data: Node | None, count: int) -> FloatArray:
    """Return the sum of each request's gaps between tokens, `[N]`; 0 where they are absent."""
    return np.zeros(count) if data is None else np.array([array(row).sum() for row in data.items()])


def shares(data: Node | None) -> tuple[float, ...]:
    """Return a list of shares of 1; empty where it is absent."""
    values = [] if data is None else data.items()
    return tuple(value.number(least=0.0, most=1.0) for value in values)
