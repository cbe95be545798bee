"""A target and drafters small enough that whole laws can be written down."""

from __future__ import annotations

import torch

from specsim.drafter import tiny
from specsim.drafter.dspark import DSpark, DSparkConfig
from specsim.drafter.eagle import Eagle3
from specsim.drafter.llama import Llama

VOCAB = 11


def small_target(seed: int = 0, vocab: int = VOCAB) -> Llama:
    """Random weights, sharp enough that contexts matter."""
    model = tiny.new(seed, d_model=32, layers=3, vocab=vocab)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    return model.eval().requires_grad_(False)


def drafter_config(
    target: Llama,
    *,
    gamma: int = 4,
    rank: int = 3,
    kind: str = "vanilla",
    confidence: bool = True,
    draft_vocab: int = VOCAB,
) -> DSparkConfig:
    """A two-layer drafter of the target's sizes."""
    c = target.config
    return DSparkConfig(
        vocab_size=c.vocab_size, d_model=c.d_model, num_layers=2, num_heads=c.num_heads,
        num_kv_heads=c.num_kv_heads, head_dim=c.head_dim, d_ffn=c.d_ffn, rope_base=c.rope_base,
        norm_eps=c.norm_eps, gamma=gamma, target_layer_ids=(0, 1), mask_token_id=1,
        draft_vocab_size=draft_vocab, markov_rank=rank, markov_head_type=kind,
        confidence=confidence,
    )  # fmt: skip


def small_drafter(
    target: Llama,
    *,
    seed: int = 1,
    gamma: int = 4,
    rank: int = 3,
    kind: str = "vanilla",
    confidence: bool = True,
    eagle: bool = False,
    token_id: list[int] | None = None,
) -> DSpark | Eagle3:
    """Random weights everywhere, zero-initialised heads included."""
    ids = torch.tensor(token_id if token_id is not None else range(target.config.vocab_size))
    config = drafter_config(
        target, gamma=gamma, rank=rank, kind=kind, confidence=confidence, draft_vocab=len(ids)
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        drafter: DSpark | Eagle3 = Eagle3(config) if eagle else DSpark(config)
        for name, parameter in drafter.named_parameters():
            if "norm" not in name:
                torch.nn.init.normal_(parameter, std=0.3)
    with torch.no_grad():
        drafter.embed_tokens.weight.copy_(target.embed.weight)
        drafter.lm_head.weight.copy_(target.embed.weight[ids])
    drafter.token_id_V = ids
    return drafter.eval()
