"""Properties over random worlds: the safe are exact in all of them, the liars are caught soon.

The seeded share that runs always is small; `slow` runs the 2,000 worlds.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, find, given, seed, settings
from hypothesis import strategies as st

from specsim.lossless import liars
from specsim.lossless.battery import tokens_for
from specsim.lossless.conformance import counterexample
from specsim.lossless.enumerate import enumerate_world
from specsim.lossless.kinds import shipped
from specsim.lossless.random_worlds import random_world, tempting_world
from specsim.lossless.rejection import BLOCK_RULE
from specsim.schedulers.greedy import Greedy, PatientGreedy
from specsim.schedulers.topk import AsyncTopK, GlobalSearch

SAFE = {name: factory for name, factory in shipped() if factory().lossless}
SAFE |= {
    "top-k": liars.FixedTopK,
    "keep": liars.ThresholdKeep,
    "smoothed over the past": lambda: liars.SmoothedBudget(first=False),
    "gates": liars.SparseGate,
    "d-cut, one share": lambda: liars.DCut((0.5,)),
}
LIARS = {
    "global": GlobalSearch,
    "patience on live": lambda: PatientGreedy(1, 0, frozenset({"live"}), lossless=False),
    "async, lag 0": lambda: AsyncTopK(0),
    "ties by later position": liars.TieLast,
    "minimum gain": liars.MinimumGain,
    "tiers": lambda: liars.TierAware((0, 2, 4)),
    "uniform": liars.UniformHysteresis,
    "smoothed": liars.SmoothedBudget,
    "next": liars.PeekNext,
    "batch": liars.BatchGate,
    "cross": liars.CrossPeek,
}


@st.composite
def worlds(draw, tempting=None):
    def choose(n: int) -> int:
        return draw(st.integers(0, n - 1))

    made = tempting_world if (choose(3) == 0 if tempting is None else tempting) else random_world
    return made(choose, **({} if made is tempting_world else {"max_outcomes": 64}))


QUIET = settings(
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)


def is_exact(world, factory, **more):
    found = enumerate_world(world, factory, num_tokens=min(tokens_for(world), 2), **more)
    assert found.exact, counterexample(found)
    assert found.peek is None, counterexample(found)


@settings(QUIET, max_examples=20)
@given(world=worlds())
def test_safe_schedulers_are_exact_in_every_world(world):
    for factory in SAFE.values():
        is_exact(world, factory)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_safe_schedulers_are_exact_in_two_thousand_worlds(part):
    tried = []

    @seed(20260705 + part)
    @settings(QUIET, max_examples=500, derandomize=False)
    @given(world=worlds())
    def holds(world):
        tried.append(world)
        for factory in SAFE.values():
            is_exact(world, factory)

    holds()
    print(f"part {part}: {len(SAFE)} safe schedulers exact in {len(tried)} worlds")
    assert len(tried) >= 500


@settings(QUIET, max_examples=40)
@given(world=worlds())
def test_block_verification_is_exact_under_lengths_that_do_not_anticipate(world):
    for factory in (Greedy, lambda: AsyncTopK(1)):
        is_exact(world, factory, rule=BLOCK_RULE)


@pytest.mark.parametrize("name", LIARS)
def test_liars_are_caught_within_two_hundred_worlds(name):
    tried = []

    def biased(world):
        tried.append(world)
        return not enumerate_world(world, LIARS[name], num_tokens=tokens_for(world)).exact

    found = find(
        worlds(tempting=True),
        biased,
        settings=settings(QUIET, max_examples=200, phases=(Phase.generate,)),
    )
    assert not enumerate_world(found, LIARS[name], num_tokens=tokens_for(found)).exact
    print(f"{name}: {len(tried)} worlds, caught")
    assert len(tried) < 200


def test_a_counterexample_shrinks_to_one_that_can_be_read():
    found = find(
        worlds(tempting=True),
        lambda world: not enumerate_world(world, GlobalSearch).exact,
        settings=settings(QUIET, max_examples=200),
    )
    assert len(found.requests) == 1
    assert found.gamma == 2
