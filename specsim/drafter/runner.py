"""The verbs of `specsim trace` as functions: write text, train, capture, roll out.

Nothing here prints or reads a clock: progress goes to callbacks `(done, total, what)`.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specsim.acceptance.trace import DenseTrace
from specsim.drafter.capture import capture
from specsim.drafter.corpus import DOMAINS, Prompt, split
from specsim.drafter.drafting import Drafter, Sampling
from specsim.drafter.dspark import DSpark, DSparkConfig
from specsim.drafter.generate import READ_AT_ONCE, Written, reread, write
from specsim.drafter.llama import Llama
from specsim.drafter.opening import (
    OpenTarget,
    fast_bfloat16,
    fast_math,
    open_drafter,
    prompt_ids,
    torch_generator,
)
from specsim.drafter.speculate import Speculator
from specsim.drafter.textstore import (
    Text,
    load_shard,
    read_token_file,
    save_shard,
    shards,
    token_mass,
)
from specsim.drafter.train import TrainConfig, Trainer, new_drafter, trainable
from specsim.errors import InputError
from specsim.rng import stream

Progress = Callable[[int, int, str], None]
FEATURE_LAYERS = (1, 8, 15, 22, 28)
MASK_ID = 4
LONGEST_PROMPT = 192
WRITING_SLOTS = 192


def write_texts(
    target: OpenTarget,
    prompts: Sequence[tuple[list[int], int]],
    sampling: Sampling,
    generator: torch.Generator,
    *,
    layers: tuple[int, ...],
    max_new_tokens: int,
    slots: int = 96,
    progress: Progress | None = None,
) -> list[Written]:
    """Let the target answer prompts, and keep what drafting and training need of it.

    Raises:
        InputError: a prompt and its answer do not fit in the target's context.
    """
    longest = max(len(ids) for ids, _ in prompts) + max_new_tokens
    if longest > target.context_tokens:
        raise InputError(
            f"a prompt of {longest - max_new_tokens} tokens and {max_new_tokens} new ones do not "
            f"fit in the target's context of {target.context_tokens}: lower --max-new-tokens"
        )
    plain = sampling.top_k == 0 and sampling.top_p == 1 and sampling.temperature > 0
    if isinstance(target.model, Llama) and plain:
        stream_of_texts = write(
            target.model,
            iter(prompts),
            generator,
            slots=min(slots, len(prompts)),
            max_new_tokens=max_new_tokens,
            capacity=longest,
            eos_id=-1 if target.eos_id is None else target.eos_id,
            layers=layers,
            temperature=sampling.temperature,
        )
        out = []
        for done, text in enumerate(stream_of_texts, start=1):
            out.append(text)
            if progress is not None:
                progress(done, len(prompts), "target writes")
        return out
    plain_decoder = Speculator(
        target.model,
        _NoDrafts(layers),
        sampling,
        vocab_size=target.vocab_size,
        context_tokens=target.context_tokens,
        eos_id=target.eos_id,
    )
    texts: list[Written] = []
    for start in range(0, len(prompts), slots):
        part = prompts[start : start + slots]
        rollouts = plain_decoder.decode(
            [ids for ids, _ in part], generator, max_new_tokens=max_new_tokens, verify_len=0
        )
        triples = [
            (r.tokens, r.prompt_tokens, domain)
            for r, (_, domain) in zip(rollouts, part, strict=True)
        ]
        texts += reread(target.model, triples, layers)
        if progress is not None:
            progress(len(texts), len(prompts), "target writes")
    return texts


class _NoDrafts:
    """Stands in for a drafter where none is used: plain decoding is verify length 0."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.config = DSparkConfig(
            vocab_size=1, d_model=1, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=1,
            d_ffn=1, rope_base=1.0, norm_eps=1e-6, gamma=1, target_layer_ids=layers,
            mask_token_id=0, draft_vocab_size=1,
        )  # fmt: skip
        self.token_id_V = torch.zeros(1, dtype=torch.long)

    def context(
        self, features_BNMD: Tensor, following_BN: Tensor, start_B: Tensor | None = None
    ) -> list[Tensor]:
        """Keep nothing."""
        return [features_BNMD.new_zeros(features_BNMD.shape[:2])]

    def begin(self, anchor_BA: Tensor, position_BA: Tensor, context: list[Tensor]) -> Any:
        """Never called: nothing is drafted."""
        raise AssertionError


