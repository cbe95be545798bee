"""The lossless lab: samples of Appendix A's world, in kernels and in numpy."""

from __future__ import annotations

import pytest

from specsim.lossless import leaks
from specsim.lossless.enumerate import enumerate_world
from specsim.lossless.montecarlo import Sampler
from specsim.schedulers.greedy import Greedy

pytestmark = pytest.mark.benchmark(group="lossless")


@pytest.mark.parametrize("kernels", [True, False])
def test_a_hundred_thousand_samples(benchmark, kernels: bool) -> None:
    sampler = Sampler(leaks.appendix_a(), Greedy, num_tokens=3, kernels=kernels)
    benchmark(sampler.counts, 100_000)


def test_enumeration_of_appendix_a(benchmark) -> None:
    benchmark(enumerate_world, leaks.appendix_a(), Greedy)
