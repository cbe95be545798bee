"""What a step cannot beat: reading its weights and KV cache, and doing its multiplications.

Used to flag a table that is faster than its own hardware, and as a last resort where nobody has
measured. The limits are the vendors' data-sheet figures (dense, without sparsity); real kernels
reach 60-90% of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specsim.cost.shape import ModelShape
from specsim.cost.table import Provenance, StepTable, check_table, curve, surface
from specsim.errors import InputError, nearest

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Gpu:
    """Data-sheet limits of one accelerator.

    Attributes:
        bytes_per_s: memory bandwidth.
        flops: dense multiply-adds times two per second, by width of a weight in bytes.
    """

    bytes_per_s: float
    flops: dict[float, float]

    def peak(self, weight_bytes: float) -> float:
        """Flop/s for weights that wide: the narrowest listed format that holds them."""
        wide = [width for width in self.flops if width >= weight_bytes]
        return self.flops[min(wide)] if wide else self.flops[max(self.flops)]


GPUS: dict[str, Gpu] = {
    "a100": Gpu(2.04e12, {2: 312e12}),
    "h100": Gpu(3.35e12, {2: 989e12, 1: 1979e12}),
    "h200": Gpu(4.8e12, {2: 989e12, 1: 1979e12}),
    "b200": Gpu(8.0e12, {2: 2250e12, 1: 4500e12, 0.5: 9000e12}),
    "b300": Gpu(8.0e12, {2: 2500e12, 1: 5000e12, 0.5: 15000e12}),
    "rtx4090": Gpu(1.008e12, {2: 165e12, 1: 330e12}),
    "rtxpro6000": Gpu(1.792e12, {2: 500e12, 1: 1000e12, 0.5: 2000e12}),
    "m3ultra": Gpu(0.819e12, {2: 57e12}),
}
"""Vendor data sheets; dense rates, SXM variants of A100, H100, H200, B200 and B300."""


def gpu_named(name: str) -> Gpu:
    """Return a preset's limits.

    Raises:
        InputError: no preset of that name.
    """
    found = GPUS.get(name.lower())
    if found is None:
        raise InputError(
            f'no GPU preset "{name}"; legal: {", ".join(GPUS)} {nearest(name, GPUS)}'.strip()
        )
    return found


@dataclass(frozen=True, slots=True)
class Roofline:
    """Lower limits of one deployment.

    Attributes:
        shape: the whole model's dimensions.
        gpu: limits of one GPU.
        num_gpus: GPUs that share the model (tensor or expert parallel).
        weight_bytes: bytes a weight: 2 for bf16, 1 for fp8, 0.5 for fp4.
        kv_bytes: bytes an entry of the KV cache.
    """

    shape: ModelShape
    gpu: Gpu
    num_gpus: int = 1
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0

    def weights_s(self, batch_tokens: float) -> float:
        """Seconds to read the weights that B tokens touch."""
        touched = self.shape.touched_weights(batch_tokens) * self.weight_bytes
        return touched / (self.gpu.bytes_per_s * self.num_gpus)

    def flops_s(self, batch_tokens: float) -> float:
        """Seconds to multiply B tokens through the matrices."""
        peak = self.gpu.peak(self.weight_bytes) * self.num_gpus
        return batch_tokens * self.shape.flops_per_token() / peak

    def verify_s(self, batch_tokens: float) -> float:
        """Least seconds of one forward at B tokens, without its KV reads."""
        return max(self.weights_s(batch_tokens), self.flops_s(batch_tokens))

    def attention_s(self, kv_tokens: float) -> float:
        """Seconds to read that many resident KV tokens once."""
        kv = kv_tokens * self.shape.kv_per_token() * self.kv_bytes
        return kv / (self.gpu.bytes_per_s * self.num_gpus)


@dataclass(frozen=True, slots=True)
class TooFast:
    """A probe that beats its own hardware.

    Attributes:
        batch_tokens: the probe.
        seconds: what the table says.
        least_s: what the hardware needs.
        limit: `weights` or `flops`, whichever the probe beats by more.
    """

    batch_tokens: int
    seconds: float
    least_s: float
    limit: str


def too_fast(table: StepTable, roofline: Roofline) -> list[TooFast]:
    """Return the probes of the verify curve that are faster than the hardware allows."""
    found = []
    probes = zip(table.verify.probes_N.tolist(), table.verify.seconds_N.tolist(), strict=True)
    for batch_tokens, seconds in probes:
        weights_s, flops_s = roofline.weights_s(batch_tokens), roofline.flops_s(batch_tokens)
        least_s = max(weights_s, flops_s)
        if seconds < least_s:
            limit = "weights" if weights_s >= flops_s else "flops"
            found.append(TooFast(batch_tokens, seconds, least_s, limit))
    return found


def roofline_table(
    roofline: Roofline,
    *,
    name: str,
    date: str,
    max_tokens: int,
    max_requests: int,
    efficiency: float = 0.7,
    launch_s: float = 2e-3,
) -> StepTable:
    """Make a table of nothing but limits, for where nobody has measured.

    Args:
        roofline: the deployment.
        name: name of the table.
        date: day it was made, YYYY-MM-DD.
        max_tokens: last probe of B.
        max_requests: last probe of the requests in attention.
        efficiency: share of the data-sheet limits that kernels reach; an assumption.
        launch_s: constant seconds a step; an assumption.

    Raises:
        InputError: an efficiency outside (0, 1] or a negative launch time.
    """
    if not 0 < efficiency <= 1:
        raise InputError(f"efficiency must be in (0, 1], not {efficiency}")
    if launch_s < 0:
        raise InputError(f"launch_s must be at least 0, not {launch_s}")
    probes = _powers(max_tokens)
    requests = _powers(max_requests)
    contexts = [1024, 4096]
    seconds = [launch_s + roofline.verify_s(tokens) / efficiency for tokens in probes]
    attention = [
        [roofline.attention_s(count * context) / efficiency for count in requests]
        for context in contexts
    ]
    provenance = Provenance(
        status="derived",
        source="roofline of data-sheet limits; nothing was measured",
        date=date,
        licence="Apache-2.0",
        left_out=["drafting", "host time", "all-reduce", "kernel staircases"],
        notes=f"Assumed: {efficiency:g} of the limits reached, {launch_s * 1e3:g} ms a launch.",
    )
    made = StepTable(
        name=name,
        provenance=provenance,
        verify=curve(probes, seconds),
        attention=surface(requests, contexts, attention),
    )
    return check_table(made)


def _powers(last: int) -> list[int]:
    return sorted({*(2**i for i in range(last.bit_length()) if 2**i <= last), last})
