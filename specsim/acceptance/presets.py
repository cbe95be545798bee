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
        source="Figure 2",
        difficulty_sd=1.35,
        noise_sd=1.32,
    ),
    "gsm8k": Preset(
        name="gsm8k",
        conditional={"gsm8k": (0.9309, 0.9193, 0.9177, 0.9159, 0.9172, 0.9198, 0.9136)},
        source="Figure",
        difficulty_sd=0.899,
        noise_sd=1.387,
        skew=0.191,
        head_scale=(1.115,),
        head_shift=(0.194,),
        head_noise_sd=(0.25,),
    ),
    "humaneval": Preset(
        name="humaneval",
        conditional={"humaneval": (0.8975, 0.8849, 0.8739, 0.8748, 0.8721, 0.8735, 0.8658)},
        source="Figure",
        difficulty_sd=1.236,
        noise_sd=0.667,
        skew=0.463,
        head_scale=(1.03,),
        head_shift=(0.18,),
        head_noise_sd=(0.236,),
    ),
    "mt_bench": Preset(
        name="mt_bench",
        conditional={"mt_bench": (0.7509, 0.7532, 0.7557, 0.7594, 0.773, 0.78, 0.7755)},
        source="Figure",
        difficulty_sd=0.472,
        noise_sd=3.015,
        skew=0.93,
        head_scale=(1.12,),
        head_shift=(0.367,),
        head_noise_sd=(0.197,),
    ),
    "alpaca": Preset(
        name="alpaca",
        conditional={"alpaca": (0.733, 0.7353, 0.7379, 0.7418, 0.7561, 0.7634, 0.7587)},
        source="Figure",
        difficulty_sd=1.539,
        noise_sd=1.701,
        skew=0.13,
        head_scale=(0.805,),
        head_shift=(0.763,),
        head_noise_sd=(1.179,),
    ),
}
