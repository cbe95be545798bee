"""Speculative decoding itself: draft, verify in one target pass, accept or resample, repeat.

p = target law, q = draft law. Draft x_k is accepted with probability min(1, p(x_k) / q(x_k)); after
the first rejection the token is drawn from (p - q)+ normalised, after none from p (the bonus).
Axes: B sequences, G drafts of a round, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specsim.drafter.drafting import DraftCache, Drafter, Proposal, Sampling, propose, sample
from specsim.drafter.target import Cache, Target
from specsim.errors import InputError

Verdict = tuple[Tensor, Tensor]


@dataclass(slots=True)
class Rollout:
    """One sequence decoded speculatively.

    Attributes:
        tokens: prompt and answer.
        prompt_tokens: how many of them are the prompt.
        accepted: drafts accepted in each round.
        whole: whether each round was free to accept all (not cut by the end token or the limit).
        confidence: the confidences of each round's drafts.
        finished: whether the end token was reached.
    """

    tokens: list[int]
    prompt_tokens: int
    accepted: list[int] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    confidence: list[list[float]] = field(default_factory=list)
    finished: bool = False


def pass_probability(p_x: Tensor, q_x: Tensor) -> Tensor:
    """min(1, p(x) / q(x)) for drafted tokens x (so q(x) > 0)."""
    return (p_x / q_x.clamp_min(1e-30)).clamp(max=1.0)


def after_rejection(p: Tensor, q: Tensor) -> Tensor:
    """(p - q)+ normalised [..., V]; p where rounding has left nothing of it."""
    residual = (p - q).clamp_min(0)
    mass = residual.sum(-1, keepdim=True)
    return torch.where(mass > 1e-8, residual / mass.clamp_min(1e-30), p)


def verify(target_BGV: Tensor, proposal: Proposal, generator: torch.Generator) -> Verdict:
    """Accept a prefix of each block and draw the token after it.

    Args:
        target_BGV: p after the anchor and after every draft, [B, k + 1, V].
        proposal: the drafts and the laws that they were drawn from.
        generator: draws everything.

    Returns:
        Accepted drafts [B] and the next token [B].
    """
    token, q_BGV = proposal.token_BG, proposal.law_BGV
    batch, drafts = token.shape
    p_x = target_BGV[:, :drafts].gather(-1, token[..., None])[..., 0]
    q_x = q_BGV.gather(-1, token[..., None])[..., 0]
    passed = torch.rand(batch, drafts, generator=generator) < pass_probability(p_x, q_x)
    accepted = passed.long().cumprod(dim=1).sum(dim=1)
    row = torch.arange(batch)
    law = target_BGV[row, accepted]
    rejected = accepted < drafts
    if drafts:
        q_next = q_BGV[row, accepted.clamp(max=drafts - 1)]
        law = torch.where(rejected[:, None], after_rejection(law, q_next), law)
    return accepted, sample(law, generator)


class Speculator:
    """A target, a drafter and sampling settings; `decode` runs them over prompts."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        sampling: Sampling,
        *,
        vocab_size: int,
        context_tokens: int,
        eos_id: int | None,
        verify: Callable[[Tensor, Proposal, torch.Generator], Verdict] = verify,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.sampling = sampling
        self.vocab_size = vocab_size
        self.context_tokens = context_tokens
        self.eos_id = eos_id
        self._verify = verify

    @torch.inference_mode()
    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        generator: torch.Generator,
        *,
        max_new_tokens: int,
        verify_len: int | None = None,
    ) -> list[Rollout]:
        """Answer all prompts side by side.

        Args:
            prompts: token ids, each at least one.
            generator: draws everything.
            max_new_tokens: longest answer.
            verify_len: drafts verified a round, up to gamma; None for gamma.

        Returns:
            One rollout a prompt, in order.

        Raises:
            InputError: a prompt is empty or does not fit, or verify_len is not 0..gamma.
        """
        gamma = self.drafter.config.gamma
        length = gamma if verify_len is None else verify_len
        if not 0 <= length <= gamma:
            raise InputError(
                f"verify_len is {length}, legal is 0 to this drafter's gamma of {gamma}"
            )
        for number, ids in enumerate(prompts):
            if not ids or len(ids) + max_new_tokens + gamma > self.context_tokens:
                raise InputError(
                    f"prompt {number} has {len(ids)} tokens; with {max_new_tokens} new ones and "
                    f"{gamma} drafts 1 to {self.context_tokens - max_new_tokens - gamma} fit"
                )
        out = [Rollout(list(ids), len(ids)) for ids in prompts]
        count = torch.tensor([len(ids) for ids in prompts])
        ids_BT = torch.zeros(len(prompts), int(count.max()), dtype=torch.long)
        for b, ids in enumerate(prompts):
            ids_BT[b, : len(ids)] = torch.tensor(ids)
        cache = self.target.new_cache(len(prompts), int(count.max()) + max_new_tokens + gamma + 1)
        layers = self.drafter.config.target_layer_ids
        hidden, features = self.target(ids_BT, count, cache, layers)
        first = hidden[torch.arange(len(prompts)), count - 1]
        anchor = sample(self.sampling.law(self.target.logits(first)), generator)
        following = torch.cat((ids_BT[:, 1:], torch.zeros_like(ids_BT[:, :1])), dim=1)
        following[torch.arange(len(prompts)), count - 1] = anchor
        drafts = DraftCache()
        drafts.put(torch.zeros_like(count), self.drafter.context(features, following))
        going = [
            not self._commit(one, [int(anchor[b])], max_new_tokens) for b, one in enumerate(out)
        ]
        rows = out
        while True:
            kept = torch.tensor(going).nonzero()[:, 0]
            rows = [rows[i] for i in kept.tolist()]
            if not rows:
                return out
            if len(kept) < len(anchor):
                cache.take_rows(kept)
                drafts.take_rows(kept)
                anchor = anchor[kept]
            anchor, going = self._round(
                rows, anchor, cache, drafts, generator, length=length, limit=max_new_tokens
            )

    def _round(
        self,
        rows: Sequence[Rollout],
        anchor_B: Tensor,
        cache: Cache,
        drafts: DraftCache,
        generator: torch.Generator,
        *,
        length: int,
        limit: int,
    ) -> tuple[Tensor, list[bool]]:
        """Draft, verify and commit once; returns the next anchors and who goes on."""
        start_B = cache.length_B
        proposal = propose(
            self.drafter,
            anchor_B,
            start_B,
            drafts.upto(int(start_B.max())),
            self.sampling,
            generator,
            length=length,
            vocab_size=self.vocab_size,
        )
        ids_BT = torch.cat((anchor_B[:, None], proposal.token_BG), dim=1)
        layers = self.drafter.config.target_layer_ids
        full = torch.full_like(anchor_B, length + 1)
        hidden, features = self.target(ids_BT, full, cache, layers)
        law = self.sampling.law(self.target.logits(hidden))
        accepted_B, next_B = self._verify(law, proposal, generator)
        following = torch.cat((proposal.token_BG, next_B[:, None]), dim=1)
        following[torch.arange(len(next_B)), accepted_B] = next_B
        drafts.put(start_B, self.drafter.context(features, following, start_B))
        cache.length_B = start_B + accepted_B + 1
        going = []
        for b, rollout in enumerate(rows):
            count = int(accepted_B[b])
            new = [*proposal.token_BG[b, :count].tolist(), int(next_B[b])]
            room = limit - (len(rollout.tokens) - rollout.prompt_tokens)
            ended = self.eos_id in new[:count]
            rollout.accepted.append(new.index(self.eos_id) + 1 if ended else count)
            rollout.whole.append(not ended and room >= length + 1)
            rollout.confidence.append(proposal.confidence_BG[b].tolist())
            going.append(not self._commit(rollout, new, limit))
        return next_B, going

    def _commit(self, rollout: Rollout, new: Sequence[int], limit: int) -> bool:
        """Append tokens up to the end token or the limit; returns whether that was the end."""
        for token in new:
            rollout.tokens.append(token)
            rollout.finished = token == self.eos_id
            if rollout.finished or len(rollout.tokens) - rollout.prompt_tokens >= limit:
                return True
        return False
