"""SGLang's cost tables: its loader's rules, round trips, and what its reading then charges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specsim.cost.table import Provenance, StepTable, curve, load_table
from specsim.errors import InputError, ScenarioError
from specsim.interop.sglang import (
    SpsAdditiveCostTable,
    SpsCostTable,
    from_additive,
    from_sps,
    parse_sglang,
    sglang_json,
    to_additive,
    to_sps,
)

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data" / "gpu_profiles" / "derived_sps"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason=f"source tables absent: no folder {SHARED}"
)
DERIVED = sorted(SHARED.glob("*.json")) if SHARED.is_dir() else []
HERE = Provenance(status="derived", source="a test", date="2026-11-29", licence="Apache-2.0")
SPS: dict[str, Any] = {
    "sample_batch_tokens": [8, 16, 32],
    "sample_steps_per_sec": [100.0, 90.0, 50.0],
    "max_batch_tokens": 64,
}
ADDITIVE: dict[str, Any] = {
    "bias_seconds": 0.01,
    "bs_probes": [1, 8],
    "alpha_seconds": [0.001, 0.004],
    "m_probes": [1, 64],
    "theta_seconds": [0.0, 0.006],
}


def loads_in_sglang(text: str) -> bool:
    """The rules of SGLang's loader, written again from its description in formats.md 2.1."""
    data = json.loads(text)
    if "bias_seconds" in text:
        names = {"bias_seconds", "bs_probes", "alpha_seconds", "m_probes", "theta_seconds"}
        pairs = [("bs_probes", "alpha_seconds"), ("m_probes", "theta_seconds")]
        bounds = data["bias_seconds"] > 0
    else:
        names = {"sample_batch_tokens", "sample_steps_per_sec", "max_batch_tokens"}
        pairs = [("sample_batch_tokens", "sample_steps_per_sec")]
        bounds = data["max_batch_tokens"] >= data["sample_batch_tokens"][-1]
    return (
        set(data) == names
        and bounds
        and all(
            len(data[x]) == len(data[y]) > 0
            and data[x] == sorted(set(data[x]))
            and all(type(probe) is int for probe in data[x])
            and data[x][0] >= 1
            for x, y in pairs
        )
    )


@needs_shared
@pytest.mark.parametrize("path", DERIVED, ids=lambda path: path.stem)
def test_every_derived_table_round_trips_through_both_forms(path: Path) -> None:
    source = json.loads(path.read_text())
    fields = {c: source[f"sglang_additive_ctx{c}"] for c in source["ctx"]}
    parsed = {int(c): parse_sglang(json.dumps(f), where=c) for c, f in fields.items()}
    table = from_additive(parsed, name=path.stem, provenance=HERE)  # type: ignore[arg-type]
    for context, expected in fields.items():
        text = sglang_json(to_additive(table, context_tokens=int(context)))
        assert json.loads(text) == expected
        assert loads_in_sglang(text)

    decode = source["sglang_sps_decode_ctx1024"]
    sps = parse_sglang(json.dumps(decode), where="sps")
    assert isinstance(sps, SpsCostTable)
    back = to_sps(from_sps(sps, name="x", provenance=HERE, includes=["attention"]))
    assert json.loads(sglang_json(back)) == decode


@needs_shared
@pytest.mark.parametrize("path", DERIVED, ids=lambda path: path.stem)
def test_the_shipped_tables_hold_the_source_numbers(path: Path) -> None:
    source = json.loads(path.read_text())
    shipped = [
        table
        for found in (ROOT / "profiles" / "steps").glob("*/*.json")
        if (table := load_table(found)).verify.probes_N.tolist() == source["m_probes"]
        and np.allclose(table.verify.seconds_N, source["theta_seconds"], rtol=0, atol=1e-9)
    ]
    assert len(shipped) == 1, f"{path.stem} is shipped {len(shipped)} times"
    (table,) = shipped
    assert table.provenance.status == "derived"
    assert "MIT" in table.provenance.licence or "Apache-2.0" in table.provenance.licence
    assert table.attention is not None
    for row, context in zip(table.attention.seconds_CR, source["ctx"].values(), strict=True):
        np.testing.assert_array_equal(row, context["alpha_seconds"])


@pytest.mark.parametrize(
    "name", ["vllm/v4_flash_tp4_b300", "aiconfigurator/h100_llama31-8b_tp1_bf16"]
)
@pytest.mark.parametrize("reading", ["probes", "ceil"])
def test_what_is_written_loads_in_sglang(name: str, reading: Any) -> None:
    table = load_table(ROOT / "profiles" / "steps" / f"{name}.json")
    assert loads_in_sglang(sglang_json(to_sps(table, context_tokens=1024, reading=reading)))
    assert loads_in_sglang(sglang_json(to_additive(table, context_tokens=1024, bias="lowest")))


def test_a_ceil_export_makes_sglang_charge_what_vllm_charges() -> None:
    table = StepTable("t", HERE, curve([1, 8, 16, 64], [0.010, 0.012, 0.019, 0.030]))
    sps = to_sps(table, reading="ceil")
    ceil_s_B = table.dense("ceil", 64)
    assert [sps.step_time(tokens) for tokens in range(1, 65)] == pytest.approx(ceil_s_B[1:])
    plain = to_sps(table)
    floor_s_B = table.dense("floor", 64)
    assert [plain.step_time(tokens) for tokens in range(1, 65)] == pytest.approx(floor_s_B[1:])
    assert plain.step_time(63) < 0.7 * ceil_s_B[63]  # floor undercharges just before a riser


