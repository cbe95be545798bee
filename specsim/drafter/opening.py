"""Opening things for a run: targets and drafters by name, prompts as ids, streams by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specsim.drafter import smollm2
from specsim.drafter.checkpoint import load_drafter
from specsim.drafter.corpus import DOMAINS, Prompt, interleave
from specsim.drafter.dspark import DSpark
from specsim.drafter.eagle import Eagle3
from specsim.drafter.llama import Llama
from specsim.drafter.target import HuggingFaceTarget
from specsim.errors import InputError
from specsim.rng import stream

EMBEDDED = "smollm2"
SHARES = {"math": 0.36, "code": 0.34, "chat": 0.30}


@dataclass(frozen=True, slots=True)
class OpenTarget:
    """A target with what surrounds it.

    Attributes:
        model: the target.
        encode: prompt -> token ids, chat template included.
        embedding_VD: its input embedding.
        vocab_size: tokens.
        context_tokens: longest sequence.
        eos_id: end token, if it has one.
        about: what metadata says of it.
    """

    model: Llama | HuggingFaceTarget
    encode: Callable[[Prompt], list[int]]
    embedding_VD: Tensor
    vocab_size: int
    context_tokens: int
    eos_id: int | None
    about: dict[str, Any]


def set_threads(threads: int | None) -> None:
    """Set torch's threads; None is 1 on a busy machine (where 2 are far slower), else all cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    busy = hasattr(os, "getloadavg") and os.getloadavg()[0] > 1
    if threads is not None and threads < 1:
        raise InputError(f"--threads is {threads}, at least 1 is needed")
    torch.set_num_threads(threads or (1 if busy else cores))


def fast_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware tiles (elsewhere it is very slow)."""
    probe = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(probe and probe())


def fast_math() -> torch.autocast:
    """Run a drafter's matrix products in bfloat16 where the CPU is fast at it.

    q is then what those products give, in float32 from the softmax on: the law that a draft is
    drawn from stays the law that it is accepted under.
    """
    return torch.autocast("cpu", torch.bfloat16, enabled=fast_bfloat16())


def torch_generator(seed: int, name: str) -> torch.Generator:
    """A torch stream by name, independent of all others of the seed."""
    return torch.Generator().manual_seed(int(stream(seed, f"drafter/{name}").integers(2**62)))


def open_target(name: str, *, dtype: str = "auto", device: str = "cpu") -> OpenTarget:
    """Open the embedded target (`smollm2`) or any Hugging Face causal LM.

    Raises:
        InputError: its weights are not there, or the device is not.
    """
    found = {"cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))}
    if device not in found and not (device == "cuda" and torch.cuda.is_available()):
        raise InputError(f"--device {device}: legal is cpu, and cuda where PyTorch sees such a GPU")
    if name == EMBEDDED:
        if device != "cpu":
            raise InputError(f"--device {device}: the embedded target runs on the CPU")
        chosen = ("bfloat16" if fast_bfloat16() else "float32") if dtype == "auto" else dtype
        model = smollm2.load_model(chosen)
        tokenizer = smollm2.load_tokenizer()

        def encode(prompt: Prompt) -> list[int]:
            return list(tokenizer.encode(smollm2.chat_prompt(prompt.user, prompt.reply)).ids)

        about = {**smollm2.describe(), "target_matmul_dtype": chosen}
        sizes = model.config
        return OpenTarget(
            model,
            encode,
            model.embed.weight,
            sizes.vocab_size,
            sizes.context,
            smollm2.EOS_ID,
            about,
        )
    chosen = ("bfloat16" if device != "cpu" else "float32") if dtype == "auto" else dtype
    target = HuggingFaceTarget.load(name, dtype=chosen, device=device)
    from transformers import AutoTokenizer

    hub = AutoTokenizer.from_pretrained(name)

    def encode_hub(prompt: Prompt) -> list[int]:
        turns = [{"role": "user", "content": prompt.user}]
        text = hub.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        return list(hub(text + prompt.reply, add_special_tokens=False)["input_ids"])

    return OpenTarget(
        target,
        encode_hub,
        target.model.get_input_embeddings().weight.cpu(),
        int(target.config.vocab_size),
        int(target.config.max_position_embeddings),
        hub.eos_token_id,
        {"target": name, "target_matmul_dtype": chosen},
    )


def prompt_ids(
    target: OpenTarget,
    prompts: Sequence[Prompt],
    rng: np.random.Generator,
    *,
    longest: int,
    shares: dict[str, float] | None = None,
) -> Iterator[tuple[list[int], int]]:
    """Yield (token ids, domain index) for ever, prompts longer than `longest` left out.

    Raises:
        InputError: there is no prompt, or none is short enough.
    """
    if not prompts:
        raise InputError(
            "no prompt is left after the split: training leaves out benchmarks and 10 % of the "
            "others (by a hash of their text), capture uses only those; give more with --corpus"
        )
    kept = [(p, ids) for p in prompts if len(ids := target.encode(p)) <= longest]
    if not kept:
        raise InputError(f"no prompt of the corpus is within {longest} tokens: give shorter ones")
    ids_of = {(p.user, p.reply): ids for p, ids in kept}
    present = {p.domain for p, _ in kept}
    wanted = {d: w for d, w in (shares or SHARES).items() if d in present}
    for prompt in interleave([p for p, _ in kept], wanted, rng):
        yield ids_of[prompt.user, prompt.reply], DOMAINS.index(prompt.domain)


def open_drafter(folder: Path, target: OpenTarget, *, gamma: int | None = None) -> DSpark | Eagle3:
    """Load a drafter for a target; see `checkpoint.load_drafter`.

    Raises:
        InputError: as there, or the drafter reads layers that the target has not.
    """
    drafter = load_drafter(folder, target_embedding_VD=target.embedding_VD.float(), gamma=gamma)
    depth, wanted = len(target.model.layers), drafter.config.target_layer_ids
    if not all(-1 <= layer < depth for layer in wanted):
        raise InputError(
            f"{folder}: target_layer_ids are {list(wanted)}, but the target has layers 0 to "
            f"{depth - 1} (and -1, its embedding): they belong to different models"
        )
    return drafter
