"""Reading and writing drafters in the layout of the released checkpoints (DeepSpec).

A folder with `config.json` and `model.safetensors` (or shards with an index). What a checkpoint is
follows from its config's fields, not from its architecture name: the released DFlash files carry
the DSpark name. Two additions of ours, absent from released files: `draft_vocab_size` with a
tensor `draft_token_id` (a drafter over a part of the vocabulary), and `shared_with_target`, which
leaves the frozen copies of the target's embedding and head out of the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specsim.drafter.dspark import DSpark, DSparkConfig
from specsim.drafter.eagle import Eagle3
from specsim.drafter.tensors import read_tensors, write_tensors
from specsim.errors import InputError
from specsim.jsontext import read_json, shaped

FROZEN = ("embed_tokens.weight", "lm_head.weight")


def kind_of(config: Mapping[str, Any]) -> str:
    """Return dspark, dflash or eagle3, judged by the fields of a flat config."""
    if "ttt_length" in config:
        return "eagle3"
    if int(config.get("markov_rank", 0) or 0) > 0 or config.get("enable_confidence_head"):
        return "dspark"
    return "dflash"


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Lift the fields that SpecForge and some engines nest under one key."""
    flat = dict(config)
    for key in ("dflash_config", "dspark_config"):
        nested = flat.pop(key, None)
        if isinstance(nested, Mapping):
            flat = {**flat, **nested}
    return flat


