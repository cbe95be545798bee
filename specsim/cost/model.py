"""What a step costs the engine: a table, a way to read it, and the terms that it lacks.

Step time = verify(B) + attention(R, resident KV tokens) + draft(R) + host(R)
(docs/concepts/model.md). Each of the last three is taken from the table, is already inside its
verify curve, or is a labelled input of the scenario; a term that is none of these is an error,
never a silent zero. Terms that a plan cannot trim still belong in theta, because they do not
cancel in a ratio.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.cost.table import (
    Curve,
    Read,
    StepTable,
    Surface,
    Term,
    curve,
    load_table,
    worst_label,
)
from specsim.errors import InputError, SchedulerFault
from specsim.registry import Config

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Locate = Callable[[str, str], Path]
Layout = Literal["ragged", "padded", "cap_accept", "uniform"]

_TERMS: tuple[Term, ...] = ("attention", "draft", "host")


class TermInput(Config):
    """A cost term that the table lacks, given by hand and labelled.

    Attributes:
        base_ms: milliseconds a step.
        per_request_us: microseconds more for each request of the step.
        per_kv_token_ns: nanoseconds more for each resident KV token; of `attention` only.
        at_requests: numbers of requests at which `ms` says how much more; linear between them and
            on by the last segment's slope, as a table's curve read linearly.
        ms: milliseconds more at each of `at_requests`.
        label: what kind of number this is.
        source: where it comes from, in words.
    """

    base_ms: float = Field(ge=0, le=1e9)
    per_request_us: float = Field(default=0.0, ge=0, le=1e9)
    per_kv_token_ns: float = Field(default=0.0, ge=0, le=1e9)
    at_requests: tuple[Annotated[int, Field(ge=1, le=65_536)], ...] = ()
    ms: tuple[Annotated[float, Field(ge=0, le=1e9)], ...] = ()
    label: Literal["measured", "derived", "fitted", "assumed", "synthetic"]
    source: str = Field(min_length=1)

    def seconds(self, max_requests: int) -> FloatArray:
        """Return the term without its KV part at R = 0 .. max_requests, seconds."""
        flat_R = _linear(self.base_ms, self.per_request_us, max_requests)
        if self.at_requests:
            found = curve(self.at_requests, tuple(1e-3 * ms for ms in self.ms))
            more_R = found.dense("linear", max_requests)
            more_R[0] = 1e-3 * self.ms[0]  # as in a table: a step of prefill alone has host time
            flat_R += more_R
        return flat_R


TermChoice = Literal["table", "included"] | TermInput


class CostConfig(Config):
    """How a scenario names its step costs.

    Attributes:
        table: a shipped table such as `vllm/v4_flash_tp4_b300`, or a path beside the scenario.
        read: how the engine reads between the table's probes.
        running_max: raise each probe to the largest before it first, as vLLM installs its table.
        layout: what a forward is charged for. `ragged`: the tokens planned. `padded`:
            R (1 + the longest plan). `cap_accept`: everything, R (1 + gamma), of which only the
            plan is committed (SGLang's mode that shows the ceiling). `uniform`: the tokens planned,
            by an engine that refuses plans of unequal lengths.
        attention, draft, host: `table`, `included` (inside the verify curve), or a labelled input.
            Left out: `table` or `included`, whichever the table says; an error if it says neither.
    """

    table: str = Field(min_length=1)
    read: Read
    running_max: bool = False
    layout: Layout = "ragged"
    attention: TermChoice | None = None
    draft: TermChoice | None = None
    host: TermChoice | None = None

    def build(
        self,
        *,
        locate: Locate,
        max_requests: int,
        max_tokens: int,
        draft: TermChoice | Literal["none"] | None = None,
        gamma: int = 0,
    ) -> StepCost:
        """Load the table and make the engine's cost object.

        Args:
            locate: `locate("steps", name)` finds a shipped profile or a path beside the scenario.
            max_requests: most requests that a rank decodes in one step.
            max_tokens: most tokens of one forward, prefill tokens included.
            draft: a policy's own draft cost; `none` drafts nothing; None keeps the scenario's.
            gamma: drafts a request, for `cap_accept`.

        Raises:
            InputError: a term is missing, or is given in a way the table contradicts.
            ScenarioError: the table's file is wrong.
        """
        table = load_table(locate("steps", self.table))
        return make_cost(
            self,
            table,
            max_requests=max_requests,
            max_tokens=max_tokens,
            draft=draft,
            gamma=gamma,
        )


@dataclass(frozen=True, slots=True, eq=False)
class StepCost:
    """Step times of one policy on one rank, precomputed so that a step asks in about 1 us.

    Attributes:
        table: the table behind it.
        layout: how a ragged plan is charged (`CostConfig`).
        gamma: drafts a request, which `cap_accept` verifies whatever the plan.
        verify_s_B: seconds of one target forward at B = 0 .. max_tokens; read-only.
        extrapolated_from: largest B that was probed; longer forwards are extrapolated.
        sources: for each term, where it comes from, for the manifest.
        label: what these costs rest on: the worst label of the table and of every term charged.
        host_s_R: the host's part of `fixed_s`, seconds at R = 0 .. max_requests.
    """

    table: StepTable
    layout: Layout
    gamma: int
    verify_s_B: FloatArray
    extrapolated_from: int
    sources: dict[str, str]
    label: str
    host_s_R: FloatArray
    _flat_s: list[float]  # draft + host, by R
    _attention: _Attention

    @property
    def max_requests(self) -> int:
        """Most requests that `fixed_s` answers for."""
        return len(self._flat_s) - 1

    def fixed_s(self, num_requests: int, kv_tokens: int) -> float:
        """Seconds of a step that no plan can trim: attention + draft + host.

        Args:
            num_requests: R, requests decoding in this step; 0 for a step of prefill alone.
            kv_tokens: KV tokens that they hold, all together.
        """
        flat_s = self._flat_s[num_requests]
        if num_requests == 0:
            return flat_s
        return flat_s + self._attention.at(num_requests, kv_tokens)

    def fixed_arrays(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return what `fixed_s` reads, for kernels.

        Draft and host seconds by R, `[R + 1]`; the mean contexts between which attention is linear,
        `[C]`; its seconds there, `[C, R + 1]`; and its slopes from each on, `[C - 1 or 1, R + 1]`.
        """
        return np.array(self._flat_s), *self._attention.arrays()

    def draft_s(self, num_requests: int) -> float:
        """Seconds of a step that drafting for `num_requests` takes, inside `fixed_s`."""
        return self._flat_s[num_requests] - float(self.host_s_R[num_requests])

    def charged_tokens(self, verify_len_R: IntArray) -> int:
        """Tokens of the forward that a plan pays for, anchors included, prefill not.

        Args:
            verify_len_R: drafts verified of each request, `[R]`.

        Raises:
            SchedulerFault: the layout is `uniform` and the plan is not.
        """
        if len(verify_len_R) == 0:
            return 0
        if self.layout == "padded":
            return len(verify_len_R) * (1 + int(verify_len_R.max()))
        if self.layout == "cap_accept":
            return len(verify_len_R) * (1 + self.gamma)
        if self.layout == "uniform" and verify_len_R.min() != verify_len_R.max():
            raise SchedulerFault(
                f"cost.layout: this engine takes equal verify lengths only, and the scheduler "
                f"planned {int(verify_len_R.min())} to {int(verify_len_R.max())} drafts in one "
                "step; use a scheduler of one length (fixed, uniform_length), or layout ragged or "
                "padded"
            )
        return len(verify_len_R) + int(np.add.reduce(verify_len_R))


class _Attention:
    """Attention over R and the mean context: linear in both, rows kept as lists for speed."""

    __slots__ = ("_contexts", "_rows", "_slopes")

    def __init__(self, contexts: list[int], rows: list[list[float]]) -> None:
        self._contexts = contexts
        self._rows = rows
        # Seconds per context token between row i and row i + 1; one row alone is flat.
        self._slopes = [
            [(b - a) / (right - left) for a, b in zip(low, high, strict=True)]
            for left, right, low, high in zip(contexts, contexts[1:], rows, rows[1:], strict=False)
        ] or [[0.0] * len(rows[0])]

    def arrays(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        return (
            np.array(self._contexts, dtype=np.float64),
            np.array(self._rows, dtype=np.float64),
            np.array(self._slopes, dtype=np.float64),
        )

    def at(self, num_requests: int, kv_tokens: int) -> float:
        context = kv_tokens / num_requests
        segment = 0
        last = len(self._slopes) - 1
        while segment < last and context > self._contexts[segment + 1]:
            segment += 1
        found = self._rows[segment][num_requests] + self._slopes[segment][num_requests] * (
            context - self._contexts[segment]
        )
        return max(0.0, found)


def make_cost(
    config: CostConfig,
    table: StepTable,
    *,
    max_requests: int,
    max_tokens: int,
    draft: TermChoice | Literal["none"] | None = None,
    gamma: int = 0,
) -> StepCost:
    """Make the engine's cost object from a table at hand; see `CostConfig.build`."""
    chosen: dict[Term, TermChoice | Literal["none"] | None] = {
        "attention": config.attention,
        "draft": config.draft if draft is None else draft,
        "host": config.host,
    }
    settled = {term: _settle(table, term, chosen[term]) for term in _TERMS}
    verify_s_B = table.dense(config.read, max_tokens, running_max=config.running_max)
    verify_s_B.flags.writeable = False
    flat_s_R = _by_requests(table.draft, settled["draft"], config, max_requests)
    flat_s_R[0] = 0.0  # nobody to draft for
    host_s_R = _by_requests(table.host, settled["host"], config, max_requests)
    host_s_R.flags.writeable = False
    flat_s_R += host_s_R
    return StepCost(
        table=table,
        layout=config.layout,
        gamma=gamma,
        verify_s_B=verify_s_B,
        extrapolated_from=table.last_tokens,
        sources={term: _described(table, settled[term]) for term in _TERMS},
        label=worst_label(
            [
                table.provenance.status,
                *(choice.label for choice in settled.values() if isinstance(choice, TermInput)),
            ]
        ),
        host_s_R=host_s_R,
        _flat_s=flat_s_R.tolist(),
        _attention=_attention(table.attention, settled["attention"], max_requests),
    )


_Settled = Literal["table", "included", "none"] | TermInput


def _settle(table: StepTable, term: Term, choice: TermChoice | Literal["none"] | None) -> _Settled:
    has_curve = getattr(table, term) is not None
    included = term in table.includes
    way_out = (
        f"cost.{term}: give {{base_ms, per_request_us, label, source}}"
        f" (0 ms with a source is legal), or use a table that has it"
    )
    if choice is None:
        if has_curve:
            return "table"
        if included:
            return "included"
        raise InputError(
            f'cost: table "{table.name}" neither has nor includes the {term} time of a step, and '
            f"the scenario gives none; {way_out}"
        )
    if choice == "table" and not has_curve:
        raise InputError(f'cost.{term}: table "{table.name}" has no {term} curve; {way_out}')
    if choice == "included" and not included:
        raise InputError(
            f'cost.{term}: table "{table.name}" does not say that {term} is inside its verify '
            f"curve (it includes: {', '.join(sorted(table.includes)) or 'nothing'}); {way_out}"
        )
    if isinstance(choice, TermInput):
        # Here and not in a validator of the model, so that errors in its values keep their place.
        if len(choice.at_requests) != len(choice.ms):
            raise InputError(
                f"cost.{term}.ms: has {len(choice.ms)} values for {len(choice.at_requests)} "
                "at_requests; one each is needed"
            )
        if any(b <= a for a, b in zip(choice.at_requests, choice.at_requests[1:], strict=False)):
            raise InputError(f"cost.{term}.at_requests: must be strictly increasing")
    if isinstance(choice, TermInput) and choice.per_kv_token_ns and term != "attention":
        raise InputError(
            f"cost.{term}.per_kv_token_ns: {choice.per_kv_token_ns} is of attention only; leave "
            "it out"
        )
    if isinstance(choice, TermInput) and included and term != "draft":
        # A policy may draft with another drafter than the one inside the table; the other terms
        # are the same for every policy, so a second charge is a mistake.
        raise InputError(
            f'cost.{term}: table "{table.name}" already includes {term} in its verify curve; '
            f'say "included" or leave it out'
        )
    return choice


def _by_requests(
    found: Curve | None, choice: _Settled, config: CostConfig, max_requests: int
) -> FloatArray:
    """Draft or host seconds at R = 0 .. max_requests."""
    if isinstance(choice, TermInput):
        return choice.seconds(max_requests)
    if choice in ("included", "none"):
        return np.zeros(max_requests + 1)
    if found is None or choice != "table":
        raise AssertionError(f"unsettled term {choice!r}")
    dense_R = found.dense(config.read, max_requests, running_max=config.running_max)
    dense_R[0] = found.seconds_N[0]  # a step of prefill alone still has its host time
    return dense_R


def _linear(base_ms: float, per_request_us: float, max_requests: int) -> FloatArray:
    count_R = np.arange(max_requests + 1, dtype=np.float64)
    return np.asarray(base_ms * 1e-3 + count_R * (per_request_us * 1e-6), dtype=np.float64)


def _attention(found: Surface | None, choice: _Settled, max_requests: int) -> _Attention:
    if isinstance(choice, TermInput):
        none_R = choice.seconds(max_requests)
        one_R = none_R + _linear(0.0, choice.per_kv_token_ns * 1e-3, max_requests)
        return _Attention([0, 1], [none_R.tolist(), one_R.tolist()])
    if choice == "included":
        return _Attention([0], [[0.0] * (max_requests + 1)])
    if found is None or choice != "table":
        raise AssertionError(f"unsettled term {choice!r}")
    return _Attention(found.context_tokens_C.tolist(), found.dense(max_requests).tolist())


def _described(table: StepTable, choice: _Settled) -> str:
    if isinstance(choice, TermInput):
        return f"{choice.label}: {choice.source}"
    if choice == "none":
        return "none: the policy drafts nothing"
    where = "in the verify curve of" if choice == "included" else "curve of"
    return f"{table.provenance.status}: {where} table {table.name}"
