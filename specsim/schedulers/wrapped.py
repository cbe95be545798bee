"""Schedulers around another one: recalibrated confidences, and draft gating."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Discriminator, Field, Tag

from specsim.registry import Config
from specsim.schedulers.base import (
    BatchView,
    FloatArray,
    IntArray,
    Learner,
    Reads,
    Scheduler,
    StepOutcome,
)
from specsim.schedulers.calibration import OnlineTemperatures, conditional, scaled
from specsim.schedulers.engines import SglangConfig, TrtllmConfig, VllmConfig
from specsim.schedulers.greedy import GreedyConfig
from specsim.schedulers.guarded import MinimumGainConfig, TierAwareConfig, UniformConfig
from specsim.schedulers.lookahead import LookaheadConfig
from specsim.schedulers.static import FixedConfig
from specsim.schedulers.threshold import ThresholdConfig
from specsim.schedulers.topk import AsyncTopKConfig, GlobalConfig, StaleConfig

_INNER = (
    FixedConfig,
    ThresholdConfig,
    GreedyConfig,
    AsyncTopKConfig,
    StaleConfig,
    GlobalConfig,
    MinimumGainConfig,
    TierAwareConfig,
    UniformConfig,
    VllmConfig,
    SglangConfig,
    TrtllmConfig,
    LookaheadConfig,
)
"""What can stand inside."""


def _kind_of(value: Any) -> str | None:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return kind if isinstance(kind, str) else None


if TYPE_CHECKING:

    class _Inner(Config):
        kind: str

        def build(self) -> Scheduler: ...

    Inner = _Inner
else:
    # Tagged like the scenario's own unions, so that a wrong kind is answered with the legal ones.
    Inner = Annotated[
        reduce(
            or_,
            [Annotated[c, Tag(c.model_fields["kind"].annotation.__args__[0])] for c in _INNER],
        ),
        Discriminator(_kind_of),
    ]


@dataclass(slots=True)
class Calibrated:
    """Hands the inner scheduler confidences that are distorted, recalibrated, or both.

    Temperatures come from past steps, so this is as lossless as what is inside. Proven by
    enumeration (`tests/lossless/test_policies.py`). Position by position the order of requests
    stays, but that of survivals over the batch may change.
    """

    inner: Scheduler
    distort: float
    refit_every: int
    full_rows: int
    memory: float
    _fit: OnlineTemperatures | None = field(default=None)
    _said_RG: FloatArray | None = field(default=None)
    _steps: int = field(default=0)

    @property
    def reads(self) -> frozenset[Reads]:
        """What the inner one reads, and the live confidences and history to learn from."""
        return self.inner.reads | {"live", "history"}

    @property
    def lag(self) -> int:
        """The inner one's."""
        return self.inner.lag

    @property
    def lossless(self) -> bool:
        """The inner one's."""
        return self.inner.lossless

    def plan(self, view: BatchView) -> IntArray:
        """Return the inner plan on calibrated survivals; a few rows are verified in full."""
        if self._fit is None:
            self._fit = OnlineTemperatures(view.gamma, memory=self.memory)
        self._said_RG = scaled(view.confidence_RG, self.distort)
        confidence_RG = scaled(self._said_RG, self._fit.temperature_G)
        lagged_RG = None
        if self.inner.lag:
            said_RG = scaled(conditional(view.lagged_survival_RG), self.distort)
            lagged_RG = np.cumprod(scaled(said_RG, self._fit.temperature_G), axis=1)
        verify_len_R = self.inner.plan(
            view.replaced(
                confidence_RG=confidence_RG,
                survival_RG=np.cumprod(confidence_RG, axis=1),
                lagged_survival_RG=lagged_RG,
            )
        )
        if self.full_rows and self.refit_every and view.num_requests:
            verify_len_R = verify_len_R.copy()
            # By the count of steps alone: in turn, whoever stands there.
            turn = np.arange(self.full_rows) + self._steps * self.full_rows
            verify_len_R[turn % view.num_requests] = view.gamma
        self._steps += 1
        return verify_len_R

    def observe(self, outcome: StepOutcome) -> None:
        """Count the judged drafts of rows verified in full, and refit now and then."""
        if isinstance(self.inner, Learner):
            self.inner.observe(outcome)
        if self._fit is None or self._said_RG is None or not self.refit_every:
            return
        kept_R = outcome.verify_len_R >= (self._fit.gamma if self.full_rows else 0)
        self._fit.add(
            self._said_RG[kept_R], outcome.verify_len_R[kept_R], outcome.num_accepted_R[kept_R]
        )
        if self._steps % self.refit_every == 0:
            self._fit.refit()


