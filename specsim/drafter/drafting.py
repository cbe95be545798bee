"""Laws and blocks: sampling settings, what a drafter offers, its context cache, one proposal.

p = target law, q = draft law. The law that a draft is drawn from is the law that it is accepted
under, processed alike, in float32 (a bfloat16 q biases the output).
Axes: B sequences, G slots, V vocabulary of the target (q is 0 outside the draft vocabulary).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specsim.drafter.dspark import DSpark, DSparkConfig
from specsim.drafter.eagle import Eagle3
from specsim.errors import InputError

GREEDY = 1e-5


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn from logits, on both sides.

    Attributes:
        temperature: below 1e-5 the law is one-hot at the first largest logit.
        top_k: keep the k most likely tokens; 0 for all.
        top_p: keep the smallest set of most likely tokens with at least this mass.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:
            raise InputError(f"temperature is {self.temperature}, legal is 0 to 100")
        if self.top_k < 0:
            raise InputError(f"top_k is {self.top_k}, legal is 0 (off) or more")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}, legal is above 0 up to 1 (off)")

    def law(self, logits: Tensor) -> Tensor:
        """Turn logits [..., V] into probabilities, float32."""
        logits = logits.float()
        if self.temperature < GREEDY:
            return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        prob = torch.softmax(logits if self.temperature == 1 else logits / self.temperature, dim=-1)
        if self.top_k or self.top_p < 1:
            ordered, index = prob.sort(dim=-1, descending=True, stable=True)
            before = ordered.cumsum(-1) - ordered
            keep = before < self.top_p
            if self.top_k:
                keep[..., self.top_k :] = False
            keep[..., 0] = True
            prob = torch.zeros_like(prob).scatter_(-1, index, ordered * keep)
            prob = prob / prob.sum(-1, keepdim=True)
        return prob


def sample(law: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one index a row from probabilities [..., V] (need not sum to exactly 1)."""
    cdf = law.cumsum(-1, dtype=torch.float64)
    uniform = torch.rand(*law.shape[:-1], 1, generator=generator, dtype=torch.float64)
    index = torch.searchsorted(cdf, uniform * cdf[..., -1:], right=True)[..., 0]
    past = index >= law.shape[-1]
    if bool(past.any()):  # a uniform that rounded up to the total: the last token with any mass
        index[past] = law.shape[-1] - 1 - (law[past].flip(-1) > 0).int().argmax(-1)
    return index


class Block(Protocol):
    """Blocks that are being drafted slot by slot."""

    def step(self, previous_BA: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits [B, A, V] over the draft vocabulary and confidence logits [B, A]."""


class Drafter(Protocol):
    """DSpark, DFlash (DSpark without heads) and Eagle3."""

    config: DSparkConfig
    token_id_V: Tensor

    def context(
        self, features_BNMD: Tensor, following_BN: Tensor, start_B: Tensor | None = None
    ) -> list[Tensor]:
        """What blocks need of N consecutive target positions, each [B, N, ...]."""

    def begin(self, anchor_BA: Tensor, position_BA: Tensor, context: list[Tensor]) -> Block:
        """Start blocks at the given anchors."""


class OnDevice:
    """A drafter on an accelerator that takes tokens and positions from the CPU and answers there.

    Its context stays on the accelerator.
    """

    def __init__(self, drafter: DSpark | Eagle3, device: str) -> None:
        self.config = drafter.config
        self.token_id_V = drafter.token_id_V
        self._device = device
        self._drafter = drafter.to(device)

    def context(
        self, features_BNMD: Tensor, following_BN: Tensor, start_B: Tensor | None = None
    ) -> list[Tensor]:
        """What blocks need, kept on the accelerator."""
        start_B = None if start_B is None else start_B.to(self._device)
        features_BNMD = features_BNMD.to(self._device)
        return self._drafter.context(features_BNMD, following_BN.to(self._device), start_B)

    def begin(self, anchor_BA: Tensor, position_BA: Tensor, context: list[Tensor]) -> Block:
        """Start blocks at the given anchors."""
        anchor_BA, position_BA = anchor_BA.to(self._device), position_BA.to(self._device)
        return _BlockOnDevice(self._drafter.begin(anchor_BA, position_BA, context), self._device)


class _BlockOnDevice:
    def __init__(self, block: Block, device: str) -> None:
        self._block = block
        self._device = device

    def step(self, previous_BA: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits and confidence logits, on the CPU."""
        logits, confidence = self._block.step(previous_BA.to(self._device))
        return logits.cpu(), None if confidence is None else confidence.cpu()


class DraftCache:
    """The drafter's context of B sequences of unequal length, grown as tokens are committed.

    What lies at or past a block's anchor is never read, so a rejected tail is simply overwritten.
    """

    def __init__(self) -> None:
        self.parts: list[Tensor] = []

    def put(self, start_B: Tensor, new: list[Tensor]) -> None:
        """Write context of T positions from start_B on, for every row."""
        batch, count = new[0].shape[:2]
        end = int(start_B.max()) + count
        if not self.parts:
            self.parts = [part.new_zeros(batch, max(end, 64), *part.shape[2:]) for part in new]
        short = end - self.parts[0].shape[1]
        if short > 0:
            short = max(short, self.parts[0].shape[1])
            self.parts = [
                torch.cat((part, part.new_zeros(batch, short, *part.shape[2:])), dim=1)
                for part in self.parts
            ]
        position = start_B[:, None] + torch.arange(count, device=start_B.device)
        row = torch.arange(batch, device=start_B.device)[:, None]
        for part, fresh in zip(self.parts, new, strict=True):
            part[row, position] = fresh

    def upto(self, longest: int) -> list[Tensor]:
        """The first `longest` positions of every part."""
        return [part[:, :longest] for part in self.parts]

    def take_rows(self, row: Tensor) -> None:
        """Keep the sequences `row`, in that order."""
        self.parts = [part[row] for part in self.parts]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Blocks of B sequences: tokens [B, k], laws [B, k, V], confidences [B, k] (NaN: no head)."""

    token_BG: Tensor
    law_BGV: Tensor
    confidence_BG: Tensor


def propose(
    drafter: Drafter,
    anchor_B: Tensor,
    position_B: Tensor,
    context: list[Tensor],
    sampling: Sampling,
    generator: torch.Generator,
    *,
    length: int,
    vocab_size: int,
) -> Proposal:
    """Draft `length` tokens after the anchor of every sequence."""
    if length == 0:
        nothing = anchor_B.new_zeros(len(anchor_B), 0)
        law = torch.zeros(len(anchor_B), 0, vocab_size)
        return Proposal(nothing, law, nothing.float())
    block = drafter.begin(anchor_B[:, None], position_B[:, None], context)
    previous = anchor_B
    tokens, laws, confidences = [], [], []
    for _ in range(length):
        logits, confidence = block.step(previous[:, None])
        law = sampling.law(logits[:, 0])
        previous = drafter.token_id_V[sample(law, generator)]
        full = law.new_zeros(len(law), vocab_size)
        full[:, drafter.token_id_V] = law
        tokens.append(previous)
        laws.append(full)
        none = torch.full_like(law[:, 0], float("nan"))
        confidences.append(none if confidence is None else torch.sigmoid(confidence[:, 0].float()))
    return Proposal(torch.stack(tokens, 1), torch.stack(laws, 1), torch.stack(confidences, 1))
