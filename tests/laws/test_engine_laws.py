"""Laws that every run obeys, whatever the policy and the load."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.engine.run import Batch, ClosedLoop, Poisson, RunColumns, Stop
from specsim.schedulers.base import BatchView, LaggedSurvival
from specsim.schedulers.greedy import Greedy
from specsim.schedulers.static import FixedLength
from specsim.schedulers.topk import AsyncTopK
from specsim.workload.lengths import UniformLengthConfig
from tests.engine_world import LinearCost, small_run

LOADS = {
    "closed": ClosedLoop(7),
    "thinking": ClosedLoop(7, think_s=0.3, thinking="exponential"),
    "poisson": Poisson(20.0),
    "batch": Batch(40),
}
SCHEDULERS = {
    "none": lambda: FixedLength(0),
    "fixed": lambda: FixedLength(3),
    "greedy": Greedy,
    "async": lambda: AsyncTopK(2),
}


def check_laws(out: RunColumns, capacity: int, ranks: int) -> None:
    """Conservation, Little's law on the sample path, and clocks that go forward."""
    requests, steps = out.requests, out.steps
    done = np.isfinite(requests["finish_s"])
    # Every request is there once; what has happened happened in order.
    np.testing.assert_array_equal(requests["request"], np.arange(len(done)))
    assert (requests["finish_s"][done] >= requests["first_token_s"][done]).all()
    admitted = np.isfinite(requests["first_token_s"])
    assert (requests["first_token_s"] >= requests["arrival_s"])[admitted].all()
    assert (np.diff(steps["end_s"]) >= 0).all()
    # A finished request emitted all it had to, an unfinished one less.
    owed = requests["output_tokens"] - 1
    np.testing.assert_array_equal(requests["emitted"][done], owed[done])
    assert (requests["emitted"][~done] < np.maximum(owed[~done], 1)).all()
    # Tokens out = sum over steps = sum over requests; accepted never exceeds verified.
    assert requests["emitted"].sum() == steps["emitted"].sum()
    assert requests["verified"].sum() == steps["verified"].sum()
    assert requests["accepted"].sum() == steps["accepted"].sum()
    assert requests["rounds"].sum() == steps["num_requests"].sum()
    assert (steps["accepted"] <= steps["verified"]).all()
    assert steps["num_requests"].max() <= capacity
    assert (steps["kv_tokens"] >= 0).all()
    # Little's law as an identity: time in system of every request adds up to the integral.
    until = np.where(done, requests["finish_s"], out.end_s)
    assert (until - requests["arrival_s"]).sum() == pytest.approx(out.request_seconds, rel=1e-9)
    # A rank does one step at a time.
    for rank in range(ranks):
        mine = steps["rank"] == rank
        start = steps["end_s"][mine] - steps["duration_s"][mine]
        assert (start[1:] >= steps["end_s"][mine][:-1] - 1e-12).all()


@settings(max_examples=60, deadline=None)
@given(
    load=st.sampled_from(sorted(LOADS)),
    scheduler=st.sampled_from(sorted(SCHEDULERS)),
    ranks=st.integers(1, 3),
    capacity=st.integers(1, 6),
    router=st.sampled_from(["least_loaded", "central_queue"]),
    seed=st.integers(0, 1000),
    longest=st.integers(2, 60),
)
def test_laws_hold(load, scheduler, ranks, capacity, router, seed, longest) -> None:
    out = small_run(
        load=LOADS[load],
        scheduler=SCHEDULERS[scheduler],
        ranks=ranks,
        capacity=capacity,
        router=router,
        seed=seed,
        output=UniformLengthConfig(kind="uniform", min=1, max=longest),
        stop=Stop(seconds=1.7),
    )
    check_laws(out, capacity, ranks)


def test_the_same_input_gives_the_same_bytes_and_runs_leave_nothing_behind() -> None:
    first = small_run(scheduler=lambda: AsyncTopK(2))
    small_run(seed=9)
    again = small_run(scheduler=lambda: AsyncTopK(2))
    for columns, others in ((first.requests, again.requests), (first.steps, again.steps)):
        for name, column in columns.items():
            assert column.tobytes() == others[name].tobytes(), name


def test_a_batch_serves_everything_and_stops() -> None:
    out = small_run(load=Batch(23), stop=Stop(), capacity=5)
    assert np.isfinite(out.requests["finish_s"]).sum() == 23
    assert out.end_s == out.requests["finish_s"].max()


class Spy:
    """Async top-K that checks the engine's lagged view against `LaggedSurvival`."""

    reads = frozenset({"live", "lagged"})
    lossless = True

    def __init__(self, lag: int) -> None:
        self.lag = lag
        self.twin = LaggedSurvival(lag)
        self.inner = AsyncTopK(lag)
        self.checked = 0

    def plan(self, view: BatchView) -> np.ndarray:
        expected = self.twin.aligned(view.request_id_R, view.survival_RG)
        np.testing.assert_array_equal(view.lagged_survival_RG, expected)
        self.twin.push(view.request_id_R, view.survival_RG)
        for array in (view.survival_RG, view.lagged_survival_RG, view.request_id_R):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0
        self.checked += 1
        return self.inner.plan(view)


@pytest.mark.parametrize("lag", [1, 2, 5])
def test_lagged_rows_are_matched_by_request(lag: int) -> None:
    spies = []

    def make() -> Spy:
        spies.append(Spy(lag))
        return spies[-1]

    small_run(
        scheduler=make,
        ranks=2,
        capacity=4,
        output=UniformLengthConfig(kind="uniform", min=2, max=30),
    )
    assert min(spy.checked for spy in spies) > 50


def test_no_step_is_cheaper_than_its_tokens() -> None:
    cost = LinearCost()
    steps = small_run(scheduler=Greedy, cost=cost).steps
    tokens = steps["num_requests"] + steps["verified"]
    np.testing.assert_allclose(steps["duration_s"], cost.verify_s_B[tokens] + cost.fixed)
