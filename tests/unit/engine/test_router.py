"""Where requests go."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from specsim.engine.run import Feed, Poisson, Stop
from specsim.workload.feed import Arrival, Turn
from specsim.workload.lengths import FixedLengthConfig, UniformLengthConfig
from tests.engine_world import small_run


def at_once(prompts: list[int], outputs: list[int]) -> Feed:
    """Requests that come 1 us apart."""

    def arrivals(seed: int) -> Iterator[Arrival]:
        for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            yield Arrival(i * 1e-6, prompt, output)

    return Feed(arrivals)


def test_round_robin_takes_turns() -> None:
    out = small_run(load=at_once([10] * 7, [30] * 7), ranks=3, router="round_robin", stop=Stop())
    np.testing.assert_array_equal(out.requests["rank"], [0, 1, 2, 0, 1, 2, 0])


def test_least_kv_looks_at_tokens_and_least_loaded_at_requests() -> None:
    load = at_once([1000, 10, 10, 10], [30] * 4)
    by_kv = small_run(load=load, ranks=2, router="least_kv", stop=Stop())
    by_count = small_run(load=load, ranks=2, router="least_loaded", stop=Stop())
    np.testing.assert_array_equal(by_kv.requests["rank"], [0, 1, 1, 1])
    np.testing.assert_array_equal(by_count.requests["rank"], [0, 1, 0, 1])


def test_shortest_work_knows_who_is_nearly_done() -> None:
    def arrivals(seed: int) -> Iterator[Arrival]:
        # The first to finish says that outputs are 201 long.
        yield Arrival(0.0, 10, 201)
        yield Arrival(2.0, 10, 201)  # rank 0
        yield Arrival(2.1, 10, 300)  # rank 1; then rank 0 is further on, and has less left
        yield Arrival(2.2, 10, 201)

    out = small_run(load=Feed(arrivals), ranks=2, router="shortest_work", stop=Stop())
    assert out.requests["finish_s"][0] < 2.0
    np.testing.assert_array_equal(out.requests["rank"], [0, 0, 1, 0])


def test_session_affinity_keeps_a_session_together() -> None:
    def arrivals(seed: int) -> Iterator[Arrival]:
        for i in range(6):
            yield Arrival(i * 0.01, 10, 10, session=i, then=(Turn(0.2, 5, 10), Turn(0.3, 5, 10)))

    changes = {"load": Feed(arrivals), "ranks": 3, "stop": Stop()}
    out = small_run(router="session_affinity", **changes)
    ranks_of = [
        set(out.requests["rank"][out.requests["session"] == session]) for session in range(6)
    ]
    assert all(len(ranks) == 1 for ranks in ranks_of)
    assert len(set.union(*ranks_of)) == 3
    other = small_run(router="round_robin", **changes)
    assert any(
        len(set(other.requests["rank"][other.requests["session"] == s])) > 1 for s in range(6)
    )


def test_power_of_two_lies_between_chance_and_the_shortest_queue() -> None:
    def spread(router: str) -> float:
        waits = [
            small_run(
                load=Poisson(75.0),
                ranks=4,
                capacity=1,
                router=router,
                seed=seed,
                output=UniformLengthConfig(kind="uniform", min=2, max=20),
                stop=Stop(requests=600),
            ).requests
            for seed in range(4)
        ]
        return float(np.mean([np.nanmean(r["first_token_s"] - r["arrival_s"]) for r in waits]))

    assert spread("least_loaded") < spread("power_of_two") < 2 * spread("round_robin")


@pytest.mark.parametrize("router", ["power_of_two", "round_robin", "least_kv", "shortest_work"])
def test_one_rank_is_served_whatever_the_router(router: str) -> None:
    out = small_run(
        router=router, output=FixedLengthConfig(kind="fixed", tokens=5), stop=Stop(requests=20)
    )
    assert (out.requests["rank"][np.isfinite(out.requests["finish_s"])] == 0).all()
