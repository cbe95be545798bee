"""The loss: by hand, against its plain twin, and in the released code's form."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from specsim.drafter.loss import (  # noqa: E402
    LossConfig,
    block_loss,
    plain_law_terms,
    position_weight,
)


def test_one_slot_by_hand() -> None:
    q = torch.tensor([[0.5, 0.3, 0.2]])
    p = torch.tensor([[0.2, 0.3, 0.1]])  # 0.4 of the target's mass lies outside
    out = block_loss(
        q.log(), torch.tensor([0.0]), p, torch.tensor([0]), torch.tensor([1.0]), LossConfig()
    )
    tv = (0.3 + 0.0 + 0.1 + 0.4) / 2
    assert float(out.accept_K) == pytest.approx(1 - tv)
    assert float(out.total_variation) == pytest.approx(tv)
    assert float(out.cross_entropy) == pytest.approx(math.log(2))
    assert float(out.confidence) == pytest.approx(math.log(2))
    assert float(out.total) == pytest.approx(0.1 * math.log(2) + 0.9 * tv + math.log(2))


def test_the_released_form_has_no_half_and_its_own_decay() -> None:
    q, p = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.9, 0.1]])
    args = (q.log(), None, p, torch.tensor([0]), torch.tensor([1.0]))
    paper = block_loss(*args, LossConfig(cross_entropy=0))
    released = block_loss(*args, LossConfig(cross_entropy=0, deepspec=True))
    assert float(released.total) == pytest.approx(2 * float(paper.total))
    assert float(released.accept_K) == pytest.approx(float(paper.accept_K))
    assert position_weight(7)[-1] == pytest.approx(math.exp(-6 / 7))
    assert position_weight(7, deepspec=True)[-1] == pytest.approx(math.exp(-6 / 4))


def test_gradient_equals_that_of_the_plain_twin() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(300, 17, generator=generator, requires_grad=True)
    p = torch.softmax(torch.randn(300, 17, generator=generator), -1) * 0.9
    token = torch.randint(-1, 17, (300,), generator=generator)
    weight = torch.rand(300, generator=generator)
    out = block_loss(logits, None, p, token, weight, LossConfig(), soft_label=0.3)
    (got,) = torch.autograd.grad(out.total, logits)
    ce, tv, soft = plain_law_terms(logits, p, token)
    share, inside = weight / weight.sum(), weight * (token >= 0)
    total = (
        0.1 * (ce * inside / inside.sum()).sum()
        + 0.9 * (tv * share).sum()
        + 0.3 * (soft * share).sum()
    )
    (want,) = torch.autograd.grad(total, logits)
    assert float(out.total) == pytest.approx(float(total), rel=1e-5)
    torch.testing.assert_close(got, want, atol=1e-7, rtol=1e-4)


def test_acceptance_is_a_detached_label_and_padding_weighs_nothing() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(4, 5, generator=generator, requires_grad=True)
    said = torch.zeros(4, requires_grad=True)
    p = torch.softmax(torch.randn(4, 5, generator=generator), -1)
    weight = torch.tensor([1.0, 1.0, 0.0, 0.0])
    only_confidence = LossConfig(cross_entropy=0, total_variation=0)
    out = block_loss(logits, said, p, torch.tensor([0, 1, 2, 3]), weight, only_confidence)
    by_logits, by_said = torch.autograd.grad(out.total, (logits, said))
    assert by_logits.abs().max() == 0
    assert (by_said[2:] == 0).all()
    assert (by_said[:2] != 0).all()
    assert not out.accept_K.requires_grad
