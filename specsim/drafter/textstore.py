"""Self-generated text on disk: token ids, and beside them what training needs of the target.

A store is a folder of safetensors shards, each written whole and then renamed, so that a reader may
follow a writer. Axes: S sequences of a shard, N tokens in all, M layers, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specsim.archive import read_npz, write_npz
from specsim.drafter.corpus import DOMAINS
from specsim.drafter.generate import Written
from specsim.drafter.tensors import read_tensors, write_tensors
from specsim.errors import InputError
from specsim.jsontext import shaped


@dataclass(frozen=True, slots=True)
class Text:
    """One sequence ready for training.

    Attributes:
        tokens_N: ids of prompt and answer.
        prompt_tokens: how many are the prompt.
        domain: index of the domain.
        features_NMD: layer outputs of tokens 0..N-2.
        hidden_ND: final normed hidden states of tokens 0..N-2.
        log_sum_N: log of the sum of exp(logits) there, over the whole vocabulary.
    """

    tokens_N: Tensor
    prompt_tokens: int
    domain: int
    features_NMD: Tensor
    hidden_ND: Tensor
    log_sum_N: Tensor


def save_shard(path: Path, texts: Sequence[Written], head_VD: Tensor) -> None:
    """Write one shard; `head_VD` is the target's head, for the logarithms of its normalisers.

    Raises:
        InputError: the disk is full or the folder cannot be written.
    """
    hidden = torch.cat([torch.cat(t.hidden) for t in texts])
    tensors = {
        "tokens": torch.cat([torch.tensor(t.tokens, dtype=torch.int32) for t in texts]),
        "length": torch.tensor([len(t.tokens) for t in texts]),
        "prompt": torch.tensor([t.prompt_tokens for t in texts]),
        "domain": torch.tensor([t.domain for t in texts]),
        "features": torch.cat([torch.cat(t.features) for t in texts]),
        "hidden": hidden,
        "log_sum": log_sum(hidden, head_VD),
    }
    write_tensors(tensors, path)


def log_sum(hidden_ND: Tensor, head_VD: Tensor, rows: int = 512) -> Tensor:
    """Log-sum-exp of the target's logits at N positions, float32 [N]."""
    parts = [
        torch.logsumexp((part.to(head_VD.dtype) @ head_VD.T).float(), dim=-1)
        for part in torch.split(hidden_ND, rows)
    ]
    return torch.cat(parts)


def load_shard(path: Path, head_VD: Tensor) -> list[Text]:
    """Read one shard (memory-mapped where the platform can).

    Raises:
        InputError: it is missing, damaged, or no shard.
    """
    data = read_tensors(path)
    with shaped(str(path), "shard of a text store"):
        sums = data["log_sum"] if "log_sum" in data else log_sum(data["hidden"], head_VD)
        texts, token_at, state_at = [], 0, 0
        for s, length in enumerate(data["length"].tolist()):
            states = slice(state_at, state_at + length - 1)
            texts.append(
                Text(
                    data["tokens"][token_at : token_at + length].long(),
                    int(data["prompt"][s]),
                    int(data["domain"][s]),
                    data["features"][states],
                    data["hidden"][states],
                    sums[states],
                )
            )
            token_at, state_at = token_at + length, state_at + length - 1
        return texts


def shards(folder: Path) -> list[Path]:
    """Complete shards of a store, oldest first."""
    return sorted(folder.glob("shard_*.safetensors"))


def token_mass(texts: Iterable[Text], vocab_size: int) -> Tensor:
    """How often each token occurs in the answers, float32 [V]."""
    mass = torch.zeros(vocab_size)
    for text in texts:
        mass += torch.bincount(text.tokens_N[text.prompt_tokens :], minlength=vocab_size)
    return mass


def _counts(array: NDArray[Any]) -> NDArray[np.int64]:
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array < 0).any():
        raise ValueError(f"a list of whole numbers is needed, not {array.dtype} {array.shape}")
    return array.astype(np.int64)


def write_token_file(path: Path, texts: Sequence[Text], *, part: str = "train") -> None:
    """Write the token ids alone, in the format of `read_token_file`; two bytes a token.

    Raises:
        InputError: the disk is full or the folder cannot be written.
    """
    tokens = torch.cat([t.tokens_N for t in texts]).numpy()
    narrow = np.uint16 if tokens.max() < 2**16 else np.uint32
    arrays = {
        "token": tokens.astype(narrow),
        "length": np.array([len(t.tokens_N) for t in texts], np.uint32),
        "prompt_tokens": np.array([t.prompt_tokens for t in texts], np.uint32),
        "domain": np.array([t.domain for t in texts], np.uint8),
    }
    write_npz(path, {f"{part}_{name}": array for name, array in arrays.items()})


def read_token_file(path: Path, *, part: str = "train") -> list[tuple[list[int], int, int]]:
    """Read token ids that were written before: (ids, prompt tokens, domain) of each text.

    Args:
        path: npz with arrays PART_token, PART_length, PART_prompt_tokens and PART_domain.
        part: `train` or `held_out`.

    Raises:
        InputError: no such file or not that format.
    """
    names = tuple(f"{part}_{name}" for name in ("token", "length", "prompt_tokens", "domain"))
    arrays = read_npz(path, required=names, what="file of token ids")
    with shaped(str(path), "file of token ids"):
        token, length, prompt, domain = (_counts(arrays[name]) for name in names)
        if length.sum() != len(token) or not len(length) == len(prompt) == len(domain):
            raise InputError(
                f"{path}: {len(token)} token ids for lengths that add up to {length.sum()}; "
                f"{len(length)} lengths, {len(prompt)} prompts, {len(domain)} domains"
            )
        if not len(length) or not bool(((prompt >= 1) & (prompt < length)).all()):
            raise InputError(f"{path}: every text needs a prompt and an answer of a token or more")
        if int(domain.max()) >= len(DOMAINS):
            raise InputError(f"{path}: a domain is {domain.max()}, legal is 0 to 2")
    parts = np.split(token, np.cumsum(length)[:-1])
    return [
        (part.tolist(), int(p), int(d)) for part, p, d in zip(parts, prompt, domain, strict=True)
    ]
