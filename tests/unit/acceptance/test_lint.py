"""Lint: sound data pass, and every planted mistake is found by the check that is for it."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from specsim.acceptance.lint import Rounds, conditional_acceptance, lint

GAMMA = 5


def _rounds(rate: tuple[float, ...] = (0.7, 0.68, 0.7, 0.69, 0.7), blocks: int = 4_000) -> Rounds:
    rng = np.random.default_rng(0)
    said = np.clip(rng.normal(rate, 0.1, (blocks, len(rate))), 0.01, 0.99)
    passed = rng.random(said.shape) < said
    accepted = np.cumprod(passed, axis=1).sum(axis=1)
    return Rounds(said, accepted, GAMMA, np.cumprod(said, axis=1), accepted + 1)


def _names(rounds: Rounds) -> list[str]:
    return [finding.check for finding in lint(rounds)]


def test_sound_rounds_pass() -> None:
    assert _names(_rounds()) == []


@pytest.mark.parametrize("level", [0.25, 0.4, 0.9])
def test_sound_rounds_of_any_level_pass(level: float) -> None:
    assert _names(_rounds((level,) * GAMMA)) == []


def _shifted(rounds: Rounds) -> Rounds:
    # The block is read one slot late: the first draft is right, later ones pass by luck.
    rng = np.random.default_rng(1)
    first = rng.random(len(rounds.num_accepted_N)) < rounds.confidence_NG[:, 0]
    luck = rng.random((len(first), GAMMA - 1)) < 0.25
    passed = np.column_stack((first, luck))
    accepted = np.cumprod(passed, axis=1).sum(axis=1)
    return replace(rounds, num_accepted_N=accepted, committed_N=accepted + 1)


def _saturated(rounds: Rounds) -> Rounds:
    said = rounds.confidence_NG.copy()
    said[17, 2] = 1.0
    return replace(rounds, confidence_NG=said)


def _beyond(rounds: Rounds) -> Rounds:
    accepted = rounds.num_accepted_N.copy()
    accepted[3] = GAMMA + 1
    return replace(rounds, num_accepted_N=accepted, committed_N=accepted + 1)


@pytest.mark.parametrize(
    ("spoil", "check", "words"),
    [
        (_shifted, "slot-shift", "draft 1 is accepted at 0.7. but draft 2 at 0.2"),
        (lambda r: replace(r, gamma=7), "wrong-gamma", "5 confidences a block, but gamma is 7"),
        (_saturated, "confidence-range", "block 17, draft 3"),
        (lambda r: replace(r, survival_NG=r.confidence_NG), "survival-rising", "rises in"),
        (_beyond, "accepted-beyond-gamma", "up to 6"),
        (lambda r: replace(r, committed_N=r.num_accepted_N + 2), "bonus-committed", "twice"),
        (lambda r: replace(r, committed_N=r.num_accepted_N), "bonus-committed", "already"),
        (
            lambda r: replace(
                r, num_accepted_N=np.minimum(r.num_accepted_N + 1, GAMMA), committed_N=None
            ),
            "bonus-counted",
            "counted as an accepted draft",
        ),
    ],
)
def test_planted_mistakes_are_found(spoil, check: str, words: str) -> None:
    found = {finding.check: finding for finding in lint(spoil(_rounds()))}
    assert check in found
    assert re.search(words, found[check].message)
    assert found[check].error


def test_falling_acceptance_is_suspicious_not_impossible() -> None:
    (finding,) = lint(_rounds((0.85, 0.7, 0.55, 0.42, 0.33)))
    assert finding.check == "acceptance-collapse"
    assert not finding.error


def test_conditional_acceptance_by_hand() -> None:
    rate = conditional_acceptance(np.array([0, 1, 1, 3]), 3)
    assert rate.tolist() == [0.75, pytest.approx(1 / 3), 1.0]
    assert np.isnan(conditional_acceptance(np.array([0, 0]), 2)[1])


def test_counts_that_fit_no_known_mistake_are_named_all_the_same() -> None:
    rounds = _rounds()
    (finding,) = lint(replace(rounds, committed_N=rounds.num_accepted_N + 4))
    assert finding.check == "bonus-committed"
    assert "typically + 4" in finding.message
    assert "cut by a request's end" in finding.message


def test_little_evidence_accuses_nobody() -> None:
    # What is an error in thousands of blocks is chance in fifty.
    shifted = _shifted(_rounds(blocks=50))
    counted = _rounds(blocks=50)
    most = np.minimum(counted.num_accepted_N + 1, GAMMA)
    assert _names(shifted) == []
    assert _names(replace(counted, num_accepted_N=most, committed_N=None)) == []
    one_draft = Rounds(np.full((4_000, 1), 0.5), np.arange(4_000) % 2, 1, None, None)
    assert _names(one_draft) == []


def test_a_sure_head_may_accept_every_first_draft() -> None:
    rounds = _rounds()
    said = rounds.confidence_NG.copy()
    said[:, 0] = 0.99
    accepted = np.maximum(rounds.num_accepted_N, 1)
    sure = Rounds(said, accepted, GAMMA, None, accepted + 1)
    assert _names(sure) == []
    assert _names(replace(sure, confidence_NG=rounds.confidence_NG)) == ["bonus-counted"]


def test_a_head_that_nobody_trusts_is_not_shifted() -> None:
    # Nothing gets past the first draft, so there is nothing to say about the second.
    rounds = _rounds((0.05,) * GAMMA)
    nothing = np.zeros_like(rounds.num_accepted_N)
    assert _names(replace(rounds, num_accepted_N=nothing, committed_N=nothing + 1)) == []
