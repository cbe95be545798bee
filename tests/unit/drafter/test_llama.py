"""The plain Llama: what a cache gives is what reading from scratch gives."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.drafter_world import VOCAB, small_target  # noqa: E402


def _ids(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCAB, (rows, width), generator=torch.Generator().manual_seed(seed))


def test_cache_with_unequal_lengths_equals_reading_each_sequence_alone() -> None:
    target = small_target()
    ids, count = _ids(3, 9), torch.tensor([4, 9, 6])
    cache = target.new_cache(3, 4)  # too small on purpose: it has to grow
    first, _ = target(ids, count, cache, (0, 2))
    more = _ids(3, 2, seed=1)
    hidden, features = target(more, torch.tensor([2, 1, 2]), cache, (0, 2))
    assert cache.length_B.tolist() == [6, 10, 8]
    for b in range(3):
        whole = torch.cat((ids[b, : count[b]], more[b]))[None]
        want, want_features = target(whole, torch.tensor([whole.shape[1]]), None, (0, 2))
        torch.testing.assert_close(first[b, : count[b]], want[0, : count[b]], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(hidden[b], want[0, count[b] :], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(features[b], want_features[0, count[b] :], atol=1e-5, rtol=1e-4)


def test_a_rolled_back_tail_is_never_read() -> None:
    target = small_target()
    ids = _ids(1, 8)
    clean, dirty = target.new_cache(1, 16), target.new_cache(1, 16)
    target(ids[:, :5], torch.tensor([5]), clean)
    target(ids, torch.tensor([8]), dirty)
    dirty.length_B = torch.tensor([5])
    new = _ids(1, 3, seed=2)
    got, _ = target(new, torch.tensor([3]), dirty)
    want, _ = target(new, torch.tensor([3]), clean)
    torch.testing.assert_close(got, want)


def test_rows_can_be_dropped_and_put_back() -> None:
    target = small_target()
    cache = target.new_cache(3, 12)
    ids = _ids(3, 6)
    target(ids, torch.tensor([6, 6, 6]), cache)
    cache.take_rows(torch.tensor([2, 0]))
    new = _ids(2, 1, seed=3)
    got, _ = target(new, torch.tensor([1, 1]), cache)
    want, _ = target(torch.cat((ids[[2, 0]], new), 1), torch.tensor([7, 7]), None)
    torch.testing.assert_close(got[:, 0], want[:, -1], atol=1e-5, rtol=1e-4)


def test_layer_minus_one_is_the_embedding_and_later_layers_differ() -> None:
    target = small_target()
    ids = _ids(1, 5)
    _, features = target(ids, torch.tensor([5]), None, (-1, 0, 1))
    torch.testing.assert_close(features[0, :, 0], target.embed(ids)[0])
    assert (features[0, :, 1] - features[0, :, 2]).abs().max() > 1e-3