def test_a_ceil_export_of_a_table_that_starts_above_one_token() -> None:
    table = StepTable("t", HERE, curve([4, 8], [0.010, 0.012]))
    sps = to_sps(table, reading="ceil")
    assert [sps.step_time(tokens) for tokens in (1, 4, 5, 8)] == pytest.approx(
        [0.010, 0.010, 0.012, 0.012]
    )


def test_the_eager_cliff_survives_the_export() -> None:
    table = load_table(ROOT / "profiles" / "steps" / "vllm" / "v4_flash_tp4_b300.json")
    for reading in ("probes", "ceil"):
        sps = to_sps(table, tokens_per_request=8, reading=reading)  # type: ignore[arg-type]
        assert sps.step_time(1025) > 4 * sps.step_time(1024)
    additive = to_additive(table, context_tokens=8192)
    assert additive.step_time(1, 1025) > 4 * additive.step_time(1, 1024)


def test_additive_charges_requests_apart_from_tokens() -> None:
    table = SpsAdditiveCostTable(**ADDITIVE)
    assert table.step_time(1, 32) < table.step_time(8, 32)
    made = from_additive({1024: table}, name="t", provenance=HERE)
    assert to_additive(made, context_tokens=1024) == table
    assert made.attention is not None


def test_lowest_bias_keeps_theta_at_zero_or_above() -> None:
    falling = {**ADDITIVE, "m_probes": [1, 2, 64], "theta_seconds": [0.0, -0.002, 0.006]}
    made = from_additive({1024: SpsAdditiveCostTable(**falling)}, name="t", provenance=HERE)
    lowest = to_additive(made, context_tokens=1024, bias="lowest")
    assert min(lowest.theta_seconds) == 0.0
    assert lowest.bias_seconds == pytest.approx(0.008)
    first = to_additive(made, context_tokens=1024)
    for tokens in (1, 2, 40):
        assert lowest.step_time(3, tokens) == pytest.approx(first.step_time(3, tokens))


def test_tables_at_two_contexts_must_agree_but_for_alpha() -> None:
    other = SpsAdditiveCostTable(**{**ADDITIVE, "theta_seconds": [0.0, 0.007]})
    with pytest.raises(InputError, match="differ in theta_seconds"):
        from_additive(
            {1024: SpsAdditiveCostTable(**ADDITIVE), 4096: other}, name="t", provenance=HERE
        )


def test_sglangs_placeholder_is_refused() -> None:
    flat = SpsCostTable([1], [1.0], 256)
    with pytest.raises(InputError, match="verify all"):
        from_sps(flat, name="t", provenance=HERE, includes=[])


def test_attention_needs_a_context_to_be_written() -> None:
    made = from_additive({1024: SpsAdditiveCostTable(**ADDITIVE)}, name="t", provenance=HERE)
    with pytest.raises(InputError, match="give the context"):
        to_sps(made)


@pytest.mark.parametrize(
    ("base", "change", "expected"),
    [
        (SPS, {"sample_batch_tokens": [8, 8, 32]}, "[1]: 8 does not rise above 8"),
        (SPS, {"sample_batch_tokens": [8, 16, 32.0]}, "[2]: must be a whole number"),
        (SPS, {"sample_batch_tokens": [0, 16, 32]}, "from 1 to 1e+09, not 0"),
        (SPS, {"sample_batch_tokens": []}, "at least one probe"),
        (SPS, {"sample_steps_per_sec": [1.0, 2.0]}, "has 2 entries for 3 probes"),
        (SPS, {"sample_steps_per_sec": [1.0, 0.0, 2.0]}, "[1]: must be above 0, not 0.0"),
        (SPS, {"sample_steps_per_sec": [1.0, float("nan"), 2.0]}, "finite number, not nan"),
        (SPS, {"max_batch_tokens": 31}, "31 is below the last probe 32"),
        (SPS, {"max_batch_tokens": True}, "must be a whole number, not True"),
        (SPS, {"max_batch_token": 64}, 'did you mean "max_batch_tokens"?'),
        (ADDITIVE, {"bias_seconds": 0}, "bias_seconds: must be above 0, not 0"),
        (ADDITIVE, {"bias_seconds": "0.1"}, "must be a finite number, not '0.1'"),
        (ADDITIVE, {"alpha_seconds": [0.1]}, "has 1 entries for 2 probes"),
        (ADDITIVE, {"m_probes": [64, 1]}, "m_probes[1]: 1 does not rise above 64"),
        (ADDITIVE, {"theta_seconds": [-0.02, 0.0]}, "a step takes time"),
    ],
)
def test_broken_rules_are_named(
    base: dict[str, Any], change: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_sglang(json.dumps({**base, **change}), where="t.json")
    assert expected in str(caught.value)
    assert str(caught.value).startswith("t.json")


def test_a_missing_field_is_named() -> None:
    short = {key: value for key, value in SPS.items() if key != "max_batch_tokens"}
    with pytest.raises(ScenarioError, match="max_batch_tokens: is missing"):
        parse_sglang(json.dumps(short), where="t.json")
    with pytest.raises(ScenarioError, match=r"t\.json:1:2: not JSON"):
        parse_sglang("{", where="t.json")
