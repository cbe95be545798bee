"""What the engine asks of a cost model."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class StepCost(Protocol):
    """What a step costs (`cost.model.StepCost`, or a law of its own in a validation)."""

    @property
    def verify_s_B(self) -> NDArray[np.float64]:
        """Seconds of one target forward at B = 0, 1, .. tokens."""
        ...

    def fixed_s(self, num_requests: int, kv_tokens: int) -> float:
        """Return the seconds of a step that no plan can trim."""
        ...

    def charged_tokens(self, verify_len_R: NDArray[np.int64]) -> int:
        """Return the tokens that the forward pays for under this engine's layout."""
        ...