def parse_config(config: Mapping[str, Any], where: str) -> DSparkConfig:
    """Turn a checkpoint's config into sizes.

    Raises:
        InputError: a field is missing, named with what it is for.
    """
    flat = flatten(config)
    eagle = kind_of(flat) == "eagle3"

    def need(name: str, purpose: str) -> Any:
        if flat.get(name) is None:
            raise InputError(f"{where}: config.json has no `{name}` ({purpose})")
        return flat[name]

    width, heads = (
        int(need("hidden_size", "model width")),
        int(need("num_attention_heads", "heads")),
    )
    rope = flat.get("rope_parameters") or {}
    vocab = int(need("vocab_size", "the target's vocabulary"))
    return DSparkConfig(
        vocab_size=vocab,
        d_model=width,
        num_layers=int(need("num_hidden_layers", "drafter layers")),
        num_heads=heads,
        num_kv_heads=int(flat.get("num_key_value_heads") or heads),
        head_dim=int(flat.get("head_dim") or width // heads),
        d_ffn=int(need("intermediate_size", "feed-forward width")),
        rope_base=float(flat.get("rope_theta") or rope.get("rope_theta") or 1e6),
        norm_eps=float(flat.get("rms_norm_eps", 1e-6)),
        gamma=int(need("ttt_length" if eagle else "block_size", "drafts a block")),
        target_layer_ids=tuple(int(i) for i in need("target_layer_ids", "injected target layers")),
        mask_token_id=0 if eagle else int(need("mask_token_id", "input of the later slots")),
        draft_vocab_size=int(flat.get("draft_vocab_size") or vocab),
        markov_rank=int(flat.get("markov_rank", 0) or 0),
        markov_head_type=str(flat.get("markov_head_type", "vanilla")),
        confidence=bool(flat.get("enable_confidence_head", False)),
        confidence_with_markov=bool(flat.get("confidence_head_with_markov", False)),
    )


_MOST = {"num_layers": 512, "gamma": 64, "num_heads": 4096, "num_kv_heads": 4096}
_MOST_SIZE = 1 << 24


def _require_plausible(config: DSparkConfig, where: str) -> None:
    """Refuse sizes that no drafter has, before anything is built of them.

    Raises:
        InputError: one is out of range; names it.
    """
    sizes = ("vocab_size", "d_model", "head_dim", "d_ffn", "draft_vocab_size")
    for name in (*_MOST, *sizes):
        value, most = getattr(config, name), _MOST.get(name, _MOST_SIZE)
        if not 1 <= value <= most:
            raise InputError(f"{where}: {name} is {value}; 1 to {most} is legal")
    if not 0 <= config.markov_rank <= _MOST_SIZE or len(config.target_layer_ids) > 512:
        raise InputError(f"{where}: markov_rank or target_layer_ids are out of range")


def _read_object(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    value, problem = read_json(text, where=str(path))
    if problem is not None:
        raise InputError(str(problem))
    if not isinstance(value, dict):
        raise InputError(f"{path}: must be a JSON object")
    return value


def read_config(folder: Path) -> dict[str, Any]:
    """Read a drafter's config.json.

    Raises:
        InputError: it is missing or no JSON object.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"{path} is missing: give a folder in the layout of the released drafters")
    return _read_object(path)


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        with shaped(str(index), "index of safetensors shards"):
            names = sorted({str(name) for name in _read_object(index)["weight_map"].values()})
        for name in names:
            # A checkpoint's index may name its own folder's files and nothing else.
            if name != Path(name).name or not name.endswith(".safetensors"):
                raise InputError(f"{index}: {name!r} is no file of this checkpoint's own folder")
    tensors: dict[str, Tensor] = {}
    for name in names:
        tensors |= read_tensors(folder / name)
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items()}


def load_drafter(
    folder: Path, *, target_embedding_VD: Tensor | None = None, gamma: int | None = None
) -> DSpark | Eagle3:
    """Load a drafter; parameters become float32.

    Args:
        folder: with config.json and safetensors.
        target_embedding_VD: the target's tied embedding, for files that share it.
        gamma: what the caller wants the block size to be; None takes the checkpoint's.

    Raises:
        InputError: a file or tensor is missing or of a wrong shape (name, expected, found), the
            vocabulary is not the target's, a weight is not finite, or gamma is another.
    """
    path = folder / "config.json"
    raw = read_config(folder)
    with shaped(str(path), "config of a drafter"):
        config = parse_config(raw, str(folder))
        _require_plausible(config, str(path))
    if gamma is not None and gamma != config.gamma:
        raise InputError(f"{folder}: this drafter's gamma is {config.gamma}, {gamma} was asked for")
    if target_embedding_VD is not None and len(target_embedding_VD) != config.vocab_size:
        raise InputError(
            f"{folder}: drafter vocabulary {config.vocab_size}, target vocabulary "
            f"{len(target_embedding_VD)}: they belong to different models"
        )
    tensors = _read_tensors(folder)
    token_id = _draft_tokens(tensors.pop("draft_token_id", None), config, folder)
    if flatten(raw).get("shared_with_target"):
        if target_embedding_VD is None:
            raise InputError(
                f"{folder}: this drafter shares its target's embedding: load it with it"
            )
        tensors["embed_tokens.weight"] = target_embedding_VD
        tensors["lm_head.weight"] = target_embedding_VD[token_id]
    kind = Eagle3 if kind_of(flatten(raw)) == "eagle3" else DSpark
    # First without memory, so that a config alone cannot ask for more than its weights hold.
    with shaped(str(folder), "config of a drafter"), torch.device("meta"):
        expected = kind(config).state_dict()
    if "confidence_head.proj.bias" in expected and "confidence_head.proj.bias" not in tensors:
        # At least one released family lists no bias here; a zero bias is the same head.
        tensors["confidence_head.proj.bias"] = torch.zeros(1)
    for name, value in expected.items():
        found = tensors.get(name)
        if found is None or found.shape != value.shape:
            raise InputError(
                f"{folder}: tensor {name}: expected {list(value.shape)}, found "
                f"{'none' if found is None else list(found.shape)}"
            )
    extra = sorted(set(tensors) - set(expected))
    if extra:
        raise InputError(f"{folder}: tensors this drafter has no use for: {', '.join(extra[:5])}")
    for name in expected:
        if not bool(torch.isfinite(tensors[name]).all()):
            raise InputError(f"{folder}: tensor {name} holds NaN or infinity: get the file again")
    drafter = kind(config)
    drafter.load_state_dict({name: tensors[name].float() for name in expected})
    drafter.token_id_V = token_id
    return drafter.eval().requires_grad_(False)


def _draft_tokens(found: Tensor | None, config: DSparkConfig, folder: Path) -> Tensor:
    """The target's ids [V] of the tokens that can be drafted."""
    size, vocab = config.draft_vocab_size, config.vocab_size
    if found is None and size == vocab:
        return torch.arange(vocab)
    if found is None or found.shape != (size,) or found.is_floating_point():
        shape = "none" if found is None else f"{found.dtype} {list(found.shape)}"
        raise InputError(
            f"{folder}: tensor draft_token_id: expected [{size}] integers, found {shape}"
        )
    ids = found.long()
    different = len(set(ids.tolist()))
    if int(ids.min()) < 0 or int(ids.max()) >= vocab or different < size:
        raise InputError(
            f"{folder}: tensor draft_token_id: expected {size} different ids of 0 to {vocab - 1}, "
            f"found {different} of {int(ids.min())} to {int(ids.max())}"
        )
    return ids


def config_dict(drafter: DSpark | Eagle3, *, num_target_layers: int) -> dict[str, Any]:
    """The flat config.json of a drafter."""
    c = drafter.config
    body: dict[str, Any] = {
        "model_type": "qwen3",
        "hidden_size": c.d_model,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "intermediate_size": c.d_ffn,
        "rope_theta": c.rope_base,
        "rms_norm_eps": c.norm_eps,
        "vocab_size": c.vocab_size,
        "num_target_layers": num_target_layers,
        "target_layer_ids": list(c.target_layer_ids),
        "tie_word_embeddings": False,
        "layer_types": ["full_attention"] * c.num_layers,
    }
    if isinstance(drafter, Eagle3):
        body |= {"architectures": ["Eagle3Model"], "ttt_length": c.gamma, "step_loss_decay": 0.8}
    else:
        body |= {
            "architectures": ["Qwen3DSparkModel"],
            "block_size": c.gamma,
            "mask_token_id": c.mask_token_id,
            "num_anchors": 512,
            "enable_confidence_head": c.confidence,
            "markov_rank": c.markov_rank,
        }
        if c.markov_rank:
            body["markov_head_type"] = c.markov_head_type
        if c.confidence:
            body["confidence_head_with_markov"] = c.confidence_with_markov
    if c.draft_vocab_size != c.vocab_size:
        body["draft_vocab_size"] = c.draft_vocab_size
    return body


def save_drafter(
    drafter: DSpark | Eagle3,
    folder: Path,
    *,
    num_target_layers: int,
    dtype: torch.dtype = torch.float16,
    shared: bool = False,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write config.json and model.safetensors.

    Args:
        drafter: what to save.
        folder: created if absent.
        num_target_layers: for the config.
        dtype: of the stored tensors.
        shared: leave out the frozen copies of the target's embedding and head.
        extra: more fields for config.json, such as where it was trained.

    Raises:
        InputError: the disk is full or the folder cannot be written.
    """
    tensors = {name: value.to(dtype).contiguous() for name, value in drafter.state_dict().items()}
    body = config_dict(drafter, num_target_layers=num_target_layers) | dict(extra or {})
    if shared:
        tensors = {name: value for name, value in tensors.items() if name not in FROZEN}
        body["shared_with_target"] = True
    if drafter.config.draft_vocab_size != drafter.config.vocab_size:
        tensors["draft_token_id"] = drafter.token_id_V.to(torch.int32)
    write_tensors(tensors, folder / "model.safetensors")
    try:
        (folder / "config.json").write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error}") from error
