"""Capture: the block that the drafter proposes at every anchor of a text the target wrote.

p = target law, q = draft law. Given the text y, draft k agrees with y_k with probability
min(1, q(y_k) / p(y_k)); otherwise it is drawn from (q - p)+ normalised and the block goes on from
that wrong token. That is the joint law of (draft, output) under rejection sampling, read backwards.
Axes: A anchors of one sequence, G slots, N positions, V draft vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specsim.acceptance.trace import DenseTrace
from specsim.drafter.drafting import Drafter, Sampling, sample
from specsim.drafter.generate import Written
from specsim.errors import InputError

# float16 has to stay strictly inside (0, 1).
CONFIDENCE_RANGE = (1e-4, 0.9995)


@dataclass(frozen=True, slots=True)
class Coupled:
    """Blocks at the A anchors of one sequence.

    Attributes:
        confidence_AG: of each draft, float32; NaN for a drafter without a confidence head.
        accept_rate_AG: sum(min(p, q)); NaN past the first rejection or the text's end.
        draft_prob_AG: q of each drafted token.
        num_accepted_A: drafts that agree with the text, before the first that does not.
        token_AG: the drafted tokens.
    """

    confidence_AG: Tensor
    accept_rate_AG: Tensor
    draft_prob_AG: Tensor
    num_accepted_A: Tensor
    token_AG: Tensor


@torch.inference_mode()
def couple(
    drafter: Drafter,
    text: Written,
    target_NV: Tensor,
    sampling: Sampling,
    generator: torch.Generator,
) -> Coupled:
    """Draft at every anchor of one sequence, in one batched pass, given its text.

    Args:
        drafter: whose blocks.
        text: tokens and features of a sequence that the target sampled at these settings.
        target_NV: p restricted to the draft vocabulary, after each position of the answer: row 0
            is the law of the answer's second token.
        sampling: the settings, the same for p and q.
        generator: draws everything.

    Returns:
        Anchors are the answer's tokens but the last.
    """
    tokens = torch.tensor(text.tokens)
    position = torch.arange(text.prompt_tokens, len(tokens) - 1)
    anchors, gamma = len(position), drafter.config.gamma
    features = torch.cat(text.features)[None]
    inverse = torch.full((drafter.config.vocab_size,), -1)
    inverse[drafter.token_id_V] = torch.arange(len(drafter.token_id_V))
    block = drafter.begin(
        tokens[position][None], position[None], drafter.context(features, tokens[None, 1:])
    )
    agreeing = torch.ones(anchors, dtype=torch.bool)
    accepted = torch.zeros(anchors, dtype=torch.long)
    previous = tokens[position]
    columns: list[tuple[Tensor, ...]] = []
    for k in range(gamma):
        logits, confidence = block.step(previous[None])
        q = sampling.law(logits[0])
        index = torch.arange(anchors) + k
        inside = index < anchors
        at = index.clamp(max=anchors - 1)
        p = target_NV[at]
        true = inverse[tokens[position[at] + 1]]
        q_true = torch.where(true >= 0, q.gather(1, true.clamp_min(0)[:, None])[:, 0], 0.0)
        p_true = p.gather(1, true.clamp_min(0)[:, None])[:, 0]
        uniform = torch.rand(anchors, generator=generator)
        live = agreeing & inside
        agree = live & (uniform * p_true < q_true)
        wrong = live & ~agree
        chosen = true.clone()
        residual = (q[wrong] - p[wrong]).clamp_min(0)
        # Rounding can leave no residual where p and q are the same; then q itself is right.
        empty = residual.sum(-1, keepdim=True) <= 1e-8
        chosen[wrong] = sample(torch.where(empty, q[wrong], residual), generator)
        loose = ~live
        chosen[loose] = sample(q[loose], generator)
        rate = q.new_full((anchors,), float("nan"))
        rate[live] = torch.minimum(p[live], q[live]).sum(-1)
        none = torch.full_like(rate, float("nan"))
        said = none if confidence is None else torch.sigmoid(confidence[0].float())
        columns.append((said, rate, q.gather(1, chosen[:, None])[:, 0], drafter.token_id_V[chosen]))
        accepted += agree
        agreeing = agree
        previous = columns[-1][3]
    said, rate, prob, token = (torch.stack(part, dim=1) for part in zip(*columns, strict=True))
    return Coupled(said, rate, prob, accepted, token)


def answer_laws(
    text: Written, logits: Callable[[Tensor], Tensor], token_id_V: Tensor, sampling: Sampling
) -> Tensor:
    """P on the draft vocabulary after each token of the answer but the last, [A, V]."""
    hidden = torch.cat(text.hidden)[text.prompt_tokens :].float()
    parts = [sampling.law(logits(part))[:, token_id_V] for part in torch.split(hidden, 64)]
    return torch.cat(parts)


def capture(
    drafter: Drafter,
    texts: Iterable[Written],
    logits: Callable[[Tensor], Tensor],
    sampling: Sampling,
    generator: torch.Generator,
    *,
    domain_names: Sequence[str],
    metadata: Mapping[str, Any],
    progress: Callable[[int], None] | None = None,
) -> DenseTrace:
    """Couple every text and pack the blocks into a dense trace.

    Args:
        drafter: with a confidence head.
        texts: sequences sampled by the target at these settings, with features and hidden states.
        logits: the target's head.
        sampling: the settings.
        generator: draws everything.
        domain_names: names of the texts' domain indices.
        metadata: of the trace; sizes and hashes are added.
        progress: called with the anchors of each sequence.

    Returns:
        The trace; confidences are float16 inside (0, 1).

    Raises:
        InputError: no text has an anchor, or the drafter has no confidence head.
    """
    done: list[tuple[Coupled, int]] = []
    digest = hashlib.sha256()
    for text in texts:
        if len(text.tokens) - text.prompt_tokens < 2:
            continue
        target = answer_laws(text, logits, drafter.token_id_V, sampling)
        one = couple(drafter, text, target, sampling, generator)
        if bool(one.confidence_AG.isnan().any()):
            raise InputError("this drafter has no confidence head: a trace needs one")
        digest.update(np.asarray(text.tokens, dtype=np.uint32).tobytes())
        done.append((one, text.domain))
        if progress is not None:
            progress(len(one.num_accepted_A))
    if not done:
        raise InputError("no text has an anchor: answers of at least two tokens are needed")
    count = np.array([len(one.num_accepted_A) for one, _ in done])

    def pack(name: str) -> np.ndarray[Any, np.dtype[np.float16]]:
        return torch.cat([getattr(one, name) for one, _ in done]).half().numpy()

    confidence = np.clip(pack("confidence_AG"), *np.array(CONFIDENCE_RANGE, dtype=np.float16))
    sizes = {"gamma": drafter.config.gamma, "anchors": int(count.sum()), "sequences": len(done)}
    return DenseTrace(
        confidence_NG=confidence,
        num_accepted_N=torch.cat([one.num_accepted_A for one, _ in done]).numpy().astype(np.uint8),
        sequence_offset_S1=np.concatenate(([0], count.cumsum())).astype(np.int64),
        sequence_domain_S=np.array([domain for _, domain in done], dtype=np.uint8),
        domain_names=tuple(domain_names),
        accept_rate_NG=pack("accept_rate_AG"),
        draft_prob_NG=pack("draft_prob_AG"),
        metadata={**metadata, **sizes, "tokens_sha256": digest.hexdigest(), "status": "measured"},
    )
