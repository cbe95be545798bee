"""Training: it learns, resumes bit for bit, stops on NaN, and counts only what is inside a text."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from specsim.drafter import runner  # noqa: E402
from specsim.drafter.checkpoint import save_drafter  # noqa: E402
from specsim.drafter.corpus import Prompt  # noqa: E402
from specsim.drafter.drafting import Sampling  # noqa: E402
from specsim.drafter.generate import reread, write  # noqa: E402
from specsim.drafter.loss import LossConfig  # noqa: E402
from specsim.drafter.opening import OpenTarget  # noqa: E402
from specsim.drafter.textstore import (  # noqa: E402
    Text,
    load_shard,
    log_sum,
    save_shard,
    shards,
)
from specsim.drafter.train import (  # noqa: E402
    TrainConfig,
    Trainer,
    collate,
    initialise_from_target,
)
from specsim.errors import InputError  # noqa: E402
from tests.drafter_world import small_drafter, small_target  # noqa: E402


def _written(count: int = 24, seed: int = 0):
    target = small_target()
    prompts = iter([([3, 5, 2 + i % 5, 7], i % 3) for i in range(count)])
    texts = write(
        target, prompts, torch.Generator().manual_seed(seed), slots=8, max_new_tokens=20,
        capacity=24, eos_id=0, layers=(0, 1),
    )  # fmt: skip
    return target, list(texts)


def _texts(count: int = 10) -> tuple[object, list[Text]]:
    target, written = _written(count)
    out = []
    for one in written:
        hidden = torch.cat(one.hidden)
        out.append(
            Text(
                torch.tensor(one.tokens), one.prompt_tokens, one.domain,
                torch.cat(one.features), hidden, log_sum(hidden.float(), target.embed.weight),
            )
        )  # fmt: skip
    return target, out


def _trainer(target, steps: int, **options) -> Trainer:
    config = TrainConfig(
        steps=steps, sequences=4, anchors=6, learning_rate=5e-3, seed=3, checkpoint_every=5,
        loss=LossConfig(soft_label=0.5), **options,
    )  # fmt: skip
    return Trainer(small_drafter(target), config)


def _feed(texts: list[Text]):
    return lambda n, g: [texts[i] for i in torch.randint(len(texts), (n,), generator=g)]


def test_written_text_is_complete_and_every_slot_is_refilled() -> None:
    target, written = _written(24)
    assert len(written) == 24
    for one in written:
        assert len(torch.cat(one.hidden)) == len(one.tokens) - 1
        assert one.finished == (one.tokens[-1] == 0)
        assert one.finished or len(one.tokens) == 24
        again = reread(target, [(one.tokens, one.prompt_tokens, one.domain)], (0, 1))[0]
        torch.testing.assert_close(
            torch.cat(one.hidden).float(), torch.cat(again.hidden).float(), atol=0.05, rtol=0.05
        )
        torch.testing.assert_close(
            torch.cat(one.features).float(), torch.cat(again.features).float(), atol=0.1, rtol=0.05
        )


def test_a_store_gives_back_what_was_put_in(tmp_path: Path) -> None:
    target, written = _written(6)
    save_shard(tmp_path / "shard_00000.safetensors", written, target.embed.weight)
    (path,) = shards(tmp_path)
    for one, text in zip(written, load_shard(path, target.embed.weight), strict=True):
        assert text.tokens_N.tolist() == one.tokens
        assert (text.prompt_tokens, text.domain) == (one.prompt_tokens, one.domain)
        assert torch.equal(text.features_NMD, torch.cat(one.features))
        law = (text.hidden_ND.float() @ target.embed.weight.T - text.log_sum_N[:, None]).exp()
        torch.testing.assert_close(law.sum(-1), torch.ones(len(law)), atol=1e-3, rtol=0)


def test_anchors_are_answer_tokens_and_slots_past_the_end_are_marked() -> None:
    _, texts = _texts(8)
    generator = torch.Generator().manual_seed(0)
    batch = collate(texts[:3], 50, 4, generator)
    for b, text in enumerate(texts[:3]):
        last = len(text.tokens_N) - 2
        for a in range(50):
            position = int(batch.position_BA[b, a])
            for j in range(4):
                inside = bool(batch.valid_BAG[b, a, j])
                if inside:
                    at = position + j
                    assert text.prompt_tokens <= position <= at <= last
                    assert int(batch.previous_BAG[b, a, j]) == int(text.tokens_N[at])
                    assert int(batch.next_BAG[b, a, j]) == int(text.tokens_N[at + 1])
        drawn = batch.valid_BAG[b, :, 0]
        assert int(drawn.sum()) == last - text.prompt_tokens + 1
        assert batch.position_BA[b][drawn].unique().numel() == int(drawn.sum())
        # Every answer token but the last is an anchor once; a slot near the end is not inside.
        assert not bool(batch.valid_BAG[b][drawn][-1, 1:].any())
    assert collate([], 3, 4, generator) is None


def test_training_brings_the_drafter_closer_to_the_target() -> None:
    target, texts = _texts()
    trainer = _trainer(target, 40)
    seen: list[float] = []
    trainer.run(_feed(texts), on_step=lambda _, losses: seen.append(float(losses.accept_K.mean())))
    assert sum(seen[-10:]) > sum(seen[:10]) + 1.0
    frozen = trainer.drafter.embed_tokens.weight
    assert torch.equal(frozen, target.embed.weight)


def test_a_resumed_run_is_the_run_that_was_never_stopped(tmp_path: Path) -> None:
    target, texts = _texts()
    whole = _trainer(target, 12)
    whole.run(_feed(texts))
    first = _trainer(target, 12)
    first.run(_feed(texts), checkpoint=tmp_path / "run" / "c.safetensors", until=7)
    second = _trainer(target, 12)
    second.load(tmp_path / "run" / "c.safetensors")
    assert second.step == 7
    second.run(_feed(texts))
    for name, parameter in whole.parameters.items():
        assert torch.equal(parameter, second.parameters[name]), name


def test_a_checkpoint_of_another_drafter_is_refused(tmp_path: Path) -> None:
    target, texts = _texts()
    one = _trainer(target, 5)
    one.run(_feed(texts), checkpoint=tmp_path / "c.safetensors")
    other = Trainer(small_drafter(target, rank=2), TrainConfig(steps=5))
    with pytest.raises(InputError, match=r"expected \[11, 2\], found \[11, 3\].*another drafter"):
        other.load(tmp_path / "c.safetensors")


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    target, texts = _texts()
    trainer = _trainer(target, 20)
    path = tmp_path / "c.safetensors"
    trainer.run(_feed(texts), checkpoint=path, until=5)
    good = path.read_bytes()
    with torch.no_grad():
        trainer.drafter.fc.weight[0, 0] = float("nan")
    with pytest.raises(InputError, match="loss is nan at step 5: the last good checkpoint is kept"):
        trainer.run(_feed(texts), checkpoint=path)
    assert path.read_bytes() == good


def test_early_stop_after_evaluations_that_do_not_improve() -> None:
    target, texts = _texts()
    trainer = _trainer(target, 100, patience=2)
    trainer.run(_feed(texts), evaluate=lambda: 1.0)
    assert trainer.step == 15  # the first evaluation sets the mark, two more do not beat it


def _opened(target) -> OpenTarget:
    return OpenTarget(target, list, target.embed.weight, 11, 64, None, {})


def test_training_goes_on_from_a_saved_drafter(tmp_path: Path) -> None:
    target, texts = _texts()
    first = _trainer(target, 20)
    first.run(_feed(texts))
    save_drafter(first.drafter, tmp_path, num_target_layers=3, dtype=torch.float32, shared=True)
    config = TrainConfig(steps=20, sequences=4, anchors=6, learning_rate=5e-3)
    second = runner.make_trainer(_opened(target), texts, config, gamma=2, start_from=tmp_path)
    assert second.drafter.config.gamma == first.drafter.config.gamma  # its sizes, not the caller's
    assert set(second.parameters) == set(first.parameters)
    for name, parameter in first.parameters.items():
        assert torch.equal(parameter, second.parameters[name]), name
    second.run(_feed(texts), until=1)
    assert not torch.equal(first.parameters["fc.weight"], second.parameters["fc.weight"])
    assert torch.equal(second.drafter.lm_head.weight, target.embed.weight)


def test_training_does_not_go_on_from_an_autoregressive_drafter(tmp_path: Path) -> None:
    target, texts = _texts(2)
    save_drafter(small_drafter(target, eagle=True), tmp_path, num_target_layers=3)
    with pytest.raises(InputError, match="goes on from DSpark and DFlash drafters only"):
        runner.make_trainer(_opened(target), texts, TrainConfig(steps=1), start_from=tmp_path)


def test_a_store_without_texts_is_named() -> None:
    with pytest.raises(InputError, match="no text to train on: raise --tokens"):
        runner.draw_texts([], 4, torch.Generator())


def test_starting_from_the_target_copies_its_last_layers() -> None:
    target = small_target()
    drafter = small_drafter(target)
    initialise_from_target(drafter, target)
    last = target.layers[-1]
    kv = target.config.num_kv_heads * target.config.head_dim
    torch.testing.assert_close(
        drafter.layers[-1].self_attn.k_proj.weight, last.qkv.weight[32 : 32 + kv]
    )
    torch.testing.assert_close(drafter.layers[-1].mlp.down_proj.weight, last.down.weight * 0.5)
    wide = small_drafter(small_target(vocab=11), rank=0, confidence=False)
    from specsim.drafter import tiny

    with pytest.raises(InputError, match="cannot start from a target of 64"):
        initialise_from_target(wide, tiny.new(0, d_model=64, layers=3, vocab=11))


def test_confidence_loss_stays_out_of_the_backbone_if_asked() -> None:
    target, texts = _texts()
    only = LossConfig(cross_entropy=0, total_variation=0)
    for stop in (False, True):
        drafter = small_drafter(target)
        object.__setattr__(drafter.config, "confidence_stop_gradient", stop)
        trainer = Trainer(drafter, TrainConfig(steps=1, loss=only))
        batch = collate(texts[:4], 5, 4, torch.Generator().manual_seed(0))
        trainer.losses(batch).total.backward()
        moved = (
            float(drafter.fc.weight.grad.abs().max()) if drafter.fc.weight.grad is not None else 0
        )
        assert (moved > 0) is not stop
        assert float(drafter.confidence_head.proj.weight.grad.abs().max()) > 0


def test_sampling_settings_of_the_trace_are_not_those_of_training() -> None:
    # c* is taken at temperature 1 whatever a later capture uses: a colder law is another target.
    law = Sampling(temperature=0.5).law(torch.tensor([0.2, 1.0]))
    assert float(law[1]) > float(torch.softmax(torch.tensor([0.2, 1.0]), 0)[1])


def test_a_store_grows_by_whole_answers_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "FEATURE_LAYERS", (0, 1))
    target = small_target()
    opened = OpenTarget(
        target, lambda p: [3, 5, 2 + len(p.user) % 5], target.embed.weight, 11, 64, 0, {}
    )
    prompts = [Prompt("math", "t", "a" * n) for n in range(40)]
    seen: list[int] = []

    def fill(tokens: int) -> int:
        return runner.fill_store(
            tmp_path, opened, prompts, tokens=tokens, max_new_tokens=20, seed=5,
            progress=lambda done, *_: seen.append(done),
        )  # fmt: skip

    def stored() -> list[Text]:
        return [t for p in shards(tmp_path) for t in load_shard(p, target.embed.weight)]

    have = fill(1500)
    texts = stored()
    assert have == sum(len(t.tokens_N) - t.prompt_tokens for t in texts) >= 1500
    assert seen == sorted(seen)
    assert seen[-1] == 1500
    assert fill(1500) == have  # nothing to do
    # Cut answers are those of the longest length, whole ones end with the end token.
    for text in texts:
        new = len(text.tokens_N) - text.prompt_tokens
        assert new == 20 or int(text.tokens_N[-1]) == 0
    more = fill(have + 300)
    assert more >= have + 300
    again = stored()
    assert all(torch.equal(a.tokens_N, b.tokens_N) for a, b in zip(texts, again, strict=False))
    # The streams of the second part are its own.
    assert [t.tokens_N.tolist() for t in again[len(texts) :]] != [
        t.tokens_N.tolist() for t in texts[: len(again) - len(texts)]
    ]
