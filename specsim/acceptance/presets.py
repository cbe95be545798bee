"""Calibrations of the parametric model to published figures, as numbers.

Source of every one: the DSpark paper (arXiv 2607.05147), Qwen3-4B DSpark drafters, read out of the
vector geometry of its figures. Status: fitted, by `scripts/fit_acceptance.py`, which also writes
`profiles/fits/acceptance.json` with the figures reached; a test holds the two together. Each is
fitted to its own figure alone, and says nothing about the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Preset:
    """Parameters of the parametric model, see `parametric`.

    Attributes:
        name: name of the calibration.
        conditional: by domain, conditional acceptance at positions 1, 2, ..
        source: which figure they are fitted to.
        difficulty_sd: spread between requests, logits.
        noise_sd: spread between drafts, logits.
        skew: of the drafts' part.
        head_scale: the head's factor on the logit by position; the last goes on.
        head_shift: its shift, logits (above 0 is overconfident).
        head_noise_sd: its own noise, logits.
    """

    name: str
    conditional: Mapping[str, tuple[float, ...]]
    source: str
    difficulty_sd: float = 0.0
    noise_sd: float = 0.0
    skew: float = 0.0
    head_scale: tuple[float, ...] = (1.0,)
    head_shift: tuple[float, ...] = (0.0,)
    head_noise_sd: tuple[float, ...] = (0.0,)

    @property
    def longest(self) -> int | None:
        """Drafts a block that the calibration knows of; None if its last position goes on."""
        if self.name == "constant":
            return None
        return min(len(values) for values in self.conditional.values())

    def conditional_at(self, domain: str, gamma: int) -> NDArray[np.float64]:
        """Return the conditional acceptance at positions 1..gamma, `[gamma]`."""
        known = self.conditional[domain]
        return np.array([known[min(k, len(known) - 1)] for k in range(gamma)])

    def head_at(self, k: int) -> tuple[float, float, float]:
        """Return the head's scale, shift and noise at position k + 1."""
        return (
            self.head_scale[min(k, len(self.head_scale) - 1)],
            self.head_shift[min(k, len(self.head_shift) - 1)],
            self.head_noise_sd[min(k, len(self.head_noise_sd) - 1)],
        )


