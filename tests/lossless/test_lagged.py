"""The claim about lagged schedulers, over several rounds and laws that depend on context.

A lagged scheduler reads the whole block of an earlier step, the drafts that were never verified
included. The question is whether those can bend what is emitted later. They cannot: given the past,
the drafts of a step are fresh. Enumeration says so for every world tried, and says the opposite at
once when the lag is zero, or when a "lagged" value is in truth of the present step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from specsim.lossless import leaks
from specsim.lossless.enumerate import enumerate_world
from specsim.lossless.random_worlds import chooser, tempting_world
from specsim.schedulers.base import IntArray
from specsim.schedulers.greedy import PatientGreedy
from specsim.schedulers.kernels import allocate
from specsim.schedulers.topk import AsyncTopK, GlobalSearch, Stale

BOTH = frozenset({"live", "lagged"})
LAGGED = {
    "async 1": lambda: AsyncTopK(1),
    "async 2": lambda: AsyncTopK(2),
    "stale 1": lambda: Stale(1),
    "stale 2": lambda: Stale(2),
    "patience 1": lambda: PatientGreedy(1, 1, BOTH, lossless=True),
    "patience 2": lambda: PatientGreedy(2, 2, BOTH, lossless=True),
}


@pytest.mark.parametrize("name", LAGGED)
def test_lagged_schedulers_are_exact_over_three_tokens(name):
    choose = chooser(np.random.default_rng(1))
    for world in [leaks.nested(), *(tempting_world(choose, num_requests=1) for _ in range(12))]:
        found = enumerate_world(world, LAGGED[name], num_tokens=3)
        assert found.exact, world.describe()
        assert found.peek is None


def test_the_lag_matters_in_those_worlds():
    choose = chooser(np.random.default_rng(1))
    worlds = [tempting_world(choose, num_requests=1) for _ in range(12)]
    differ = biased = 0
    for world in worlds:
        lagged = enumerate_world(world, lambda: AsyncTopK(1), num_tokens=3)
        fixed = enumerate_world(world, lambda: AsyncTopK(2), num_tokens=3)
        differ += lagged.leaves != fixed.leaves
        biased += not enumerate_world(world, lambda: AsyncTopK(0), num_tokens=3).exact
    assert differ >= 4
    assert biased >= 2


def test_two_requests_stay_independent_over_two_rounds():
    choose = chooser(np.random.default_rng(2))
    for world in [leaks.cross(), *(tempting_world(choose, num_requests=2) for _ in range(3))]:
        found = enumerate_world(world, lambda: AsyncTopK(1), num_tokens=2)
        assert found.exact
        assert len(found.watched) == 2


@dataclass
class ByRow:
    """Matches old survivals by row instead of by request id: a bug, but it is still the past."""

    reads = frozenset({"live"})
    lag = 0
    lossless = True
    _old: list = field(default_factory=list)

    def plan(self, view) -> IntArray:
        old = self._old[-1] if self._old else np.ones_like(view.survival_RG)
        self._old.append(view.survival_RG)
        k = round(float(old.sum()))
        return allocate(view.survival_RG, k)


class HonestAtFirst(GlobalSearch):
    """Verifies everything in step 0 and searches live survivals from then on."""

    def plan(self, view) -> IntArray:
        if view.step == 0:
            return np.full(view.num_requests, view.gamma, dtype=np.int64)
        return GlobalSearch.plan(self, view)


def test_wrong_rows_cost_speed_and_not_exactness():
    choose = chooser(np.random.default_rng(3))
    for _ in range(6):
        assert enumerate_world(tempting_world(choose), ByRow, num_tokens=2).exact


def test_a_leak_that_shows_only_in_a_later_round_is_seen():
    assert enumerate_world(leaks.appendix_a(), HonestAtFirst, num_tokens=1).exact
    found = enumerate_world(leaks.appendix_a(), HonestAtFirst, num_tokens=2)
    assert not found.exact
    assert found.first_token(1)[0] == found.first_token(1)[1]
    assert found.peek.step == 1
