"""Targets: ours equals the transformers library's, whose adapter handles unequal lengths."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from specsim.drafter import smollm2  # noqa: E402
from specsim.drafter.drafting import Sampling  # noqa: E402
from specsim.drafter.llama import Llama, LlamaConfig, fuse  # noqa: E402
from specsim.drafter.speculate import Speculator  # noqa: E402
from specsim.drafter.target import HuggingFaceTarget  # noqa: E402
from specsim.errors import InputError  # noqa: E402
from tests.drafter_world import small_drafter, small_target  # noqa: E402


def _pair() -> tuple[Llama, HuggingFaceTarget]:
    """The same random weights in both implementations."""
    config = transformers.LlamaConfig(
        vocab_size=23, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
        rope_theta=1e4, rms_norm_eps=1e-5, tie_word_embeddings=True, attn_implementation="eager",
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = transformers.LlamaForCausalLM(config).eval().requires_grad_(False)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    sizes = LlamaConfig(23, 32, 3, 4, 2, 48, 1e4, 1e-5, 128)
    ours = Llama(sizes)
    ours.load_state_dict(fuse(theirs.state_dict(), sizes))
    return ours.eval().requires_grad_(False), HuggingFaceTarget(theirs)


def test_our_llama_is_the_librarys_with_caches_of_unequal_length_and_rollback() -> None:
    ours, theirs = _pair()
    generator = torch.Generator().manual_seed(1)
    caches = ours.new_cache(3, 16), theirs.new_cache(3, 16)

    def step(width: int, count: list[int]) -> None:
        ids = torch.randint(23, (len(count), width), generator=generator)
        counts = torch.tensor(count)
        a, fa = ours(ids, counts, caches[0], (-1, 0, 2))
        b, fb = theirs(ids, counts, caches[1], (-1, 0, 2))
        for row, n in enumerate(count):
            torch.testing.assert_close(a[row, :n], b[row, :n], atol=2e-4, rtol=1e-3)
            torch.testing.assert_close(fa[row, :n], fb[row, :n], atol=2e-4, rtol=1e-3)
            torch.testing.assert_close(
                ours.logits(a[row, :n]), theirs.logits(b[row, :n]), atol=2e-3, rtol=1e-3
            )
        assert caches[0].length_B.tolist() == caches[1].length_B.tolist()

    step(6, [3, 6, 5])
    step(4, [4, 1, 4])
    for cache in caches:
        cache.length_B = torch.tensor([5, 7, 6])
    step(3, [3, 2, 3])
    for cache in caches:
        cache.take_rows(torch.tensor([2, 0]))
    step(2, [2, 2])


def test_speculative_decoding_runs_on_a_librarys_model_and_greedy_agrees() -> None:
    ours, theirs = _pair()
    small = small_drafter(small_target(vocab=23), token_id=list(range(23)))
    texts = []
    for target in (ours, theirs):
        speculator = Speculator(
            target, small, Sampling(temperature=0.0), vocab_size=23, context_tokens=128, eos_id=None
        )
        outs = speculator.decode(
            [[3, 4, 5], [6, 7]], torch.Generator().manual_seed(0), max_new_tokens=12
        )
        texts.append([out.tokens for out in outs])
    assert texts[0] == texts[1]


def test_a_model_that_is_not_there_is_named(tmp_path) -> None:
    with pytest.raises(InputError, match=r"target '.*nowhere' cannot be loaded"):
        HuggingFaceTarget.load(str(tmp_path / "nowhere"), dtype="float32", device="cpu")


def test_half_split_undoes_the_interleaving_of_rotary_pairs() -> None:
    # Two heads of width 4: interleaved rows 0 1 2 3 are pairs (0, 1) and (2, 3).
    stored = torch.arange(8.0)[:, None].expand(8, 3)
    rows = smollm2._half_split(stored, heads=2)[:, 0].tolist()
    assert rows == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.skipif(
    not smollm2.is_fetched(), reason="needs the embedded target: specsim trace fetch-target"
)
def test_embedded_target_speaks_and_ends_its_turn() -> None:
    tokenizer, model = smollm2.load_tokenizer(), smollm2.load_model()
    text = smollm2.chat_prompt("What is the capital of France?")
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert ids[:3] == [1, 9690, 198]
    assert tokenizer.encode("12 345").tokens == ["1", "2", "Ġ", "3", "4", "5"]
    cache = model.new_cache(1, 64)
    hidden, _ = model(torch.tensor([ids]), torch.tensor([len(ids)]), cache)
    answer: list[int] = []
    while len(answer) < 12 and (not answer or answer[-1] != smollm2.EOS_ID):
        answer.append(int(model.logits(hidden[0, -1]).argmax()))
        hidden, _ = model(torch.tensor([answer[-1:]]), torch.tensor([1]), cache)
    assert tokenizer.decode(answer) == "The capital of France is Paris."
    assert answer[-1] == smollm2.EOS_ID
