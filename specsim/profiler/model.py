"""A decoder of given dimensions with random weights, for timing one decode-verify forward.

Llama-like: RMSNorm, grouped-query attention with rotary positions over a KV cache, gated MLP or a
mixture of experts with uniform random routing, head. Values mean nothing; sizes, layouts and
kernels are the point. With tensor parallelism it is one GPU's shard, without the all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from specsim.cost.shape import ModelShape
from specsim.errors import InputError, MissingDependencyError
from specsim.profiler.workload import Case

KvLayout = Literal["contiguous", "paged"]
_PAGE_TOKENS = 16
_MARKOV_RANK = 256


def import_torch() -> Any:
    """Return the torch module.

    Raises:
        MissingDependencyError: torch is not installed.
    """
    try:
        import torch
        import torch.nn.attention.bias
    except ImportError as error:
        raise MissingDependencyError(
            'profiling needs torch; install "specsim-serving[profiler]"'
        ) from error
    return torch


class DecodeModel:
    """Weights, KV pool and forwards.

    Args:
        shape: dimensions, of one shard under tensor parallelism.
        device: `cpu` or `cuda`.
        dtype: name of a torch dtype, such as `float32` or `bfloat16`.
        pool_tokens: KV tokens that the pool must hold at once.
        kv: `contiguous`, or `paged` in pages of 16 tokens in random order, gathered before
            attention (a fused paged kernel would not copy).
        draft_layers: layers of the DSpark drafter.
        seed: of the weights.
    """

    def __init__(
        self,
        shape: ModelShape,
        *,
        device: str,
        dtype: str,
        pool_tokens: int,
        kv: KvLayout = "contiguous",
        draft_layers: int = 0,
        seed: int = 0,
    ) -> None:
        if shape.latent_kv:
            raise InputError(
                "latent attention (a compressed KV cache) cannot be timed here; choose a preset "
                "with plain KV heads, such as v4-flash-slice"
            )
        torch = import_torch()
        self.shape, self.kv = shape, kv
        self._torch, self._device = torch, torch.device(device)
        self._dtype = getattr(torch, dtype, None)
        if not isinstance(self._dtype, torch.dtype):
            raise InputError(f'no dtype "{dtype}"; float32, bfloat16 and float16 are usual')
        self._random = torch.Generator(device=self._device).manual_seed(seed)
        d, inner = shape.d_model, shape.heads * shape.head_dim
        qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        self._layers = [self._layer(d, inner, qkv) for _ in range(shape.layers)]
        self._draft = [self._layer(d, inner, qkv, dense=True) for _ in range(draft_layers)]
        self._head = self._weight(shape.vocab, d)
        rank = min(_MARKOV_RANK, d)
        self._markov = (
            (self._weight(shape.vocab, rank), self._weight(shape.vocab, rank))
            if draft_layers
            else None
        )
        pages = -(-pool_tokens // _PAGE_TOKENS) + 1
        self._pool = torch.zeros(
            (
                max(len(self._layers), draft_layers),
                2,
                pages * _PAGE_TOKENS,
                shape.kv_heads,
                shape.head_dim,
            ),
            dtype=self._dtype,
            device=self._device,
        )
        self._page_order = torch.randperm(pages, generator=self._random, device=self._device)

    def work(self, case: Case) -> Callable[[], object]:
        """Return a function that runs the case once, all its inputs ready."""
        if case.part == "sampler":
            return self._sampler(case)
        if case.part == "draft":
            return self._draft_block(case)
        return self._verify(case)

    def _weight(self, rows: int, columns: int) -> Any:
        torch = self._torch
        weight = torch.empty((rows, columns), dtype=self._dtype, device=self._device)
        return weight.normal_(0.0, columns**-0.5, generator=self._random)

    def _layer(self, d: int, inner: int, qkv: int, *, dense: bool = False) -> dict[str, Any]:
        shape = self.shape
        layer: dict[str, Any] = {"qkv": self._weight(qkv, d), "out": self._weight(d, inner)}
        if shape.experts and not dense:
            layer["router"] = self._weight(shape.experts, d)
            count = shape.experts + shape.shared_experts
            layer["experts"] = [
                (self._weight(2 * shape.ffn, d), self._weight(d, shape.ffn)) for _ in range(count)
            ]
        else:
            layer["mlp"] = (self._weight(2 * shape.ffn, d), self._weight(d, shape.ffn))
        return layer

    def _verify(self, case: Case) -> Callable[[], object]:
        hidden = self._inputs(case.batch_tokens)
        layout = self._layout(case, causal=True)
        torch = self._torch

        def run() -> Any:
            with torch.inference_mode():
                x = hidden
                for index, layer in enumerate(self._layers):
                    x = x + self._attention(layer, index, self._norm(x), layout)
                    x = x + self._mlp(layer, self._norm(x))
                return self._norm(x) @ self._head.T

        return run

    def _draft_block(self, case: Case) -> Callable[[], object]:
        if not self._draft or self._markov is None:
            raise InputError("this model has no drafter: give draft_layers")
        gamma, torch = case.widths[0], self._torch
        hidden = self._inputs(case.batch_tokens)
        layout = self._layout(case, causal=False)
        first, second = self._markov
        token_R = torch.zeros(case.num_requests, dtype=torch.long, device=self._device)

        def run() -> Any:
            with torch.inference_mode():
                x = hidden
                for index, layer in enumerate(self._draft):
                    x = x + self._attention(layer, index, self._norm(x), layout)
                    x = x + self._mlp(layer, self._norm(x))
                base = (self._norm(x) @ self._head.T).view(case.num_requests, gamma, -1)
                token = token_R
                for k in range(gamma):
                    logits = base[:, k] + first[token] @ second.T
                    token = logits.argmax(dim=-1)
                return token

        return run

    def _sampler(self, case: Case) -> Callable[[], object]:
        """Softmax of every row, acceptance of every draft, one residual sample a request."""
        torch = self._torch
        logits = self._inputs(case.batch_tokens, self.shape.vocab)
        draft = torch.zeros((case.batch_tokens, 1), dtype=torch.long, device=self._device)
        random = self._random
        luck = torch.rand((case.batch_tokens, 1), generator=random, device=self._device)

        def run() -> Any:
            with torch.inference_mode():
                p = torch.softmax(logits.float(), dim=-1)
                accepted = luck * 0.5 < p.gather(1, draft)
                noise = torch.empty_like(p[: case.num_requests]).exponential_(generator=random)
                return accepted, (p[: case.num_requests] / noise).argmax(dim=-1)

        return run

    def _inputs(self, rows: int, columns: int | None = None) -> Any:
        width = self.shape.d_model if columns is None else columns
        values = self._torch.randn((rows, width), generator=self._random, device=self._device)
        return values.to(self._dtype)

    def _layout(self, case: Case, *, causal: bool) -> dict[str, Any]:
        """Index tensors of a case: where packed tokens sit in the padded block and in the cache."""
        torch, device = self._torch, self._device
        head_dim = self.shape.head_dim
        requests, width = case.num_requests, max(case.widths)
        length = case.context_tokens + width
        pages = -(-length // _PAGE_TOKENS)
        if requests * pages * _PAGE_TOKENS > self._pool.shape[2]:
            raise InputError(f"the KV pool is too small for {requests} x {length} tokens")
        row = torch.tensor(
            [r * width + j for r, w in enumerate(case.widths) for j in range(w)], device=device
        )
        position = case.context_tokens + row % width
        mask = None
        if causal and case.is_uniform and width > 1:
            # A named bias instead of a tensor, so that flash kernels may be chosen.
            mask = torch.nn.attention.bias.causal_lower_right(width, length)
        elif not case.is_uniform:
            query = torch.arange(width, device=device)[None, :, None]
            key = torch.arange(length, device=device)[None, None, :]
            width_R = torch.tensor(case.widths, device=device)[:, None, None]
            seen = key < case.context_tokens + (query + 1 if causal else width_R)
            # Padding queries see the context too, so that no softmax is over nothing.
            mask = seen.expand(requests, width, length)[:, None].contiguous()
        order = self._page_order[: requests * pages].view(requests, pages)
        slot = order[:, :, None] * _PAGE_TOKENS + torch.arange(_PAGE_TOKENS, device=device)
        angle = position[:, None] * (
            10000.0 ** -(torch.arange(0, head_dim, 2, device=device) / head_dim)
        )
        return {
            "requests": requests,
            "width": width,
            "length": length,
            "pages": pages,
            "uniform": case.is_uniform,
            "row": row,
            "where": (row // width) * pages * _PAGE_TOKENS + position,
            "slot": slot.reshape(requests, -1)[:, :length],
            "mask": mask,
            "cos": angle.cos().to(self._dtype)[:, None],
            "sin": angle.sin().to(self._dtype)[:, None],
        }

    def _attention(self, layer: dict[str, Any], index: int, x: Any, at: dict[str, Any]) -> Any:
        torch, shape = self._torch, self.shape
        heads, kv_heads, head_dim = shape.heads, shape.kv_heads, shape.head_dim
        requests, width, length = at["requests"], at["width"], at["length"]
        qkv = (x @ layer["qkv"].T).view(-1, heads + 2 * kv_heads, head_dim)
        query, key, value = qkv.split((heads, kv_heads, kv_heads), dim=1)
        query, key = self._rotate(query, at), self._rotate(key, at)
        pool = self._pool[index]
        if self.kv == "paged":
            slots = at["slot"].reshape(-1)
            where = at["slot"][at["row"] // width, length - width + at["row"] % width]
            pool[0].index_copy_(0, where, key)
            pool[1].index_copy_(0, where, value)
            keys = pool[0].index_select(0, slots).view(requests, length, kv_heads, head_dim)
            values = pool[1].index_select(0, slots).view(requests, length, kv_heads, head_dim)
        else:
            stride = at["pages"] * _PAGE_TOKENS
            pool[0].index_copy_(0, at["where"], key)
            pool[1].index_copy_(0, at["where"], value)
            keys, values = (
                part[: requests * stride].view(requests, stride, kv_heads, head_dim)[:, :length]
                for part in pool
            )
        if at["uniform"]:
            block = query.reshape(requests, width, heads, head_dim)
        else:
            block = query.new_zeros((requests * width, heads, head_dim))
            block = block.index_copy(0, at["row"], query).view(requests, width, heads, head_dim)
        out = torch.nn.functional.scaled_dot_product_attention(
            block.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=at["mask"],
            enable_gqa=heads != kv_heads,
        )
        out = out.transpose(1, 2).reshape(requests * width, heads * head_dim)
        if not at["uniform"]:
            out = out.index_select(0, at["row"])
        return out @ layer["out"].T

    def _rotate(self, x: Any, at: dict[str, Any]) -> Any:
        low, high = x.chunk(2, dim=-1)
        return self._torch.cat(
            (low * at["cos"] - high * at["sin"], high * at["cos"] + low * at["sin"]), dim=-1
        )

    def _norm(self, x: Any) -> Any:
        return self._torch.nn.functional.rms_norm(x, (x.shape[-1],))

    def _mlp(self, layer: dict[str, Any], x: Any) -> Any:
        if "mlp" in layer:
            return self._gated(layer["mlp"], x)
        torch, shape = self._torch, self.shape
        chosen = (x @ layer["router"].T).topk(shape.experts_per_token, dim=-1).indices
        out = torch.zeros_like(x)
        for expert in chosen.unique().tolist():
            rows = (chosen == expert).any(dim=-1).nonzero(as_tuple=True)[0]
            out.index_add_(0, rows, self._gated(layer["experts"][expert], x[rows]))
        for shared in layer["experts"][shape.experts :]:
            out = out + self._gated(shared, x)
        return out

    def _gated(self, weights: tuple[Any, Any], x: Any) -> Any:
        gate, up = (x @ weights[0].T).chunk(2, dim=-1)
        return (self._torch.nn.functional.silu(gate) * up) @ weights[1].T
