"""A scheduler of your own: verify the drafts that are likely enough, more of them when idle.

    specsim lossless my_scheduler:LoadThreshold            # from this folder

and in a scenario: `scheduler: {kind: "my_scheduler:LoadThreshold", params: {busy: 32}}`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specsim.schedulers import BatchView


@dataclass(frozen=True)
class LoadThreshold:
    """Cut each block at the first survival below a bar that rises with the number of requests."""

    busy: int = 32
    reads = frozenset({"live"})
    lag = 0
    lossless = True

    def plan(self, view: BatchView) -> np.ndarray:
        # The bar depends on load alone, and draft k on survivals 1..k: nothing is anticipated.
        bar = min(1.0, view.num_requests / self.busy)
        sure = (view.survival_RG >= bar) & (view.survival_RG > 0)
        return np.logical_and.accumulate(sure, axis=1).sum(axis=1, dtype=np.int64)
