"""SGLang's two DSpark cost tables: read by its loader's rules, written so that it loads them.

`SpsCostTable` says steps per second at probes of B (verify tokens on a rank, anchors included) and
is read at the probe at or below B, clamped at both ends. `SpsAdditiveCostTable` (chosen when the
text has `"bias_seconds"`) says step time = bias + alpha(requests) + theta(tokens), linear between
probes and clamped. Field names and rules: SGLang 0.5.23, `dspark_components/dspark_sps.py`.

Neither can say several contexts, a graph limit, or what is inside its numbers, so importing needs
that said and exporting needs a context chosen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specsim.cost.table import Provenance, StepTable, Term, check_table, curve, surface
from specsim.errors import InputError, Problem, ScenarioError, nearest
from specsim.inputs import MOST_TOKENS, is_number, parse_json

FloatArray = NDArray[np.float64]

_SPS_FIELDS = ("sample_batch_tokens", "sample_steps_per_sec", "max_batch_tokens")
_ADDITIVE_FIELDS = ("bias_seconds", "bs_probes", "alpha_seconds", "m_probes", "theta_seconds")


@dataclass(frozen=True, slots=True)
class SpsCostTable:
    """Steps per second at probes of B, SGLang's field names.

    Attributes:
        sample_batch_tokens: probes of B, strictly increasing, each at least 1.
        sample_steps_per_sec: steps per second there, each above 0.
        max_batch_tokens: largest B of the deployment, at least the last probe.
    """

    sample_batch_tokens: list[int]
    sample_steps_per_sec: list[float]
    max_batch_tokens: int

    def step_time(self, batch_tokens: int) -> float:
        """Seconds of a step as SGLang reads them: the probe at or below B, clamped."""
        index = int(np.searchsorted(self.sample_batch_tokens, batch_tokens, side="right")) - 1
        return 1.0 / self.sample_steps_per_sec[max(0, index)]


@dataclass(frozen=True, slots=True)
class SpsAdditiveCostTable:
    """Step time as bias + alpha(requests) + theta(tokens), SGLang's field names.

    Attributes:
        bias_seconds: constant part, above 0.
        bs_probes: probes of the requests, strictly increasing, each at least 1.
        alpha_seconds: seconds there.
        m_probes: probes of the tokens, strictly increasing, each at least 1.
        theta_seconds: seconds there, on top of the bias; below 0 where the curve falls.
    """

    bias_seconds: float
    bs_probes: list[int]
    alpha_seconds: list[float]
    m_probes: list[int]
    theta_seconds: list[float]

    def step_time(self, num_requests: int, batch_tokens: int) -> float:
        """Seconds of a step as SGLang reads them: linear in both, clamped at the ends."""
        alpha = np.interp(num_requests, self.bs_probes, self.alpha_seconds)
        theta = np.interp(batch_tokens, self.m_probes, self.theta_seconds)
        return float(self.bias_seconds + alpha + theta)


def parse_sglang(text: str, *, where: str) -> SpsCostTable | SpsAdditiveCostTable:
    """Read one of SGLang's tables, by the rules of SGLang's loader and no looser.

    Args:
        text: the file's text.
        where: the file's name in errors.

    Raises:
        ScenarioError: not JSON, unknown or missing fields, or a broken rule; all problems at once.
    """
    data = parse_json(text, where)
    additive = '"bias_seconds"' in text
    fields = _ADDITIVE_FIELDS if additive else _SPS_FIELDS
    if not isinstance(data, dict):
        raise ScenarioError([Problem(where, "", f"must be an object with {', '.join(fields)}")])
    found = [
        Problem(where, key, f"is not a field; legal: {', '.join(fields)}", nearest(key, fields))
        for key in data
        if key not in fields
    ]
    found += [Problem(where, key, "is missing") for key in fields if key not in data]
    if not found:
        found = _additive_faults(data, where) if additive else _sps_faults(data, where)
    if found:
        raise ScenarioError(found)
    if additive:
        return SpsAdditiveCostTable(**{name: data[name] for name in _ADDITIVE_FIELDS})
    return SpsCostTable(**{name: data[name] for name in _SPS_FIELDS})


def sglang_json(table: SpsCostTable | SpsAdditiveCostTable) -> str:
    """Return the text of the file that SGLang loads, checked by its rules first."""
    fields = _ADDITIVE_FIELDS if isinstance(table, SpsAdditiveCostTable) else _SPS_FIELDS
    text = json.dumps({name: getattr(table, name) for name in fields}, separators=(",", ":"))
    parse_sglang(text, where="SGLang table")
    return text


def from_sps(
    table: SpsCostTable, *, name: str, provenance: Provenance, includes: Iterable[Term]
) -> StepTable:
    """Make a step table of SGLang's steps per second; read it with `read: floor` as SGLang does.

    Args:
        table: SGLang's table.
        name: name of the step table.
        provenance: where the numbers come from; SGLang's file does not say.
        includes: terms that were inside the timed steps; SGLang's file does not say either.

    Raises:
        InputError: the table has one probe, SGLang's placeholder for "no table".
    """
    if len(table.sample_batch_tokens) < 2:
        raise InputError(
            f"table has a single probe ({table.sample_batch_tokens[0]} tokens): that is SGLang's "
            "placeholder where no table was measured, and it makes every plan verify all; measure "
            "at least two batch sizes"
        )
    seconds = 1.0 / np.asarray(table.sample_steps_per_sec, dtype=np.float64)
    made = StepTable(
        name=name,
        provenance=provenance,
        verify=curve(table.sample_batch_tokens, seconds),
        includes=frozenset(includes),
    )
    return check_table(made)


def from_additive(
    tables: dict[int, SpsAdditiveCostTable],
    *,
    name: str,
    provenance: Provenance,
    includes: Iterable[Term] = (),
) -> StepTable:
    """Make a step table of additive ones measured at several contexts; read it with `linear`.

    Args:
        tables: by context in tokens; they must share bias, theta and both probe lists.
        name: name of the step table.
        provenance: where the numbers come from.
        includes: terms inside the timed steps other than attention, which is alpha here.

    Raises:
        InputError: no table, or tables that differ in more than alpha.
    """
    if not tables:
        raise InputError("no additive table given; give at least one, by its context in tokens")
    contexts = sorted(tables)
    first = tables[contexts[0]]
    for context in contexts[1:]:
        for field in ("bias_seconds", "bs_probes", "m_probes", "theta_seconds"):
            if getattr(tables[context], field) != getattr(first, field):
                raise InputError(
                    f"the additive tables at contexts {contexts[0]} and {context} differ in "
                    f"{field}; only alpha_seconds may depend on the context"
                )
    alpha_CR = [tables[context].alpha_seconds for context in contexts]
    made = StepTable(
        name=name,
        provenance=provenance,
        verify=curve(
            first.m_probes, [_digits(first.bias_seconds + theta) for theta in first.theta_seconds]
        ),
        attention=surface(first.bs_probes, contexts, alpha_CR),
        includes=frozenset(includes),
    )
    return check_table(made)


def to_additive(
    table: StepTable, *, context_tokens: int, bias: Literal["first", "lowest"] = "first"
) -> SpsAdditiveCostTable:
    """Write a step table as bias + alpha + theta at one context.

    Alpha is attention, draft and host together, whatever the table has of them; the probes past a
    graph limit follow the others, with one just past the limit, because SGLang blends linearly.

    Args:
        table: the step table.
        context_tokens: context of every request, for the attention term.
        bias: `first` puts theta at 0 at the first probe; `lowest` keeps theta at 0 or above where
            the curve falls.

    Raises:
        InputError: the table has no request-dependent term to write as alpha.
    """
    requests_R = _request_probes(table)
    alpha_R = np.zeros(len(requests_R))
    if table.attention is not None:
        alpha_R += _attention_at(table, requests_R, context_tokens)
    for term in (table.draft, table.host):
        if term is not None:
            alpha_R += term.dense("linear", int(requests_R[-1]))[requests_R]
    probes, seconds = _token_probes(table)
    bias_s = seconds[0] if bias == "first" else min(seconds)
    theta = [_digits(value - bias_s) for value in seconds]
    return SpsAdditiveCostTable(
        bias_seconds=_digits(bias_s),
        bs_probes=requests_R.tolist(),
        alpha_seconds=[_digits(value) for value in alpha_R],
        m_probes=probes,
        theta_seconds=theta,
    )


def to_sps(
    table: StepTable,
    *,
    context_tokens: int | None = None,
    tokens_per_request: float = 1.0,
    reading: Literal["probes", "ceil"] = "probes",
) -> SpsCostTable:
    """Write a step table as steps per second.

    Args:
        table: the step table.
        context_tokens: context of every request; needed where the table has attention.
        tokens_per_request: B / R of the steps written down, for terms that depend on R.
        reading: `probes` writes the table's probes, which SGLang then reads from below and so
            charges too little just before a riser; `ceil` writes them so that SGLang's reading
            gives the next probe's cost at every B, as vLLM charges.

    Raises:
        InputError: the table has attention and no context is given.
    """
    probes, seconds = _token_probes(table)
    requests_N = np.maximum(1, np.round(np.asarray(probes) / tokens_per_request)).astype(np.int64)
    total_N = np.asarray(seconds, dtype=np.float64)
    if table.attention is not None:
        if context_tokens is None:
            raise InputError(
                f'table "{table.name}" has attention at contexts '
                f"{table.attention.context_tokens_C.tolist()}: give the context to write for"
            )
        total_N = total_N + _attention_at(table, requests_N, context_tokens)
    for term in (table.draft, table.host):
        if term is not None:
            total_N = total_N + term.dense("linear", int(requests_N.max()))[requests_N]
    last = probes[-1]
    if reading == "ceil":
        probes = [1, *(probe + 1 for probe in probes[:-1])]
        probes = list(dict.fromkeys(probes))
        total_N = total_N[len(total_N) - len(probes) :]
    rates = [_digits(1.0 / value) for value in total_N]
    return SpsCostTable(probes, rates, max_batch_tokens=last)


def _request_probes(table: StepTable) -> NDArray[np.int64]:
    probes: set[int] = set()
    if table.attention is not None:
        probes.update(table.attention.num_requests_R.tolist())
    for term in (table.draft, table.host):
        if term is not None:
            probes.update(term.probes_N.tolist())
    if not probes:
        raise InputError(
            f'table "{table.name}" has no term that depends on the requests, so it has no alpha; '
            "write it as SpsCostTable instead"
        )
    return np.array(sorted(probes), dtype=np.int64)


def _attention_at(table: StepTable, requests_N: NDArray[np.int64], context: int) -> FloatArray:
    """Attention seconds of each number of requests at one context, linear and unclamped."""
    found = table.attention
    if found is None:
        return np.zeros(len(requests_N))
    rows_CN: FloatArray = found.dense(int(requests_N.max()))[:, requests_N]
    contexts_C = found.context_tokens_C
    if len(contexts_C) == 1:
        return np.asarray(rows_CN[0], dtype=np.float64)
    right = int(np.clip(np.searchsorted(contexts_C, context), 1, len(contexts_C) - 1))
    share = (context - contexts_C[right - 1]) / (contexts_C[right] - contexts_C[right - 1])
    if share in (0.0, 1.0):
        return np.asarray(rows_CN[right - 1 + int(share)], dtype=np.float64)
    return np.asarray(rows_CN[right - 1] * (1 - share) + rows_CN[right] * share)


def _token_probes(table: StepTable) -> tuple[list[int], list[float]]:
    probes = table.verify.probes_N.tolist()
    seconds = table.verify.seconds_N.tolist()
    limit, past = table.graph_limit_tokens, table.past_limit
    if limit is not None and past is not None:
        if probes[-1] < limit:
            probes.append(limit)
            seconds.append(float(table.dense("linear", limit)[limit]))
        if past.probes_N[0] > limit + 1:
            probes.append(limit + 1)
            seconds.append(float(past.seconds_N[0]))
        probes += past.probes_N.tolist()
        seconds += past.seconds_N.tolist()
    return probes, seconds


def _digits(value: float) -> float:
    """Twelve significant digits: what a measurement has, without the noise of 1 / (1 / x)."""
    return float(f"{value:.12g}")


def _sps_faults(data: dict[str, Any], where: str) -> list[Problem]:
    probes, rates = data["sample_batch_tokens"], data["sample_steps_per_sec"]
    found = _probe_faults(probes, where, "sample_batch_tokens")
    found += _number_faults(rates, where, "sample_steps_per_sec", above=0.0)
    if not found and len(probes) != len(rates):
        message = f"has {len(rates)} entries for {len(probes)} probes"
        found.append(Problem(where, "sample_steps_per_sec", message, "one for each"))
    last = data["max_batch_tokens"]
    if not _whole(last):
        found.append(Problem(where, "max_batch_tokens", f"must be a whole number, not {last!r}"))
    elif not found and last < probes[-1]:
        message = f"{last} is below the last probe {probes[-1]}"
        found.append(Problem(where, "max_batch_tokens", message))
    return found


def _additive_faults(data: dict[str, Any], where: str) -> list[Problem]:
    found = _number_faults([data["bias_seconds"]], where, "bias_seconds", above=0.0)
    for probes, values in (("bs_probes", "alpha_seconds"), ("m_probes", "theta_seconds")):
        own = _probe_faults(data[probes], where, probes)
        own += _number_faults(data[values], where, values)
        if not own and len(data[probes]) != len(data[values]):
            message = f"has {len(data[values])} entries for {len(data[probes])} probes"
            own.append(Problem(where, values, message, "one for each"))
        found += own
    if not found:
        least = data["bias_seconds"] + min(data["alpha_seconds"]) + min(data["theta_seconds"])
        if least <= 0:
            message = f"bias + lowest alpha + lowest theta is {least:g} s; a step takes time"
            found.append(Problem(where, "", message))
    return found


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _probe_faults(values: Any, where: str, field: str) -> list[Problem]:
    if not isinstance(values, list) or not values:
        return [Problem(where, field, f"must be a list of at least one probe, not {values!r:.40}")]
    found = [
        Problem(
            where,
            f"{field}[{i}]",
            f"must be a whole number from 1 to {MOST_TOKENS:g}, not {value!r}",
        )
        for i, value in enumerate(values)
        if not _whole(value) or not 1 <= value <= MOST_TOKENS
    ]
    if not found:
        found = [
            Problem(where, f"{field}[{i}]", f"{values[i]} does not rise above {values[i - 1]}")
            for i in range(1, len(values))
            if values[i] <= values[i - 1]
        ]
    return found


def _number_faults(
    values: Any, where: str, field: str, *, above: float | None = None
) -> list[Problem]:
    if not isinstance(values, list):
        return [Problem(where, field, f"must be a list of numbers, not {values!r:.40}")]
    found = []
    for i, value in enumerate(values):
        place = field if len(values) == 1 else f"{field}[{i}]"
        if not is_number(value):
            found.append(Problem(where, place, f"must be a finite number, not {value!r}"))
        elif above is not None and value <= above:
            found.append(Problem(where, place, f"must be above {above:g}, not {value!r}"))
    return found
