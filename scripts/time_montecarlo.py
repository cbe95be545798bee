"""How many draft-verify rounds of one request a second the Monte-Carlo checker does on one core.

python scripts/time_montecarlo.py [--samples 2000000] [--repeats 3]

Worlds: Appendix A, and 8 tokens whose laws and confidences change with the last token. CPU seconds
of this process, planning included; the plans of the first chunk are known by then ("warm"). `numpy`
is the twin that gives the same counts.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from fractions import Fraction

import numpy as np

from specsim.lossless import leaks, montecarlo
from specsim.lossless.montecarlo import Sampler
from specsim.lossless.worlds import Request, World, tails
from specsim.schedulers.base import SchedulerFactory
from specsim.schedulers.greedy import Greedy
from specsim.schedulers.static import FixedLength
from specsim.schedulers.topk import AsyncTopK


def wide(gamma: int, *, vocabulary: int = 8, seed: int = 0) -> World:
    """Return a world whose laws and confidences depend on the last token."""
    rng = np.random.default_rng(seed)
    every = tails(vocabulary, 1)

    def law() -> tuple[Fraction, ...]:
        weights = [int(w) for w in rng.integers(1, 20, vocabulary)]
        return tuple(Fraction(w, sum(weights)) for w in weights)

    target = {tail: law() for tail in every}
    draft = tuple({tail: law() for tail in every} for _ in range(gamma))
    sure = tuple({tail: Fraction(int(rng.integers(1, 9)), 9) for tail in every} for _ in draft)
    seconds = tuple(Fraction(10 + b, 10) for b in range(gamma + 2))
    return World("wide", (Request(1, target, draft, sure, (0,)),), gamma, 1, seconds)


def million_a_second(
    world: World, factory: SchedulerFactory, *, samples: int, repeats: int, kernels: bool
) -> float:
    """Return the best of some runs, in million rounds a second."""
    sampler = Sampler(world, factory, num_tokens=3, kernels=kernels)
    sampler.counts(montecarlo.CHUNK)
    best = 0.0
    for _ in range(repeats):
        before, began = sampler.num_blocks, time.process_time()
        sampler.counts(samples)
        best = max(best, (sampler.num_blocks - before) / (time.process_time() - began) / 1e6)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    worlds = {"Appendix A, gamma 2": leaks.appendix_a()}
    worlds |= {f"8 tokens, gamma {gamma}": wide(gamma) for gamma in (2, 3, 4, 5)}
    for name, world in worlds.items():
        gamma = world.gamma
        rules: dict[str, SchedulerFactory] = {
            "fixed": lambda gamma=gamma: FixedLength(gamma),
            "greedy": Greedy,
        }
        if gamma < 4:
            # With a longer block each copy's past is another view, and Python plans every one.
            rules["async top-K, lag 1"] = lambda: AsyncTopK(1)
        for rule, factory in rules.items():
            fast, plain = (
                million_a_second(
                    world,
                    factory,
                    samples=given.samples // (1 if kernels else 8),
                    repeats=given.repeats,
                    kernels=kernels,
                )
                for kernels in (True, False)
            )
            sys.stdout.write(
                f"{name:20} {rule:19} {fast:6.2f} M rounds/s, numpy {plain:5.2f}; "
                f"load {os.getloadavg()[0]:.1f}\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
