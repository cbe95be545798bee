"""An Eagle3-style drafter: one autoregressive layer over (target feature, next token) pairs.

Context entry s joins the fused target feature at position s with the embedding of token s + 1; the
block of anchor i starts at entry i - 1 and then feeds its own hidden states back. Trained as it is
used: gamma steps, each on the hidden state of the step before. Axes as in `dspark`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specsim.drafter.dspark import DSparkConfig, FeedForward, RMSNorm
from specsim.drafter.llama import rope_tables, rotate


class EagleAttention(nn.Module):
    """Causal attention whose inputs are twice as wide: normed embedding beside normed hidden."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        self.config = config
        wide, head = 2 * config.d_model, config.head_dim
        self.q_proj = nn.Linear(wide, config.num_heads * head, bias=False)
        self.k_proj = nn.Linear(wide, config.num_kv_heads * head, bias=False)
        self.v_proj = nn.Linear(wide, config.num_kv_heads * head, bias=False)
        self.o_proj = nn.Linear(config.num_heads * head, config.d_model, bias=False)

    def key_value(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys and values [..., kv_heads, d] of inputs [..., 2 D]."""
        c = self.config
        cos, sin = rope_tables(position, c.head_dim, c.rope_base)
        shape = (*x.shape[:-1], c.num_kv_heads, c.head_dim)
        key = rotate(self.k_proj(x).view(shape).float(), cos[..., None, :], sin[..., None, :])
        return key, self.v_proj(x).view(shape).float()

    def forward(
        self,
        x_BAW: Tensor,
        position_BA: Tensor,
        context: tuple[Tensor, Tensor],
        seen_BAN: Tensor,
        own: list[tuple[Tensor, Tensor]],
    ) -> Tensor:
        """Attend from one step of every block to its context and to its own earlier steps."""
        c = self.config
        batch, anchors, _ = x_BAW.shape
        kv, group, d = c.num_kv_heads, c.num_heads // c.num_kv_heads, c.head_dim
        cos, sin = rope_tables(position_BA, d, c.rope_base)
        q = self.q_proj(x_BAW).view(batch, anchors, c.num_heads, d).float()
        q = rotate(q, cos[..., None, :], sin[..., None, :]) * d**-0.5
        q = q.view(batch, anchors, kv, group, d).permute(0, 2, 1, 3, 4)
        far = q.reshape(batch, kv, anchors * group, d) @ context[0].permute(0, 2, 3, 1)
        far = far.view(batch, kv, anchors, group, -1)
        far = far.masked_fill(~seen_BAN[:, None, :, None], float("-inf"))
        parts = [far]
        if own:
            key = torch.stack([k for k, _ in own], dim=-1).permute(0, 2, 1, 3, 4)
            parts.append(q @ key)
        weight = torch.softmax(torch.cat(parts, dim=-1), dim=-1)
        split = far.shape[-1]
        far_weight = weight[..., :split].reshape(batch, kv, anchors * group, split)
        out = (far_weight @ context[1].permute(0, 2, 1, 3)).view(batch, kv, anchors, group, d)
        if own:
            value = torch.stack([v for _, v in own], dim=-2).permute(0, 2, 1, 3, 4)
            out = out + weight[..., split:] @ value
        out = out.permute(0, 2, 1, 3, 4).reshape(batch, anchors, c.num_heads * d)
        mixed: Tensor = self.o_proj(out)
        return mixed


class EagleLayer(nn.Module):
    """The one layer; names as in the released checkpoints."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        self.self_attn = EagleAttention(config)
        self.mlp = FeedForward(config.d_model, config.d_ffn)
        self.input_layernorm = RMSNorm(config.d_model, config.norm_eps)
        self.hidden_norm = RMSNorm(config.d_model, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.d_model, config.norm_eps)

    def join(self, embedding: Tensor, hidden: Tensor) -> Tensor:
        """Input of the attention [..., 2 D]."""
        return torch.cat((self.input_layernorm(embedding), self.hidden_norm(hidden)), dim=-1)


class Eagle3(nn.Module):
    """Drafter with frozen copies of the target's embedding and head, and no confidence head."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.lm_head = nn.Linear(config.d_model, config.draft_vocab_size, bias=False)
        self.embed_tokens.requires_grad_(False)
        self.lm_head.requires_grad_(False)
        width = len(config.target_layer_ids) * config.d_model
        self.fc = nn.Linear(width, config.d_model, bias=False)
        self.layers = nn.ModuleList([EagleLayer(config)])
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        self.register_buffer("token_id_V", torch.arange(config.draft_vocab_size), persistent=False)
        self.token_id_V: Tensor

    @property
    def layer(self) -> EagleLayer:
        """The one layer."""
        layer = self.layers[0]
        assert isinstance(layer, EagleLayer)
        return layer

    def context(
        self, features_BNMD: Tensor, following_BN: Tensor, start_B: Tensor | None = None
    ) -> list[Tensor]:
        """Keys, values and fused features of the entries at N consecutive positions.

        Args:
            features_BNMD: target layer outputs.
            following_BN: the token after each position.
            start_B: position of the first; None for 0.
        """
        position = torch.arange(features_BNMD.shape[1], device=features_BNMD.device)[None]
        if start_B is not None:
            position = position + start_B[:, None]
        fused = self.fc(features_BNMD.flatten(2).to(self.fc.weight.dtype)).float()
        joined = self.layer.join(self.embed_tokens(following_BN).float(), fused)
        key, value = self.layer.self_attn.key_value(joined, position)
        return [key, value, fused]

    def begin(self, anchor_BA: Tensor, position_BA: Tensor, context: list[Tensor]) -> EagleBlock:
        """Start a block at every anchor (its index must be at least 1)."""
        index = (position_BA - 1)[..., None].expand(-1, -1, self.config.d_model)
        return EagleBlock(self, context[2].gather(1, index), position_BA, context)

    def score(
        self, previous_BAG: Tensor, position_BA: Tensor, context: list[Tensor]
    ) -> tuple[Tensor, None]:
        """Logits [B, A, G, V] of whole blocks given their true previous tokens."""
        block = self.begin(previous_BAG[..., 0], position_BA, context)
        logits = [block.step(previous_BAG[..., j])[0] for j in range(self.config.gamma)]
        return torch.stack(logits, dim=2), None


class EagleBlock:
    """Blocks in the middle of being drafted: each step feeds the hidden state of the last one."""

    def __init__(
        self, drafter: Eagle3, hidden_BAD: Tensor, position_BA: Tensor, context: list[Tensor]
    ) -> None:
        self._drafter = drafter
        self._hidden_BAD = hidden_BAD
        self._position_BA = position_BA
        self._context = (context[0], context[1])
        slots = torch.arange(context[0].shape[1], device=position_BA.device)
        self._seen_BAN = slots < position_BA[..., None]
        self._own: list[tuple[Tensor, Tensor]] = []
        self._slot = 0

    def step(self, previous_BA: Tensor) -> tuple[Tensor, None]:
        """Logits [B, A, V] of the next slot after these tokens."""
        drafter, layer = self._drafter, self._drafter.layer
        embedding = drafter.embed_tokens(previous_BA).float()
        joined = layer.join(embedding, self._hidden_BAD)
        position = self._position_BA - 1 + self._slot
        if self._slot > 0:  # the first step's own entry is the last one of the context
            self._own.append(layer.self_attn.key_value(joined, position))
        x = self._hidden_BAD + layer.self_attn(
            joined, position, self._context, self._seen_BAN, self._own
        )
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        self._hidden_BAD = x
        self._slot += 1
        return drafter.lm_head(drafter.norm(x)), None
