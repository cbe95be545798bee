"""The paper's scenarios say what the fits found, and differ only in what they ask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specsim.scenario.check import build_arms
from specsim.scenario.load import load_scenario

ROOT = Path(__file__).resolve().parents[3]
SCENARIOS = {
    "flash_120tps": "v4_flash_fig7",
    "flash_80tps": "v4_flash_fig7",
    "pro_50tps": "v4_pro_fig7",
    "pro_35tps": "v4_pro_fig7",
}


def _load(name: str):
    return load_scenario(ROOT / "scenarios" / f"{name}.yaml")


@pytest.mark.parametrize(("name", "fit"), SCENARIOS.items())
def test_fitted_numbers_are_those_of_the_fit(name: str, fit: str) -> None:
    numbers = json.loads((ROOT / "profiles" / "fits" / f"{fit}.json").read_text())["numbers"]
    scenario = _load(name).scenario
    acceptance, draft = scenario.acceptance, scenario.cost.draft
    assert acceptance.mix == {k: numbers[f"mix_{k}"] for k in ("math", "code", "chat")}
    assert acceptance.difficulty_sd == numbers["difficulty_sd"]
    assert acceptance.noise_sd == numbers["noise_sd"]
    assert (draft.base_ms, draft.per_request_us) == (
        numbers["draft_base_ms"],
        numbers["draft_per_request_us"],
    )
    mtp = scenario.policies["mtp_1"].acceptance
    assert mtp.conditional_acceptance == (numbers["p1"],)
    assert {acceptance.label, draft.label, mtp.label} == {"fitted"}
    assert {acceptance.source, draft.source, mtp.source} == {f"profiles/fits/{fit}.json"}


@pytest.mark.parametrize(
    ("one", "other"), [("flash_120tps", "flash_80tps"), ("pro_50tps", "pro_35tps")]
)
def test_scenarios_of_one_engine_differ_only_in_the_headline(one: str, other: str) -> None:
    first, second = _load(one).scenario.model_dump(), _load(other).scenario.model_dump()
    for dumped in (first, second):
        del dumped["name"], dumped["question"]["headline_slo"]
    assert first == second


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_scenario_builds_and_says_its_labels(path: Path) -> None:
    loaded = load_scenario(path)
    assert loaded.scenario.name == path.stem
    arms = build_arms(loaded)
    for arm in arms.values():
        status = arm.trace.metadata.get("status")
        assert not arm.blocks.gamma or status == "measured" or arm.labels() or path.stem == "hello"


def test_the_shape_of_the_papers_claim_on_a_short_run() -> None:
    """One load each side of the SLO: DSpark-5 holds several times MTP-1 at 120 tok/s/user."""
    from specsim.study.run import PointTask, run_point

    loaded = _load("flash_120tps")
    scenario = loaded.scenario.model_copy(
        update={"stop": type(loaded.scenario.stop)(kind="requests", num_requests=150)}
    )
    speed = {}
    for policy, users in (("mtp_1", 13), ("dspark_5", 90), ("mtp_1", 90)):
        task = PointTask(scenario, loaded.path.parent, policy, users)
        speed[policy, users] = run_point(task).metrics["tok_s_user"]
    assert 115 < speed["mtp_1", 13] < 125  # 13 users at 120
    assert speed["dspark_5", 90] > 120  # 90 users at 120
    assert speed["mtp_1", 90] < 95
