"""The validations: closed forms are right, and the engine meets them on short runs."""

from __future__ import annotations

import numpy as np
import pytest

from specsim.acceptance.blocks import lay_out
from specsim.engine.run import Poisson
from specsim.errors import InputError
from specsim.schedulers.static import FixedLength
from specsim.study import validate_queueing as queueing
from specsim.study import validate_replay as replay
from specsim.study.validation import Check, Validation, names, validate
from tests.engine_world import random_trace


def test_closed_forms_at_known_values() -> None:
    assert queueing.erlang_c_wait(0.5, 1.0, 1) == pytest.approx(1.0)  # M/M/1: rho/(mu - lambda)
    assert queueing.erlang_c_wait(1.0, 1.0, 2) == pytest.approx(1 / 3)
    assert queueing.md1_wait(0.5, 1.0) == pytest.approx(0.5)
    assert queueing.machine_repair_rate(1, 3.0, 1.0) == pytest.approx(1 / 4)


def test_a_short_queue_agrees_and_a_wrong_law_does_not() -> None:
    waits = []
    for seed in range(8):
        out = queueing.simulate(
            Poisson(0.7), servers=1, mean_s=1.0, exponential=True, seed=seed, requests=4000
        )
        assert queueing.little_gap(out) < 1e-9
        wait = out.requests["first_token_s"] - out.requests["arrival_s"]
        waits.append(np.nanmean(wait[500:4000]))
    interval = queueing.mean_interval(np.array(waits), level=0.99)
    assert interval.covers(queueing.erlang_c_wait(0.7, 1.0, 1))
    assert not interval.covers(queueing.md1_wait(0.7, 1.0))


@pytest.mark.parametrize("k", [0, 1, 4])
def test_the_engine_walks_the_trace(k: int) -> None:
    tau, differ = replay.engine_against_walk(random_trace(sequences=40), k, seed=2)
    assert differ == 0
    assert 1 <= tau <= k + 1


def test_a_planted_fault_in_the_walk_is_seen(monkeypatch) -> None:
    true_walk = replay.walk

    def shifted(blocks, sequence, verify_len, tokens):
        return true_walk(blocks, sequence, max(verify_len - 1, 0), tokens)

    monkeypatch.setattr(replay, "walk", shifted)
    assert replay.engine_against_walk(random_trace(sequences=40), 3, seed=2)[1] > 100


def test_the_coupled_trace_has_the_rollouts_acceptance() -> None:
    rollout, replayed = replay.toy_gap(FixedLength(3), requests=4, gamma=3, steps=1500, seed=5)
    allowed = np.hypot(rollout.half_width, replayed.half_width)
    assert abs(rollout.mean - replayed.mean) < allowed
    assert allowed < 0.2


def test_confidences_of_the_toy_are_its_acceptance_rates() -> None:
    rng = np.random.default_rng(0)
    world = replay.ToyWorld.draw(rng, 5)
    trace = replay.coupled_trace(world, sequences=20, anchors=3000, gamma=3, rng=rng)
    blocks = lay_out(trace, gamma=3, seed=0)
    whole = trace.whole_block_N()
    said = blocks.survival_NG[whole].mean(axis=0)
    seen = [(trace.num_accepted_N[whole] > k).mean() for k in range(3)]
    np.testing.assert_allclose(said, seen, atol=0.01)


def test_checks_fail_on_nan_and_past_their_limits() -> None:
    assert not Check("x", float("nan")).passed
    assert not Check("x", 2.0, high=1.0).passed
    assert Check("x", 1.0, 0.5, 1.0).passed
    outcome = Validation("v", [Check("x", 2.0, high=1.0)], fitted_on="", predicted="")
    assert outcome.as_dict()["pass"] is False
    assert outcome.as_dict()["failed"] == ["x"]


def test_an_unknown_validation_names_the_nearest() -> None:
    with pytest.raises(InputError, match='did you mean "replay"'):
        validate("repley")
    assert {"queueing", "replay", "dspark_fig7"} <= set(names())
