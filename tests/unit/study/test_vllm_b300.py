"""The B300 sweep: how its pieces are read, and that the whole still passes."""

from __future__ import annotations

import numpy as np
import pytest

from specsim.schedulers.base import BatchView
from specsim.schedulers.static import FixedLength
from specsim.study import validate_vllm_b300 as study
from specsim.study.vllm_b300 import (
    STEP_TOKENS,
    Lengths,
    VllmPlanner,
    host_curve,
    simulate,
    step_s,
)

TABLE = study.b300_table()
SHORT = Lengths(prompt_tokens=64, output_mean=40, output_cv=0.3)


def test_the_sweep_has_its_36_points() -> None:
    published = study.measured()
    assert len(published) == 36
    assert published["no_spec", 256] == (36.0, 8455.0)
    assert published["adaptive_k7", 256] == (53.0, 11155.0)


def test_a_step_alone_is_verify_draft_and_host() -> None:
    assert step_s(TABLE, 0, 0.0) == pytest.approx(5.11e-3)
    assert step_s(TABLE, 7, 1e-3) == pytest.approx(5.35e-3 + 0.88e-3 + 1e-3)


def test_acceptance_lengths_are_speed_times_step() -> None:
    tau = study.acceptance_lengths(TABLE, study.measured(), 0.72e-3)
    assert tau[3] == pytest.approx(391.3 * (5.12e-3 + 0.88e-3 + 0.72e-3))
    for k in study.FIXED:
        trace = study.fixed_trace(tau[1] - 1, tau[k], k)
        assert 1 + trace.num_accepted_N.mean() == pytest.approx(tau[k], abs=0.02)


def test_the_adaptive_law_goes_through_the_fixed_arms() -> None:
    exact = {k: 1 + 0.85 * sum(0.58**i for i in range(k)) for k in study.FIXED}
    first, later = study.adaptive_law(exact)
    assert (first, later) == (pytest.approx(0.85), pytest.approx(0.58, abs=1e-4))


def test_the_adaptive_confidences_have_the_published_roc_area() -> None:
    trace = study.adaptive_trace(0.85, 0.58)
    assert study.area_under_curve(trace) == pytest.approx(study.AUC, abs=0.01)
    # Calibrated: among reached drafts, what was said is what happened.
    position_G = np.arange(7)
    accepted_N1 = trace.num_accepted_N.astype(int)[:, None]
    reached_NG = position_G <= accepted_N1
    said = trace.confidence_NG[reached_NG]
    happened = (position_G < accepted_N1)[reached_NG]
    for low, high in ((0.0, 0.3), (0.3, 0.6), (0.6, 0.9), (0.9, 1.0)):
        part = (said >= low) & (said < high)
        assert happened[part].mean() == pytest.approx(said[part].mean(), abs=0.01)


def test_the_roc_area_of_a_head_that_knows_nothing_is_a_half() -> None:
    flat = study.fixed_trace(0.6, 1 + 0.6 * (1 + 0.6 + 0.36), 3)
    assert study.area_under_curve(flat) == pytest.approx(0.5, abs=1e-9)


def test_the_planner_counts_prompts_and_not_host() -> None:
    requests, gamma = 128, 7
    survival_RG = np.cumprod(np.full((requests, gamma), 0.98), axis=1).astype(np.float32)
    planner = VllmPlanner(TABLE, requests * (gamma + 1) + STEP_TOKENS)

    def admitted(prompt_tokens: int, fixed_s: float) -> int:
        view = BatchView(
            step=0,
            gamma=gamma,
            request_id_R=np.arange(requests),
            base_tokens=requests + prompt_tokens,
            verify_s_B=np.zeros(1),
            fixed_s=fixed_s,
            survival_RG=survival_RG,
            lagged_survival_RG=survival_RG,
        )
        return int(planner.plan(view).sum())

    assert 800 < admitted(0, 0.0) <= 1024 - requests
    assert admitted(300, 0.0) <= 1024 - requests - 300
    assert admitted(0, 0.0) == admitted(0, 1.0)


def test_host_time_is_linear_between_loads() -> None:
    host_s_R = host_curve([1, 3], [1e-3, 2e-3])
    assert host_s_R[[1, 2, 3, 256]].tolist() == pytest.approx([1e-3, 1.5e-3, 2e-3, 2e-3])


def test_without_speculation_a_user_waits_for_verify_and_host() -> None:
    outcome = simulate(
        TABLE,
        study.fixed_trace(0.5, 1.5, 1),
        gamma=0,
        scheduler=lambda: FixedLength(0),
        concurrency=1,
        host_s_R=host_curve([1], [1e-3]),
        lengths=SHORT,
    )
    assert outcome.user_tok_s == pytest.approx(1 / 6.11e-3, rel=1e-6)
    assert outcome.acceptance_length == 1.0
    assert 0 < outcome.prefill_share < 0.1


def test_prompts_push_full_forwards_over_the_cliff() -> None:
    def user_tok_s(concurrency: int, prompt: int) -> float:
        return simulate(
            TABLE,
            study.fixed_trace(0.85, 2.6, 3),
            gamma=3,
            scheduler=lambda: FixedLength(3),
            concurrency=concurrency,
            host_s_R=host_curve([1], [1e-3]),
            lengths=Lengths(prompt, 60, 0.3),
        ).user_tok_s

    # 256 x 4 = 1,024 tokens fill the largest graph; any prompt is too much. 128 x 4 leave room.
    assert user_tok_s(256, 8) < 0.7 * user_tok_s(128, 8)


def test_the_fit_holds_its_inputs() -> None:
    lengths, host_s, data = study.load_fit()
    assert data["status"] == "fitted"
    assert lengths.prompt_tokens == 338
    assert len(host_s) == len(study.LOADS)
    assert list(host_s[:4]) == sorted(host_s[:4])
    best = min(row["aggregate_rms_log"] for row in data["tried"])
    assert data["chosen"]["aggregate_rms_log"] == best


@pytest.mark.slow
def test_the_sweep_is_predicted() -> None:
    found = study.validate()
    assert found.passed, found.as_dict()["failed"]
