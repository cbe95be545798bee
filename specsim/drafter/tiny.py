"""A tiny target of our own: characters of the default corpus, trained in about a minute.

For tests and for ablations where one run must not take an hour. Its vocabulary is printable ASCII,
so whole laws can be enumerated.
"""

from __future__ import annotations

import ast
import string
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specsim.drafter.corpus import library_sources
from specsim.drafter.llama import Llama, LlamaConfig

# 0 is the end token, 1 the drafter's mask, 2 anything outside printable ASCII.
EOS, MASK, OTHER = 0, 1, 2
_CHARACTERS = "\n" + string.ascii_letters + string.digits + string.punctuation + " "
VOCAB = 3 + len(_CHARACTERS)
_INDEX = {c: i + 3 for i, c in enumerate(_CHARACTERS)}


def encode(text: str) -> list[int]:
    """Characters to ids."""
    return [_INDEX.get(c, OTHER) for c in text]


def decode(ids: Sequence[int]) -> str:
    """Ids to characters; what is not a character becomes `?`."""
    return "".join(_CHARACTERS[i - 3] if i > OTHER else "?" for i in ids)


def config(*, d_model: int = 128, layers: int = 4, vocab: int = VOCAB) -> LlamaConfig:
    """Sizes of the tiny target."""
    return LlamaConfig(
        vocab_size=vocab,
        d_model=d_model,
        num_layers=layers,
        num_heads=4,
        num_kv_heads=2,
        d_ffn=3 * d_model,
        rope_base=10_000.0,
        context=512,
    )


def sentences(domain: str, rng: np.random.Generator) -> Iterator[str]:
    """Yield texts for ever: worked sums, library functions, or lines of documentation."""
    if domain == "math":
        while True:
            a, b, c = (int(n) for n in rng.integers(2, 50, 3))
            yield f"Q: {a} + {b} * {c} = ?\nA: {b} * {c} = {b * c}; {a} + {b * c} = {a + b * c}."
    pieces = []
    for _, source in library_sources():
        lines = source.split("\n")
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef):
                code = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                piece = (ast.get_docstring(node) or "") if domain == "chat" else code
                if len(piece) > 80:
                    pieces.append(piece[:400])
    while True:
        for i in rng.permutation(len(pieces)):
            yield pieces[i]


def windows(
    domains: Sequence[str], rng: np.random.Generator, *, batch: int, length: int
) -> Iterator[Tensor]:
    """Yield training batches [batch, length] of texts of all domains, joined by the end token."""
    streams = [sentences(domain, rng) for domain in domains]
    rows: list[list[int]] = [[] for _ in range(batch)]
    while True:
        for b, row in enumerate(rows):
            while len(row) < length:
                row += [*encode(next(streams[b % len(streams)])), EOS]
        yield torch.tensor([row[:length] for row in rows])
        rows = [row[length:] for row in rows]


def train(
    model: Llama,
    batches: Iterator[Tensor],
    *,
    steps: int,
    learning_rate: float = 2e-3,
    progress: Callable[[int, float], None] | None = None,
) -> None:
    """Fit the target by next-token cross-entropy; cosine schedule, AdamW.

    Args:
        model: trained in place.
        batches: windows of tokens.
        steps: optimiser steps; 300 take about a minute on one core.
        learning_rate: its peak.
        progress: called with step and loss.
    """
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for step in range(steps):
        ids = next(batches)
        count = torch.full((len(ids),), ids.shape[1] - 1)
        loss = F.cross_entropy(
            full_logits(model, ids[:, :-1], count).flatten(0, 1), ids[:, 1:].flatten()
        )
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if progress is not None:
            progress(step, float(loss.detach()))
    model.eval()


def full_logits(model: Llama, ids_BT: Tensor, count_B: Tensor) -> Tensor:
    """Logits at every position [B, T, V], without a cache and differentiable."""
    hidden, _ = model(ids_BT, count_B, None)
    return model.logits(hidden)


def new(seed: int, *, d_model: int = 128, layers: int = 4, vocab: int = VOCAB) -> Llama:
    """Return an untrained tiny target; its parameters are a function of the seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Llama(config(d_model=d_model, layers=layers, vocab=vocab))
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                torch.nn.init.normal_(parameter, std=0.05 if "embed" in name else 0.04)
    return model
