"""The DSpark drafter: a bidirectional block over injected target features, then a sequential head.

Axes: B sequences, A anchors of a sequence, G slots of a block, N context positions, M chosen target
layers, D width, V draft vocabulary. Slot j (from 0) of a block with anchor i predicts token
i + 1 + j. Parameter names are those of the released checkpoints (DeepSpec), so that
`state_dict()` is the file layout. markov_rank 0 without a confidence head is DFlash.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specsim.drafter.llama import rms_norm, rope_tables, rotate
from specsim.errors import InputError

HEAD_TYPES = ("vanilla", "gated", "rnn")
KeyValue = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class DSparkConfig:
    """Sizes and options of a drafter.

    Attributes:
        vocab_size: of the target; the anchor and every previous token may be any of it.
        draft_vocab_size: tokens that the drafter can propose; equal to vocab_size for all.
        gamma: drafts a block (`block_size` in a checkpoint's config).
        target_layer_ids: target layers whose outputs are injected; -1 is the embedding.
        markov_rank: 0 for no sequential head (DFlash).
        markov_head_type: vanilla, gated or rnn.
        confidence: whether there is a confidence head.
        confidence_with_markov: whether it also reads the previous token's low-rank embedding.
        confidence_stop_gradient: keep its loss from changing anything but the head.
    """

    vocab_size: int
    d_model: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    d_ffn: int
    rope_base: float
    norm_eps: float
    gamma: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    draft_vocab_size: int
    markov_rank: int = 0
    markov_head_type: str = "vanilla"
    confidence: bool = False
    confidence_with_markov: bool = True
    confidence_stop_gradient: bool = False

    def __post_init__(self) -> None:
        if self.markov_rank > 0 and self.markov_head_type not in HEAD_TYPES:
            raise InputError(
                f"markov_head_type is {self.markov_head_type!r}, legal are {', '.join(HEAD_TYPES)}"
            )
        for name in ("gamma", "num_layers", "d_model", "draft_vocab_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}, at least 1 is needed")
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise InputError(
                f"mask_token_id is {self.mask_token_id}, legal is 0 to {self.vocab_size - 1}"
            )
        if self.draft_vocab_size > self.vocab_size:
            raise InputError(
                f"draft_vocab_size is {self.draft_vocab_size}, the target has {self.vocab_size}"
            )
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise InputError(
                f"{self.num_heads} heads cannot share {self.num_kv_heads} key-value heads"
            )
        if not self.target_layer_ids:
            raise InputError("target_layer_ids is empty: at least one target layer is needed")


class RMSNorm(nn.Module):
    """Root-mean-square norm with a weight, in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Norm the last axis."""
        return rms_norm(x, self.weight, self.eps)


class BlockAttention(nn.Module):
    """Queries from the block; keys and values from the injected context and the whole own block."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        self.config = config
        width, head = config.d_model, config.head_dim
        self.q_proj = nn.Linear(width, config.num_heads * head, bias=False)
        self.k_proj = nn.Linear(width, config.num_kv_heads * head, bias=False)
        self.v_proj = nn.Linear(width, config.num_kv_heads * head, bias=False)
        self.o_proj = nn.Linear(config.num_heads * head, width, bias=False)
        self.q_norm = RMSNorm(head, config.norm_eps)
        self.k_norm = RMSNorm(head, config.norm_eps)

    def key_value(self, x: Tensor, cos: Tensor, sin: Tensor) -> KeyValue:
        """Keys (normed, rotated) and values [..., kv_heads, d] of inputs [..., D]."""
        shape = (*x.shape[:-1], self.config.num_kv_heads, self.config.head_dim)
        key = rotate(self.k_norm(self.k_proj(x).view(shape)), cos[..., None, :], sin[..., None, :])
        return key, self.v_proj(x).view(shape).float()

    def forward(
        self, x_BAGD: Tensor, context: KeyValue, seen_BAN: Tensor, cos: Tensor, sin: Tensor
    ) -> Tensor:
        """Attend from every slot to context it may see and to its own block, both directions."""
        c = self.config
        batch, anchors, gamma, _ = x_BAGD.shape
        kv, group, d = c.num_kv_heads, c.num_heads // c.num_kv_heads, c.head_dim
        q = self.q_norm(self.q_proj(x_BAGD).view(batch, anchors, gamma, c.num_heads, d))
        q = rotate(q, cos[..., None, :], sin[..., None, :]) * d**-0.5
        key, value = self.key_value(x_BAGD, cos, sin)
        # [B, A, G, kv, group, d] -> [B, kv, A, group * G, d]
        q = q.view(batch, anchors, gamma, kv, group, d).permute(0, 3, 1, 4, 2, 5)
        q = q.reshape(batch, kv, anchors, group * gamma, d)
        own = q @ key.permute(0, 3, 1, 4, 2)
        far = q.reshape(batch, kv, -1, d) @ context[0].permute(0, 2, 3, 1)
        far = far.view(batch, kv, anchors, group * gamma, -1)
        far = far.masked_fill(~seen_BAN[:, None, :, None], float("-inf"))
        weight = torch.softmax(torch.cat((far, own), dim=-1), dim=-1)
        split = weight.shape[-1] - gamma
        out = weight[..., split:] @ value.permute(0, 3, 1, 2, 4)
        far_out = weight[..., :split].reshape(batch, kv, -1, split) @ context[1].permute(0, 2, 1, 3)
        out = out + far_out.view(out.shape)
        out = out.view(batch, kv, anchors, group, gamma, d).permute(0, 2, 4, 1, 3, 5)
        mixed: Tensor = self.o_proj(out.reshape(batch, anchors, gamma, c.num_heads * d))
        return mixed


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., D] to [..., D]."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class BlockLayer(nn.Module):
    """One drafter layer, pre-norm."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        self.self_attn = BlockAttention(config)
        self.mlp = FeedForward(config.d_model, config.d_ffn)
        self.input_layernorm = RMSNorm(config.d_model, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.d_model, config.norm_eps)

    def forward(
        self, x: Tensor, context: KeyValue, seen: Tensor, cos: Tensor, sin: Tensor
    ) -> Tensor:
        """Update the block's residual stream [B, A, G, D]."""
        x = x + self.self_attn(self.input_layernorm(x), context, seen, cos, sin)
        added: Tensor = self.mlp(self.post_attention_layernorm(x))
        return x + added


