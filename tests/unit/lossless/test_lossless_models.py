"""Sampling real models: what they are asked, what schedulers see, and which laws are refused."""

from __future__ import annotations

import numpy as np
import pytest

from specsim.errors import InputError
from specsim.lossless.models import Models, sample_models
from specsim.schedulers.static import FixedLength

P, Q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])
TABLE_B = np.arange(10.0)


def rows(law, count):
    return np.tile(law, (count, 1))


def models(**changes):
    given = {
        "target": lambda prefix: rows(P, len(prefix)),
        "draft": lambda prefix, k: rows(Q, len(prefix)),
        "confidence": lambda prefix, k: np.full(len(prefix), 0.7),
    }
    return Models(**{**given, **changes})


def sample(made=None, factory=lambda: FixedLength(1), **more):
    given = {"contexts": ((0,),), "gamma": 2, "verify_s_B": TABLE_B, "num_samples": 2000}
    return sample_models(made or models(), factory, **{**given, **more})


def test_chunks_are_a_matter_of_memory_alone():
    whole = sample(seed=3)
    assert whole.counts_V.sum() == 2000
    for chunk in (70, 2000, 5000):
        assert sample(seed=3, chunk=chunk).counts_V.tolist() == whole.counts_V.tolist()
    assert sample(seed=4).counts_V.tolist() != whole.counts_V.tolist()
    assert sample(num_samples=1).counts_V.sum() == 1
    assert sample().counts_V.tolist() == sample(seed=0).counts_V.tolist()


def test_the_first_token_follows_the_rule_by_hand():
    """Accepted with min(1, p / q), else from (p - q)+: counts come near N p for every length."""
    for length in (0, 1, 2):
        found = sample(factory=lambda length=length: FixedLength(length), num_samples=40_000)
        assert found.p_value > 1e-4
        np.testing.assert_allclose(found.law_V, P, rtol=1e-12)
    same = sample(models(draft=lambda prefix, k: rows(P, len(prefix))), num_samples=40_000)
    assert same.p_value > 1e-4
    # A verifier that takes q for p accepts whatever was drafted.
    sure = models(believed_draft=lambda prefix, k: rows(P, len(prefix)))
    found = sample(sure, num_samples=40_000)
    np.testing.assert_allclose(found.counts_V / 40_000, Q, atol=0.01)
    # And one that takes q for nearly nothing accepts all that p allows.
    none = models(believed_draft=lambda prefix, k: rows([0.0, 0.0, 0.0, 1.0], len(prefix)))
    drawn = sample(none, num_samples=40_000).counts_V / 40_000
    left = P * [1, 1, 1, 0] / 0.9
    np.testing.assert_allclose(drawn, Q * [1, 1, 1, 0.1] + 0.4 * 0.9 * left, atol=0.01)


def test_models_are_asked_for_each_prefix_once():
    asked = []

    def draft(prefix, k):
        asked.append((k, prefix.tolist()))
        return rows([0.5, 0.5, 0.0, 0.0], len(prefix))

    sample(models(draft=draft), contexts=((3, 1), (2,)), gamma=2)
    assert asked == [
        (0, [[3, 1]]),  # what the verifier computes
        (0, [[3, 1]]),
        (1, [[3, 1, 0], [3, 1, 1]]),
        (0, [[2]]),
        (1, [[2, 0], [2, 1]]),
    ]


class Watching:
    lag, lossless = 1, True
    seen: list

    def __init__(self, reads=("live", "lagged")):
        self.reads = frozenset(reads)
        self.lag = int("lagged" in reads)

    def plan(self, view):
        Watching.seen.append(view)
        return np.zeros(view.num_requests, dtype=np.int64)


