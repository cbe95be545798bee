"""Shapes and the limits that they set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specsim.cost.roofline import GPUS, Roofline, gpu_named, roofline_table, too_fast
from specsim.cost.shape import SHAPES, load_shape, shape_named, shape_of_config
from specsim.cost.table import Provenance, StepTable, curve, load_table
from specsim.errors import InputError, SpecsimError

STEPS = Path(__file__).parents[3] / "profiles" / "steps"
HERE = Provenance(status="synthetic", source="a test", date="2026-11-29", licence="Apache-2.0")


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3.1-8b", 7.5),  # 8.03 with the embedding table, which a step does not read
        ("llama-3.1-70b", 69.5),
        ("qwen3-32b", 32.0),
        ("deepseek-v3", 671.0),
        ("qwen3-235b-a22b", 235.0),
        ("gpt-oss-120b", 117.0),
        ("kimi-k2", 1026.0),
    ],
)
def test_weights_are_those_of_the_model(name: str, billions: float) -> None:
    assert SHAPES[name].total_weights() / 1e9 == pytest.approx(billions, rel=0.06)


def test_active_weights_of_a_mixture() -> None:
    assert SHAPES["deepseek-v3"].active_weights() / 1e9 == pytest.approx(37, rel=0.06)
    assert SHAPES["qwen3-235b-a22b"].active_weights() / 1e9 == pytest.approx(22, rel=0.06)
    dense = SHAPES["llama-3.1-8b"]
    assert dense.active_weights() == dense.total_weights()


def test_more_tokens_touch_more_experts_up_to_all() -> None:
    shape = SHAPES["qwen3-235b-a22b"]
    touched = [shape.touched_weights(tokens) for tokens in (1, 8, 64, 4096)]
    assert touched == sorted(touched)
    assert touched[0] == pytest.approx(shape.active_weights(), rel=1e-9)
    assert touched[-1] == pytest.approx(shape.total_weights(), rel=1e-9)


def test_kv_of_one_token() -> None:
    assert SHAPES["llama-3.1-8b"].kv_per_token() == 2 * 32 * 8 * 128
    assert SHAPES["deepseek-v3"].kv_per_token() == 61 * 576


def test_shards() -> None:
    shape = SHAPES["llama-3.1-70b"]
    half = shape.shard(2)
    assert half.total_weights() * 2 == shape.total_weights()
    assert shape.shard(16).kv_heads == 1  # replicated
    with pytest.raises(InputError, match="heads 64 does not divide over 3"):
        shape.shard(3)
    with pytest.raises(InputError, match="at least 1, not 0"):
        shape.shard(0)


def test_weights_bind_small_batches_and_flops_large_ones() -> None:
    roofline = Roofline(SHAPES["llama-3.1-8b"], GPUS["h100"])
    assert roofline.weights_s(1) == pytest.approx(7.5e9 * 2 / 3.35e12, rel=0.01)
    assert roofline.verify_s(1) == roofline.weights_s(1)
    assert roofline.verify_s(2048) == roofline.flops_s(2048)
    ridge = roofline.weights_s(1) / roofline.flops_s(1)
    assert 250 < ridge < 350
    both = Roofline(SHAPES["llama-3.1-8b"], GPUS["h100"], num_gpus=2)
    assert both.verify_s(64) == pytest.approx(roofline.verify_s(64) / 2)
    assert roofline.attention_s(2000) == pytest.approx(2 * roofline.attention_s(1000))


def test_narrower_weights_use_the_faster_format() -> None:
    gpu = GPUS["h100"]
    assert gpu.peak(2.0) == 989e12
    assert gpu.peak(1.0) == 1979e12
    assert gpu.peak(0.5) == 1979e12  # no 4-bit units: weights are widened
    assert GPUS["b200"].peak(0.5) == 9000e12


@pytest.mark.parametrize(
    ("table", "model", "gpu", "gpus", "weight_bytes"),
    [
        ("aiconfigurator/h100_llama31-8b_tp1_bf16", "llama-3.1-8b", "h100", 1, 2),
        ("aiconfigurator/h200_llama31-8b_tp1_bf16", "llama-3.1-8b", "h200", 1, 2),
        ("aiconfigurator/h100_llama31-70b_tp4_bf16", "llama-3.1-70b", "h100", 4, 2),
        ("aiconfigurator/b200_llama31-70b_tp4_fp8", "llama-3.1-70b", "b200", 4, 1),
        ("aiconfigurator/h200_qwen3-32b_tp4_bf16", "qwen3-32b", "h200", 4, 2),
        ("vidur/a100_llama3-8b_tp1_fp16", "llama-3.1-8b", "a100", 1, 2),
        ("vidur/h100_llama2-70b_tp8_fp16", "llama-2-70b", "h100", 8, 2),
        ("llmservingsim/rtx4090_llama31-8b_tp1_bf16", "llama-3.1-8b", "rtx4090", 1, 2),
        ("llmservingsim/rtxpro6000_qwen3-32b_tp1_bf16", "qwen3-32b", "rtxpro6000", 1, 2),
    ],
)
def test_no_shipped_table_reads_its_weights_faster_than_memory_allows(
    table: str, model: str, gpu: str, gpus: int, weight_bytes: float
) -> None:
    found = load_table(STEPS / f"{table}.json")
    roofline = Roofline(SHAPES[model], GPUS[gpu], gpus, weight_bytes)
    assert [probe for probe in too_fast(found, roofline) if probe.limit == "weights"] == []


def test_a_table_that_beats_its_hardware_is_flagged() -> None:
    roofline = Roofline(SHAPES["llama-3.1-8b"], GPUS["h100"])
    found = StepTable("t", HERE, curve([1, 64, 2048], [1e-3, 6e-3, 20e-3]))
    fast = too_fast(found, roofline)
    assert [(probe.batch_tokens, probe.limit) for probe in fast] == [
        (1, "weights"),
        (2048, "flops"),
    ]
    assert fast[0].least_s > 4 * fast[0].seconds


def test_a_table_of_limits_says_so_and_stays_above_them() -> None:
    roofline = Roofline(SHAPES["qwen3-8b"], GPUS["h200"])
    options: dict[str, Any] = {
        "name": "x",
        "date": "2026-11-29",
        "max_tokens": 600,
        "max_requests": 64,
    }
    table = roofline_table(roofline, **options)
    assert table.provenance.status == "derived"
    assert "nothing was measured" in table.provenance.source
    assert table.verify.last == 600
    assert too_fast(table, roofline) == []
    with pytest.raises(InputError, match="efficiency must be in"):
        roofline_table(roofline, efficiency=1.5, **options)
    with pytest.raises(InputError, match="launch_s must be"):
        roofline_table(roofline, launch_s=-1.0, **options)


def test_presets_are_named_in_errors() -> None:
    with pytest.raises(InputError, match='did you mean "h100"'):
        gpu_named("h1000")
    with pytest.raises(InputError, match='did you mean "qwen3-14b"'):
        shape_named("qwen3-14")


def test_a_hugging_face_config_is_read(tmp_path: Path) -> None:
    config = {
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
    }
    assert shape_of_config(config, where="c") == SHAPES["llama-3.1-8b"]
    assert shape_of_config({"text_config": config}, where="c") == SHAPES["llama-3.1-8b"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_shape(str(tmp_path)) == SHAPES["llama-3.1-8b"]
    moe = {**config, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
    found = shape_of_config(moe, where="c")
    assert (found.experts, found.experts_per_token, found.ffn) == (128, 8, 768)
    with pytest.raises(InputError, match="hidden_size: must be a whole number of at least 1"):
        shape_of_config({**config, "hidden_size": "4096"}, where="c")
    with pytest.raises(InputError, match="has experts but no num_experts_per_tok"):
        shape_of_config({**config, "num_experts": 8}, where="c")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SpecsimError, match="not JSON"):
        load_shape(str(tmp_path))
