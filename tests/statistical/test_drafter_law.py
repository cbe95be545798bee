"""The runner's own laws: output, coupling, and dense replay against true rollouts.

Every check also runs on a planted bug, which must fail it.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

torch = pytest.importorskip("torch")

from specsim.drafter.capture import answer_laws, couple  # noqa: E402
from specsim.drafter.drafting import Proposal, Sampling, sample  # noqa: E402
from specsim.drafter.generate import write  # noqa: E402
from specsim.drafter.speculate import Speculator, verify  # noqa: E402
from tests.drafter_world import VOCAB, small_drafter, small_target  # noqa: E402

PROMPT = [3, 5, 2, 7]
SAMPLES = 6_000
# False alarms one in a million a test; a test runs once, on fixed seeds.
ALPHA = 1e-6


def g_test(count_V: np.ndarray, law_V: np.ndarray) -> float:
    """p-value of a G-test; cells expected below 5 are pooled."""
    expected = law_V * count_V.sum()
    rare = expected < 5
    count = np.append(count_V[~rare], count_V[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    count, expected = count[expected > 0], expected[expected > 0]
    seen = count > 0
    statistic = 2 * np.sum(count[seen] * np.log(count[seen] / expected[seen]))
    return float(chi2.sf(statistic, len(count) - 1))


def _first_tokens(rule, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """Counts and law of the first token that a round decides."""
    target = small_target()
    drafter = small_drafter(target)
    speculator = Speculator(
        target, drafter, sampling, vocab_size=VOCAB, context_tokens=64, eos_id=None, verify=rule
    )
    generator = torch.Generator().manual_seed(0)
    outs = speculator.decode([PROMPT] * SAMPLES, generator, max_new_tokens=2)
    # The first new token comes from the prompt's own pass, the second from the first round.
    count = np.zeros((VOCAB, VOCAB))
    for out in outs:
        count[out.tokens[4], out.tokens[5]] += 1
    first = int(count.sum(axis=1).argmax())
    ids = torch.tensor([[*PROMPT, first]])
    law = sampling.law(target.logits(target(ids, torch.tensor([5]), None)[0][0, -1]))
    return count[first], law.double().numpy()


def argmax_proposal(law, proposal: Proposal, generator):
    """The planted bug: drafts are the most likely tokens, accepted as if they had been sampled."""
    token = proposal.law_BGV.argmax(-1)
    return verify(law, Proposal(token, proposal.law_BGV, proposal.confidence_BG), generator)


def drafts_kept(rule):
    """Commit what the rule looked at: the loop appends the proposal's own tokens."""

    def patched(law, proposal, generator):
        proposal.token_BG.copy_(proposal.law_BGV.argmax(-1))
        return rule(law, proposal, generator)

    return patched


def cold_target(law, proposal, generator):
    """The planted bug: the target's law is sharpened, the claim to the user is not."""
    sharp = law.clamp_min(1e-30) ** (1 / 0.7)
    return verify(sharp / sharp.sum(-1, keepdim=True), proposal, generator)


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.7), Sampling(top_p=0.9)], ids=str
)
def test_first_round_tokens_follow_the_target(sampling: Sampling) -> None:
    count, law = _first_tokens(verify, sampling)
    assert count[law == 0].sum() == 0
    assert g_test(count, law) > ALPHA


@pytest.mark.parametrize(
    "rule", [drafts_kept(argmax_proposal), cold_target], ids=["argmax", "one-sided-temperature"]
)
def test_planted_decoding_bugs_fail_the_same_test(rule) -> None:
    count, law = _first_tokens(rule, Sampling())
    assert g_test(count, law) < ALPHA


def test_power_of_the_first_token_test() -> None:
    # What 6,000 tokens can see: the smallest shift of mass between two common tokens that this
    # test catches nine times in ten.
    count, law = _first_tokens(verify, Sampling())
    rng = np.random.default_rng(0)
    a, b = np.argsort(law)[-2:]

    def caught(shift: float) -> float:
        moved = law.copy()
        moved[a] -= shift
        moved[b] += shift
        moved /= moved.sum()
        draws = rng.multinomial(int(count.sum()), moved, size=60)
        return float(np.mean([g_test(one, law) < ALPHA for one in draws]))

    assert caught(0.0) == 0
    assert caught(0.15) > 0.9


def _texts(sequences: int, sampling: Sampling, seed: int = 0):
    target = small_target()
    prompts = iter([(PROMPT, 0)] * sequences)
    texts = list(
        write(
            target, prompts, torch.Generator().manual_seed(seed), slots=256, max_new_tokens=40,
            capacity=44, eos_id=0, layers=(0, 1), temperature=sampling.temperature,
        )
    )  # fmt: skip
    return target, texts


def _coupled(drafter, target, texts, sampling):
    generator = torch.Generator().manual_seed(9)
    out = []
    for text in texts:
        if len(text.tokens) - text.prompt_tokens < 2:
            continue
        laws = answer_laws(text, target.logits, drafter.token_id_V, sampling)
        out.append((text, couple(drafter, text, laws, sampling, generator)))
    return out


