"""Users who give up, classes, ranks that die; layouts; gates; and bounds that know too much."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from specsim.acceptance.blocks import lay_out
from specsim.acceptance.trace import DenseTrace
from specsim.engine.cluster import LIVELOCK_AFTER
from specsim.engine.faults import Death, Patience
from specsim.engine.kv import KvSpec
from specsim.engine.lockstep import Lockstep
from specsim.engine.prefill import DisaggregatedPrefill, MixedPrefill
from specsim.engine.run import Batch, ClosedLoop, Poisson, Stop
from specsim.errors import InputError, SchedulerFault
from specsim.metrics.record import Status
from specsim.schedulers.base import BatchView
from specsim.schedulers.oracle import Oracle
from specsim.schedulers.per_request import Tetris
from specsim.schedulers.static import FixedLength
from specsim.workload.lengths import FixedLengthConfig
from tests.engine_world import LinearCost, random_trace, small_run


def test_who_waits_too_long_for_a_first_token_times_out() -> None:
    out = small_run(
        load=Batch(30), stop=Stop(), capacity=4, patience=Patience(first_token_s=0.25)
    ).requests
    late = out["status"] == Status.TIMED_OUT
    assert 0 < late.sum() < 30
    np.testing.assert_allclose(out["closed_s"][late], 0.25)
    assert (out["first_token_s"][~late] <= 0.25).all()
    assert np.isnan(out["finish_s"][late]).all()
    assert (out["rounds"][late] == 0).all()


def test_a_running_request_times_out_at_the_end_of_its_step() -> None:
    out = small_run(load=Batch(3), stop=Stop(), patience=Patience(total_s=0.05))
    requests, ends = out.requests, out.steps["end_s"]
    assert (requests["status"] == Status.TIMED_OUT).all()
    assert (requests["closed_s"] == ends[ends >= 0.05][0]).all()
    assert (requests["emitted"] > 0).all()
    assert requests["emitted"].sum() == out.steps["emitted"].sum()


def test_as_many_cancel_as_said() -> None:
    out = small_run(
        load=Poisson(20.0), stop=Stop(requests=1000), patience=Patience(None, None, 0.3, 1e-4)
    ).requests
    closed = out["status"] > Status.RUNNING
    share = (out["status"][closed] == Status.CANCELLED).mean()
    assert share == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / closed.sum()) ** 0.5)


def test_the_patience_of_a_request_is_the_same_under_every_policy() -> None:
    changes = {"load": Batch(60), "stop": Stop(), "patience": Patience(None, None, 0.5, 1e-5)}
    slow = small_run(scheduler=lambda: FixedLength(0), **changes).requests
    fast = small_run(scheduler=lambda: FixedLength(4), **changes).requests
    np.testing.assert_array_equal(slow["status"], fast["status"])


@pytest.mark.parametrize(
    "prefill",
    [MixedPrefill(16), DisaggregatedPrefill(1, 16, LinearCost(), transfer_s=0.5)],
    ids=["mixed", "disaggregated"],
)
def test_who_leaves_during_prefill_or_transfer_is_counted(prefill) -> None:
    out = small_run(
        load=Batch(20),
        stop=Stop(),
        prefill=prefill,
        prompt=FixedLengthConfig(kind="fixed", tokens=50),
        patience=Patience(total_s=0.3),
    ).requests
    assert (out["status"] > Status.RUNNING).all()
    assert (out["status"] == Status.TIMED_OUT).sum() >= 15


def test_users_of_a_closed_loop_ask_again_after_giving_up() -> None:
    out = small_run(
        load=ClosedLoop(4), patience=Patience(total_s=0.05), stop=Stop(seconds=2.0)
    ).requests
    assert (out["status"] == Status.TIMED_OUT).sum() > 50


def test_the_first_class_goes_first() -> None:
    out = small_run(load=Batch(60), stop=Stop(), capacity=4, priority_shares_C=(0.3, 0.7)).requests
    high = out["priority"] == 0
    assert 5 < high.sum() < 40
    assert out["admitted_s"][high].max() <= out["admitted_s"][~high].min() + 1e-9


def test_starvation_is_named() -> None:
    out = small_run(
        load=Poisson(80.0),
        capacity=4,
        priority_shares_C=(0.9, 0.1),
        stop=Stop(seconds=8.0),
    )
    assert any("starvation" in said and "of class 1 wait" in said for said in out.findings)
    fair = small_run(load=Poisson(80.0), capacity=4, stop=Stop(seconds=8.0))
    assert fair.findings == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"patience": Patience(total_s=1e-6)},  # in the batch, but never to the end
        {"load": Poisson(1000.0), "kv": KvSpec(1, 1)},  # no rank can hold any
        {"load": Poisson(1000.0), "kv": KvSpec(1, 1), "stop": Stop(tokens=100)},
    ],
    ids=["patience", "memory", "tokens"],
)
def test_a_run_that_can_never_end_is_ended_and_named(changes: dict[str, Any]) -> None:
    out = small_run(**changes)
    assert out.ended == "livelock"
    (found,) = out.findings
    assert found.startswith(f"livelock: the last {LIVELOCK_AFTER} requests all left unserved")
    assert (out.requests["status"] != Status.FINISHED).all()


def test_many_who_leave_are_no_livelock_while_some_finish() -> None:
    changes = {"load": Poisson(20_000.0), "capacity": 1, "patience": Patience(first_token_s=1e-3)}
    out = small_run(**changes, stop=Stop(requests=12))
    assert out.ended == "requests"
    assert (out.requests["status"] == Status.TIMED_OUT).sum() > LIVELOCK_AFTER


def test_a_dead_rank_loses_its_step_and_its_requests_go_on_elsewhere() -> None:
    changes = {"load": Batch(16), "ranks": 2, "stop": Stop(), "prefill": MixedPrefill(64)}
    out = small_run(deaths=(Death(1, 0.1),), **changes)
    requests, steps = out.requests, out.steps
    assert (requests["status"] == Status.FINISHED).all()
    assert (steps["end_s"][steps["rank"] == 1] <= 0.1).all()
    moved = requests["reroutes"] == 1
    assert moved.sum() == 8
    assert (requests["rank"] == 0).all()
    # The KV is gone: the prompt is read again, and what had been emitted with it.
    assert (requests["prefilled"][moved] > 10).all()
    assert requests["emitted"].sum() == 16 * 39 == steps["emitted"].sum()
    assert "rank 1 died at 0.1 s with its step; 8 requests were sent elsewhere" in out.findings[0]
    assert out.end_s > small_run(**changes).end_s


def test_a_rank_that_comes_back_serves_again() -> None:
    out = small_run(
        load=Poisson(30.0), ranks=2, deaths=(Death(1, 1.0, 2.0),), stop=Stop(seconds=4.0)
    )
    end_s = out.steps["end_s"][out.steps["rank"] == 1]
    assert ((end_s > 1.0) & (end_s <= 2.0)).sum() == 0
    assert (end_s > 2.0).sum() > 20


def test_nobody_left_fails_everything_or_waits_for_who_comes_back() -> None:
    gone = small_run(load=Batch(10), stop=Stop(), deaths=(Death(0, 0.05),)).requests
    assert (gone["status"] == Status.FAILED).all()
    assert gone["emitted"].sum() > 0
    back = small_run(load=Batch(10), stop=Stop(), deaths=(Death(0, 0.05, 1.0),))
    assert (back.requests["status"] == Status.FINISHED).all()
    assert back.end_s > 1.0


def test_a_lockstep_group_goes_on_without_the_dead() -> None:
    out = small_run(
        load=Batch(20), ranks=3, stop=Stop(), lockstep=Lockstep(), deaths=(Death(0, 0.1, 0.2),)
    )
    assert (out.requests["status"] == Status.FINISHED).all()
    mine = out.steps["end_s"][out.steps["rank"] == 0]
    others = out.steps["end_s"][out.steps["rank"] == 1]
    assert ((others > 0.12) & (others < 0.19)).any()
    assert not ((mine > 0.1) & (mine < 0.2)).any()


@pytest.mark.parametrize(
    "deaths", [(Death(2, 1.0),), (Death(0, 1.0), Death(0, 2.0)), (Death(0, 2.0, 1.0),)]
)
def test_impossible_deaths_are_refused(deaths) -> None:
    with pytest.raises(InputError, match=r"cluster\.deaths: rank"):
        small_run(ranks=2, deaths=deaths)


def test_a_gate_saves_drafting_time_and_is_held_to_it() -> None:
    class Cost(LinearCost):
        def draft_s(self, num_requests: int) -> float:
            return 1e-3 * num_requests

        def fixed_s(self, num_requests: int, kv_tokens: int) -> float:
            return self.fixed + self.draft_s(num_requests)

    class Half:
        """Drafts for every other request."""

        reads = frozenset({"history"})
        lag = 0
        lossless = True
        cheats = False

        def drafting(self, view: BatchView) -> np.ndarray:
            with pytest.raises(ValueError, match="declaring"):
                _ = view.survival_RG
            return view.request_id_R % 2 == 0

        def plan(self, view: BatchView) -> np.ndarray:
            return np.where((view.request_id_R % 2 == 0) | self.cheats, 2, 0).astype(np.int64)

    cost = Cost()
    out = small_run(scheduler=Half, cost=cost, load=Batch(6), stop=Stop(requests=6))
    first = out.steps["duration_s"][0]
    assert first == pytest.approx(cost.verify_s_B[6 + 6] + cost.fixed + 3e-3)

    class Cheat(Half):
        cheats = True

    with pytest.raises(SchedulerFault, match="did not draft for"):
        small_run(scheduler=Cheat, cost=cost)
    with pytest.raises(InputError, match="drafting time"):
        small_run(scheduler=Half, cost=LinearCost())


def test_the_oracle_verifies_just_what_will_be_accepted() -> None:
    steps = small_run(scheduler=Oracle, cost=LinearCost(slope_s=1e-6)).steps
    np.testing.assert_array_equal(steps["verified"], steps["accepted"])
    np.testing.assert_array_equal(steps["accepted"], steps["ceiling"])


def test_ranking_by_sampled_tokens_needs_a_trace_that_has_them() -> None:
    trace = random_trace()
    with pytest.raises(InputError, match="draft_prob_NG"):
        small_run(scheduler=lambda: Tetris(1))
    prob_NG = np.random.default_rng(0).random(trace.confidence_NG.shape)
    blocks = lay_out(replace(trace, draft_prob_NG=prob_NG), gamma=4, seed=1)
    assert isinstance(trace, DenseTrace)
    steps = small_run(blocks, scheduler=lambda: Tetris(1)).steps
    np.testing.assert_array_equal(steps["verified"], steps["num_requests"])
