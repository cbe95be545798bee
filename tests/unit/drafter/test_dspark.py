"""Drafters: anchors packed into one pass, drafted one by one or slot by slot, are the same."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from specsim.drafter.drafting import DraftCache  # noqa: E402
from specsim.drafter.dspark import DSparkConfig  # noqa: E402
from specsim.errors import InputError  # noqa: E402
from tests.drafter_world import VOCAB, drafter_config, small_drafter, small_target  # noqa: E402

KINDS = [
    {"rank": 0, "confidence": False},
    {"kind": "vanilla"},
    {"kind": "gated"},
    {"kind": "rnn"},
    {"eagle": True, "confidence": False},
]


def _world(**options: object):
    target = small_target()
    drafter = small_drafter(target, **options)
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(VOCAB, (2, 12), generator=generator)
    with torch.no_grad():
        _, features = target(ids, torch.tensor([12, 12]), None, (0, 1))
    following = torch.cat((ids[:, 1:], ids[:, :1]), dim=1)
    return drafter, ids, features, following


@pytest.mark.parametrize("options", KINDS, ids=str)
@torch.no_grad()
def test_packed_anchors_equal_single_ones(options: dict[str, object]) -> None:
    drafter, ids, features, following = _world(**options)
    position = torch.tensor([[3, 4, 7], [2, 6, 7]])
    previous = ids[torch.arange(2)[:, None, None], position[..., None] + torch.arange(4)]
    packed, said = drafter.score(previous, position, drafter.context(features, following))
    for b in range(2):
        for a in range(3):
            # Alone, and with nothing at or past the anchor in sight.
            end = int(position[b, a])
            context = drafter.context(features[b : b + 1, :end], following[b : b + 1, :end])
            alone, alone_said = drafter.score(
                previous[b, a][None, None], position[b, a][None, None], context
            )
            torch.testing.assert_close(packed[b, a], alone[0, 0], atol=1e-4, rtol=1e-4)
            if said is not None:
                torch.testing.assert_close(said[b, a], alone_said[0, 0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("options", KINDS, ids=str)
@torch.no_grad()
def test_slot_by_slot_equals_teacher_forcing(options: dict[str, object]) -> None:
    drafter, ids, features, following = _world(**options)
    position = torch.tensor([[5], [8]])
    previous = torch.randint(VOCAB, (2, 1, 4), generator=torch.Generator().manual_seed(1))
    previous[..., 0] = ids[torch.arange(2)[:, None], position]
    context = drafter.context(features, following)
    want, want_said = drafter.score(previous, position, context)
    block = drafter.begin(previous[..., 0], position, context)
    for k in range(4):
        logits, said = block.step(previous[..., k])
        torch.testing.assert_close(logits, want[:, :, k], atol=1e-4, rtol=1e-4)
        if want_said is not None:
            torch.testing.assert_close(said, want_said[:, :, k], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("options", KINDS, ids=str)
@torch.no_grad()
def test_context_grown_in_pieces_with_overwritten_tails_equals_one_pass(
    options: dict[str, object],
) -> None:
    drafter, ids, features, following = _world(**options)
    cache = DraftCache()
    cache.put(torch.tensor([0, 0]), drafter.context(features[:, :4], following[:, :4]))
    # A rejected tail, written past what is committed, then overwritten by the true tokens.
    wrong = drafter.context(features[:, 7:11] + 1, following[:, 7:11], torch.tensor([4, 4]))
    cache.put(torch.tensor([4, 4]), wrong)
    right = drafter.context(features[:, 4:9], following[:, 4:9], torch.tensor([4, 4]))
    cache.put(torch.tensor([4, 4]), right)
    position = torch.tensor([[9], [9]])
    anchor = ids[:, 9:10]
    got, _ = drafter.begin(anchor, position, cache.upto(9)).step(anchor)
    want, _ = drafter.begin(anchor, position, drafter.context(features, following)).step(anchor)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_confidence_of_a_draft_does_not_depend_on_that_draft() -> None:
    drafter, _, features, following = _world()
    position = torch.tensor([[5], [5]])
    context = drafter.context(features, following)
    previous = torch.zeros(2, 1, 4, dtype=torch.long)
    base = drafter.score(previous, position, context)[1]
    changed = previous.clone()
    changed[..., 2] = 7  # the token before draft 3
    moved = drafter.score(changed, position, context)[1]
    differs = ((moved - base).abs() > 1e-6).any(dim=0)[0]
    assert differs.tolist() == [False, False, True, False]


@torch.no_grad()
def test_the_block_looks_both_ways_but_not_at_the_anchors_own_features() -> None:
    drafter, ids, features, following = _world(rank=0, confidence=False)
    position, anchor = torch.tensor([[5], [5]]), ids[:, 5:6]
    base = drafter.block(anchor, position, drafter.context(features, following))
    features[:, 5:] += 1.0
    same = drafter.block(anchor, position, drafter.context(features, following))
    torch.testing.assert_close(base, same)
    features[:, 4] += 1.0
    assert (
        drafter.block(anchor, position, drafter.context(features, following)) - base
    ).abs().max() > 1e-3


def test_illegal_options_are_named() -> None:
    target = small_target()
    with pytest.raises(InputError, match=r"markov_head_type is 'lstm'.*vanilla, gated, rnn"):
        drafter_config(target, kind="lstm")
    with pytest.raises(InputError, match="gamma is 0"):
        drafter_config(target, gamma=0)
    config = drafter_config(target)
    fields = {name: getattr(config, name) for name in DSparkConfig.__slots__}
    with pytest.raises(InputError, match="target_layer_ids is empty"):
        DSparkConfig(**{**fields, "target_layer_ids": ()})