def test_drafts_given_the_text_have_the_drafters_own_law() -> None:
    # Over texts y ~ p, the first draft x must be distributed as q: the joint law is that of
    # rejection sampling, read backwards. First anchors all have the same two-token context.
    sampling = Sampling()
    target, texts = _texts(1_200, sampling)
    drafter = small_drafter(target)
    count, both, laws = np.zeros(VOCAB), 0, None
    first = 4
    for text, blocks in _coupled(drafter, target, texts, sampling):
        if text.tokens[4] == first:
            count[int(blocks.token_AG[0, 0])] += 1
            both += int(blocks.num_accepted_A[0] > 0)
            laws = text
    features = torch.cat(laws.features)[None]
    block = drafter.begin(
        torch.tensor([[first]]), torch.tensor([[4]]),
        drafter.context(features, torch.tensor([laws.tokens[1:]])),
    )  # fmt: skip
    with torch.no_grad():
        q = sampling.law(block.step(torch.tensor([[first]]))[0][0, 0]).double().numpy()
        ids = torch.tensor([[*PROMPT, first]])
        p = sampling.law(target.logits(target(ids, torch.tensor([5]), None)[0][0, -1])).numpy()
    assert count.sum() > 40
    assert g_test(count, q) > ALPHA
    rate = np.minimum(p, q).sum()
    error = (rate * (1 - rate) / count.sum()) ** 0.5
    assert both / count.sum() == pytest.approx(rate, abs=5 * error)


def _replayed(blocks_of, verify_len: int) -> list[tuple[int, int]]:
    """(accepted, rounds) of every text walked with a fixed verify length; whole rounds only."""
    out = []
    for _, blocks in blocks_of:
        accepted = blocks.num_accepted_A.tolist()
        at, total, rounds = 0, 0, 0
        while at + verify_len < len(accepted):
            took = min(verify_len, accepted[at])
            total, rounds, at = total + took, rounds + 1, at + took + 1
        out.append((total, rounds))
    return out


def _mean(pairs: list[tuple[int, int]]) -> tuple[float, float]:
    """Accepted a round, with its standard error over texts."""
    data = np.array(pairs, dtype=float)
    ratio = data[:, 0].sum() / data[:, 1].sum()
    spread = data[:, 0] - ratio * data[:, 1]
    return ratio, float(np.sqrt((spread**2).sum()) / data[:, 1].sum())


def _rolled(target, drafter, verify_len: int) -> list[tuple[int, int]]:
    speculator = Speculator(
        target, drafter, Sampling(), vocab_size=VOCAB, context_tokens=80, eos_id=0
    )
    outs = speculator.decode(
        [PROMPT] * 250, torch.Generator().manual_seed(verify_len), max_new_tokens=40,
        verify_len=verify_len,
    )  # fmt: skip
    return [
        (sum(a for a, w in zip(o.accepted, o.whole, strict=True) if w), sum(o.whole)) for o in outs
    ]


def test_dense_replay_equals_true_rollouts() -> None:
    target, texts = _texts(250, Sampling(), seed=3)
    drafter = small_drafter(target)
    coupled = _coupled(drafter, target, texts, Sampling())
    for verify_len in (1, 2, 4):
        replay, replay_error = _mean(_replayed(coupled, verify_len))
        truth, truth_error = _mean(_rolled(target, drafter, verify_len))
        assert abs(replay - truth) < 4.5 * np.hypot(replay_error, truth_error), verify_len


def test_a_wrong_coupling_does_not_replay_like_rollouts() -> None:
    # The planted bug: the coupling is given a flat law instead of the target's.
    target, texts = _texts(250, Sampling(), seed=3)
    drafter = small_drafter(target)
    generator = torch.Generator().manual_seed(9)
    coupled = []
    for text in texts:
        if len(text.tokens) - text.prompt_tokens >= 2:
            laws = answer_laws(text, target.logits, drafter.token_id_V, Sampling())
            flat = torch.full_like(laws, 1 / VOCAB)
            coupled.append((text, couple(drafter, text, flat, Sampling(), generator)))
    replay, replay_error = _mean(_replayed(coupled, 2))
    truth, truth_error = _mean(_rolled(target, drafter, 2))
    assert abs(replay - truth) > 4.5 * np.hypot(replay_error, truth_error)


def test_a_bfloat16_draft_law_biases_the_output_and_more_samples_would_show_it() -> None:
    # Drafts from a bfloat16 softmax, accepted under float32: the exact shift of the output law.
    # 6,000 samples do not see it; its size is what a test of ten million has to find.
    generator = torch.Generator().manual_seed(0)
    p = torch.softmax(torch.randn(8, generator=generator), -1)
    logits = torch.randn(8, generator=generator)
    q32 = torch.softmax(logits, -1)
    drawn = torch.softmax(logits.bfloat16(), -1).float()
    drawn = drawn / drawn.sum()
    passed = (p / q32).clamp(max=1)
    residual = (p - q32).clamp_min(0)
    output = drawn * passed + (drawn * (1 - passed)).sum() * residual / residual.sum()
    shift = float((output - p).abs().sum() / 2)
    assert 1e-5 < shift < 5e-3


def test_sample_is_what_the_laws_are_drawn_with() -> None:
    law = torch.tensor([[0.1, 0.0, 0.9]]).expand(100_000, -1)
    count = torch.bincount(sample(law, torch.Generator().manual_seed(2)), minlength=3).numpy()
    assert g_test(count.astype(float), np.array([0.1, 0.0, 0.9])) > ALPHA
