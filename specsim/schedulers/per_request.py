"""Published rules that look at one draft after the other: SpecDec++ and TETRIS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from specsim.registry import Config
from specsim.schedulers.base import BatchView, IntArray, Reads
from specsim.schedulers.kernels import allocate


@dataclass(frozen=True, slots=True)
class KeepAndStop:
    """Verifies up to and with the first draft after which some rejection is likelier than `stop`.

    Lossless whatever the confidence reads: the draft that triggers is kept, so that whether x[k]
    is admitted is settled by the drafts before it. Proven by enumeration, post-token confidences
    included (`tests/lossless/test_policies.py`).
    """

    stop: float
    reads: frozenset[Reads] = frozenset({"live"})
    lag: int = 0
    lossless: bool = True

    def plan(self, view: BatchView) -> IntArray:
        """Return the length of each request, at least 1."""
        go_RG = np.logical_and.accumulate(1 - view.survival_RG <= self.stop, axis=1)
        verify_len_R: IntArray = np.minimum(go_RG.sum(axis=1, dtype=np.int64) + 1, view.gamma)
        return verify_len_R


class SpecDecPlusConfig(Config):
    """SpecDec++: stop drafting once a rejection is likely, and keep the draft that said so.

    Source: SpecDec++ (arXiv 2405.19715): stop when 1 - (product of acceptances) > h. Here the whole
    block is drafted all the same; what is saved is verification.
    """

    kind: Literal["specdec_pp"]
    stop: float = Field(default=0.7, ge=0, le=1, description="h: chance of a rejection to stop at.")

    def build(self) -> KeepAndStop:
        """Make the scheduler."""
        return KeepAndStop(self.stop)


@dataclass(frozen=True, slots=True)
class Tetris:
    """Verifies the `k R` drafts whose sampled tokens the draft law likes best, over the batch.

    Not lossless with sampling and two requests or more: whether x[r, k] is admitted depends on
    q(x[r, k]), its own value. Refuted by enumeration (`tests/lossless/test_policies.py`).
    """

    k: int
    reads: frozenset[Reads] = frozenset({"sampled"})
    lag: int = 0
    lossless: bool = False

    def plan(self, view: BatchView) -> IntArray:
        """Return the lengths; cumulative scores never rise, so a top-K is made of prefixes."""
        score_RG = np.cumprod(view.sampled_RG, axis=1)
        return allocate(score_RG, self.k * view.num_requests)


@dataclass(frozen=True, slots=True)
class FixedBudget:
    """The live top-K of `k R` drafts: TETRIS's budget on confidences that cannot see the token.

    Lossless: K is fixed and the order is that of `kernels.allocate`. Proven by enumeration
    (`tests/lossless/test_policies.py`).
    """

    k: int
    reads: frozenset[Reads] = frozenset({"live"})
    lag: int = 0
    lossless: bool = True

    def plan(self, view: BatchView) -> IntArray:
        """Return the admitted prefix lengths."""
        return allocate(view.survival_RG, self.k * view.num_requests)


class TetrisConfig(Config):
    """TETRIS: a budget of k drafts a request, given to the likeliest of all that were drafted.

    Source: TETRIS (ACL 2025), `tetris.py`: draft more than k, rank by the cumulative log
    probability of the sampled tokens. `score: sampled` is that rule (unsafe; needs a trace with the
    draft law's probabilities); `score: confidence` is the same budget on pre-token confidences.
    """

    kind: Literal["tetris"]
    k: int = Field(ge=0, le=64, description="Drafts verified a request, on average over the batch.")
    score: Literal["sampled", "confidence"] = Field(
        default="sampled",
        description="What ranks: q of the sampled tokens, or the confidence head.",
    )

    def build(self) -> Tetris | FixedBudget:
        """Make the scheduler."""
        return Tetris(self.k) if self.score == "sampled" else FixedBudget(self.k)
