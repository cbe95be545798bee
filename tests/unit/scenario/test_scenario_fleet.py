"""Every field about the fleet reaches the engine, and what contradicts itself is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from specsim.engine.faults import Death, Patience
from specsim.engine.kv import KvSpec
from specsim.engine.lockstep import Lockstep
from specsim.engine.prefill import DisaggregatedPrefill, MixedPrefill
from specsim.engine.run import RunInput
from specsim.errors import ScenarioError
from specsim.scenario.build import build_arm, run_input
from specsim.scenario.load import load_scenario
from specsim.scenario.locate import find_scenario

FLEET = (
    "cluster.ranks=4",
    "cluster.router=power_of_two",
    "cluster.lockstep={budget: max_tier, tiers: [64, 512]}",
    "cluster.kv={blocks_per_rank: 900, block_tokens: 32, admission: optimistic, preemption: swap, "
    "swap_us_per_token: 2, watermark: 0.05, prefix_reuse: true, spiral_after: 77}",
    "cluster.prefill={kind: mixed, tokens_per_step: 600, reserve: plan}",
    "cluster.deaths=[{rank: 1, at_s: 5, back_s: 7}, {rank: 2, at_s: 6}]",
    "workload.patience={first_token_s: 3, total_s: 60, cancel_share: 0.1, cancel_after_s: 4}",
    "workload.priorities=[0.2, 0.8]",
    "policies.async_topk.lockstep_budget=group",
)


def built(policy: str, *overrides: str) -> RunInput:
    loaded = load_scenario(find_scenario("hello"), overrides=overrides)
    folder = loaded.path.parent
    arm = build_arm(loaded.scenario, policy, folder=folder)
    return run_input(loaded.scenario, arm, concurrency=4)


def test_every_field_reaches_the_engine() -> None:
    found = built("fixed_2", *FLEET)
    assert found.ranks == 4
    assert found.router == "power_of_two"
    assert found.lockstep == Lockstep("max_tier", (64, 512))
    assert found.kv == KvSpec(900, 32, "optimistic", "swap", 2e-6, 0.05, True, 77)
    assert found.prefill == MixedPrefill(600, "plan")
    assert found.deaths == (Death(1, 5, 7), Death(2, 6))
    assert found.patience == Patience(3, 60, 0.1, 4)
    assert found.priority_shares_C == (0.2, 0.8)
    # Long enough for any plan with prefill in the forward
    assert len(found.cost.verify_s_B) > 64 * 8 + 600
    assert built("async_topk", *FLEET).lockstep == Lockstep("group")


def test_left_out_there_is_no_limit_no_prefill_and_no_trouble() -> None:
    found = built("fixed_2")
    assert (found.lockstep, found.kv, found.prefill, found.patience) == (None, None, None, None)
    assert (found.priority_shares_C, found.deaths) == ((), ())


def test_disaggregated_prefill_has_its_own_table() -> None:
    prefill = (
        "cluster.prefill={kind: disaggregated, ranks: 2, tokens_per_step: 4096, transfer_ms: 3, "
        "transfer_us_per_token: 0.5, first_round: 0.6, cost: {table: "
        "aiconfigurator/h200_llama31-8b_tp1_bf16, read: linear, host: {base_ms: 1, label: assumed, "
        "source: test}}}"
    )
    spec = built("fixed_2", prefill).prefill
    assert isinstance(spec, DisaggregatedPrefill)
    assert (spec.ranks, spec.tokens_per_step, spec.first_round) == (2, 4096, 0.6)
    assert (spec.transfer_s, spec.transfer_s_per_token) == pytest.approx((3e-3, 5e-7))
    decode = built("fixed_2")
    assert spec.cost.verify_s_B[100] < decode.cost.verify_s_B[100]
    assert spec.cost.fixed_s(0, 0) == pytest.approx(1e-3)  # no draft, no attention
    own = built("fixed_2", prefill.replace(prefill[prefill.index(", cost:") :], "}")).prefill
    assert isinstance(own, DisaggregatedPrefill)
    assert own.cost.verify_s_B[100] == decode.cost.verify_s_B[100]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["cluster.kv={blocks_per_rank: 9, admission: optimistic}"], "would be free"),
        (
            ["cluster.kv={blocks_per_rank: 9, admission: optimistic, preemption: swap}"],
            "swapping takes time",
        ),
        (["cluster.kv={blocks_per_rank: 9, swap_us_per_token: 2}"], "swapping takes time"),
        (
            [
                "cluster.kv={blocks_per_rank: 9, admission: optimistic, preemption: swap, "
                "swap_us_per_token: 1}",
                "cluster.router=central_queue",
            ],
            "another may take it",
        ),
        (
            [
                "cluster.kv={blocks_per_rank: 9, prefix_reuse: true}",
                "cluster.prefill={kind: disaggregated, ranks: 1, tokens_per_step: 99, "
                "transfer_ms: 1}",
            ],
            "are not modelled",
        ),
        (["cluster.prefill={kind: mixed, tokens_per_step: 7}"], "less than the 8 tokens"),
        (["cluster.deaths=[{rank: 1, at_s: 3}]"], "there are 1 ranks"),
        (["cluster.deaths=[{rank: 0, at_s: 3}, {rank: 0, at_s: 4}]"], "dies twice"),
        (["cluster.deaths=[{rank: 0, at_s: 3, back_s: 2}]"], "not after at_s"),
        (["cluster.lockstep={tiers: [8, 8]}"], "strictly increasing"),
        (["policies.fixed_2.lockstep_budget=group"], "not in lockstep"),
        (
            ["cluster.lockstep={}", "policies.fixed_2.lockstep_budget=group"],
            "use async_topk",
        ),
        (["workload.patience={cancel_share: 0.5}"], "go together"),
        (["workload.priorities=[0.5, 0]"], "greater than 0"),
        (["cluster.router=nearest"], "legal are"),
    ],
)
def test_contradictions_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        load_scenario(find_scenario("hello"), overrides=overrides)


def test_the_memory_is_named_with_every_result(tmp_path: Path) -> None:
    from specsim.study.run import run_scenario

    result = run_scenario(
        "hello",
        overrides=[
            "stop.num_requests=60",
            "cluster.kv={blocks_per_rank: 2000}",
            "cluster.ranks=2",
            "cluster.deaths=[{rank: 1, at_s: 0.5}]",
        ],
        out=tmp_path,
    )
    assert result.summary["kv_memory"].startswith("2000 blocks of 16 tokens a rank (32000 tokens)")
    assert any("rank 1 died" in warning for warning in result.summary["warnings"])
    for policy in result.summary["policies"].values():
        (point,) = policy["points"]
        assert point["reroutes"] > 0
        assert (
            point["requests_submitted"]
            == sum(
                point[f"requests_{kind}"]
                for kind in ("waiting", "running", "cancelled", "timed_out", "failed")
            )
            + point["all_finished"]
        )
