"""Calibration: metrics by hand, STS recovers a known distortion, censored rounds are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.special import expit, logit

from specsim.acceptance import calibration as cal
from specsim.acceptance.trace import DenseTrace
from specsim.errors import InputError, SpecsimError

GAMMA = 4


def _records(
    seed: int, blocks: int = 20_000, distort: tuple[float, ...] = (1.0,) * GAMMA
) -> cal.Records:
    """Blocks whose true conditional acceptance is known; the head says logit(c) * distort."""
    rng = np.random.default_rng(seed)
    true = expit(rng.normal(0.6, 1.2, (blocks, GAMMA)))
    passed = rng.random((blocks, GAMMA)) < true
    accepted = np.cumprod(passed, axis=1).sum(axis=1)
    said = np.clip(expit(logit(true) * np.array(distort)), 1e-6, 1 - 1e-6)
    group = np.arange(blocks) // 50
    return cal.Records(said, accepted, group, np.zeros(blocks, dtype=np.int64), ("all",))


def test_metrics_by_hand() -> None:
    said = np.array([0.1, 0.1, 0.9, 0.9])
    happened = np.array([False, True, True, True])
    assert cal.ece(said, happened, bins=10) == pytest.approx((abs(0.2 - 1) + abs(1.8 - 2)) / 4)
    assert cal.brier(said, happened) == pytest.approx((0.01 + 0.81 + 0.01 + 0.01) / 4)
    # Pairs (hit, miss): .1-.1 ties for a half, .9-.1 twice right.
    assert cal.auc(said, happened) == pytest.approx((0.5 + 1 + 1) / 3)
    assert np.isnan(cal.auc(said, np.ones(4, dtype=bool)))
    curve = cal.reliability(said, happened, bins=10)
    assert curve.count.tolist() == [2, 2]
    assert curve.seen.tolist() == [0.5, 1.0]
    assert cal.ece(np.array([1.0]), np.array([True])) == 0  # 1.0 belongs to the last bin


def test_sts_recovers_the_temperatures_that_distorted_the_head() -> None:
    distort = (2.0, 1.5, 1.0, 0.6)
    found = cal.fit_sts(_records(0, 60_000, distort), penalty=0.0)
    np.testing.assert_allclose(found, distort, rtol=0.2)


def test_sts_lowers_held_out_error_of_an_overconfident_head() -> None:
    records = _records(1, distort=(2.0,) * GAMMA)
    result, before, after = cal.calibrate(records, np.random.default_rng(0), dataset="synthetic")
    assert result.ece_after < 0.4 * result.ece_before
    for old, new in zip(before, after, strict=True):
        assert new.ece < old.ece
        assert new.brier < old.brier
        assert old.ece_interval[0] <= old.ece <= old.ece_interval[1] + 0.01


def test_the_penalty_keeps_a_calibrated_head_as_it_is() -> None:
    found = cal.fit_sts(_records(2, 4_000), penalty=0.02)
    assert np.all(np.abs(np.log(found)) < 0.15)


def test_scaling_keeps_the_order_within_a_position_and_not_across_blocks() -> None:
    said = np.array([[0.9, 0.5], [0.5, 0.95]])
    scaled = cal.scale(said, np.array([1.0, 2.0]))
    assert scaled[0, 1] < scaled[1, 1]
    assert np.prod(said[0]) < np.prod(said[1])
    assert np.prod(scaled[0]) > np.prod(scaled[1])


def test_split_puts_no_prompt_on_both_sides() -> None:
    fit, held_out = cal.split(_records(3, 2_000), np.random.default_rng(0))
    assert not set(fit.group_N) & set(held_out.group_N)
    assert len(fit.group_N) + len(held_out.group_N) == 2_000
    with pytest.raises(InputError, match="at least 2"):
        cal.split(_records(3, 50), np.random.default_rng(0))


def test_rounds_that_a_scheduler_cut_are_refused() -> None:
    said, accepted = np.full((3, 4), 0.5), np.array([0, 2, 1])
    with pytest.raises(InputError, match=r"1 of 3 rounds were cut .*round 1 verified 2 of 4"):
        cal.records_of_rounds(said, accepted, np.array([4, 2, 4]), np.arange(3))
    kept = cal.records_of_rounds(said, accepted, np.array([4, 4, 4]), np.arange(3))
    assert kept.prefix_NG().sum() == 3


def _trace() -> DenseTrace:
    return DenseTrace(
        confidence_NG=np.full((12, 3), 0.6, dtype=np.float16),
        num_accepted_N=np.array([3, 2, 0, 3, 1, 0, 3, 3, 2, 1, 1, 0], dtype=np.uint8),
        sequence_offset_S1=np.array([0, 6, 12]),
        sequence_domain_S=np.array([0, 1], dtype=np.uint8),
        domain_names=("math", "code"),
    )


def test_a_traces_blocks_cut_by_the_texts_end_are_left_out() -> None:
    records = cal.records_of_trace(_trace())
    assert records.num_accepted_N.tolist() == [3, 2, 0, 3, 3, 3, 2, 1]
    assert records.group_N.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert records.domain("code").num_accepted_N.tolist() == [3, 3, 2, 1]


def test_apply_scales_and_says_so() -> None:
    out = cal.apply(_trace(), np.array([1.0, 2.0, 0.5]))
    np.testing.assert_allclose(out.confidence_NG[0], [0.6, 0.5505, 0.6923], atol=1e-3)
    assert out.metadata["sts_temperatures"] == [1.0, 2.0, 0.5]
    with pytest.raises(InputError, match="2 temperatures for a trace of gamma 3"):
        cal.apply(_trace(), np.ones(2))


def test_sglang_file_goes_out_and_comes_in() -> None:
    text = cal.to_sglang(cal.Calibration(np.array([1.5, 0.8]), "math", 1000, 0.05, 0.02))
    keys = {"temperatures", "dataset", "num_samples", "ece_before", "ece_after"}
    assert set(json.loads(text)) == keys
    read = cal.from_sglang(text, where="sts.json", gamma=2)
    assert read.temperature_G.tolist() == [1.5, 0.8]
    assert (read.dataset, read.num_samples, read.ece_before) == ("math", 1000, 0.05)
    with pytest.raises(InputError, match=r"sts.json: 2 temperatures, but gamma is 7"):
        cal.from_sglang(text, where="sts.json", gamma=7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "list of positive numbers"),
        ('{"temperatures": []}', "list of positive numbers"),
        ('{"temperatures": [1, 0]}', "list of positive numbers"),
        ('{"temperatures": [1, true]}', "list of positive numbers"),
        ('{"temperatures": [1, NaN]}', "list of positive numbers"),
    ],
)
def test_bad_sglang_files(text: str, message: str) -> None:
    with pytest.raises(SpecsimError, match=message):
        cal.from_sglang(text, where="sts.json", gamma=2)
