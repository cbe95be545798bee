"""A tilt moves a trace to the level asked for, and changes nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from specsim.acceptance.parametric import ParametricConfig
from specsim.acceptance.presets import PRESETS
from specsim.acceptance.replay import TraceConfig
from specsim.acceptance.tilt import TiltConfig, tilt
from specsim.acceptance.trace import DenseTrace, save_trace
from specsim.errors import InputError

HIGHER = (0.95, 0.93, 0.92, 0.92, 0.92)
LOWER = (0.7, 0.68, 0.66, 0.66, 0.66)


@pytest.fixture(scope="module")
def trace() -> DenseTrace:
    """A trace that stands for a measured one: requests differ, the head is calibrated."""
    config = ParametricConfig(
        kind="parametric", calibration="domains", mix={"code": 1}, sequences=48, anchors=640,
        difficulty_sd=0.8, noise_sd=1.3,
    )  # fmt: skip
    built = config.build(seed=2, gamma=5, locate=lambda group, name: Path())
    return replace(built, metadata={"status": "measured"})


def moved(trace: DenseTrace, levels: tuple[float, ...]) -> DenseTrace:
    return tilt(trace, levels, rng=np.random.default_rng(1))


@pytest.fixture(scope="module")
def higher(trace: DenseTrace) -> DenseTrace:
    return moved(trace, HIGHER)


@pytest.fixture(scope="module")
def lower(trace: DenseTrace) -> DenseTrace:
    return moved(trace, LOWER)


def walked(trace: DenseTrace) -> NDArray[np.float64]:
    """Conditional acceptance by position of a replay with full verification."""
    seen = []
    for start, end in zip(trace.sequence_offset_S1[:-1], trace.sequence_offset_S1[1:], strict=True):
        row = start
        while row <= end - trace.gamma:
            seen.append(int(trace.num_accepted_N[row]))
            row += seen[-1] + 1
    reach_G = np.array([np.sum(np.array(seen) >= k) for k in range(trace.gamma + 1)])
    return np.asarray(reach_G[1:] / reach_G[:-1])


def test_replay_shows_the_level_asked_for(
    trace: DenseTrace, higher: DenseTrace, lower: DenseTrace
) -> None:
    zigzag = (0.95, 0.6, 0.9, 0.6, 0.9)
    for after, levels in ((higher, HIGHER), (lower, LOWER), (moved(trace, zigzag), zigzag)):
        assert walked(after) == pytest.approx(levels, abs=0.025)
        assert abs(walked(trace)[1] - levels[1]) > 0.04


def test_outcomes_are_coupled_to_the_recorded_ones(
    trace: DenseTrace, higher: DenseTrace, lower: DenseTrace
) -> None:
    assert (higher.num_accepted_N >= trace.num_accepted_N).all()
    assert (lower.num_accepted_N <= trace.num_accepted_N).all()


def test_a_tilt_to_where_it_stands_changes_next_to_nothing(
    trace: DenseTrace, higher: DenseTrace
) -> None:
    there = higher.metadata["tilted"]["before"]
    still = moved(trace, there)
    assert np.abs(still.metadata["tilted"]["logit_shift"]).max() < 0.05
    assert (still.num_accepted_N != trace.num_accepted_N).mean() < 0.01


def test_the_head_stays_calibrated(higher: DenseTrace, lower: DenseTrace) -> None:
    for after in (higher, lower):
        for k in range(3):
            judged = after.num_accepted_N >= k
            said, kept = after.confidence_NG[judged, k], after.num_accepted_N[judged] > k
            for low in np.arange(0.1, 1.0, 0.3):
                inside = (said >= low) & (said < low + 0.3)
                slack = 5 * 0.5 / np.sqrt(inside.sum())
                assert kept[inside].mean() == pytest.approx(said[inside].mean(), abs=slack)


def test_confidences_keep_their_order_at_each_position(
    trace: DenseTrace, lower: DenseTrace
) -> None:
    for k in range(5):
        order = np.argsort(trace.confidence_NG[:, k], kind="stable")
        assert (np.diff(lower.confidence_NG[order, k]) >= -1e-6).all()
        assert (lower.confidence_NG[:, k] <= trace.confidence_NG[:, k] + 1e-6).all()


def test_it_works_without_recorded_rates(trace: DenseTrace) -> None:
    bare = replace(trace, accept_rate_NG=None)
    assert walked(moved(bare, HIGHER)) == pytest.approx(HIGHER, abs=0.025)


def test_it_is_labelled_and_the_original_is_untouched(trace: DenseTrace) -> None:
    before = trace.confidence_NG.copy(), trace.num_accepted_N.copy()
    after = tilt(trace, LOWER, rng=np.random.default_rng(1))
    told = after.metadata["tilted"]
    assert told["wanted"] == list(LOWER)
    assert told["after"] == pytest.approx(LOWER, abs=0.025)
    assert len(told["logit_shift"]) == 5
    assert max(told["logit_shift"]) < 0
    assert "tilted" not in trace.metadata
    assert (before[0] == trace.confidence_NG).all()
    assert (before[1] == trace.num_accepted_N).all()
    assert after.draft_prob_NG is None


def test_levels_come_from_the_figure_or_from_the_scenario() -> None:
    figure = TiltConfig(to="chat").levels(9)
    assert figure[:7].tolist() == list(PRESETS["domains"].conditional["chat"])
    assert figure[8] == figure[6]
    assert TiltConfig(conditional_acceptance=(0.9, 0.5)).levels(3).tolist() == [0.9, 0.5, 0.5]
    with pytest.raises(ValidationError, match="exactly one"):
        TiltConfig()
    with pytest.raises(ValidationError, match="exactly one"):
        TiltConfig(to="math", conditional_acceptance=(0.5,))


def test_what_cannot_be_tilted_is_refused(trace: DenseTrace) -> None:
    with pytest.raises(InputError, match="5 values inside"):
        moved(trace, (0.5, 0.5))
    with pytest.raises(InputError, match="5 values inside"):
        moved(trace, (0.5, 0.5, 0.5, 0.5, 1.0))
    short = DenseTrace(
        confidence_NG=np.full((6, 3), 0.5, dtype=np.float32),
        num_accepted_N=np.zeros(6, dtype=np.uint8),
        sequence_offset_S1=np.array([0, 6]),
        sequence_domain_S=np.zeros(1, dtype=np.uint8),
        domain_names=("all",),
    )
    with pytest.raises(InputError, match="no block of the trace reaches draft"):
        tilt(short, (1e-9, 0.5, 0.5), rng=np.random.default_rng(1))


def test_the_trace_config_loads_and_tilts(trace: DenseTrace, tmp_path: Path) -> None:
    save_trace(trace, tmp_path / "some.npz")

    def locate(group: str, name: str) -> Path:
        assert group == "traces"
        return tmp_path / f"{name}.npz"

    plain = TraceConfig(kind="trace", trace="some").build(seed=1, gamma=5, locate=locate)
    assert (plain.num_accepted_N == trace.num_accepted_N).all()
    config = TraceConfig(kind="trace", trace="some", tilt=TiltConfig(to="math"))
    one, again = (config.build(seed=1, gamma=5, locate=locate) for _ in range(2))
    assert one.metadata["tilted"]["wanted"] == list(PRESETS["domains"].conditional["math"][:5])
    assert (one.num_accepted_N == again.num_accepted_N).all()
    assert one.metadata["status"] == "measured"