PRESETS: dict[str, Preset] = {
    "domains": Preset(
        name="domains",
        conditional={
            "math": (0.9053, 0.8899, 0.8878, 0.8854, 0.8872, 0.8906, 0.8824),
            "code": (0.8857, 0.8719, 0.8598, 0.8608, 0.8579, 0.8594, 0.851),
            "chat": (0.7353, 0.7376, 0.7402, 0.7441, 0.7583, 0.7656, 0.7609),
        },
        source="DSpark paper (arXiv 2607.05147), Qwen3-4B, Figure 2; spreads assumed",
        difficulty_sd=1.0,
        noise_sd=1.5,
    ),
    "domains_block3": Preset(
        name="domains_block3",
        conditional={
            "math": (0.9259, 0.9135, 0.9118),
            "code": (0.9026, 0.8906, 0.88),
            "chat": (0.7644, 0.7666, 0.769),
        },
        source="DSpark paper (arXiv 2607.05147), Qwen3-4B, Figure 2 moved to Figure 4, gamma 3",
        difficulty_sd=1.0,
        noise_sd=1.5,
    ),
    "domains_block11": Preset(
        name="domains_block11",
        conditional={
            "math": (
                0.8982,
                0.8817,
                0.8795,
                0.877,
                0.8789,
                0.8825,
                0.8738,
                0.8738,
                0.8738,
                0.8738,
                0.8738,
            ),
            "code": (
                0.8774,
                0.8628,
                0.85,
                0.851,
                0.848,
                0.8496,
                0.8407,
                0.8407,
                0.8407,
                0.8407,
                0.8407,
            ),
            "chat": (
                0.7249,
                0.7272,
                0.7299,
                0.7339,
                0.7485,
                0.756,
                0.7511,
                0.7511,
                0.7511,
                0.7511,
                0.7511,
            ),
        },
        source="DSpark paper (arXiv 2607.05147), Qwen3-4B, Figure 2 moved to Figure 4, gamma 11",
        difficulty_sd=1.0,
        noise_sd=1.5,
    ),
    "domains_block15": Preset(
        name="domains_block15",
        conditional={
            "math": (
                0.8955,
                0.8787,
                0.8764,
                0.8738,
                0.8758,
                0.8795,
                0.8705,
                0.8705,
                0.8705,
                0.8705,
                0.8705,
                0.8705,
                0.8705,
                0.8705,
                0.8705,
            ),
            "code": (
                0.8754,
                0.8606,
                0.8476,
                0.8486,
                0.8455,
                0.8471,
                0.8381,
                0.8381,
                0.8381,
                0.8381,
                0.8381,
                0.8381,
                0.8381,
                0.8381,
                0.8381,
            ),
            "chat": (
                0.7222,
                0.7246,
                0.7273,
                0.7313,
                0.746,
                0.7535,
                0.7486,
                0.7486,
                0.7486,
                0.7486,
                0.7486,
                0.7486,
                0.7486,
                0.7486,
                0.7486,
            ),
        },
        source="DSpark paper (arXiv 2607.05147), Qwen3-4B, Figure 2 moved to Figure 4, gamma 15",
        difficulty_sd=1.0,
        noise_sd=1.5,
    ),
    "gsm8k": Preset(
        name="gsm8k",
        conditional={"gsm8k": (0.9323, 0.9209, 0.9193, 0.9175, 0.9189, 0.9214, 0.9153)},
        source="DSpark paper (arXiv 2607.05147), Qwen3-4B, Figure 5, panel math: gsm8k",
        difficulty_sd=0.5754,
        noise_sd=3.6256,
        skew=0.4255,
        head_scale=(0.7659,),
        head_shift=(1.1395,),
        head_noise_sd=(0.8039,),
    ),
    "humaneval": Preset(
        name="humaneval",
        conditional={"humaneval": (0.8977, 0.8852, 0.8742, 0.8751, 0.8724, 0.8738, 0.8661)},
        source="DSpark paper (arXiv 2607.05147), Qwen3-4B, Figure 5, panel code: humaneval",
        difficulty_sd=0.9408,
        noise_sd=2.2061,
        skew=0.1277,
        head_scale=(0.7958,),
        head_shift=(0.9669,),
        head_noise_sd=(0.2827,),
    ),
    "mt_bench": Preset(
        name="mt_bench",
        conditional={"mt_bench": (0.7487, 0.7509, 0.7535, 0.7572, 0.7709, 0.778, 0.7734)},
        source="DSpark paper (arXiv 2607.05147), Qwen3-4B, Figure 5, panel chat: mt_bench",
        difficulty_sd=0.6545,
        noise_sd=3.19,
        skew=1.0943,
        head_scale=(1.0563,),
        head_shift=(0.4122,),
        head_noise_sd=(0.1002,),
    ),
    "alpaca": Preset(
        name="alpaca",
        conditional={"alpaca": (0.7384, 0.7407, 0.7433, 0.7471, 0.7612, 0.7684, 0.7638)},
        source="DSpark paper (arXiv 2607.05147), Qwen3-4B, Figure 6 and Table 1 (Alpaca)",
        difficulty_sd=1.3835,
        noise_sd=1.0757,
        skew=0.8473,
        head_scale=(1.0042, 0.9038, 0.892, 0.9691, 1.1348, 1.3892, 1.7324),
        head_shift=(0.5012, 0.6678, 0.715, 0.6428, 0.4512, 0.1402, -0.2902),
        head_noise_sd=(0.7335, 1.0486, 1.2313, 1.1877, 0.941, 0.6123, 0.3273),
    ),
}