class MarkovHead(nn.Module):
    """Low-rank bias on a slot's logits from the token before it: W2 f(W1[previous])."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        rank, width = config.markov_rank, config.d_model
        self.kind = config.markov_head_type
        self.markov_w1 = nn.Embedding(config.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, config.draft_vocab_size, bias=False)
        nn.init.normal_(self.markov_w1.weight, std=rank**-0.5)
        nn.init.zeros_(self.markov_w2.weight)
        if self.kind == "gated":
            self.gate_proj = nn.Linear(width + rank, rank)
        if self.kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + width, 3 * rank)

    def step(self, previous: Tensor, h: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Bias [..., V] of one slot and the state after it.

        Args:
            previous: token before the slot [...].
            h: the slot's normed hidden state [..., D].
            state: RNN state [..., r]; None at slot 0 (zeros).
        """
        e = self.markov_w1(previous)
        if state is None:
            state = torch.zeros_like(e)
        if self.kind == "gated":
            e = torch.sigmoid(self.gate_proj(torch.cat((h, e), dim=-1))) * e
        elif self.kind == "rnn":
            z = self.joint_proj(torch.cat((state, e, h), dim=-1))
            gate, candidate, output = z.chunk(3, dim=-1)
            gate = torch.sigmoid(gate)
            state = gate * state + (1 - gate) * torch.tanh(candidate)
            e = torch.tanh(output)
        return self.markov_w2(e), state

    def forward(self, previous_G: Tensor, h_GD: Tensor) -> Tensor:
        """Bias [..., G, V] of a whole block whose previous tokens [..., G] are known."""
        if self.kind != "rnn":
            return self.step(previous_G, h_GD, None)[0]
        state, out = None, []
        for j in range(previous_G.shape[-1]):
            bias, state = self.step(previous_G[..., j], h_GD[..., j, :], state)
            out.append(bias)
        return torch.stack(out, dim=-2)


class ConfidenceHead(nn.Module):
    """P(this draft is accepted | the earlier ones were), before the sigmoid."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1)
        nn.init.zeros_(self.proj.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., width] to logits [...]."""
        out: Tensor = self.proj(x)[..., 0]
        return out