def test_schedulers_are_shown_a_first_step():
    Watching.seen = []
    made = models(confidence=lambda prefix, k: np.full(len(prefix), 0.5 + 0.25 * k))
    sample(made, Watching, contexts=((0,), (1,), (2,)))
    (view,) = Watching.seen
    assert (view.step, view.gamma, view.base_tokens, view.fixed_s) == (0, 2, 3, 0.0)
    assert view.request_id_R.tolist() == [0, 1, 2]
    assert view.confidence_RG.tolist() == [[0.5, 0.75]] * 3
    assert view.survival_RG.tolist() == [[0.5, 0.375]] * 3
    assert view.lagged_survival_RG.tolist() == [[1.0, 1.0]] * 3
    assert view.verify_s_B.tolist() == TABLE_B.tolist()
    for reads, hidden in ((("live",), "lagged_survival_RG"), (("lagged",), "survival_RG")):
        Watching.seen = []
        sample(made, lambda reads=reads: Watching(reads))
        with pytest.raises(ValueError, match=hidden):
            getattr(Watching.seen[0], hidden)


@pytest.mark.parametrize(
    "changes", [{"contexts": ()}, {"gamma": 0}, {"num_samples": 0}, {"num_samples": -1}]
)
def test_nothing_to_sample_is_said(changes):
    with pytest.raises(InputError, match="each at least 1"):
        sample(**changes)


@pytest.mark.parametrize(("sums", "worst"), [((1.03, 1.5), "1.5"), ((0.5, 1.03), "0.5")])
def test_the_sum_that_is_furthest_off_is_named(sums, worst):
    def target(prefix):
        return P * sums[0]

    def draft(prefix, k):
        return np.stack([Q * sums[t % 2] for t in prefix[:, -1]]) if k else rows(Q, len(prefix))

    with pytest.raises(InputError, match=f"draft q, draft 2 of request 0 sums to {worst}; a law"):
        sample(models(draft=draft))
    with pytest.raises(InputError, match=r"target p of request 0 has shape \(4,\)"):
        sample(models(target=target))


def test_sixteen_bit_rounding_is_no_mistake():
    for off, legal in ((0.019, True), (-0.019, True), (0.021, False), (-0.021, False)):
        made = models(target=lambda prefix, off=off: rows(P * (1 + off), len(prefix)))
        if legal:
            np.testing.assert_allclose(sample(made).law_V, P)
        else:
            with pytest.raises(InputError, match=r"a law must sum to 1 within 0\.02"):
                sample(made)


def test_masses_of_zero_and_confidences_at_their_ends_are_legal():
    for value in (0.0, 1.0):
        made = models(
            target=lambda prefix: rows([0.0, 1.0, 0.0, 0.0], len(prefix)),
            draft=lambda prefix, k: rows([0.5, 0.5, 0.0, 0.0], len(prefix)),
            confidence=lambda prefix, k, value=value: np.full(len(prefix), value),
        )
        assert sample(made, lambda: FixedLength(2)).counts_V.tolist() == [0, 2000, 0, 0]
    for value in (-1e-9, 1 + 1e-9, np.nan):
        with pytest.raises(InputError, match="confidence of draft 1 of request 1 is"):
            sample(
                models(
                    confidence=lambda prefix, k, value=value: np.where(
                        prefix[:, 0] == 9, value, 0.5
                    )
                ),
                contexts=((0,), (9,)),
            )
    with pytest.raises(InputError, match=r"draft q, draft 1 of request 1 has a mass of -0\.1"):
        sample(
            models(
                draft=lambda prefix, k: np.stack(
                    [Q if t == 0 else [1.0, -0.1, 0.1, 0.0] for t in prefix[:, 0]]
                )
            ),
            contexts=((0,), (9,)),
        )


def test_each_prefix_is_drafted_on_by_its_own_law():
    """A drafter that repeats the last token: every block is one token again and again."""
    asked = []

    def draft(prefix, k):
        asked.append(prefix[:, 1:].tolist())
        return np.eye(4)[prefix[:, -1]] if k else rows(Q, len(prefix))

    sample(models(draft=draft), gamma=3)
    assert asked[-1] == [[token, token] for token in range(4)]
