"""Metrics by hand on a log small enough to add up on paper."""

from __future__ import annotations

import numpy as np
import pytest

from specsim.metrics.catalog import CATALOG, measure, summarise, weighted_percentile
from specsim.metrics.steplog import StepLog

NAN = float("nan")


def _log() -> StepLog:
    log = StepLog()
    # Two requests; the second step verifies 3 drafts, accepts 2, and emits 3 of its 4 tokens.
    log.add(
        end_s=1.0,
        duration_s=1.0,
        rank=0,
        num_requests=2,
        verified=4,
        accepted=1,
        emitted=3,
        waiting=1,
        kv_tokens=9,
    )
    log.add(
        end_s=3.0,
        duration_s=2.0,
        rank=0,
        num_requests=2,
        verified=3,
        accepted=2,
        emitted=3,
        waiting=0,
        kv_tokens=9,
    )
    return log


def _ledger() -> dict[str, np.ndarray]:
    return {
        "request": np.array([0, 1, 2]),
        "arrival_s": np.array([0.0, 0.0, 0.5]),
        "first_token_s": np.array([0.0, 0.0, 3.0]),
        "finish_s": np.array([3.0, 3.0, NAN]),
        "output_tokens": np.array([4, 4, 9]),
        "rounds": np.array([2, 2, 0]),
    }


def test_every_metric_on_a_log_added_up_by_hand() -> None:
    window = measure(
        steps=_log().columns(),
        requests=_ledger(),
        end_s=4.0,
        ranks=1,
        gpus_per_rank=2,
        cut_warmup=False,
    )
    found = summarise(window)
    assert found["output_tok_per_s"] == pytest.approx(6 / 4)
    assert found["tok_s_rank"] == pytest.approx(6 / 4)
    assert found["tok_s_gpu"] == pytest.approx(6 / 8)
    assert found["tok_s_user"] == pytest.approx(6 / 6)  # six request-seconds
    assert found["mean_running"] == pytest.approx(6 / 4)
    assert found["mean_waiting"] == pytest.approx(2.5 / 4)  # request 2 waits from .5 to 3
    assert found["utilisation"] == pytest.approx(3 / 4)
    assert found["acceptance_length"] == pytest.approx((3 + 4) / 4)  # the prefill's token is out
    assert found["draft_acceptance_rate"] == pytest.approx(3 / 7)
    assert found["verify_efficiency"] == pytest.approx(7 / 11)
    assert found["rejected_share"] == pytest.approx(4 / 11)
    assert found["budget_tokens"] == pytest.approx(11 / 4)
    assert found["overshoot_share"] == pytest.approx(1 / 7)
    assert found["tpot_p50_s"] == pytest.approx(1.0)
    assert found["tok_s_user_median"] == pytest.approx(1.0)
    assert found["itl_request_p50_s"] == pytest.approx(1.5)  # a request's own mean gap
    assert found["itl_p50_s"] == pytest.approx(1.0)  # pooled over the four gaps
    assert found["itl_p99_s"] == pytest.approx(2.0)
    assert found["ttft_p99_s"] == 0.0
    assert found["requests_finished"] == 2


def test_what_does_not_exist_is_none_and_never_zero() -> None:
    steps = {name: column[:0] for name, column in _log().columns().items()}
    requests = {name: column[:0] for name, column in _ledger().items()}
    window = measure(
        steps=steps, requests=requests, end_s=0.0, ranks=1, gpus_per_rank=1, cut_warmup=True
    )
    found = summarise(window)
    assert found["tok_s_user"] is None
    assert found["draft_acceptance_rate"] is None
    assert found["tpot_p99_s"] is None


def test_names_are_unique_and_each_has_a_sentence() -> None:
    names = [metric.name for metric in CATALOG]
    assert len(set(names)) == len(names)
    assert all(metric.definition.endswith(".") and metric.unit for metric in CATALOG)


def test_weighted_percentiles_count_weight() -> None:
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([1, 98, 1])
    assert weighted_percentile(values, weights, 50) == 1.0
    assert weighted_percentile(values, weights, 99) == 2.0
    assert weighted_percentile(values, weights, 100) == 3.0
    assert np.isnan(weighted_percentile(values, np.zeros(3, dtype=int), 50))


def test_the_log_grows() -> None:
    log = StepLog()
    for i in range(3000):
        log.add(
            end_s=float(i),
            duration_s=1.0,
            rank=0,
            num_requests=i,
            verified=0,
            accepted=0,
            emitted=1,
            waiting=0,
            kv_tokens=0,
        )
    np.testing.assert_array_equal(log.columns()["num_requests"], np.arange(3000))
    assert log.emitted == 3000
