"""The parametric model draws what its configuration says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from specsim.acceptance.blocks import lay_out
from specsim.acceptance.parametric import (
    Heterogeneity,
    ParametricConfig,
    sigmoid,
    solve_means,
)
from specsim.acceptance.presets import PRESETS
from specsim.acceptance.trace import DenseTrace
from specsim.errors import InputError


def nowhere(group: str, name: str) -> Path:
    raise AssertionError("the parametric model reads no files")


def trace_of(gamma: int = 5, seed: int = 3, **fields: Any) -> DenseTrace:
    given = {"calibration": "domains", "sequences": 96, "anchors": 512} | fields
    config = ParametricConfig(kind="parametric", **given)
    return config.build(seed=seed, gamma=gamma, locate=nowhere)


def by_rounds(trace: DenseTrace) -> NDArray[np.float64]:
    """Conditional acceptance by position, sequences weighted by the rounds replay makes in them."""
    length_S = np.diff(trace.sequence_offset_S1)
    accepted_SL = trace.num_accepted_N.reshape(len(length_S), -1)
    weight_SL = (1 / (1 + accepted_SL.mean(axis=1)))[:, None] * np.ones_like(accepted_SL)
    reach_G = np.array([weight_SL[accepted_SL >= k].sum() for k in range(trace.gamma + 1)])
    return np.asarray(reach_G[1:] / reach_G[:-1])


@pytest.mark.parametrize(
    ("spread", "conditional"),
    [
        (Heterogeneity(1.2, 2.2), (0.9, 0.85, 0.8, 0.8, 0.8)),
        (Heterogeneity(0.0, 0.0), (0.7, 0.2, 0.99)),
        (Heterogeneity(0.5, 3.0, skew=0.9), (0.75, 0.76, 0.77)),
    ],
)
def test_means_solve_what_rounds_would_show(
    spread: Heterogeneity, conditional: tuple[float, ...]
) -> None:
    mean_G = solve_means(np.array(conditional), spread)
    rng = np.random.default_rng(5)
    hard_Z = spread.difficulty_sd * rng.standard_normal(4_000)
    survival_Z, length_Z = np.ones(4_000), np.ones(4_000)
    reach = [survival_Z.copy()]
    nodes = np.quantile(rng.standard_normal(100_000), (np.arange(400) + 0.5) / 400)
    for mean in mean_G:
        survival_Z = survival_Z * sigmoid(mean + hard_Z[:, None] + spread.of_tokens(nodes)).mean(
            axis=1
        )
        length_Z += survival_Z
        reach.append(survival_Z)
    rounds_Z = 1 / length_Z
    shown = np.array([rounds_Z @ r for r in reach])
    assert shown[1:] / shown[:-1] == pytest.approx(conditional, abs=0.012)
    if spread.difficulty_sd > 1:  # without the weights of rounds the level would be another
        plain = np.array([r.mean() for r in reach])
        assert plain[1] / plain[0] > conditional[0] + 0.008


def test_levels_by_rounds_are_those_asked_for() -> None:
    trace = trace_of(gamma=7, mix={"code": 1.0}, anchors=2048, difficulty_sd=1.2, noise_sd=2.0)
    assert by_rounds(trace) == pytest.approx(PRESETS["domains"].conditional["code"], abs=0.006)
    assert trace.accept_rate_NG is not None
    assert trace.accept_rate_NG[:, 0].mean() > PRESETS["domains"].conditional["code"][0] + 0.005


def test_difficulty_persists_along_a_sequence() -> None:
    trace = trace_of(mix={"chat": 1}, difficulty_sd=1.5, noise_sd=0.5)
    first_SL = (trace.num_accepted_N > 0).reshape(96, 512)
    halves = first_SL[:, :256].mean(axis=1), first_SL[:, 256:].mean(axis=1)
    assert np.corrcoef(*halves)[0, 1] > 0.95
    same = trace_of(mix={"chat": 1}, difficulty_sd=0.0, noise_sd=1.5)
    first_SL = (same.num_accepted_N > 0).reshape(96, 512)
    halves = first_SL[:, :256].mean(axis=1), first_SL[:, 256:].mean(axis=1)
    assert abs(np.corrcoef(*halves)[0, 1]) < 0.35


def test_a_faithful_head_is_calibrated_at_every_position() -> None:
    trace = trace_of(gamma=3, sequences=128, anchors=2048, difficulty_sd=1.0, noise_sd=1.5)
    for k in range(3):
        judged = trace.num_accepted_N >= k
        said = trace.confidence_NG[judged, k]
        kept = trace.num_accepted_N[judged] > k
        for low in np.arange(0.1, 1.0, 0.2):
            inside = (said >= low) & (said < low + 0.2)
            slack = 4 * 0.5 / np.sqrt(inside.sum())
            assert kept[inside].mean() == pytest.approx(said[inside].mean(), abs=slack)


def test_an_overconfident_head_says_more_than_happens() -> None:
    trace = trace_of(gamma=1, calibration="mt_bench")
    assert trace.confidence_NG[:, 0].mean() > (trace.num_accepted_N > 0).mean() + 0.02


def test_truth_is_known_up_to_the_first_rejection() -> None:
    trace = trace_of()
    assert trace.accept_rate_NG is not None
    known_NG = np.isfinite(trace.accept_rate_NG)
    judged_NG = np.arange(5) <= trace.num_accepted_N[:, None]
    assert (known_NG == judged_NG).all()


def test_the_drafts_that_two_gammas_share_are_the_same() -> None:
    long, short = trace_of(gamma=7), trace_of(gamma=3)
    assert (long.confidence_NG[:, :3] == short.confidence_NG).all()
    assert (np.minimum(long.num_accepted_N, 3) == short.num_accepted_N).all()


def test_the_seed_decides() -> None:
    one, again, other = trace_of(), trace_of(), trace_of(seed=4)
    assert one.confidence_NG.tobytes() == again.confidence_NG.tobytes()
    assert (one.num_accepted_N == again.num_accepted_N).all()
    assert (one.num_accepted_N != other.num_accepted_N).mean() > 0.3


def test_mix_is_the_share_of_sequences_and_an_absent_domain_is_absent() -> None:
    trace = trace_of(mix={"math": 0.25, "chat": 0.75, "code": 0.0}, sequences=400, anchors=16)
    assert trace.domain_names == ("math", "chat")
    assert np.bincount(trace.sequence_domain_S).tolist() == [100, 300]
    shares = lay_out(trace, gamma=5, seed=1).domain_shares()
    assert shares.tolist() == [0.25, 0.75]
    equal = trace_of(sequences=10, anchors=16)
    assert sorted(np.bincount(equal.sequence_domain_S).tolist()) == [3, 3, 4]


def test_constant_is_constant() -> None:
    trace = trace_of(gamma=4, calibration="constant", conditional_acceptance=(0.8, 0.5))
    assert np.unique(trace.confidence_NG, axis=0) == pytest.approx(np.array([[0.8, 0.5, 0.5, 0.5]]))
    reached = [(trace.num_accepted_N >= k).mean() for k in range(4)]
    assert reached == pytest.approx([1, 0.8, 0.4, 0.2], abs=0.01)


def test_metadata_say_what_it_is() -> None:
    trace = trace_of(label="fitted", source="profiles/fits/v4_flash_fig7.json")
    assert trace.metadata["status"] == "fitted"
    assert trace.metadata["source"] == "profiles/fits/v4_flash_fig7.json"
    assert trace.metadata["calibration"] == "domains"
    assert trace_of(gamma=1).metadata["status"] == "synthetic"


def test_gamma_beyond_the_figure_is_refused() -> None:
    with pytest.raises(InputError, match="gamma 9 is more than the 7 drafts"):
        trace_of(gamma=9)
    assert trace_of(gamma=9, drafter_block=11, anchors=16).gamma == 9
    with pytest.raises(InputError, match="gamma 12 is more than the 11"):
        trace_of(gamma=12, drafter_block=11)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"calibration": "constant"}, "needs it"),
        ({"conditional_acceptance": (0.5,)}, "constant only"),
        ({"calibration": "constant", "conditional_acceptance": (1.0,)}, "less than 1"),
        ({"calibration": "gsm8k", "mix": {"math": 1}}, "domains only"),
        ({"calibration": "gsm8k", "drafter_block": 7}, "domains only"),
        ({"calibration": "alpaca", "noise_sd": 1.0}, "undo the fit"),
        ({"mix": {"maths": 1}}, '"maths" is no domain'),
        ({"mix": {"math": 0.0}}, "sum to 0"),
        ({"mix": {"math": -0.1}}, "greater than or equal to 0"),
        ({"difficulty_sd": float("nan")}, "finite"),
        ({"sequences": 65536, "anchors": 1_000_000}, "more than 20000000"),
        ({"calibration": "domain"}, "domains"),
        ({"drafter_block": 5}, "3, 7, 11 or 15"),
    ],
)
def test_senseless_combinations_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ParametricConfig(kind="parametric", **({"calibration": "domains"} | fields))
