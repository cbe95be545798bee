"""Models on an accelerator: every tensor is moved there, every answer comes back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from specsim.drafter import opening  # noqa: E402
from specsim.drafter.drafting import OnDevice  # noqa: E402
from specsim.drafter.target import HuggingFaceTarget, SlotCache  # noqa: E402
from specsim.errors import InputError  # noqa: E402
from tests.drafter_world import small_drafter, small_target  # noqa: E402


class _Far:
    """Stands for a model on an accelerator: takes tensors of that device ("meta") only."""

    config = SimpleNamespace(gamma=3)
    token_id_V = torch.arange(5)
    device = torch.device("meta")
    dtype = torch.float32

    def to(self, device: str) -> _Far:
        assert device == "meta"
        return self

    def take(self, *tensors: torch.Tensor) -> None:
        assert [t.device.type for t in tensors] == ["meta"] * len(tensors)

    def context(self, features, following, start=None):
        self.take(features, following, *([] if start is None else [start]))
        return [torch.zeros(2, 3)]

    def begin(self, anchor, position, context):
        self.take(anchor, position)
        return self

    def step(self, previous):
        self.take(previous)
        return torch.zeros(2, 1, 5), None

    def __call__(self, *, input_ids, position_ids, attention_mask, past_key_values, use_cache):
        self.take(input_ids, position_ids, attention_mask)
        return SimpleNamespace(last_hidden_state=torch.zeros(2, 3, 4))

    def get_output_embeddings(self):
        return lambda hidden: self.take(hidden) or torch.zeros(2, 9)


def test_all_that_a_drafter_is_given_is_moved_to_its_device() -> None:
    drafter = OnDevice(_Far(), "meta")
    ids, start = torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, dtype=torch.long)
    context = drafter.context(torch.zeros(2, 3, 1, 4), ids)
    drafter.context(torch.zeros(2, 3, 1, 4), ids, start)
    logits, confidence = drafter.begin(ids[:, :1], ids[:, :1], context).step(ids[:, :1])
    assert logits.device.type == "cpu"
    assert confidence is None


def test_all_that_a_target_is_given_is_moved_to_its_device() -> None:
    target = HuggingFaceTarget.__new__(HuggingFaceTarget)
    target.model = target._base = _Far()
    target.layers, target.config = [], SimpleNamespace()
    ids = torch.zeros(2, 3, dtype=torch.long)
    cache = SlotCache(None, 2)
    hidden, features = target(ids, torch.tensor([3, 2]), cache)
    assert hidden.device.type == features.device.type == "cpu"
    assert cache.length_B.tolist() == [3, 2]
    assert target.logits(hidden).device.type == "cpu"


@pytest.mark.parametrize("eagle", [False, True])
def test_a_drafter_behind_the_boundary_says_the_same(eagle: bool) -> None:
    target = small_target()
    plain = small_drafter(target, eagle=eagle, confidence=not eagle)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    far = OnDevice(small_drafter(target, eagle=eagle, confidence=not eagle), device)
    features = torch.randn(2, 6, 2, 32, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(12).reshape(2, 6) % 11
    said = []
    for drafter in (plain, far):
        context = drafter.context(features, ids)
        block = drafter.begin(ids[:, 4:5], torch.full((2, 1), 5), context)
        said.append([block.step(ids[:, k : k + 1])[0] for k in range(3)])
    torch.testing.assert_close(said[0], said[1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("device", ["tpu", "cuda:99x"])
def test_devices_that_are_not_there_are_refused(device: str) -> None:
    with pytest.raises(InputError, match=f"--device {device}: legal is cpu"):
        opening.open_target("some/model", device=device)


def test_threads_are_at_least_one() -> None:
    with pytest.raises(InputError, match="--threads is 0"):
        opening.set_threads(0)
