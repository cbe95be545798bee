"""The Monte-Carlo check gives the same answer wherever its shards run."""

from __future__ import annotations

import numpy as np
import pytest

from specsim.errors import InputError
from specsim.lossless.leaks import appendix_a
from specsim.schedulers.greedy import Greedy
from specsim.schedulers.topk import GlobalSearch
from specsim.study.executor import Place
from specsim.study.montecarlo import sample_on


def test_processes_count_the_same_and_tell_a_leak_from_none() -> None:
    given = {"num_samples": 20_000, "shards": 4, "seed": 3}
    here = sample_on(Place(1), appendix_a(), Greedy, **given)  # type: ignore[arg-type]
    there = sample_on(Place(2), appendix_a(), Greedy, **given)  # type: ignore[arg-type]
    np.testing.assert_array_equal(here.counts_V, there.counts_V)
    assert here.counts_V.sum() == 20_000
    assert here.p_value > 1e-3
    leak = sample_on(Place(1), appendix_a(), GlobalSearch, **given)  # type: ignore[arg-type]
    assert leak.p_value < 1e-9
    assert leak.counts_V[0] / 20_000 == pytest.approx(0.85, abs=0.01)


def test_shards_are_independent() -> None:
    one = sample_on(Place(1), appendix_a(), Greedy, num_samples=400, shards=1, seed=1)
    two = sample_on(Place(1), appendix_a(), Greedy, num_samples=800, shards=2, seed=1)
    assert two.counts_V[0] != 2 * one.counts_V[0]
    with pytest.raises(InputError, match="shards"):
        sample_on(Place(1), appendix_a(), Greedy, num_samples=2, shards=3)
