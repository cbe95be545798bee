"""Upper bounds: what a scheduler could do if it were allowed to look. Never policies.

Both need `unsafe: true`, carry `bound = True`, and must stand apart from the policies wherever
they are shown: no lossless rule can reach them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from specsim.registry import Config
from specsim.schedulers.base import BatchView, IntArray, Reads
from specsim.schedulers.kernels import NO_PATIENCE_LIMIT, allocate, ascending, capacity


@dataclass(frozen=True, slots=True)
class Optimal:
    """The best theta on live survivals, of every step by itself: `global` under its other name.

    Not lossless: refuted by enumeration (the paper's Appendix A; `tests/lossless`).
    """

    bound: bool = True
    reads: frozenset[Reads] = frozenset({"live"})
    lag: int = 0
    lossless: bool = False

    def plan(self, view: BatchView) -> IntArray:
        """Return the admitted prefix lengths."""
        return _best(view.survival_RG, view)


@dataclass(frozen=True, slots=True)
class Oracle:
    """Knows which drafts will be accepted, verifies no other, and only while they pay.

    It maximises (R + verified) / seconds over the drafts that will be accepted. Not lossless:
    admission is acceptance itself (`tests/lossless/test_policies.py` has the law it emits).
    """

    bound: bool = True
    reads: frozenset[Reads] = frozenset({"oracle"})
    lag: int = 0
    lossless: bool = False

    def plan(self, view: BatchView) -> IntArray:
        """Return the admitted prefix lengths."""
        accepted_RG = np.arange(view.gamma) < view.num_accepted_R[:, None]
        return _best(accepted_RG.astype(np.float64), view)


def _best(survival_RG: np.ndarray, view: BatchView) -> IntArray:
    ascending_C = ascending(survival_RG)
    k = capacity(
        ascending_C,
        view.num_requests,
        view.base_tokens,
        view.verify_s_B,
        view.fixed_s,
        NO_PATIENCE_LIMIT,
    )
    return allocate(survival_RG, ascending_C, k)


class OptimalConfig(Config):
    """Upper bound: the argmax on live survivals; needs `unsafe: true`, never a policy."""

    kind: Literal["optimal"]

    def build(self) -> Optimal:
        """Make the scheduler."""
        return Optimal()


class OracleConfig(Config):
    """Upper bound: knows what will be accepted; needs `unsafe: true`, never a policy."""

    kind: Literal["oracle"]

    def build(self) -> Oracle:
        """Make the scheduler."""
        return Oracle()
