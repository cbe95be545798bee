"""The drafter's training loss: 0.1 CE + 0.9 TV + 1.0 BCE, weighted by position in the block.

p = target law, q = draft law. Axes: K slots (of any blocks), V draft vocabulary. Where the draft
vocabulary is a part of the target's, q is 0 on the rest, so that
TV(p, q) = (sum over V of |q - p| + 1 - sum over V of p) / 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossConfig:
    """Weights of the terms.

    Attributes:
        cross_entropy: of the target's own next token.
        total_variation: of the distance between the laws.
        confidence: of the confidence head's binary cross-entropy.
        deepspec: the released code's form: L1 without the 1/2, and decay constant 4 instead of
            the paper's gamma.
        soft_label: starting weight of the cross-entropy to the target's whole law (KL(p | q) but
            for a constant); it fades to 0 over the first half of training.
    """

    cross_entropy: float = 0.1
    total_variation: float = 0.9
    confidence: float = 1.0
    deepspec: bool = False
    soft_label: float = 0.0


def position_weight(gamma: int, *, deepspec: bool = False) -> Tensor:
    """exp(-j / c) for slot j = 0..gamma-1; c is gamma in the paper, 4 in the released code."""
    return torch.exp(
        -torch.arange(gamma, dtype=torch.float32) / (4.0 if deepspec else float(gamma))
    )


@dataclass(frozen=True, slots=True)
class Losses:
    """The total and its terms, each a weighted mean over slots; `accept_K` is c* = 1 - TV."""

    total: Tensor
    cross_entropy: Tensor
    total_variation: Tensor
    confidence: Tensor
    soft_label: Tensor
    accept_K: Tensor


class _LawTerms(torch.autograd.Function):
    """The three terms that compare laws, their gradient worked out by hand in the forward pass.

    Plain autograd walks over [K, V] arrays some 25 times, this does about 10 times, in pieces that
    stay in the processor's cache; `plain_law_terms` is its twin for the tests.
    """

    ROWS = 128

    @staticmethod
    def forward(
        ctx: Any,
        logits_KV: Tensor,
        target_KV: Tensor,
        token_K: Tensor,
        ce_weight_K: Tensor,
        tv_weight_K: Tensor,
        soft_weight_K: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return sum(w . terms) and the terms: CE [K], TV [K], soft-label cross-entropy [K]."""
        grad = torch.empty_like(logits_KV)
        ce, tv, soft = (torch.empty(len(logits_KV)) for _ in range(3))
        for start in range(0, len(logits_KV), _LawTerms.ROWS):
            at = slice(start, start + _LawTerms.ROWS)
            p, token, a, b, c = (
                t[at] for t in (target_KV, token_K, ce_weight_K, tv_weight_K, soft_weight_K)
            )
            q = logits_KV[at].float()
            log_z = torch.logsumexp(q, dim=-1, keepdim=True)
            q = q - log_z
            index = token.clamp_min(0)[:, None]
            mass = p.sum(-1)
            ce[at] = -q.gather(-1, index)[:, 0]
            soft[at] = -torch.linalg.vecdot(p, q)
            q.exp_()
            side = q - p
            tv[at] = (torch.linalg.vector_norm(side, ord=1, dim=-1) + 1 - mass) / 2
            side.sign_()
            common = a + c * mass - b / 2 * torch.linalg.vecdot(q, side)
            side.mul_(b[:, None] / 2).add_(common[:, None]).mul_(q).sub_(p * c[:, None])
            side.scatter_add_(-1, index, -a[:, None])
            grad[at] = side
        ctx.save_for_backward(grad)
        total = (ce * ce_weight_K + tv * tv_weight_K + soft * soft_weight_K).sum()
        ctx.mark_non_differentiable(ce, tv, soft)
        return total, ce, tv, soft

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the saved gradient."""
        (grad,) = ctx.saved_tensors
        return grad * grads[0].to(grad.dtype), None, None, None, None, None


def plain_law_terms(
    logits_KV: Tensor, target_KV: Tensor, token_K: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """CE, TV and soft-label cross-entropy of each slot [K], by plain differentiable steps."""
    log_q = torch.log_softmax(logits_KV.float(), dim=-1)
    ce_K = -log_q.gather(-1, token_K.clamp_min(0)[:, None])[:, 0]
    tv_K = ((log_q.exp() - target_KV).abs().sum(-1) + 1 - target_KV.sum(-1)) / 2
    return ce_K, tv_K, -(target_KV * log_q).sum(-1)


def block_loss(
    logits_KV: Tensor,
    confidence_K: Tensor | None,
    target_KV: Tensor,
    token_K: Tensor,
    weight_K: Tensor,
    config: LossConfig,
    *,
    soft_label: float = 0.0,
) -> Losses:
    """Score slots of drafted blocks against the target.

    Args:
        logits_KV: the drafter's logits.
        confidence_K: the confidence head's logits; None without a head.
        target_KV: p on the draft vocabulary; a row sums to 1 minus the mass outside.
        token_K: the target's own token as an index of the draft vocabulary, -1 if outside of it
            (such slots have no cross-entropy).
        weight_K: position weights, 0 for slots past the text's end.
        config: weights of the terms.
        soft_label: present weight of the soft-label term.

    Returns:
        The losses; c* is detached and taken at temperature 1.
    """
    share_K = weight_K / weight_K.sum().clamp_min(1e-8)
    inside_K = weight_K * (token_K >= 0)
    inside_share_K = inside_K / inside_K.sum().clamp_min(1e-8)
    tv_scale = config.total_variation * (2.0 if config.deepspec else 1.0)
    total, ce_K, tv_K, soft_K = _LawTerms.apply(  # type: ignore[no-untyped-call]
        logits_KV,
        target_KV,
        token_K,
        config.cross_entropy * inside_share_K,
        tv_scale * share_K,
        soft_label * share_K,
    )
    accept_K = (1 - tv_K).clamp(0, 1)
    bce = total.new_zeros(())
    if confidence_K is not None:
        each = F.binary_cross_entropy_with_logits(confidence_K.float(), accept_K, reduction="none")
        bce = (each * share_K).sum()
        total = total + config.confidence * bce
    return Losses(
        total,
        (ce_K * inside_share_K).sum(),
        (tv_K * share_K).sum() * (2.0 if config.deepspec else 1.0),
        bce.detach(),
        (soft_K * share_K).sum(),
        accept_K,
    )
