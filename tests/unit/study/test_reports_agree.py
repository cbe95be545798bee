"""What reports and scenarios call fitted is what profiles/fits holds."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from specsim.scenario.load import load_scenario

ROOT = Path(__file__).resolve().parents[3]


def _fit(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "profiles" / "fits" / f"{name}.json").read_text())


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_b300_scenario_has_the_fitted_host_time() -> None:
    found = _fit("vllm_b300")
    host = load_scenario(ROOT / "scenarios" / "vllm_b300_flash.yaml").scenario.cost.host
    assert list(host.at_requests) == found["loads"]
    assert host.ms == pytest.approx([1e3 * s for s in found["chosen"]["host_s"]], abs=1e-9)


def test_the_policy_report_runs_on_fitted_numbers() -> None:
    regret = _script("policy_regret")
    plan = regret.load("engines.yaml")
    flash, b300 = _fit("v4_flash_fig7")["numbers"], _fit("vllm_b300")
    for name, engine in plan["engines"].items():
        scenario = regret.scenario(engine, plan["workloads"]["chat"], 1)
        assert scenario.acceptance.difficulty_sd == flash["difficulty_sd"]
        assert scenario.acceptance.noise_sd == flash["noise_sd"]
        draft, host = scenario.cost.draft, scenario.cost.host
        gated = scenario.policies["gated"].scheduler
        assert 0 < gated.draft_us_per_request < 30  # microseconds: as the engine's own term
        if name == "v4_flash_paper":
            assert (draft.base_ms, draft.per_request_us, draft.label) == (
                flash["draft_base_ms"],
                flash["draft_per_request_us"],
                "fitted",
            )
        if name == "v4_flash_b300":
            assert list(host.at_requests) == b300["loads"]
            assert host.ms == pytest.approx([1e3 * s for s in b300["chosen"]["host_s"]], abs=1e-9)