class CalibratedConfig(Config):
    """Another scheduler on recalibrated confidences, refitted online; or on distorted ones.

    `distort` is a knob to study miscalibration: the head's logits are divided by it first.
    """

    kind: Literal["calibrated"]
    inner: Inner = Field(description="The scheduler inside.")
    distort: float = Field(
        default=1.0, gt=0, le=16, description="Temperature that spoils the head; 1 leaves it."
    )
    refit_every: int = Field(default=16, ge=0, description="Steps between refits; 0 for none.")
    full_rows: int = Field(
        default=0,
        ge=0,
        description="Requests verified in full each step, in turn, and learned from alone; 0 "
        "learns from every draft that was judged, which is as unbiased and costs nothing.",
    )
    memory: float = Field(default=0.999, gt=0, le=1, description="Weight of the past, each step.")

    def build(self) -> Calibrated:
        """Make the scheduler."""
        return Calibrated(
            self.inner.build(), self.distort, self.refit_every, self.full_rows, self.memory
        )


@dataclass(slots=True)
class _Record:
    """Rounds in which drafts were made, old ones faded."""

    rounds: float = 0.0
    verified: float = 0.0
    accepted: float = 0.0
    squares: float = 0.0
    closed_at: int = -1

    def add(self, verified: int, accepted: int, memory: float) -> None:
        """Count one more round."""
        self.rounds = memory * self.rounds + 1
        self.verified = memory * self.verified + verified
        self.accepted = memory * self.accepted + accepted
        self.squares = memory * self.squares + accepted * accepted


