"""Checkpoints: every kind against the published table of names and shapes, and bad files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402

from specsim.drafter import checkpoint  # noqa: E402
from specsim.drafter.opening import OpenTarget, open_drafter  # noqa: E402
from specsim.errors import InputError  # noqa: E402
from tests.drafter_world import VOCAB, small_drafter, small_target  # noqa: E402

# The released Qwen3-4B layout with every size scaled down: d, heads, kv, head_dim, ffn, V, m, r.
D, H, KV, HD, FFN, V, M, R, LAYERS = 20, 4, 2, 6, 28, 37, 5, 3, 5


def _table(kind: str, head: str = "vanilla") -> dict[str, list[int]]:
    table = {
        "embed_tokens.weight": [V, D],
        "lm_head.weight": [V, D],
        "fc.weight": [D, M * D],
        "norm.weight": [D],
    }
    wide = 2 * D if kind == "eagle3" else D
    for i in range(1 if kind == "eagle3" else LAYERS):
        p = f"layers.{i}."
        table |= {
            p + "self_attn.q_proj.weight": [H * HD, wide],
            p + "self_attn.k_proj.weight": [KV * HD, wide],
            p + "self_attn.v_proj.weight": [KV * HD, wide],
            p + "self_attn.o_proj.weight": [D, H * HD],
            p + "mlp.gate_proj.weight": [FFN, D],
            p + "mlp.up_proj.weight": [FFN, D],
            p + "mlp.down_proj.weight": [D, FFN],
            p + "input_layernorm.weight": [D],
            p + "post_attention_layernorm.weight": [D],
        }
        if kind == "eagle3":
            table[p + "hidden_norm.weight"] = [D]
        else:
            table |= {p + "self_attn.q_norm.weight": [HD], p + "self_attn.k_norm.weight": [HD]}
    if kind != "eagle3":
        table["hidden_norm.weight"] = [D]
    if kind == "dspark":
        table |= {
            "markov_head.markov_w1.weight": [V, R],
            "markov_head.markov_w2.weight": [V, R],
            "confidence_head.proj.weight": [1, D + R],
            "confidence_head.proj.bias": [1],
        }
        if head == "gated":
            table |= {"markov_head.gate_proj.weight": [R, D + R], "markov_head.gate_proj.bias": [R]}
        if head == "rnn":
            table |= {
                "markov_head.joint_proj.weight": [3 * R, 2 * R + D],
                "markov_head.joint_proj.bias": [3 * R],
            }
    return table


def _config(kind: str, head: str = "vanilla") -> dict[str, object]:
    body: dict[str, object] = {
        "architectures": ["Qwen3DSparkModel"], "model_type": "qwen3", "hidden_size": D,
        "num_attention_heads": H, "num_key_value_heads": KV, "head_dim": HD,
        "intermediate_size": FFN, "vocab_size": V, "num_hidden_layers": LAYERS,
        "num_target_layers": 36, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "target_layer_ids": [1, 9, 17, 25, 33], "tie_word_embeddings": False,
    }  # fmt: skip
    if kind == "eagle3":
        return body | {"ttt_length": 7, "step_loss_decay": 0.8, "num_hidden_layers": 1}
    body |= {"block_size": 7, "mask_token_id": 36, "num_anchors": 512}
    if kind == "dflash":
        return body | {"markov_rank": 0, "enable_confidence_head": False}
    return body | {
        "markov_rank": R,
        "markov_head_type": head,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }


def _write(
    folder: Path, kind: str, head: str = "vanilla", **config: object
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    tensors = {n: torch.randn(s, generator=generator) for n, s in _table(kind, head).items()}
    folder.mkdir(exist_ok=True)
    save_file(tensors, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(_config(kind, head) | config))
    return tensors


KINDS = [
    ("dspark", "vanilla"),
    ("dspark", "gated"),
    ("dspark", "rnn"),
    ("dflash", ""),
    ("eagle3", ""),
]


@pytest.mark.parametrize(("kind", "head"), KINDS)
def test_every_kind_loads_tensor_by_tensor_and_saves_the_same(
    tmp_path: Path, kind: str, head: str
) -> None:
    written = _write(tmp_path / "a", kind, head)
    drafter = checkpoint.load_drafter(tmp_path / "a")
    loaded = drafter.state_dict()
    assert loaded.keys() == written.keys()
    for name, tensor in written.items():
        assert torch.equal(loaded[name], tensor), name
    checkpoint.save_drafter(drafter, tmp_path / "b", num_target_layers=36, dtype=torch.float32)
    again = load_file(str(tmp_path / "b" / "model.safetensors"))
    assert {n: list(t.shape) for n, t in again.items()} == _table(kind, head)
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert checkpoint.kind_of(config) == kind
    assert checkpoint.parse_config(config, "b") == checkpoint.parse_config(_config(kind, head), "a")


def test_shards_prefixes_nested_config_and_a_missing_confidence_bias(tmp_path: Path) -> None:
    tensors = _write(tmp_path, "dspark")
    (tmp_path / "model.safetensors").unlink()
    del tensors["confidence_head.proj.bias"]
    names = sorted(tensors)
    weight_map = {}
    for part, chosen in enumerate((names[::2], names[1::2])):
        file = f"model-{part}.safetensors"
        save_file({f"model.{n}": tensors[n] for n in chosen}, str(tmp_path / file))
        weight_map |= {f"model.{n}": file for n in chosen}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    config = _config("dspark")
    nested = {k: config.pop(k) for k in ("block_size", "markov_rank", "target_layer_ids")}
    (tmp_path / "config.json").write_text(json.dumps(config | {"dflash_config": nested}))
    drafter = checkpoint.load_drafter(tmp_path)
    assert drafter.config.gamma == 7
    assert float(drafter.confidence_head.proj.bias) == 0


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.pop("fc.weight"), r"tensor fc.weight: expected \[20, 100\], found none"),
        (
            lambda t: t.update({"fc.weight": torch.zeros(20, 80)}),
            r"tensor fc.weight: expected \[20, 100\], found \[20, 80\]",
        ),
        (lambda t: t.update({"mtp.0.x": torch.zeros(1)}), "no use for: mtp.0.x"),
        (lambda t: t["norm.weight"].fill_(float("nan")), "tensor norm.weight holds NaN or inf"),
    ],
)
def test_wrong_tensors_are_named(tmp_path: Path, spoil, message: str) -> None:
    tensors = _write(tmp_path, "dspark")
    spoil(tensors)
    save_file(tensors, str(tmp_path / "model.safetensors"))
    with pytest.raises(InputError, match=message):
        checkpoint.load_drafter(tmp_path)


def test_wrong_files_vocabulary_and_gamma(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config.json is missing"):
        checkpoint.load_drafter(tmp_path)
    _write(tmp_path, "dspark")
    with pytest.raises(InputError, match="drafter vocabulary 37, target vocabulary 99"):
        checkpoint.load_drafter(tmp_path, target_embedding_VD=torch.zeros(99, D))
    with pytest.raises(InputError, match="gamma is 7, 5 was asked for"):
        checkpoint.load_drafter(tmp_path, gamma=5)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(InputError, match="not a whole safetensors file"):
        checkpoint.load_drafter(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=r"model.safetensors is missing"):
        checkpoint.load_drafter(tmp_path)
    config = _config("dspark")
    del config["block_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"no `block_size` .drafts a block"):
        checkpoint.load_drafter(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": "wide"}, "is no config of a drafter"),
        ({"target_layer_ids": 3}, "is no config of a drafter"),
        ({"rope_theta": None, "rope_parameters": [1]}, "is no config of a drafter"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "3 heads cannot share 2"),
        ({"mask_token_id": V}, f"mask_token_id is {V}, legal is 0 to {V - 1}"),
        ({"draft_vocab_size": V + 1}, f"draft_vocab_size is {V + 1}, the target has {V}"),
    ],
)
def test_wrong_config_fields_are_named(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    _write(tmp_path, "dspark")
    (tmp_path / "config.json").write_text(json.dumps(_config("dspark") | change))
    with pytest.raises(InputError, match=message):
        checkpoint.load_drafter(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", b"[1]", "must be a JSON object"),
        ("config.json", b"\xff{", "cannot be read"),
        ("model.safetensors.index.json", b"{", "not JSON"),
        ("model.safetensors.index.json", b"{}", "is no index of safetensors shards"),
    ],
)
def test_damaged_json_is_named(tmp_path: Path, file: str, content: bytes, message: str) -> None:
    _write(tmp_path, "dspark")
    (tmp_path / file).write_bytes(content)
    with pytest.raises(InputError, match=message):
        checkpoint.load_drafter(tmp_path)


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        (None, "expected .4. integers, found none"),
        ([2, 3], "found torch.int32 .2."),
        ([2, 3, 5, VOCAB], f"expected 4 different ids of 0 to {VOCAB - 1}"),
        ([2, 3, 5, -1], "found 4 of -1 to 5"),
        ([2, 3, 5, 5], "found 3 of 2 to 5"),
    ],
)
def test_ids_of_the_draft_vocabulary_are_checked(
    tmp_path: Path, ids: list[int] | None, found: str
) -> None:
    target = small_target()
    drafter = small_drafter(target, token_id=[2, 3, 5, 9])
    checkpoint.save_drafter(drafter, tmp_path, num_target_layers=3, shared=True)
    path = tmp_path / "model.safetensors"
    tensors = load_file(str(path))
    del tensors["draft_token_id"]
    if ids is not None:
        tensors["draft_token_id"] = torch.tensor(ids, dtype=torch.int32)
    save_file(tensors, str(path))
    with pytest.raises(InputError, match=rf"tensor draft_token_id: .*{found}"):
        checkpoint.load_drafter(tmp_path, target_embedding_VD=target.embed.weight)


def test_a_drafter_of_a_deeper_target_is_refused(tmp_path: Path) -> None:
    target = small_target()
    checkpoint.save_drafter(small_drafter(target), tmp_path, num_target_layers=3)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"target_layer_ids": [0, 3]}))
    opened = OpenTarget(target, list, target.embed.weight, VOCAB, 64, None, {})
    with pytest.raises(InputError, match=r"\[0, 3\], but the target has layers 0 to 2"):
        open_drafter(tmp_path, opened)


def test_a_drafter_that_shares_its_targets_embedding_round_trips(tmp_path: Path) -> None:
    target = small_target()
    drafter = small_drafter(target, token_id=[2, 3, 5, 9])
    checkpoint.save_drafter(
        drafter, tmp_path, num_target_layers=3, dtype=torch.float32, shared=True, extra={"note": 1}
    )
    assert "lm_head.weight" not in load_file(str(tmp_path / "model.safetensors"))
    again = checkpoint.load_drafter(tmp_path, target_embedding_VD=target.embed.weight)
    assert again.token_id_V.tolist() == [2, 3, 5, 9]
    for name, tensor in drafter.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert again.config.vocab_size == VOCAB
    with pytest.raises(InputError, match="shares its target's embedding"):
        checkpoint.load_drafter(tmp_path)
