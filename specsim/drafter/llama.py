"""A plain PyTorch Llama: KV cache, batches of sequences of unequal length, layer outputs.

Axes: B sequences, T new tokens, S cached positions, D model width, M chosen layers, V vocabulary.
The residual stream and the norms are float32; the matrix products run in `compute_dtype`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes of a Llama; the defaults of SmolLM2-135M."""

    vocab_size: int = 49152
    d_model: int = 576
    num_layers: int = 30
    num_heads: int = 9
    num_kv_heads: int = 3
    d_ffn: int = 1536
    rope_base: float = 100_000.0
    norm_eps: float = 1e-5
    context: int = 8192

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.num_heads

    def to_dict(self) -> dict[str, int | float]:
        """Return the sizes as plain JSON values."""
        return asdict(self)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis, in float32."""
    return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), eps)


def rope_tables(position: Tensor, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine [..., head_dim / 2] of half-split rotary positions, float32."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32, device=position.device)
    angle = position.float()[..., None] * base ** (-exponent / head_dim)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply half-split rotary positions to the last axis of x; cos and sin broadcast."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class KVCache:
    """Keys and values of B sequences, each with its own length.

    Rolling back is lowering `length_B`: what lies past a length is never read.
    """

    def __init__(
        self, config: LlamaConfig, batch: int, capacity: int, *, dtype: torch.dtype, device: str
    ) -> None:
        shape = (config.num_layers, batch, config.num_kv_heads, capacity, config.head_dim)
        self.key_LBHSd = torch.zeros(shape, dtype=dtype, device=device)
        self.value_LBHSd = torch.zeros(shape, dtype=dtype, device=device)
        self.length_B = torch.zeros(batch, dtype=torch.long, device=device)

    @property
    def capacity(self) -> int:
        """Positions that fit."""
        return self.key_LBHSd.shape[3]

    def reserve(self, positions: int) -> None:
        """Grow, by doubling, until `positions` fit."""
        if positions <= self.capacity:
            return
        grown = max(positions, 2 * self.capacity)
        extra = list(self.key_LBHSd.shape)
        extra[3] = grown - self.capacity
        blank = self.key_LBHSd.new_zeros(extra)
        self.key_LBHSd = torch.cat((self.key_LBHSd, blank), dim=3)
        self.value_LBHSd = torch.cat((self.value_LBHSd, blank), dim=3)

    def put_rows(self, row: Tensor, other: KVCache) -> None:
        """Copy every sequence of `other` into the rows `row` of this cache."""
        self.reserve(other.capacity)
        size = other.capacity
        self.key_LBHSd[:, row, :, :size] = other.key_LBHSd
        self.value_LBHSd[:, row, :, :size] = other.value_LBHSd
        self.length_B[row] = other.length_B

    def take_rows(self, row: Tensor) -> None:
        """Keep the rows `row`, in that order (an index or a mask); the others are dropped."""
        self.key_LBHSd = self.key_LBHSd[:, row]
        self.value_LBHSd = self.value_LBHSd[:, row]
        self.length_B = self.length_B[row]


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Grouped-query attention with the query groups folded into the query axis.

    Args:
        query: [B, heads, T, d].
        key: [B, kv_heads, S, d].
        value: [B, kv_heads, S, d].
        mask: bool [B, T, S], true where a query may look.

    Returns:
        [B, heads, T, d].
    """
    batch, heads, new, width = query.shape
    kv_heads = key.shape[1]
    folded = query.reshape(batch, kv_heads, heads // kv_heads * new, width)
    wide = mask[:, None].expand(batch, heads // kv_heads, new, mask.shape[-1])
    wide = wide.reshape(batch, 1, heads // kv_heads * new, mask.shape[-1])
    out = F.scaled_dot_product_attention(folded, key, value, attn_mask=wide)
    return out.reshape(batch, heads, new, width)


class LlamaLayer(nn.Module):
    """One decoder block; query, key and value in one product, gate and up in another."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        width, kv_width = config.d_model, config.num_kv_heads * config.head_dim
        self.norm_attn = nn.Parameter(torch.ones(width))
        self.norm_ffn = nn.Parameter(torch.ones(width))
        self.qkv = nn.Linear(width, width + 2 * kv_width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * config.d_ffn, bias=False)
        self.down = nn.Linear(config.d_ffn, width, bias=False)

    def project(self, x_BTD: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normed input -> rotated query [B, H, T, d], rotated key and value [B, KV, T, d]."""
        c = self.config
        batch, new, _ = x_BTD.shape
        kv_width = c.num_kv_heads * c.head_dim
        normed = rms_norm(x_BTD, self.norm_attn, c.norm_eps).to(self.qkv.weight.dtype)
        q, k, v = self.qkv(normed).split((c.d_model, kv_width, kv_width), dim=-1)
        q = q.view(batch, new, c.num_heads, c.head_dim).transpose(1, 2)
        k = k.view(batch, new, c.num_kv_heads, c.head_dim).transpose(1, 2)
        v = v.view(batch, new, c.num_kv_heads, c.head_dim).transpose(1, 2)
        return rotate(q, cos[:, None], sin[:, None]), rotate(k, cos[:, None], sin[:, None]), v

    def finish(self, x_BTD: Tensor, attended_BHTd: Tensor) -> Tensor:
        """Add the attention output and the feed-forward output to the residual stream."""
        x_BTD = x_BTD + self.out(attended_BHTd.transpose(1, 2).flatten(2))
        normed = rms_norm(x_BTD, self.norm_ffn, self.config.norm_eps).to(self.down.weight.dtype)
        gate, up = self.gate_up(normed).chunk(2, dim=-1)
        added: Tensor = self.down(F.silu(gate) * up)
        return x_BTD + added


class Llama(nn.Module):
    """A decoder with a tied head. `forward` returns hidden states; `logits` applies the head."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(LlamaLayer(config) for _ in range(config.num_layers))
        self.norm = nn.Parameter(torch.ones(config.d_model))

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of the matrix products."""
        return self.embed.weight.dtype

    def new_cache(self, batch: int, capacity: int) -> KVCache:
        """Return an empty cache for `batch` sequences."""
        device = str(self.embed.weight.device)
        return KVCache(self.config, batch, capacity, dtype=self.compute_dtype, device=device)

    def forward(
        self,
        ids_BT: Tensor,
        count_B: Tensor,
        cache: KVCache | None,
        layers: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor]:
        """Read the next tokens of every sequence.

        Args:
            ids_BT: new tokens; row b uses the first count_B[b], the rest is padding.
            count_B: how many of them are real.
            cache: what came before; it takes the new keys and values and its lengths grow. None
                reads from scratch and keeps nothing (training).
            layers: whose outputs to return; -1 is the embedding.

        Returns:
            Final normed hidden states [B, T, D] float32 and layer outputs [B, T, M, D] in the
            compute dtype.
        """
        batch, new = ids_BT.shape
        start_B = torch.zeros_like(count_B) if cache is None else cache.length_B
        end = int(start_B.max()) + new
        if cache is not None:
            cache.reserve(end)
        position_BT = start_B[:, None] + torch.arange(new, device=ids_BT.device)
        cos, sin = rope_tables(position_BT, self.config.head_dim, self.config.rope_base)
        mask_BTS = torch.arange(end, device=ids_BT.device) <= position_BT[..., None]
        row_B1 = torch.arange(batch, device=ids_BT.device)[:, None]
        x = self.embed(ids_BT).float()
        kept: dict[int, Tensor] = {-1: x} if -1 in layers else {}
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, LlamaLayer)
            q, k, v = layer.project(x, cos, sin)
            if cache is not None:
                keys, values = cache.key_LBHSd[index], cache.value_LBHSd[index]
                keys[row_B1, :, position_BT] = k.transpose(1, 2)
                values[row_B1, :, position_BT] = v.transpose(1, 2)
                k, v = keys[:, :, :end], values[:, :, :end]
            x = layer.finish(x, attend(q, k, v, mask_BTS))
            if index in layers:
                kept[index] = x
        if cache is not None:
            cache.length_B = start_B + count_B
        hidden = rms_norm(x, self.norm, self.config.norm_eps)
        if not layers:
            return hidden, hidden.new_zeros(batch, new, 0, self.config.d_model)
        return hidden, torch.stack([kept[i] for i in layers], dim=2).to(self.compute_dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [..., V] of final normed hidden states [..., D]."""
        return F.linear(hidden.to(self.compute_dtype), self.embed.weight).float()


def fuse(tensors: Mapping[str, Tensor], config: LlamaConfig) -> dict[str, Tensor]:
    """Turn Hugging Face Llama names into those of `Llama` (fused projections).

    Raises:
        KeyError: a tensor is missing.
    """
    out = {
        "embed.weight": tensors["model.embed_tokens.weight"],
        "norm": tensors["model.norm.weight"],
    }
    for i in range(config.num_layers):
        old, new = f"model.layers.{i}.", f"layers.{i}."
        attn = [tensors[f"{old}self_attn.{p}_proj.weight"] for p in ("q", "k", "v")]
        out[new + "qkv.weight"] = torch.cat(attn)
        out[new + "out.weight"] = tensors[old + "self_attn.o_proj.weight"]
        ffn = [tensors[f"{old}mlp.{p}_proj.weight"] for p in ("gate", "up")]
        out[new + "gate_up.weight"] = torch.cat(ffn)
        out[new + "down.weight"] = tensors[old + "mlp.down_proj.weight"]
        out[new + "norm_attn"] = tensors[old + "input_layernorm.weight"]
        out[new + "norm_ffn"] = tensors[old + "post_attention_layernorm.weight"]
    return out