def fill_store(
    folder: Path,
    target: OpenTarget,
    prompts: Sequence[Prompt],
    *,
    tokens: int,
    max_new_tokens: int,
    seed: int,
    progress: Progress | None = None,
) -> int:
    """Write text of training prompts into a store until it holds `tokens` answer tokens or more.

    Shards that are there already count: a store grows over many runs. Answers that are under way
    when a run is killed are lost, those under way when there are enough are finished.

    Returns:
        Answer tokens in the store.

    Raises:
        InputError: the target is not a Llama of this package, or no prompt is short enough.
    """
    model = _trainable_target(target)
    folder.mkdir(parents=True, exist_ok=True)
    head = target.embedding_VD
    have = sum(
        int(len(t.tokens_N) - t.prompt_tokens) for p in shards(folder) for t in load_shard(p, head)
    )
    if have >= tokens:
        return have
    number = len(shards(folder))
    train, _ = split(prompts)
    source = prompt_ids(
        target, train, stream(seed, f"drafter/prompts/{number}"), longest=LONGEST_PROMPT
    )
    written = have

    def count(live: int) -> None:
        nonlocal written
        written += live
        if progress is not None:
            progress(min(written, tokens), tokens, "target writes")

    texts = write(
        model,
        itertools.takewhile(lambda _: written < tokens, source),
        torch_generator(seed, f"text/{number}"),
        slots=min(WRITING_SLOTS, -(-(tokens - have) // max_new_tokens)),
        max_new_tokens=max_new_tokens,
        capacity=LONGEST_PROMPT + max_new_tokens,
        eos_id=-1 if target.eos_id is None else target.eos_id,
        layers=FEATURE_LAYERS,
        progress=count,
    )
    while shard := list(itertools.islice(texts, 96)):
        save_shard(folder / f"shard_{number:05d}.safetensors", shard, head)
        number += 1
        have += sum(len(t.tokens) - t.prompt_tokens for t in shard)
    return have


def _trainable_target(target: OpenTarget) -> Llama:
    if not isinstance(target.model, Llama):
        raise InputError("training is for the embedded target: released drafters exist for others")
    return target.model


def read_texts(
    target: OpenTarget,
    token_file: Path,
    *,
    part: str,
    layers: tuple[int, ...],
    progress: Progress | None = None,
) -> Iterator[list[Written]]:
    """Read token ids with the target, 96 texts at a time; reading is much faster than writing.

    Args:
        target: whose features and hidden states are kept.
        token_file: see `read_token_file`.
        part: `train` or `held_out`.
        layers: target layers whose outputs to keep.
        progress: called after each batch.

    Raises:
        InputError: the file is damaged or not of this target.
    """
    texts = read_token_file(token_file, part=part)
    highest, longest = max(max(t[0]) for t in texts), max(len(t[0]) for t in texts)
    if highest >= target.vocab_size or longest > target.context_tokens:
        raise InputError(
            f"{token_file}: ids up to {highest} in texts of up to {longest} tokens, but the target "
            f"has {target.vocab_size} ids and a context of {target.context_tokens}"
        )
    for start in range(0, len(texts), 96):
        some = texts[start : start + 96]
        # Of like length side by side, so that little is padding; given back in the file's order.
        order = sorted(range(len(some)), key=lambda i: len(some[i][0]))
        written: dict[int, Written] = {}
        for first in range(0, len(some), READ_AT_ONCE):
            chosen = order[first : first + READ_AT_ONCE]
            read = reread(target.model, [some[i] for i in chosen], layers)
            written |= dict(zip(chosen, read, strict=True))
        yield [written[i] for i in range(len(some))]
        if progress is not None:
            progress(min(start + 96, len(texts)), len(texts), "target reads")


def restore_store(folder: Path, target: OpenTarget, token_file: Path) -> None:
    """Fill an empty store from token ids, reading them with the target; else leave it as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    if shards(folder):
        return
    parts = read_texts(target, token_file, part="train", layers=FEATURE_LAYERS)
    for number, written in enumerate(parts):
        save_shard(folder / f"shard_{number:05d}.safetensors", written, target.embedding_VD)


def draw_texts(texts: Sequence[Text], count: int, generator: torch.Generator) -> list[Text]:
    """Draw training texts, with replacement.

    Raises:
        InputError: there are none.
    """
    if not texts:
        raise InputError("there is no text to train on: raise --tokens or give --text")
    chosen = torch.randint(len(texts), (count,), generator=generator)
    return [texts[int(i)] for i in chosen]


def draft_vocabulary(texts: Sequence[Text], vocab_size: int, size: int) -> Tensor:
    """The `size` tokens that answers use most, in order of id; ties go to the lower id."""
    mass = token_mass(texts, vocab_size)
    order = torch.sort(mass, descending=True, stable=True).indices[:size]
    return order.sort().values


def make_trainer(
    target: OpenTarget,
    texts: Sequence[Text],
    train: TrainConfig,
    *,
    layers: int = 2,
    gamma: int = 7,
    markov_rank: int = 64,
    head: str = "vanilla",
    draft_vocab: int = 8192,
    stop_gradient: bool = False,
    from_target: bool = True,
    start_from: Path | None = None,
) -> Trainer:
    """Set up a drafter of the embedded target's sizes and its trainer.

    Args:
        start_from: folder of a drafter whose sizes and weights to begin with; the arguments about
            sizes are not read then.

    Raises:
        InputError: the target is not a Llama of this package, or the drafter is not a DSpark one.
    """
    model = _trainable_target(target)
    if start_from is not None:
        begun = open_drafter(start_from, target)
        if not isinstance(begun, DSpark):
            raise InputError(f"{start_from}: training goes on from DSpark and DFlash drafters only")
        begun.config = replace(begun.config, confidence_stop_gradient=stop_gradient)
        return Trainer(trainable(begun), train)
    c = model.config
    config = DSparkConfig(
        vocab_size=c.vocab_size,
        d_model=c.d_model,
        num_layers=layers,
        num_heads=c.num_heads,
        num_kv_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        d_ffn=c.d_ffn,
        rope_base=c.rope_base,
        norm_eps=c.norm_eps,
        gamma=gamma,
        target_layer_ids=FEATURE_LAYERS,
        mask_token_id=MASK_ID,
        draft_vocab_size=min(draft_vocab, c.vocab_size),
        markov_rank=markov_rank,
        markov_head_type=head,
        confidence=True,
        confidence_stop_gradient=stop_gradient,
    )
    token_id = draft_vocabulary(texts, c.vocab_size, config.draft_vocab_size)
    return Trainer(new_drafter(config, model.float(), token_id, from_target=from_target), train)


def capture_trace(
    target: OpenTarget,
    drafter: Drafter,
    texts: Sequence[Written],
    sampling: Sampling,
    *,
    drafter_name: str,
    drafter_file: Path | None,
    seed: int,
    progress: Progress | None = None,
) -> DenseTrace:
    """Couple texts with the drafter's blocks into a dense trace with full metadata."""
    total = sum(max(0, len(t.tokens) - t.prompt_tokens - 1) for t in texts)
    done = 0

    def count(anchors: int) -> None:
        nonlocal done
        done += anchors
        if progress is not None:
            progress(done, total, "drafting at every anchor")

    metadata = {
        **target.about,
        "drafter": drafter_name,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "draft_vocab_size": drafter.config.draft_vocab_size,
        "drafter_matmul_dtype": "bfloat16" if fast_bfloat16() else "float32",
        "seed": seed,
    }
    if drafter_file is not None:
        metadata["drafter_sha256"] = hashlib.sha256(drafter_file.read_bytes()).hexdigest()
    with fast_math():
        return capture(
            drafter,
            texts,
            target.model.logits,
            sampling,
            torch_generator(seed, "capture"),
            domain_names=DOMAINS,
            metadata=metadata,
            progress=count,
        )


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rounds of true speculative decoding: one row a round.

    Attributes:
        verify_len: drafts that were verified.
        domain: index of the domain.
        sequence: which sequence.
        num_accepted: accepted drafts.
        whole: false where the end token or the limit cut the round.
    """

    verify_len: np.ndarray[Any, np.dtype[np.uint8]]
    domain: np.ndarray[Any, np.dtype[np.uint8]]
    sequence: np.ndarray[Any, np.dtype[np.int32]]
    num_accepted: np.ndarray[Any, np.dtype[np.uint8]]
    whole: np.ndarray[Any, np.dtype[np.bool_]]


def roll_out(
    target: OpenTarget,
    drafter: Drafter,
    prompts: Sequence[tuple[list[int], int]],
    sampling: Sampling,
    *,
    verify_lens: Sequence[int],
    max_new_tokens: int,
    seed: int,
    slots: int = 48,
    progress: Progress | None = None,
) -> Rounds:
    """Decode prompts speculatively at each verify length, for the cross-check of a trace."""
    speculator = Speculator(
        target.model,
        drafter,
        sampling,
        vocab_size=target.vocab_size,
        context_tokens=target.context_tokens,
        eos_id=target.eos_id,
    )
    rows: list[tuple[int, int, int, int, bool]] = []
    sequence, done, total = 0, 0, len(verify_lens) * len(prompts)
    for verify_len in verify_lens:
        generator = torch_generator(seed, f"rollout/{verify_len}")
        for start in range(0, len(prompts), slots):
            part = prompts[start : start + slots]
            with fast_math():
                outs = speculator.decode(
                    [ids for ids, _ in part],
                    generator,
                    max_new_tokens=max_new_tokens,
                    verify_len=verify_len,
                )
            for out, (_, domain) in zip(outs, part, strict=True):
                for accepted, whole in zip(out.accepted, out.whole, strict=True):
                    rows.append((verify_len, domain, sequence, accepted, whole))
                sequence += 1
            done += len(part)
            if progress is not None:
                progress(done, total, f"true rollouts, verify length {verify_len}")
    columns = list(zip(*rows, strict=True))
    return Rounds(
        np.array(columns[0], dtype=np.uint8),
        np.array(columns[1], dtype=np.uint8),
        np.array(columns[2], dtype=np.int32),
        np.array(columns[3], dtype=np.uint8),
        np.array(columns[4], dtype=np.bool_),
    )
