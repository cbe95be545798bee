"""Small worlds for engine tests: a synthetic trace, a cost law, and a run in one call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance.blocks import Blocks, lay_out
from specsim.acceptance.trace import DenseTrace
from specsim.engine.run import ClosedLoop, RunColumns, RunInput, Stop, run
from specsim.schedulers.static import FixedLength
from specsim.workload.lengths import FixedLengthConfig


def random_trace(
    *, seed: int = 0, sequences: int = 6, anchors: int = 60, gamma: int = 4, domains: int = 2
) -> DenseTrace:
    """A trace whose acceptances follow its confidences."""
    rng = np.random.default_rng(seed)
    c = rng.beta(4, 2, size=(sequences * anchors, gamma)).astype(np.float32)
    accepted = np.cumprod(rng.random(c.shape) < c, axis=1).sum(axis=1)
    return DenseTrace(
        confidence_NG=c,
        num_accepted_N=accepted.astype(np.uint8),
        sequence_offset_S1=np.arange(sequences + 1, dtype=np.int64) * anchors,
        sequence_domain_S=(np.arange(sequences) % domains).astype(np.uint8),
        domain_names=tuple(f"d{i}" for i in range(domains)),
    )


@dataclass
class LinearCost:
    """base + slope * tokens, ragged."""

    base_s: float = 5e-3
    slope_s: float = 1e-4
    fixed: float = 1e-3
    verify_s_B: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.verify_s_B = self.base_s + self.slope_s * np.arange(50_000)

    def fixed_s(self, num_requests: int, kv_tokens: int) -> float:
        return self.fixed

    def charged_tokens(self, verify_len_R: NDArray[np.int64]) -> int:
        return len(verify_len_R) + int(verify_len_R.sum())


def small_run(blocks: Blocks | None = None, **changes: Any) -> RunColumns:
    """Run a small closed loop, with anything of its input changed."""
    return run(small_input(blocks, **changes))


def small_input(blocks: Blocks | None = None, **changes: Any) -> RunInput:
    """Make the input of a small closed loop, with anything of it changed."""
    blocks = blocks or lay_out(random_trace(), gamma=4, seed=1)
    given: dict[str, Any] = {
        "blocks": blocks,
        "scheduler": lambda: FixedLength(2),
        "cost": LinearCost(),
        "load": ClosedLoop(8),
        "prompt": FixedLengthConfig(kind="fixed", tokens=10),
        "output": FixedLengthConfig(kind="fixed", tokens=40),
        "domain_weights_D": blocks.domain_shares(),
        "ranks": 1,
        "capacity": 16,
        "router": "least_loaded",
        "seed": 1,
        "stop": Stop(requests=60),
    }
    return RunInput(**(given | changes))