class DSpark(nn.Module):
    """Drafter with frozen copies of the target's embedding and head."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.lm_head = nn.Linear(config.d_model, config.draft_vocab_size, bias=False)
        self.embed_tokens.requires_grad_(False)
        self.lm_head.requires_grad_(False)
        self.fc = nn.Linear(
            len(config.target_layer_ids) * config.d_model, config.d_model, bias=False
        )
        self.hidden_norm = RMSNorm(config.d_model, config.norm_eps)
        self.layers = nn.ModuleList(BlockLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        self.markov_head = MarkovHead(config) if config.markov_rank else None
        width = config.d_model + (self._confidence_rank())
        self.confidence_head = ConfidenceHead(width) if config.confidence else None
        # Draft token d is target token token_id_V[d]; not a parameter, saved beside the weights.
        self.register_buffer("token_id_V", torch.arange(config.draft_vocab_size), persistent=False)
        self.token_id_V: Tensor

    def _confidence_rank(self) -> int:
        return self.config.markov_rank if self.config.confidence_with_markov else 0

    def context(
        self, features_BNMD: Tensor, following_BN: Tensor, start_B: Tensor | None = None
    ) -> list[Tensor]:
        """Project target features once and give every layer's keys and values of them.

        Args:
            features_BNMD: target layer outputs at N consecutive positions.
            following_BN: the token after each; not read here, the Eagle3 drafter needs it.
            start_B: position of the first of them; None for 0.

        Returns:
            Keys and values [B, N, kv_heads, d] of each layer in turn.
        """
        position = torch.arange(features_BNMD.shape[1], device=features_BNMD.device)[None]
        if start_B is not None:
            position = position + start_B[:, None]
        cos, sin = rope_tables(position, self.config.head_dim, self.config.rope_base)
        shared = self.hidden_norm(self.fc(features_BNMD.flatten(2).to(self.fc.weight.dtype)))
        out: list[Tensor] = []
        for layer in self.layers:
            assert isinstance(layer, BlockLayer)
            out += layer.self_attn.key_value(shared, cos, sin)
        return out

    def block(self, anchor_BA: Tensor, position_BA: Tensor, context: list[Tensor]) -> Tensor:
        """Hidden states [B, A, G, D], normed, of the blocks of all anchors in one pass.

        Args:
            anchor_BA: anchor tokens.
            position_BA: their indices; a block sees the context before its anchor only.
            context: what `context` gave.
        """
        c = self.config
        gamma = c.gamma
        ids = torch.full((*anchor_BA.shape, gamma), c.mask_token_id, device=anchor_BA.device)
        ids[..., 0] = anchor_BA
        position = position_BA[..., None] + torch.arange(gamma, device=anchor_BA.device)
        cos, sin = rope_tables(position, c.head_dim, c.rope_base)
        length = context[0].shape[1]
        seen = torch.arange(length, device=anchor_BA.device) < position_BA[..., None]
        x = self.embed_tokens(ids).float()
        for index, layer in enumerate(self.layers):
            x = layer(x, (context[2 * index], context[2 * index + 1]), seen, cos, sin)
        normed: Tensor = self.norm(x)
        return normed

    def score(
        self, previous_BAG: Tensor, position_BA: Tensor, context: list[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """Score whole blocks given their true previous tokens (teacher forcing).

        Args:
            previous_BAG: token before each slot; that of slot 0 is the anchor.
            position_BA: indices of the anchors.
            context: what `context` gave.

        Returns:
            Logits [B, A, G, V] and confidence logits [B, A, G] (None without a head).
        """
        h = self.block(previous_BAG[..., 0], position_BA, context)
        logits = self.lm_head(h)
        if self.markov_head is not None:
            logits = logits + self.markov_head(previous_BAG, h)
        return logits, self.confidence_logit(h, previous_BAG)

    def confidence_logit(self, h: Tensor, previous: Tensor) -> Tensor | None:
        """Confidence logits [...] of slots with hidden states [..., D] and the tokens before."""
        if self.confidence_head is None:
            return None
        parts = [h]
        if self.markov_head is not None and self.config.confidence_with_markov:
            parts.append(self.markov_head.markov_w1(previous).to(h.dtype))
        x = torch.cat(parts, dim=-1)
        x = x.detach() if self.config.confidence_stop_gradient else x
        out: Tensor = self.confidence_head(x)
        return out

    def begin(self, anchor_BA: Tensor, position_BA: Tensor, context: list[Tensor]) -> DSparkBlock:
        """Draft the parallel part of a block at every anchor; `step` then goes slot by slot."""
        return DSparkBlock(self, self.block(anchor_BA, position_BA, context))


class DSparkBlock:
    """Blocks whose hidden states are known and whose tokens are chosen one slot after another."""

    def __init__(self, drafter: DSpark, h_BAGD: Tensor) -> None:
        self._drafter = drafter
        self._h_BAGD = h_BAGD
        self._state: Tensor | None = None
        self._slot = 0

    def step(self, previous_BA: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits [B, A, V] and confidence logits [B, A] of the next slot after these tokens."""
        h = self._h_BAGD[:, :, self._slot]
        self._slot += 1
        logits = self._drafter.lm_head(h).float()
        if self._drafter.markov_head is not None:
            bias, self._state = self._drafter.markov_head.step(previous_BA, h, self._state)
            logits = logits + bias
        return logits, self._drafter.confidence_logit(h, previous_BA)
