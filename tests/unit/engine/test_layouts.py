"""What a forward is charged for under each layout, in the engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specsim.cost.model import CostConfig, Layout, StepCost, TermInput
from specsim.engine.prefill import MixedPrefill
from specsim.engine.run import ClosedLoop, RunColumns, Stop
from specsim.errors import SchedulerFault
from specsim.scenario.locate import Locator
from specsim.schedulers.greedy import Greedy
from specsim.schedulers.static import FixedLength
from specsim.schedulers.threshold import Threshold
from tests.engine_world import small_run

ZERO = TermInput(base_ms=0.0, label="assumed", source="test")


def cost(layout: Layout) -> StepCost:
    config = CostConfig(
        table="aiconfigurator/h100_llama31-8b_tp1_bf16",
        read="linear",
        layout=layout,
        draft=ZERO,
        host=ZERO,
    )
    return config.build(locate=Locator(Path()), max_requests=16, max_tokens=400, gamma=4)


def served(layout: Layout, scheduler=Greedy, **changes) -> RunColumns:
    return small_run(scheduler=scheduler, cost=cost(layout), stop=Stop(requests=40), **changes)


def test_ragged_pays_for_the_plan() -> None:
    steps = served("ragged").steps
    np.testing.assert_array_equal(steps["charged"], steps["num_requests"] + steps["verified"])


def test_padded_pays_for_the_longest() -> None:
    steps = served("padded", lambda: Threshold(0.6, "cumulative")).steps
    assert (steps["charged"] % steps["num_requests"] == 0).all()
    assert (steps["charged"] > steps["num_requests"] + steps["verified"]).any()


def test_cap_accept_pays_for_everything_and_commits_the_plan() -> None:
    # The same plans commit the same tokens: only the time differs.
    capped, ragged = (
        served(layout, lambda: Threshold(0.6, "cumulative")) for layout in ("cap_accept", "ragged")
    )
    np.testing.assert_array_equal(capped.steps["charged"], 5 * capped.steps["num_requests"])
    for name in ("verified", "accepted", "emitted", "ceiling"):
        np.testing.assert_array_equal(capped.steps[name], ragged.steps[name])
    # It shows the ceiling: what full verification would have accepted.
    assert capped.steps["ceiling"].sum() > capped.steps["accepted"].sum()


def test_uniform_takes_equal_lengths_and_refuses_others() -> None:
    steps = served("uniform", lambda: FixedLength(2)).steps
    np.testing.assert_array_equal(steps["charged"], 3 * steps["num_requests"])
    with pytest.raises(SchedulerFault, match="equal verify lengths only"):
        served("uniform", lambda: Threshold(0.6, "cumulative"))


def test_uniform_plans_are_cut_evenly_to_a_token_budget() -> None:
    out = served(
        "uniform",
        lambda: FixedLength(4),
        load=ClosedLoop(12),
        prefill=MixedPrefill(30, "plan"),
    )
    assert out.steps["trimmed"].sum() > 0
    assert out.steps["charged"].max() <= 30
