"""Text that the target writes itself: batched sampling with a slot for every running sequence.

A finished sequence frees its slot at once and the next prompt takes it, so the batch stays full.
Axes: B slots, D width, M layers, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specsim.drafter.llama import KVCache, Llama
from specsim.drafter.target import Target

READ_AT_ONCE = 16  # sequences read in one batch: bounds the memory of reading


@dataclass(slots=True)
class Written:
    """One sequence: prompt and answer, with what the drafter's training needs of the target.

    Attributes:
        tokens: ids of prompt and answer [N].
        prompt_tokens: how many of them are the prompt.
        domain: index of the domain.
        features: layer outputs [N - 1, M, D] of all tokens but the last, or empty.
        hidden: final normed hidden states [N - 1, D], or empty.
        finished: whether the target ended it with its end token.
    """

    tokens: list[int]
    prompt_tokens: int
    domain: int
    features: list[Tensor] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)
    finished: bool = False


def draw(logits_BV: Tensor, generator: torch.Generator, temperature: float = 1.0) -> Tensor:
    """Sample one token a row from softmax(logits / temperature) by inverting the running sum."""
    weight = torch.softmax(logits_BV / temperature, dim=-1)
    cdf = weight.cumsum_(-1)
    uniform = torch.rand(len(cdf), 1, generator=generator) * cdf[:, -1:]
    return torch.searchsorted(cdf, uniform, right=True)[:, 0].clamp_(max=cdf.shape[1] - 1)


@torch.inference_mode()
def write(
    model: Llama,
    prompts: Iterator[tuple[list[int], int]],
    generator: torch.Generator,
    *,
    slots: int,
    max_new_tokens: int,
    capacity: int,
    eos_id: int,
    layers: tuple[int, ...] = (),
    temperature: float = 1.0,
    keep: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Written]:
    """Answer prompts for as long as there are any, yielding each sequence when it is done.

    Args:
        model: the target.
        prompts: pairs of prompt ids and domain index; each must leave room for one token.
        generator: draws every token.
        slots: sequences that run side by side; 128 to 256 is best on a CPU.
        max_new_tokens: longest answer.
        capacity: longest prompt plus answer.
        eos_id: ends a sequence; it is kept in the text.
        layers: target layers whose outputs to keep.
        temperature: of the sampling.
        keep: whether to keep layer outputs and hidden states.
        progress: called with the tokens of each step.

    Yields:
        Finished sequences, in the order in which they end.
    """
    cache = model.new_cache(slots, capacity)
    running: list[Written | None] = [None] * slots
    last_B = torch.zeros(slots, dtype=torch.long)
    exhausted = False
    refill_at = max(1, slots // 8)
    while True:
        free = [b for b, one in enumerate(running) if one is None]
        if free and not exhausted and (len(free) >= refill_at or len(free) == slots):
            started = []
            for b in free:
                item = next(prompts, None)
                if item is None:
                    exhausted = True
                    break
                started.append((b, Written(list(item[0]), len(item[0]), item[1])))
            if started:
                _start(model, cache, started, last_B, generator, layers, temperature, keep=keep)
                for b, one in started:
                    running[b] = one
        live = [b for b, one in enumerate(running) if one is not None]
        if not live:
            return
        hidden, features = model(last_B[:, None], torch.ones_like(last_B), cache, layers)
        next_B = draw(model.logits(hidden[:, 0]), generator, temperature)
        if progress is not None:
            progress(len(live))
        kept_hidden, kept_features = hidden[:, 0].bfloat16(), features[:, 0].bfloat16()
        for b in live:
            current = running[b]
            assert current is not None
            if keep:
                current.hidden.append(kept_hidden[b : b + 1])
                current.features.append(kept_features[b : b + 1])
            token = int(next_B[b])
            current.tokens.append(token)
            if _ended(current, token, eos_id, max_new_tokens, capacity):
                running[b] = None
                yield current
        last_B = next_B
        # An empty slot keeps stepping with the batch; its length must not run away.
        idle = torch.tensor([one is None for one in running])
        cache.length_B = torch.where(idle, 0, cache.length_B)


def _ended(one: Written, token: int, eos_id: int, max_new_tokens: int, capacity: int) -> bool:
    one.finished = token == eos_id
    new = len(one.tokens) - one.prompt_tokens
    return one.finished or new >= max_new_tokens or len(one.tokens) >= capacity


def _start(
    model: Llama,
    cache: KVCache,
    started: list[tuple[int, Written]],
    last_B: Tensor,
    generator: torch.Generator,
    layers: tuple[int, ...],
    temperature: float,
    *,
    keep: bool,
) -> None:
    """Read the prompts of new sequences into their slots and draw the first token of each."""
    # Of like length side by side, so that little is padding.
    order = sorted(range(len(started)), key=lambda i: len(started[i][1].tokens))
    end_BD = torch.empty(len(started), model.config.d_model)
    for begin in range(0, len(order), READ_AT_ONCE):
        chosen = order[begin : begin + READ_AT_ONCE]
        some = [started[i] for i in chosen]
        ids, count = _padded([one.tokens for _, one in some])
        small = model.new_cache(len(some), ids.shape[1])
        hidden, features = model(ids, count, small, layers)
        cache.put_rows(torch.tensor([b for b, _ in some]), small)
        end_BD[chosen] = hidden[torch.arange(len(some)), count - 1]
        if keep:
            for i, (_, one) in enumerate(some):
                one.hidden.append(hidden[i, : count[i]].bfloat16())
                one.features.append(features[i, : count[i]].bfloat16())
    first = draw(model.logits(end_BD), generator, temperature)
    for i, (b, one) in enumerate(started):
        one.tokens.append(int(first[i]))
        last_B[b] = first[i]


def _padded(rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Token ids [B, T], filled up with 0, and how many of each row are real [B]."""
    count = torch.tensor([len(row) for row in rows])
    ids = torch.zeros(len(rows), int(count.max()), dtype=torch.long)
    for b, row in enumerate(rows):
        ids[b, : len(row)] = torch.tensor(row)
    return ids, count


@torch.inference_mode()
def reread(
    model: Target, texts: list[tuple[list[int], int, int]], layers: tuple[int, ...]
) -> list[Written]:
    """Compute what `write` keeps for token ids that are already there, in one batch.

    Args:
        model: the target.
        texts: triples of token ids, number of prompt tokens and domain index.
        layers: target layers whose outputs to keep.
    """
    padded, count = _padded([ids[:-1] for ids, _, _ in texts])
    hidden, features = model(padded, count, model.new_cache(len(texts), padded.shape[1]), layers)
    out = []
    for b, (ids, prompt_tokens, domain) in enumerate(texts):
        one = Written(list(ids), prompt_tokens, domain)
        one.hidden.append(hidden[b, : count[b]].bfloat16())
        one.features.append(features[b, : count[b]].bfloat16())
        out.append(one)
    return out