@dataclass(slots=True)
class Gated:
    """Drafts only for requests whose drafts may yet be worth their time. Our own rule.

    A round of drafts adds its accepted ones and takes the time of drafting for one more request and
    of the tokens that it has verified. At the present rate of tokens a second it pays if

        accepted - rate * token_s * verified > rate * draft_s.

    Both means are the request's own past, with `prior` more rounds as the rest of the batch fares.
    A request is closed when its mean and one standard error still fall below `(1 - margin)` of what
    pays; it is then tried every `retry` steps, and opened when they reach `(1 + margin)` of it.

    Lossless: who drafts depends on the past alone, and what is inside is as lossless as it was.
    Proven by enumeration (`tests/lossless/test_policies.py`).
    """

    inner: Scheduler
    margin: float
    retry: int
    memory: float
    prior: float
    draft_s: float
    _records: dict[int, _Record] = field(default_factory=dict)
    _all: _Record = field(default_factory=_Record)
    _step: int = field(default=-1)
    _open_R: NDArray[np.bool_] | None = field(default=None)
    _rate: float = field(default=0.0)
    _drafts: float = field(default=0.0)

    @property
    def reads(self) -> frozenset[Reads]:
        """What the inner one reads, and history."""
        return self.inner.reads | {"history"}

    @property
    def lag(self) -> int:
        """The inner one's."""
        return self.inner.lag

    @property
    def lossless(self) -> bool:
        """The inner one's."""
        return self.inner.lossless

    def drafting(self, view: BatchView) -> NDArray[np.bool_]:
        """Say which requests are to be drafted for in this step, bool `[R]`; before drafting."""
        if self._open_R is None or self._step != view.step:
            self._step = view.step
            self._open_R = self._gate(view)
        return self._open_R

    def plan(self, view: BatchView) -> IntArray:
        """Return the inner plan over the requests that were drafted for, 0 for the others."""
        open_R = self.drafting(view)
        if open_R.all():
            return self.inner.plan(view)
        masked = view.replaced(
            confidence_RG=_where(view.confidence_RG, open_R) if "live" in self.reads else None,
            survival_RG=_where(view.survival_RG, open_R) if "live" in self.reads else None,
            lagged_survival_RG=_where(view.lagged_survival_RG, open_R) if self.lag else None,
        )
        return np.where(open_R, self.inner.plan(masked), 0)

    def _gate(self, view: BatchView) -> NDArray[np.bool_]:
        ids = view.request_id_R.tolist()
        here = {i: self._records.get(i) or _Record() for i in ids}
        self._records = here
        num_requests = len(ids)
        if self._rate == 0.0 or num_requests == 0 or view.gamma == 0:
            return np.ones(num_requests, dtype=np.bool_)
        # What a draft costs on average over the budgets of late; the table may have stairs.
        base, drafts = view.base_tokens, max(round(self._drafts * num_requests), 1)
        last = min(base + drafts, base + num_requests * view.gamma)
        token_s = float(view.verify_s_B[last] - view.verify_s_B[base]) / (last - base)
        token = self._rate * max(token_s, 0.0)
        needed = self._rate * self.draft_s
        return np.array(
            [self._open(here[i], self._worth(here[i], token), needed, view.step) for i in ids],
            dtype=np.bool_,
        )

    def _open(self, record: _Record, worth: float, needed: float, step: int) -> bool:
        if record.closed_at < 0:
            if worth < (1 - self.margin) * needed:
                record.closed_at = step
            return record.closed_at < 0
        if worth >= (1 + self.margin) * needed:
            record.closed_at = -1
            return True
        return (step - record.closed_at) % self.retry == 0

    def _worth(self, record: _Record, token: float) -> float:
        """Return what a round adds less what its verification costs, and one standard error."""
        everyone = self._all
        if everyone.rounds == 0:
            return math.inf
        share = self.prior / everyone.rounds
        weight = max(record.rounds + self.prior, 1.0)
        accepted = (record.accepted + share * everyone.accepted) / weight
        verified = (record.verified + share * everyone.verified) / weight
        squares = (record.squares + share * everyone.squares) / weight
        error = math.sqrt(max(squares - accepted * accepted, 0.0) / weight)
        return accepted - token * verified + error

    def observe(self, outcome: StepOutcome) -> None:
        """Note what each drafted round brought, and how fast tokens come."""
        if isinstance(self.inner, Learner):
            self.inner.observe(outcome)
        if self._open_R is not None and len(self._open_R) == len(outcome.request_id_R):
            for row in np.flatnonzero(self._open_R).tolist():
                verified = int(outcome.verify_len_R[row])
                accepted = int(outcome.num_accepted_R[row])
                self._all.add(verified, accepted, 0.999)
                record = self._records.get(int(outcome.request_id_R[row]))
                if record is not None:
                    record.add(verified, accepted, self.memory)
        if outcome.duration_s > 0:
            committed = len(outcome.request_id_R) + int(outcome.num_accepted_R.sum())
            rate = committed / outcome.duration_s
            drafts = int(outcome.verify_len_R.sum()) / max(len(outcome.verify_len_R), 1)
            first = self._rate == 0.0
            self._rate = rate if first else 0.9 * self._rate + 0.1 * rate
            self._drafts = drafts if first else 0.9 * self._drafts + 0.1 * drafts


def _where(score_RG: FloatArray, open_R: NDArray[np.bool_]) -> FloatArray:
    masked_RG: FloatArray = np.where(open_R[:, None], score_RG, np.zeros_like(score_RG))
    return masked_RG


class GatedConfig(Config):
    """Ours: no draft for a request whose history says that none will pay, with hysteresis.

    The paper names drafting for hopeless requests among its limitations.
    """

    kind: Literal["gated"]
    inner: Inner = Field(description="The scheduler inside.")
    margin: float = Field(default=0.2, ge=0, lt=1, description="Half width of the hysteresis.")
    retry: int = Field(default=32, ge=1, description="Steps between tries of a closed request.")
    memory: float = Field(
        default=0.97, ge=0, le=1, description="Weight of a request's own past, each drafted round."
    )
    prior: float = Field(
        default=2.0, ge=0, le=1e6, description="Rounds that the batch's mean counts as."
    )
    draft_us_per_request: float = Field(
        default=0.0, ge=0, description="What drafting for one more request takes, microseconds."
    )

    def build(self) -> Gated:
        """Make the scheduler."""
        return Gated(
            self.inner.build(),
            self.margin,
            self.retry,
            self.memory,
            self.prior,
            self.draft_us_per_request * 1e-6,
        )
