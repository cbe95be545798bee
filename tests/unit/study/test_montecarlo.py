"""The Monte-Carlo check gives the same answer wherever its chunks run."""

from __future__ import annotations

import numpy as np
import pytest

from specsim.errors import InputError
from specsim.lossless import montecarlo
from specsim.lossless.leaks import appendix_a
from specsim.schedulers.greedy import Greedy
from specsim.schedulers.topk import GlobalSearch
from specsim.study import montecarlo as on_places
from specsim.study.executor import Place
from specsim.study.montecarlo import sample_on


def test_processes_count_the_same_and_tell_a_leak_from_none(monkeypatch) -> None:
    monkeypatch.setattr(montecarlo, "CHUNK", 3_000)
    monkeypatch.setattr(on_places, "CHUNKS_A_TASK", 2)
    given = {"num_samples": 20_000, "seed": 3, "num_tokens": 2}
    alone = montecarlo.sample_world(appendix_a(), Greedy, **given)
    here = sample_on(Place(1), appendix_a(), Greedy, **given)  # type: ignore[arg-type]
    there = sample_on(Place(2), appendix_a(), Greedy, **given)  # type: ignore[arg-type]
    np.testing.assert_array_equal(alone.counts_V, here.counts_V)
    np.testing.assert_array_equal(alone.counts_V, there.counts_V)
    assert here.counts_V.sum() == 20_000
    assert here.p_value > 1e-3
    leak = sample_on(Place(1), appendix_a(), GlobalSearch, **given)  # type: ignore[arg-type]
    assert leak.p_value < 1e-9
    assert leak.counts_V[:2].sum() / 20_000 == pytest.approx(0.85, abs=0.01)


def test_bad_numbers_are_named() -> None:
    with pytest.raises(InputError, match="samples is 0"):
        sample_on(Place(1), appendix_a(), Greedy, num_samples=0)
