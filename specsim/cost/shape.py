"""The dimensions of a transformer that decide what a step costs: weights, KV cache and flops.

Counts are exact for the matrices of a Llama-like decoder (grouped-query attention, gated MLP,
untied head) and for its mixture-of-experts form; norms and biases are left out (under 0.1%).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from specsim.errors import InputError, nearest
from specsim.inputs import Node, parse_json, read_text
from specsim.registry import Config


class ModelShape(Config):
    """Dimensions of one decoder-only transformer.

    Attributes:
        layers: decoder layers.
        d_model: width of the residual stream.
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: width of a head.
        ffn: inner width of the MLP, or of each expert.
        vocab: entries of the vocabulary.
        experts: routed experts a layer; 0 for a dense MLP.
        experts_per_token: routed experts that one token uses.
        shared_experts: experts that every token uses besides.
        latent_kv: entries of one token's compressed cache in one layer (multi-head latent
            attention); 0 for keys and values of each KV head.
        kv_share: share of the context that an average layer keeps, below 1 where some layers see a
            sliding window only.
        projection_weights: weights of one layer's attention projections where they are factored;
            0 for the plain ones.
    """

    layers: int = Field(ge=1)
    d_model: int = Field(ge=1)
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    ffn: int = Field(ge=1)
    vocab: int = Field(ge=2)
    experts: int = Field(default=0, ge=0)
    experts_per_token: int = Field(default=0, ge=0)
    shared_experts: int = Field(default=0, ge=0)
    latent_kv: int = Field(default=0, ge=0)
    kv_share: float = Field(default=1.0, gt=0, le=1)
    projection_weights: int = Field(default=0, ge=0)

    def attention_weights(self) -> int:
        """Weights of one layer's attention projections."""
        if self.projection_weights:
            return self.projection_weights
        inner = (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        return self.d_model * inner

    def expert_weights(self) -> int:
        """Weights of one MLP or one expert: gate, up and down."""
        return 3 * self.d_model * self.ffn

    def total_weights(self) -> int:
        """Weights that a deployment holds: all layers and the head, not the embedding table."""
        experts = max(1, self.experts + self.shared_experts)
        layer = self.attention_weights() + experts * self.expert_weights()
        return self.layers * layer + self.d_model * self.vocab

    def touched_weights(self, batch_tokens: float) -> float:
        """Weights that a forward of B tokens reads, experts hit by uniform routing in expectation.

        Every token draws `experts_per_token` of the experts without replacement; an expert stays
        unread with probability (1 - k / E)^B.
        """
        per_layer = float(self.attention_weights())
        if self.experts:
            unread = (1.0 - self.experts_per_token / self.experts) ** batch_tokens
            read = self.experts * (1.0 - unread) + self.shared_experts
            per_layer += read * self.expert_weights()
        else:
            per_layer += self.expert_weights()
        return self.layers * per_layer + self.d_model * self.vocab

    def flops_per_token(self) -> float:
        """Multiply-adds times two of one token through the matrices, attention scores left out."""
        return 2.0 * self.active_weights()

    def active_weights(self) -> int:
        """Weights that one token is multiplied with."""
        experts = self.experts_per_token + self.shared_experts if self.experts else 1
        layer = self.attention_weights() + experts * self.expert_weights()
        return self.layers * layer + self.d_model * self.vocab

    def kv_per_token(self) -> float:
        """KV-cache entries that one token's attention reads per token of context, all layers."""
        entries = self.latent_kv or 2 * self.kv_heads * self.head_dim
        return self.layers * entries * self.kv_share

    def shard(self, tensor_parallel: int) -> ModelShape:
        """The dimensions that one of `tensor_parallel` GPUs holds.

        Raises:
            InputError: heads, MLP width or vocabulary do not divide; KV heads are replicated when
                there are fewer of them than GPUs.
        """
        if tensor_parallel < 1:
            raise InputError(f"tensor-parallel size must be at least 1, not {tensor_parallel}")
        for name in ("heads", "ffn", "vocab"):
            if getattr(self, name) % tensor_parallel:
                raise InputError(
                    f"{name} {getattr(self, name)} does not divide over {tensor_parallel} GPUs; "
                    "choose a tensor-parallel size that divides it"
                )
        if self.kv_heads % tensor_parallel and tensor_parallel % self.kv_heads:
            raise InputError(
                f"kv_heads {self.kv_heads} neither divides over {tensor_parallel} GPUs nor "
                "replicates evenly"
            )
        return self.model_copy(
            update={
                "heads": self.heads // tensor_parallel,
                "kv_heads": max(1, self.kv_heads // tensor_parallel),
                "ffn": self.ffn // tensor_parallel,
                "vocab": self.vocab // tensor_parallel,
            }
        )


def _dense(
    layers: int, d_model: int, heads: int, kv_heads: int, head_dim: int, ffn: int, vocab: int
) -> ModelShape:
    return ModelShape(
        layers=layers,
        d_model=d_model,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=vocab,
    )


SHAPES: dict[str, ModelShape] = {
    # Public model configurations.
    "llama-3.1-8b": _dense(32, 4096, 32, 8, 128, 14336, 128256),
    "llama-3.1-70b": _dense(80, 8192, 64, 8, 128, 28672, 128256),
    "llama-2-70b": _dense(80, 8192, 64, 8, 128, 28672, 32000),
    "qwen3-4b": _dense(36, 2560, 32, 8, 128, 9728, 151936),
    "qwen3-8b": _dense(36, 4096, 32, 8, 128, 12288, 151936),
    "qwen3-14b": _dense(40, 5120, 40, 8, 128, 17408, 151936),
    "qwen3-32b": _dense(64, 5120, 64, 8, 128, 25600, 151936),
    "deepseek-v3": ModelShape(
        layers=61,
        d_model=7168,
        heads=128,
        kv_heads=128,
        head_dim=128,
        ffn=2048,
        vocab=129280,
        experts=256,
        experts_per_token=8,
        shared_experts=1,
        latent_kv=576,
        projection_weights=187_000_000,
    ),
    "kimi-k2": ModelShape(
        layers=61,
        d_model=7168,
        heads=64,
        kv_heads=64,
        head_dim=128,
        ffn=2048,
        vocab=163840,
        experts=384,
        experts_per_token=8,
        shared_experts=1,
        latent_kv=576,
        projection_weights=101_000_000,
    ),
    "qwen3-235b-a22b": ModelShape(
        layers=94,
        d_model=4096,
        heads=64,
        kv_heads=4,
        head_dim=128,
        ffn=1536,
        vocab=151936,
        experts=128,
        experts_per_token=8,
    ),
    "gpt-oss-120b": ModelShape(
        layers=36,
        d_model=2880,
        heads=64,
        kv_heads=8,
        head_dim=64,
        ffn=2880,
        vocab=201088,
        experts=128,
        experts_per_token=4,
        kv_share=0.5,
    ),
    "minimax-m2": ModelShape(
        layers=62,
        d_model=3072,
        heads=48,
        kv_heads=8,
        head_dim=128,
        ffn=1536,
        vocab=200064,
        experts=256,
        experts_per_token=8,
    ),
    # Not a public configuration: four layers of roughly V4-Flash's proportions, for timing alone.
    "v4-flash-slice": ModelShape(
        layers=4,
        d_model=4096,
        heads=64,
        kv_heads=1,
        head_dim=512,
        ffn=2048,
        vocab=129280,
        experts=256,
        experts_per_token=6,
        shared_experts=1,
    ),
    # Small enough for a CPU cache, so that a laptop can time it within a minute.
    "tiny": _dense(2, 256, 4, 2, 64, 768, 2048),
    "tiny-moe": ModelShape(
        layers=2,
        d_model=128,
        heads=4,
        kv_heads=2,
        head_dim=32,
        ffn=128,
        vocab=1024,
        experts=8,
        experts_per_token=2,
        shared_experts=1,
    ),
}


def shape_named(name: str) -> ModelShape:
    """Return a preset's dimensions.

    Raises:
        InputError: no preset of that name.
    """
    found = SHAPES.get(name.lower())
    if found is None:
        raise InputError(
            f'no model preset "{name}"; legal: {", ".join(SHAPES)} {nearest(name, SHAPES)}'.strip()
        )
    return found


def shape_of_config(config: dict[str, Any], *, where: str) -> ModelShape:
    """Read the dimensions out of a Hugging Face `config.json`.

    Args:
        config: the file's content; multi-modal ones keep the decoder under `text_config`.
        where: the file's name in errors.

    Raises:
        InputError: a dimension is absent or makes no sense.
    """
    whole = Node(config, where)
    text = whole.maybe("text_config") or whole
    names = {
        "layers": ("num_hidden_layers",),
        "d_model": ("hidden_size",),
        "heads": ("num_attention_heads",),
        "ffn": ("moe_intermediate_size", "intermediate_size"),
        "vocab": ("vocab_size",),
    }
    found: dict[str, int] = {}
    for field, keys in names.items():
        value = next(
            (text.get(key) for key in keys if text.maybe(key) is not None), text.get(keys[-1])
        )
        found[field] = value.whole(least=1)
    for field, keys, default in (
        ("kv_heads", ("num_key_value_heads",), found["heads"]),
        ("head_dim", ("head_dim",), found["d_model"] // found["heads"]),
        ("experts", ("n_routed_experts", "num_experts", "num_local_experts"), 0),
        ("experts_per_token", ("num_experts_per_tok",), 0),
        ("shared_experts", ("n_shared_experts",), 0),
    ):
        said = (text.get(key).whole() for key in keys if text.maybe(key) is not None)
        found[field] = next((value for value in said if value), default)
    if found["experts"] and not found["experts_per_token"]:
        raise InputError(f"{where}: has experts but no num_experts_per_tok")
    try:
        return ModelShape.model_validate(found)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error


def load_shape(name_or_path: str) -> ModelShape:
    """Return a preset, or the dimensions of a Hugging Face config file or folder.

    Raises:
        InputError: neither a preset nor a readable config file.
    """
    path = Path(name_or_path)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        return shape_named(name_or_path)
    return shape_of_config(parse_json(read_text(path), str(path)), where=str(path))
