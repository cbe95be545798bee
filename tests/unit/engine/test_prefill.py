"""Reading prompts: in the forwards of decoding ranks, and on ranks of its own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from specsim.engine.faults import Patience
from specsim.engine.forward import fit
from specsim.engine.kv import KvSpec
from specsim.engine.prefill import DisaggregatedPrefill, MixedPrefill
from specsim.engine.run import Batch, ClosedLoop, Feed, Stop
from specsim.errors import InputError
from specsim.metrics.record import Status
from specsim.schedulers.greedy import Greedy
from specsim.schedulers.static import FixedLength
from specsim.schedulers.topk import AsyncTopK
from specsim.workload.feed import Arrival
from specsim.workload.lengths import FixedLengthConfig
from tests.engine_world import LinearCost, small_run


def apart(**changes: object) -> DisaggregatedPrefill:
    spec = {
        "ranks": 1,
        "tokens_per_step": 64,
        "cost": LinearCost(),
        "transfer_s": 0.01,
        "transfer_s_per_token": 1e-4,
    }
    return DisaggregatedPrefill(**(spec | changes))  # type: ignore[arg-type]


def test_a_prompt_is_read_in_chunks_and_then_gives_the_first_token() -> None:
    cost = LinearCost()
    out = small_run(
        load=Batch(1),
        stop=Stop(),
        prompt=FixedLengthConfig(kind="fixed", tokens=100),
        prefill=MixedPrefill(40),
        cost=cost,
    )
    steps = out.steps
    np.testing.assert_array_equal(steps["prefill_tokens"][:4], [40, 40, 20, 0])
    np.testing.assert_array_equal(steps["num_requests"][:4], [0, 0, 0, 1])
    assert out.requests["first_token_s"][0] == steps["end_s"][2]
    np.testing.assert_allclose(steps["duration_s"][:3], cost.verify_s_B[[40, 40, 20]] + cost.fixed)


def test_prefill_tokens_are_in_the_forward_and_can_pass_the_graph_limit() -> None:
    cost = LinearCost()
    cost.verify_s_B[65:] += 0.1  # eager past 64 tokens
    changes = {
        "load": ClosedLoop(8),
        "prompt": FixedLengthConfig(kind="fixed", tokens=200),
        "cost": cost,
    }
    over = small_run(prefill=MixedPrefill(128), **changes).steps
    under = small_run(prefill=MixedPrefill(64), **changes).steps
    tokens = over["num_requests"] + over["verified"] + over["prefill_tokens"]
    np.testing.assert_array_equal(over["charged"], tokens)
    np.testing.assert_allclose(over["duration_s"], cost.verify_s_B[tokens] + cost.fixed)
    assert (over["duration_s"] > 0.1).any()
    assert (under["duration_s"] < 0.1).all()


def test_reserving_every_draft_slot_caps_the_batch() -> None:
    # 2,048 tokens a step and gamma 7: 256 requests; here 40 tokens and gamma 4: 8 requests.
    changes = {
        "load": ClosedLoop(30),
        "capacity": 30,
        "scheduler": lambda: FixedLength(1),
        "stop": Stop(requests=150),
    }
    full = small_run(prefill=MixedPrefill(40, "full"), **changes)
    plan = small_run(prefill=MixedPrefill(40, "plan"), **changes)
    assert full.steps["num_requests"].max() == 8
    assert 15 <= plan.steps["num_requests"].max() <= 20
    for out in (full, plan):
        assert (out.steps["charged"] <= 40).all()


def test_the_vllm_report_in_its_own_numbers() -> None:
    from specsim.acceptance.blocks import lay_out
    from tests.engine_world import random_trace

    out = small_run(
        blocks=lay_out(random_trace(gamma=7), gamma=7, seed=1),
        load=Batch(300),
        stop=Stop(),
        capacity=512,
        prefill=MixedPrefill(2048, "full"),
        scheduler=lambda: FixedLength(1),
    )
    assert out.steps["num_requests"].max() == 256


@pytest.mark.parametrize("scheduler", [Greedy, lambda: AsyncTopK(2), lambda: FixedLength(4)])
@pytest.mark.parametrize("reserve", ["full", "plan"])
def test_no_forward_passes_its_budget(scheduler, reserve) -> None:
    out = small_run(
        load=ClosedLoop(16),
        prefill=MixedPrefill(30, reserve),
        scheduler=scheduler,
        cost=LinearCost(slope_s=1e-6),  # so cheap that everything would be verified
        stop=Stop(requests=100),
    )
    assert out.steps["charged"].max() <= 30
    trims = out.steps["trimmed"].sum() > 0
    # Planners that read step times keep to the budget by themselves.
    assert trims == (reserve == "plan" and isinstance(scheduler(), FixedLength))


def test_a_plan_is_cut_in_order_or_evenly() -> None:
    plan_R = np.array([3, 0, 4, 2])
    np.testing.assert_array_equal(fit(plan_R, 4 + 9, even=False), plan_R)
    np.testing.assert_array_equal(fit(plan_R, 4 + 5, even=False), [3, 0, 2, 0])
    np.testing.assert_array_equal(fit(plan_R, 4, even=False), [0, 0, 0, 0])
    np.testing.assert_array_equal(fit(plan_R, 11, even=True), [1, 0, 1, 1])


def test_prefill_slows_those_who_decode() -> None:
    changes = {"load": ClosedLoop(8), "prompt": FixedLengthConfig(kind="fixed", tokens=300)}
    free = small_run(**changes)
    mixed = small_run(prefill=MixedPrefill(512), **changes)
    elsewhere = small_run(prefill=apart(tokens_per_step=512), **changes)
    assert mixed.steps["duration_s"].max() > free.steps["duration_s"].max()
    assert elsewhere.steps["duration_s"].max() <= free.steps["duration_s"].max()


def test_a_budget_below_one_step_is_refused() -> None:
    with pytest.raises(
        InputError, match="tokens_per_step: 4 does not hold one request's step of 5"
    ):
        small_run(prefill=MixedPrefill(4))


def test_the_kv_goes_to_a_decoding_rank_in_its_time() -> None:
    cost = LinearCost()
    spec = apart(cost=LinearCost(base_s=0.02), tokens_per_step=64)
    out = small_run(
        load=Batch(1),
        stop=Stop(),
        prompt=FixedLengthConfig(kind="fixed", tokens=100),
        prefill=spec,
        cost=cost,
    )
    np.testing.assert_array_equal(out.prefill_steps["prefill_tokens"], [64, 36])
    first_token_s = out.requests["first_token_s"][0]
    assert first_token_s == out.prefill_steps["end_s"][-1]
    started_s = out.steps["end_s"][0] - out.steps["duration_s"][0]
    assert started_s == pytest.approx(first_token_s + 0.01 + 100 * 1e-4)
    assert (out.steps["prefill_tokens"] == 0).all()


def test_more_prefill_ranks_shorten_the_wait() -> None:
    ttft = {}
    for ranks in (1, 3):
        out = small_run(
            load=Batch(30),
            stop=Stop(),
            prompt=FixedLengthConfig(kind="fixed", tokens=60),
            prefill=apart(ranks=ranks),
        )
        ttft[ranks] = out.requests["first_token_s"].mean()
        assert set(out.prefill_steps["rank"]) == set(range(ranks))
    assert ttft[3] < ttft[1] / 2


def test_the_first_round_after_a_transfer_accepts_less() -> None:
    changes = {
        "load": ClosedLoop(8),
        "scheduler": lambda: FixedLength(4),
        "output": FixedLengthConfig(kind="fixed", tokens=3),  # one or two rounds
        "stop": Stop(requests=400),
    }
    whole = small_run(prefill=apart(first_round=1.0), **changes).requests
    worse = small_run(prefill=apart(first_round=0.4), **changes).requests
    none = small_run(prefill=apart(first_round=0.0), **changes).requests
    rate = [r["accepted"].sum() / r["rounds"].sum() for r in (whole, worse, none)]
    assert rate[0] > rate[1] + 0.3
    # With nothing left of the first round, a request of two tokens to decode takes two rounds.
    assert (none["rounds"][none["status"] == Status.FINISHED] == 2).all()


def test_the_scheduler_sees_that_the_first_round_is_worse() -> None:
    seen: list[np.ndarray] = []

    class Looks:
        reads = frozenset({"live"})
        lag = 0
        lossless = True

        def plan(self, view):
            seen.append(view.survival_RG.copy())
            np.testing.assert_allclose(
                np.cumprod(view.confidence_RG, axis=1), view.survival_RG, rtol=1e-5
            )
            return np.zeros(view.num_requests, dtype=np.int64)

    for factor in (1.0, 0.5):
        small_run(load=Batch(1), stop=Stop(), scheduler=Looks, prefill=apart(first_round=factor))
    half = len(seen) // 2
    np.testing.assert_allclose(seen[half][0], seen[0][0] * 0.5 ** np.arange(1, 5), rtol=1e-5)
    np.testing.assert_allclose(seen[half + 1], seen[1])


def test_one_token_answers_never_reach_a_decoding_rank() -> None:
    out = small_run(
        load=Batch(5),
        stop=Stop(),
        prefill=apart(),
        output=FixedLengthConfig(kind="fixed", tokens=1),
    )
    assert len(out.steps["end_s"]) == 0
    assert (out.requests["finish_s"] == out.requests["first_token_s"]).all()


def test_a_preempted_request_goes_through_prefill_again() -> None:
    out = small_run(
        load=Batch(20),
        stop=Stop(),
        prefill=apart(),
        kv=KvSpec(60, 4, "optimistic"),
        output=FixedLengthConfig(kind="fixed", tokens=100),
        capacity=8,
    )
    again = out.requests["preemptions"] > 0
    assert again.any()
    assert (out.requests["prefilled"][again] > 10).all()
    assert out.prefill_steps["prefill_tokens"].sum() == out.requests["prefilled"].sum()


def test_prompts_of_a_feed_are_read_as_long_as_they_are() -> None:
    def arrivals(seed: int) -> Iterator[Arrival]:
        yield Arrival(0.0, 123, 5)
        yield Arrival(0.0, 7, 5)

    out = small_run(load=Feed(arrivals), prefill=MixedPrefill(64), stop=Stop())
    np.testing.assert_array_equal(out.requests["prefilled"], [123, 7])


def test_who_times_out_in_prefill_after_a_preemption_is_let_go_there() -> None:
    # It has a rank behind it, but no rank's batch holds it.
    for total_s in (0.3, 0.4, 0.5, 0.6, 0.8):
        out = small_run(
            load=Batch(20),
            stop=Stop(),
            prefill=apart(cost=LinearCost(base_s=0.05), tokens_per_step=16),
            kv=KvSpec(60, 4, "optimistic"),
            output=FixedLengthConfig(kind="fixed", tokens=100),
            capacity=8,
            patience=Patience(total_s=total_s),
        )
        assert (out.requests["status"] > Status.RUNNING).all()
        assert out.requests["emitted"].sum() == out.steps["emitted"].sum()


def test_an_idle_rank_takes_what_another_put_back_into_a_shared_queue() -> None:
    out = small_run(
        load=Batch(2),
        ranks=2,
        router="central_queue",
        capacity=2,
        prefill=MixedPrefill(64),
        kv=KvSpec(14, 4, "optimistic", watermark=0.0),
        stop=Stop(),
    )
    # Rank 0 wakes first and takes both; one is too many for its memory.
    assert out.requests["preemptions"].sum() == 1
    assert set(out.requests["rank"]) == {0, 1}
