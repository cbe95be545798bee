"""A scheduler with a plausible idea that biases the output: `specsim lossless` refutes it.

    specsim lossless peeking_scheduler:BestPrefix          # from this folder

It verifies, for each request, the prefix with the best expected tokens per token verified. To know
whether two drafts are better than none it looks at c[2], which was computed from draft 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specsim.schedulers import BatchView


@dataclass(frozen=True)
class BestPrefix:
    """Pick the length with the best rate, request by request, on live survivals."""

    reads = frozenset({"live"})
    lag = 0
    lossless = True  # It believes so.

    def plan(self, view: BatchView) -> np.ndarray:
        one = np.ones((view.num_requests, 1))
        expected = np.cumsum(np.concatenate([one, view.survival_RG], axis=1), axis=1)
        seconds = view.verify_s_B[view.base_tokens + np.arange(view.gamma + 1)] + view.fixed_s
        return (expected / seconds).argmax(axis=1).astype(np.int64)
