"""The decoding loop: exact output law, end token, greedy, bad input."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

from specsim.drafter.drafting import Proposal, Sampling, propose  # noqa: E402
from specsim.drafter.speculate import (  # noqa: E402
    Speculator,
    after_rejection,
    pass_probability,
    verify,
)
from specsim.errors import InputError  # noqa: E402
from tests.drafter_world import VOCAB, small_drafter, small_target  # noqa: E402

PROMPT = [3, 5, 2, 7]


class _Given:
    """A generator of proposals that drafts the given tokens, to read the law of each draft."""

    def __init__(self, drafter, sampling: Sampling) -> None:
        self.drafter, self.sampling = drafter, sampling

    def laws(self, features, following, tokens: list[int]) -> torch.Tensor:
        position = torch.tensor([[len(PROMPT)]])
        context = self.drafter.context(features, following)
        block = self.drafter.begin(torch.tensor([[tokens[0]]]), position, context)
        out = []
        for previous in tokens:
            logits, _ = block.step(torch.tensor([[previous]]))
            law = torch.zeros(VOCAB)
            law[self.drafter.token_id_V] = self.sampling.law(logits[0, 0])
            out.append(law)
        return torch.stack(out)


def _exact_law(target, drafter, sampling, *, drafts: int, draft_sampling=None) -> dict:
    """Law of the `drafts + 1` tokens after the anchor under one round and target sampling after.

    Enumerates every draft and where it is first rejected, with the library's own acceptance and
    residual; later tokens come from the target.
    """
    anchor = 4
    with torch.no_grad():
        _, features = target(torch.tensor([PROMPT]), torch.tensor([len(PROMPT)]), None, (0, 1))
    following = torch.tensor([[*PROMPT[1:], anchor]])
    memo: dict[tuple[int, ...], torch.Tensor] = {}

    def p(path: tuple[int, ...]) -> torch.Tensor:
        if path not in memo:
            ids = torch.tensor([[*PROMPT, anchor, *path]])
            with torch.no_grad():
                hidden, _ = target(ids, torch.tensor([ids.shape[1]]), None)
            memo[path] = sampling.law(target.logits(hidden[0, -1])).double()
        return memo[path]

    given = _Given(drafter, draft_sampling or sampling)
    out: dict[tuple[int, ...], float] = {}

    def spread(path: tuple[int, ...], mass: float) -> None:
        if mass <= 0:
            return
        if len(path) == drafts + 1:
            out[path] = out.get(path, 0.0) + mass
            return
        for token, probability in enumerate(p(path).tolist()):
            spread((*path, token), mass * probability)

    for path in itertools.product(range(VOCAB), repeat=drafts):
        with torch.no_grad():
            q = given.laws(features, following, [anchor, *path][:drafts]).double()
        mass = 1.0
        for j in range(drafts):
            mass *= float(q[j, path[j]])
        alive = mass
        for j in range(drafts):
            if alive <= 0:
                break
            passed = float(pass_probability(p(path[:j])[path[j]], q[j, path[j]]))
            residual = after_rejection(p(path[:j]), q[j])
            for token, probability in enumerate(residual.tolist()):
                spread((*path[:j], token), alive * (1 - passed) * probability)
            alive *= passed
        for token, probability in enumerate(p(path).tolist()):
            spread((*path, token), alive * probability)
    want = {}
    for path in itertools.product(range(VOCAB), repeat=drafts + 1):
        mass = 1.0
        for j, token in enumerate(path):
            mass *= float(p(path[:j])[token])
        want[path] = mass
    return {path: (out.get(path, 0.0), want[path]) for path in want}


@pytest.mark.parametrize(
    ("options", "sampling"),
    [
        ({}, Sampling()),
        ({"kind": "rnn"}, Sampling(temperature=0.7)),
        ({"eagle": True, "confidence": False}, Sampling(top_p=0.9)),
        ({"token_id": [2, 3, 5, 7, 9]}, Sampling(top_k=4)),
        ({}, Sampling(temperature=0.0)),
    ],
    ids=["markov", "rnn-cold", "eagle-top-p", "part-of-vocabulary-top-k", "greedy"],
)
def test_exact_output_law_is_the_targets(options, sampling) -> None:
    target = small_target()
    laws = _exact_law(target, small_drafter(target, **options), sampling, drafts=2)
    assert max(abs(got - want) for got, want in laws.values()) < 1e-6
    assert sum(got for got, _ in laws.values()) == pytest.approx(1, abs=1e-6)


def test_temperature_on_one_side_only_shows_in_the_exact_law() -> None:
    # The drafts are drawn at 0.5 but accepted as if they had been drawn at 1.
    target = small_target()
    drafter = small_drafter(target)
    anchor = torch.tensor([4])
    with torch.no_grad():
        _, features = target(torch.tensor([PROMPT]), torch.tensor([4]), None, (0, 1))
        context = drafter.context(features, torch.tensor([[*PROMPT[1:], 4]]))
        logits, _ = drafter.begin(anchor[None], torch.tensor([[4]]), context).step(anchor[None])
        ids = torch.tensor([[*PROMPT, 4]])
        p = Sampling().law(target.logits(target(ids, torch.tensor([5]), None)[0][0, -1]))
    drawn, claimed = Sampling(temperature=0.5).law(logits[0, 0]), Sampling().law(logits[0, 0])
    passed = pass_probability(p, claimed)
    output = drawn * passed + (drawn * (1 - passed)).sum() * after_rejection(p, claimed)
    assert (output - p).abs().sum() / 2 > 0.02


def _speculator(target, drafter, sampling=None, **options) -> Speculator:
    settings = {"vocab_size": VOCAB, "context_tokens": 200, "eos_id": 0} | options
    return Speculator(target, drafter, sampling or Sampling(), **settings)


def test_greedy_equals_the_targets_own_greedy_text() -> None:
    target = small_target()
    speculator = _speculator(target, small_drafter(target), Sampling(temperature=0.0), eos_id=None)
    prompts = [[3, 5, 2], [7, 7, 1, 4, 9], [2]]
    outs = speculator.decode(prompts, torch.Generator().manual_seed(0), max_new_tokens=20)
    for prompt, out in zip(prompts, outs, strict=True):
        ids = list(prompt)
        for _ in range(20):
            hidden, _ = target(torch.tensor([ids]), torch.tensor([len(ids)]), None)
            ids.append(int(target.logits(hidden[0, -1]).argmax()))
        assert out.tokens == ids


def test_rounds_add_up_to_the_text_and_the_end_token_ends_it() -> None:
    target = small_target()
    # A drafter that is the target's twin in nothing but vocabulary accepts sometimes, not always.
    speculator = _speculator(target, small_drafter(target))
    outs = speculator.decode([PROMPT] * 64, torch.Generator().manual_seed(1), max_new_tokens=30)
    ended = [out for out in outs if out.finished]
    assert ended
    assert len(ended) < len(outs)
    for out in outs:
        new = out.tokens[out.prompt_tokens :]
        assert new.count(0) == int(out.finished)
        assert out.finished == (new[-1] == 0)
        if all(out.whole):
            assert sum(out.accepted) + len(out.accepted) + 1 == len(new)
        assert len(new) <= 30
    assert {a for out in outs for a in out.accepted} >= {0, 1}


def test_end_token_inside_an_accepted_prefix_brings_no_bonus() -> None:
    # p is one-hot at the drafts, so that all are accepted; the second draft is the end token.
    token = torch.tensor([[5, 0, 6]])
    law = torch.nn.functional.one_hot(token, VOCAB).float()
    target_law = torch.nn.functional.one_hot(torch.tensor([[5, 0, 6, 8]]), VOCAB).float()
    accepted, bonus = verify(
        target_law, Proposal(token, law, torch.ones(1, 3)), torch.Generator().manual_seed(0)
    )
    assert (int(accepted), int(bonus)) == (3, 8)
    from specsim.drafter.speculate import Rollout

    speculator = _speculator(small_target(), small_drafter(small_target()))
    rollout = Rollout([1], 1)
    assert speculator._commit(rollout, [5, 0, 6, 8], 10)
    assert rollout.tokens == [1, 5, 0]


def test_verify_length_zero_is_plain_decoding() -> None:
    target = small_target()
    speculator = _speculator(target, small_drafter(target), eos_id=None)
    (out,) = speculator.decode(
        [PROMPT], torch.Generator().manual_seed(1), max_new_tokens=9, verify_len=0
    )
    assert out.accepted == [0] * 8
    assert len(out.tokens) == len(PROMPT) + 9


@torch.no_grad()
def test_a_proposal_stays_inside_the_draft_vocabulary() -> None:
    target = small_target()
    drafter = small_drafter(target, token_id=[2, 3, 5])
    _, features = target(torch.tensor([PROMPT]), torch.tensor([4]), None, (0, 1))
    context = drafter.context(features, torch.tensor([[*PROMPT[1:], 4]]))
    one = propose(
        drafter, torch.tensor([4]), torch.tensor([4]), context, Sampling(),
        torch.Generator().manual_seed(0), length=4, vocab_size=VOCAB,
    )  # fmt: skip
    assert set(one.token_BG.flatten().tolist()) <= {2, 3, 5}
    torch.testing.assert_close(one.law_BGV.sum(-1), torch.ones(1, 4))
    assert one.law_BGV[..., [0, 1, 4, 6, 7, 8, 9, 10]].abs().max() == 0


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "prompt 0 has 0 tokens"),
        ([1] * 300, {}, "prompt 0 has 300 tokens.*fit"),
        ([1, 2], {"verify_len": 9}, "verify_len is 9, legal is 0 to .* gamma of 4"),
    ],
)
def test_bad_input_is_named(prompt, options, message) -> None:
    speculator = _speculator(small_target(), small_drafter(small_target()))
    with pytest.raises(InputError, match=message):
        speculator.decode([prompt], torch.Generator(), max_new_tokens=10, **options)
