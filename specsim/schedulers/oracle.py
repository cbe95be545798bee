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
from specsim.schedulers.kernels import allocate
from specsim.schedulers.topk import GlobalSearch

_MEMORY = 0.98
"""Weight of the past in the oracle's rate, each step; short enough to follow the load."""


@dataclass(frozen=True, slots=True)
class Optimal(GlobalSearch):
    """The best theta on live survivals, of every step by itself: `global` as a bound.

    Not lossless: refuted by enumeration (the paper's Appendix A; `tests/lossless`).
    """

    bound: bool = True


@dataclass(slots=True)
class Oracle:
    """Knows which drafts will be accepted, and verifies those that pay at the rate of late.

    It maximises tokens - rate * seconds of each step over the number of verified drafts, where the
    rate is that of its own past steps: what a step earns beyond that is what the run gains (each
    step's own tokens / seconds would turn good drafts down in lucky steps). Drafts that will be
    rejected are verified only as padding, where a larger forward is a quicker one.

    Not lossless: admission is acceptance itself (`tests/lossless/test_policies.py` has the law
    that it emits).
    """

    bound: bool = True
    reads: frozenset[Reads] = frozenset({"oracle"})
    lag: int = 0
    lossless: bool = False
    _tokens: float = 0.0
    _seconds: float = 0.0

    def plan(self, view: BatchView) -> IntArray:
        """Return the admitted prefix lengths."""
        accepted_RG = np.arange(view.gamma) < view.num_accepted_R[:, None]
        good = int(accepted_RG.sum())
        tokens_K = view.num_requests + np.minimum(np.arange(accepted_RG.size + 1), good)
        base = view.base_tokens
        seconds_K = view.verify_s_B[base : base + len(tokens_K)] + view.fixed_s
        if self._seconds:
            best = int(np.argmax(tokens_K - self._tokens / self._seconds * seconds_K))
        else:
            best = int(np.argmax(tokens_K / seconds_K))
        self._tokens = _MEMORY * self._tokens + float(tokens_K[best])
        self._seconds = _MEMORY * self._seconds + float(seconds_K[best])
        # Those that will be accepted first; the others, equally worthless, by the usual order.
        worth_RG = np.where(accepted_RG, 1.0, 0.5)
        return allocate(worth_RG, best)


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
