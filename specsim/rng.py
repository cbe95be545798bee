"""Random streams by name, so that two policies of one scenario see the same luck.

A stream depends on the seed and on its name, never on how many numbers another stream has drawn
(common random numbers).
"""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, name: str) -> np.random.Generator:
    """Return the generator of stream `name` under `seed` (PCG64, the same on every machine).

    Args:
        seed: the scenario's seed, any non-negative integer.
        name: what the stream is for, such as `arrivals` or `rank/3/exponential`.
    """
    digest = hashlib.sha256(name.encode()).digest()
    words = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *words])))
