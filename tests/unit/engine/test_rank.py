"""What a rank refuses, and in which order things of one instant happen."""

from __future__ import annotations

import numpy as np
import pytest

from specsim.engine.run import Batch, Poisson, Stop
from specsim.errors import SchedulerFault
from specsim.schedulers.base import UndeclaredReadError
from specsim.workload.lengths import FixedLengthConfig
from tests.engine_world import LinearCost, small_run


class Returns:
    reads = frozenset({"live"})
    lag = 0
    lossless = True

    def __init__(self, answer) -> None:
        self.answer = answer

    def plan(self, view):
        return self.answer(view)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda v: [0] * v.num_requests, "returned list"),
        (lambda v: np.zeros(v.num_requests), "float64 array"),
        (lambda v: np.zeros(v.num_requests + 1, dtype=np.int64), r"shape \(9,\)"),
        (lambda v: np.full(v.num_requests, 5), r"request 0 \(row 0\): verify length 5"),
        (lambda v: np.full(v.num_requests, -1), "verify length -1 is outside 0..4"),
    ],
)
def test_a_broken_plan_is_named(answer, message) -> None:
    with pytest.raises(SchedulerFault, match=message):
        small_run(scheduler=lambda: Returns(answer))


def test_reading_what_was_not_declared_fails() -> None:
    with pytest.raises(UndeclaredReadError, match='add "lagged" to its `reads`'):
        small_run(scheduler=lambda: Returns(lambda v: v.lagged_survival_RG))


def test_one_token_outputs_end_with_their_prefill() -> None:
    out = small_run(load=Batch(5), stop=Stop(), output=FixedLengthConfig(kind="fixed", tokens=1))
    assert len(out.steps["end_s"]) == 0
    np.testing.assert_array_equal(out.requests["finish_s"], 0)


def test_all_arrivals_of_an_instant_join_the_next_step() -> None:
    steps = small_run(load=Batch(6), stop=Stop(), capacity=8).steps
    assert steps["num_requests"][0] == 6


def test_an_idle_rank_wakes() -> None:
    out = small_run(load=Poisson(0.5), stop=Stop(requests=20))
    assert np.isfinite(out.requests["finish_s"]).sum() == 20
    assert out.steps["duration_s"].sum() < out.end_s / 2


def test_history_counts_only_what_was_verified() -> None:
    seen = []

    class Historian:
        reads = frozenset({"history"})
        lag = 0
        lossless = True

        def plan(self, view):
            history = view.history
            seen.append((history.verified_R.sum(), history.accepted_R.sum()))
            assert (history.verified_R == 2 * history.rounds_R).all()
            assert (history.accepted_R <= history.verified_R).all()
            return np.full(view.num_requests, 2, dtype=np.int64)

    small_run(scheduler=Historian, cost=LinearCost())
    assert max(accepted for _, accepted in seen) > 0


def test_a_scheduler_that_raises_is_named_with_its_line() -> None:
    with pytest.raises(SchedulerFault, match=r"Returns\.plan raised ZeroDivisionError.*test_rank"):
        small_run(scheduler=lambda: Returns(lambda v: 1 // 0))


def test_a_learner_sees_each_step_once_and_only_what_was_verified() -> None:
    made = []

    class Learning(Returns):
        reads = frozenset({"history"})

        def __init__(self) -> None:
            super().__init__(lambda v: np.full(v.num_requests, 1, dtype=np.int64))
            self.outcomes = []
            made.append(self)

        def observe(self, outcome) -> None:
            self.outcomes.append(outcome)

    steps = small_run(scheduler=Learning).steps
    outcomes = made[0].outcomes
    assert [outcome.step for outcome in outcomes] == list(range(len(steps["end_s"])))
    assert [outcome.num_accepted_R.sum() for outcome in outcomes] == steps["accepted"].tolist()
    assert max(outcome.num_accepted_R.max() for outcome in outcomes) == 1
