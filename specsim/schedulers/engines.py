"""The planners of vLLM, SGLang and TensorRT-LLM, each with its lag, floor, reading and tie rule.

All three walk every budget (global argmax) on survivals that are a step or two old, count unknown
rows as sure to survive, and give the budget to the live top-K. They differ in the rest:

| | vllm | sglang | trtllm |
|---|---|---|---|
| lag | 1 | 2 | 1 (assumed: the pull request does not say) |
| least drafts a request | 0 | 0 (its minimum of 1 is the anchor) | 1 |
| reading of the table | next captured size | probe below | linear |
| equal promises | first | first | largest |
| trims for | any gain | any gain | a gain of 4 percent |
| flat table | verifies everything | verifies everything, warns | refuses to trim |
| ties of survivals | none defined | position, request | position, request |

The reading is the scenario's `cost.read`; with `probe_tokens` the planner reads its own few probes
instead of what the machine does. Lossless for lag >= 1 under a tie order that never puts a later
draft of a request before an earlier one. Proven, and refuted for the other orders, by enumeration
(`tests/lossless/test_policies.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from specsim.registry import Config
from specsim.schedulers.base import BatchView, FloatArray, IntArray, Reads
from specsim.schedulers.guarded import rising_tokens
from specsim.schedulers.kernels import allocate, ascending
from specsim.schedulers.promise import Read, reread

Ties = Literal["position", "row", "later"]
_FLAT = 1e-9


@dataclass(frozen=True, slots=True)
class EnginePlanner:
    """One engine's planner; see the module's table.

    Attributes:
        lag: age of the survivals that decide.
        least: drafts of each request that are always verified.
        gain: least predicted gain over verifying everything that a trim needs; 0 for any.
        larger: of equal promises take the largest budget instead of the first.
        faint: survivals at or below this count as 0.
        lengths: budgets that may be chosen, as uniform drafts a request; empty for any.
        tiers: tokens of captured graphs that a budget is filled up to; empty for none.
        read: how the planner reads its probes.
        probe_tokens: tokens of those probes; empty reads the table as the machine does.
        ties: order of equal live survivals: (position, row), (row, position), or the later
            position first.
    """

    lag: int
    least: int = 0
    gain: float = 0.0
    larger: bool = False
    faint: float = 0.0
    lengths: tuple[int, ...] = ()
    tiers: tuple[int, ...] = ()
    read: Read = "linear"
    probe_tokens: tuple[int, ...] = ()
    ties: Ties = "position"
    reads: frozenset[Reads] = frozenset({"live", "lagged"})

    @property
    def lossless(self) -> bool:
        """Unless equal survivals may put a later draft before an earlier one."""
        return self.ties != "later"

    def plan(self, view: BatchView) -> IntArray:
        """Return the admitted prefix lengths."""
        least = min(self.least, view.gamma)
        lagged_RG = self._felt(view.lagged_survival_RG)
        sure = view.num_requests + float(lagged_RG[:, :least].sum(dtype=np.float64))
        descending_C = ascending(lagged_RG[:, least:])[::-1].astype(np.float64)
        base = view.base_tokens + view.num_requests * least
        expected = np.cumsum(np.concatenate([[sure], descending_C]))
        seconds = reread(view.verify_s_B, base, len(expected), self.probe_tokens, self.read)
        if self.gain and np.ptp(seconds) <= _FLAT * float(seconds[0]):
            budget = len(descending_C)  # a flat table says nothing about trimming
        else:
            budget = self._budget(view, expected / (seconds + view.fixed_s))
        budget = self._filled(budget, base, len(descending_C))
        return least + self._split(self._felt(view.survival_RG)[:, least:], budget)

    def _felt(self, survival_RG: FloatArray) -> FloatArray:
        if self.faint == 0:
            return survival_RG
        return np.where(survival_RG > self.faint, survival_RG, np.zeros_like(survival_RG))

    def _budget(self, view: BatchView, theta: NDArray[np.float64]) -> int:
        legal = np.arange(len(theta))
        if self.lengths and view.num_requests:
            uniform = view.num_requests * (np.array(self.lengths) - min(self.least, view.gamma))
            kept = uniform[(uniform >= 0) & (uniform < len(theta))]
            legal = np.unique(np.concatenate([kept, [len(theta) - 1]]))
        chosen = theta[legal]
        at = len(legal) - 1 - int(np.argmax(chosen[::-1])) if self.larger else np.argmax(chosen)
        best = int(legal[at])
        worth = not self.gain or theta[best] > (1 + self.gain) * theta[-1]
        return best if worth else len(theta) - 1

    def _filled(self, budget: int, base: int, most: int) -> int:
        for tier in self.tiers:
            if tier >= base + budget:
                return min(tier - base, most)
        return budget

    def _split(self, survival_RG: FloatArray, budget: int) -> IntArray:
        if self.ties == "position":
            return allocate(survival_RG, budget)
        # A top-K over a flattened array, counted by row, as torch.topk and a bincount do it.
        count, gamma = survival_RG.shape
        if self.ties == "row":
            flat_C, row_C = survival_RG.ravel(), np.repeat(np.arange(count), gamma)
        else:
            flat_C, row_C = survival_RG[:, ::-1].T.ravel(), np.tile(np.arange(count), gamma)
        taken = np.argsort(-flat_C, kind="stable")[: min(budget, int((flat_C > 0).sum()))]
        return np.bincount(row_C[taken], minlength=count).astype(np.int64)


_PROBES = Field(
    default=(),
    max_length=4096,
    description="Tokens of the planner's own probes; empty reads the table as the machine does.",
)


class VllmConfig(Config):
    """vLLM's adaptive verification: global argmax on confidences one step old, live top-K.

    Source: vLLM pull request 47808 as merged, and its blog. `torch.topk` promises no tie order:
    `row` is that of a stable sort of the flattened batch, `later` the worst it may do (unsafe).
    """

    kind: Literal["vllm"]
    lag: int = Field(default=1, ge=1, le=64, description="Age of the confidences, steps.")
    ties: Literal["row", "later"] = Field(default="row", description="Order of equal survivals.")
    probe_tokens: tuple[int, ...] = _PROBES

    @field_validator("probe_tokens")
    @classmethod
    def _rising(cls, tokens: tuple[int, ...]) -> tuple[int, ...]:
        return rising_tokens(tokens)

    def build(self) -> EnginePlanner:
        """Make the scheduler."""
        return EnginePlanner(
            lag=self.lag, read="ceil", probe_tokens=self.probe_tokens, ties=self.ties
        )


class SglangConfig(Config):
    """SGLang's DSpark planner: global argmax on confidences two steps old, live top-K.

    Source: SGLang pull request 30261 and its blog: floor lookup of steps per second, eps 1e-6,
    ties by (position, request), budget filled to the captured graph tier if told to.
    """

    kind: Literal["sglang"]
    lag: int = Field(default=2, ge=1, le=64, description="Relay lag of the confidences, steps.")
    tiers: tuple[int, ...] = Field(
        default=(), max_length=4096, description="Tokens of captured graphs to fill; empty: none."
    )
    probe_tokens: tuple[int, ...] = _PROBES

    @field_validator("tiers", "probe_tokens")
    @classmethod
    def _rising(cls, tokens: tuple[int, ...]) -> tuple[int, ...]:
        return rising_tokens(tokens)

    def build(self) -> EnginePlanner:
        """Make the scheduler."""
        return EnginePlanner(
            lag=self.lag,
            faint=1e-6,
            tiers=self.tiers,
            read="floor",
            probe_tokens=self.probe_tokens,
        )


class TrtllmConfig(Config):
    """TensorRT-LLM's planner: at least one draft each, trims only for a predicted gain.

    Source: TensorRT-LLM pull request 17056 (open): floor of one draft whose survival counts, linear
    interpolation, captured lengths, ties to the larger, 4 percent. The lag is assumed.
    """

    kind: Literal["trtllm"]
    lag: int = Field(default=1, ge=1, le=64, description="Age of the confidences, steps.")
    min_gain: float = Field(
        default=0.04, gt=0, le=10, description="Least predicted gain over verifying everything."
    )
    lengths: tuple[int, ...] = Field(
        default=(), max_length=64, description="Captured lengths, drafts a request; empty: any."
    )
    probe_tokens: tuple[int, ...] = _PROBES

    @field_validator("lengths", "probe_tokens")
    @classmethod
    def _rising(cls, tokens: tuple[int, ...]) -> tuple[int, ...]:
        return rising_tokens(tokens)

    def build(self) -> EnginePlanner:
        """Make the scheduler."""
        return EnginePlanner(
            lag=self.lag,
            least=1,
            gain=self.min_gain,
            larger=True,
            lengths=self.lengths,
            read="linear",
            probe_tokens=self.probe_tokens,
        )
