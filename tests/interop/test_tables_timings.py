"""Timings of vLLM, SGLang and plain files: what they mean, and every fault by row and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specsim.cost.rows import Row
from specsim.cost.table import Provenance, StepTable, curve, load_table, parse_table
from specsim.errors import InputError, ScenarioError
from specsim.interop.tables import About, guess_form, read_table, write_table
from specsim.interop.timings import (
    parse_csv_rows,
    parse_frontier,
    parse_one_batch,
    parse_telemetry,
)
from specsim.interop.vllm import bench_forward_cases, parse_bench_forward

ROOT = Path(__file__).parents[2]
HERE = Provenance(status="measured", source="a test", date="2026-11-29", licence="Apache-2.0")

CASE: dict[str, Any] = {
    "case": "8*6@1024",
    "requests": [
        {"query_len": 6, "kv_len": 1030, "num_draft_tokens": 5, "chunked": False, "count": 7},
        {"query_len": 1, "kv_len": 1025, "num_draft_tokens": 0, "chunked": False},
    ],
    "median_us": 9000.0,
}
ONE_BATCH: dict[str, Any] = {
    "run_name": "default",
    "batch_size": 16,
    "input_len": 256,
    "output_len": 32,
    "prefill_latency": 0.05,
    "prefill_throughput": 80000.0,
    "median_decode_latency": 0.009,
    "median_decode_throughput": 1777.0,
    "total_latency": 0.4,
    "overall_throughput": 11000.0,
}


def test_bench_forward_microseconds_and_counts() -> None:
    (row,) = parse_bench_forward(json.dumps([CASE]), where="f.json")
    assert row == Row("verify", 43, 8, 1024, 9e-3, "graph")


def test_bench_forward_takes_the_slowest_ranks_samples() -> None:
    ranks = [
        {"num_tokens": 43, "latency_us": {"median": 8000.0, "samples_us": [8000.0, 8000.0]}},
        {"num_tokens": 43, "latency_us": {"median": 9000.0, "samples_us": [9000.0, 9100.0]}},
    ]
    rows = parse_bench_forward(json.dumps([{**CASE, "ranks": ranks}]), where="f.json")
    assert [row.seconds for row in rows] == pytest.approx([9.0e-3, 9.1e-3])
    assert [row.repeat for row in rows] == [0, 1]


def test_cases_for_bench_forward_hold_the_same_cells() -> None:
    rows = [Row("verify", 43, 8, 1024, 1.0), Row("verify", 43, 8, 1024, 2.0)]
    cases = json.loads(bench_forward_cases(rows))["cases"]
    assert len(cases) == 1
    answered = [{"case": cases[0]["name"], "requests": cases[0]["requests"], "median_us": 1.0}]
    (back,) = parse_bench_forward(json.dumps(answered), where="f.json")
    assert (back.batch_tokens, back.num_requests, back.context_tokens) == (43, 8, 1024)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"median_us": 0}, "[0].median_us: must be microseconds above 0, not 0"),
        ({"median_us": "9000"}, "must be microseconds above 0, not '9000'"),
        ({"requests": []}, "[0].requests: must be a list of at least one request"),
        ({"latency": 1}, "[0].latency: is not a field"),
        (
            {"requests": [{"query_len": 6, "kv_len": 5}]},
            "requests[0].kv_len: 5 is less than query_len 6",
        ),
        ({"requests": [{"query_len": 0, "kv_len": 5}]}, "query_len: must be a whole number"),
        ({"requests": [{"query_len": 1, "kvlen": 5}]}, 'did you mean "kv_len"?'),
        ({"ranks": [{"latency_us": {"samples_us": [1.0, -1.0]}}]}, "not -1.0"),
    ],
)
def test_faults_of_bench_forward_are_named(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_bench_forward(json.dumps([{**CASE, **change}]), where="f.json")
    assert expected in str(caught.value)
    assert "f.json" in str(caught.value)


def test_one_batch_is_a_whole_step() -> None:
    (row,) = parse_one_batch(json.dumps(ONE_BATCH) + "\n\n", where="f.jsonl")
    assert row == Row("step", 16, 16, 272, 0.009)
    bad = json.dumps({**ONE_BATCH, "median_decode_latency": -1, "decode": 2})
    with pytest.raises(ScenarioError) as caught:
        parse_one_batch(json.dumps(ONE_BATCH) + "\n" + bad, where="f.jsonl")
    assert "f.jsonl:2: decode: is not a field" in str(caught.value)
    assert "median_decode_latency: must be a number above 0 up to 1e+09, not -1" in str(
        caught.value
    )


def test_csv_units_are_in_the_names() -> None:
    seconds = parse_csv_rows("batch_tokens,seconds\n8,0.009\n", where="f.csv")
    ms = parse_csv_rows("batch_tokens,num_requests,step_ms\n8,2,9\n", where="f.csv")
    assert seconds == [Row("step", 8, 8, 0, 0.009)]
    assert ms[0].seconds == pytest.approx(0.009)
    assert ms[0].num_requests == 2
    with pytest.raises(ScenarioError, match="a unit is never guessed"):
        parse_csv_rows("batch_tokens,seconds,step_ms\n8,9,9\n", where="f.csv")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "batch_tokens,seconds\n8,nan\n",
            "f.csv:2: seconds: must be a number above 0 up to 1e+09, not 'nan'",
        ),
        ("batch_tokens,seconds\n8,0.1\n9.5,0.1\n", "f.csv:3: batch_tokens: must be a whole number"),
        ("batch_tokens,latency\n8,0.1\n", "f.csv:1: latency: column is not known"),
        ("tokens,seconds\n8,0.1\n", "batch_tokens: column is missing"),
        ("batch_tokens,seconds\n", "has no rows"),
        ("batch_tokens,seconds\n8\n", "f.csv:2: seconds: the row has 1 cells for 2 columns"),
        ("batch_tokens,seconds\n8,1,2\n", "f.csv:2: the row has 3 cells for 2 columns"),
        ("batch_tokens,batch_tokens,seconds\n8,8,1\n", "batch_tokens: column is there twice"),
        ("batch_tokens,seconds\n99999999999999999999,1\n", "from 1 to 1e+09"),
        ("batch_tokens,num_requests,seconds\n1,8,1\n", "1 tokens for 8 requests"),
        ("batch_tokens,seconds\n8," + "9" * 200_000, "f.csv:2: field larger than"),
    ],
)
def test_faults_of_a_csv_are_named_by_row_and_field(text: str, expected: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_csv_rows(text, where="f.csv")
    assert expected in str(caught.value)


def test_telemetry_and_frontier_files() -> None:
    (point,) = parse_telemetry(
        "concurrency,tpot_ms,acceptance_length,tokens_per_request\n16,5,2.5,4\n", where="t.csv"
    )
    assert point.step_s == pytest.approx(12.5e-3)
    assert point.batch_tokens == 64
    with pytest.raises(ScenarioError, match=r"t\.csv:2: acceptance_length 5\.0 exceeds"):
        parse_telemetry(
            "concurrency,tpot_ms,acceptance_length,tokens_per_request\n16,5,5,4\n", where="t.csv"
        )
    assert parse_frontier("tok_s_user,tok_s_gpu\n100,900\n", where="f.csv") == ([100.0], [900.0])
    with pytest.raises(ScenarioError, match=r"f\.csv:2: tok_s_gpu"):
        parse_frontier("tok_s_user,tok_s_gpu\n100,-1\n", where="f.csv")


@pytest.mark.parametrize(
    ("head", "scale"),
    [
        ("concurrency,tpot_ms", 1.0),
        ("Concurrency,TPOT (ms)", 1.0),
        ("Max Concurrency,Mean TPOT (s)", 1e-3),
        ("users,tpot_us", 1e3),
        ("concurrency,itl_s", 1e-3),
        ("concurrency,Time per output token [msec]", 1.0),
    ],
)
def test_a_plain_header_is_read_in_its_unit(head: str, scale: float) -> None:
    (point,) = parse_telemetry(f"{head}\n16,{8 * scale}\n", where="t.csv")
    assert (point.concurrency, point.tpot_s) == (16, pytest.approx(8e-3))


@pytest.mark.parametrize(
    ("head", "scale"), [("Batch Tokens,Step (us)", 1e3), ("batch_tokens,step_s", 1e-3)]
)
def test_a_plain_header_of_steps_is_read_in_its_unit(head: str, scale: float) -> None:
    (row,) = parse_csv_rows(f"{head}\n16,{8 * scale}\n", where="t.csv")
    assert row.seconds == pytest.approx(8e-3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("concurrency,tpot_ms\n1,0.0079\n8,0.01\n", "t.csv:2: tpot_ms: 0.0079 ms is below 0.2 ms"),
        (
            "concurrency,tpot_ms\n1,0.0079\n8,0.01\n",
            "in 1 more row (looks like seconds: mult",
        ),
        ("concurrency,tpot_ms\n1,7900\n", "7900 ms is above 1 s"),
        ("concurrency,tpot_ms\n1,7900\n", "looks like microseconds: divide by 1000"),
        ("concurrency,tpot_s\n1,7.9\n", "looks like milliseconds: divide by 1000"),
        ("concurrency,tpot_us\n1,7.9\n", "looks like milliseconds: multiply by 1000"),
        ("concurrency,tpot_us\n1,7.9\n", "say --any-step-time"),
        (
            "concurrency,tpot\n1,7.9\n",
            "tpot: does not say its unit; call it tpot_s, tpot_ms",
        ),
        ("concurrency,tpot_ms,tpot_s\n1,7.9,1\n", "tpot_ms and tpot_s are all times of a step"),
        ("concurrency;tpot_ms\n1;7,9\n", "t.csv:1: the columns are separated by semicolons"),
        ("concurrency\ttpot_ms\n1\t7\n", "the columns are separated by tabs"),
        ("Load,tpot_ms\n1,7\n", "Load: column is not known"),
        (
            "concurrency,itl_ms,acceptance_length,tokens_per_request\n1,7,2,4\n",
            "itl_ms: is the time between chunks",
        ),
    ],
)
def test_telemetry_in_a_wrong_unit_or_form_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_telemetry(text, where="t.csv")
    assert expected in str(caught.value)


def test_steps_and_lines_in_a_wrong_unit_are_refused_unless_insisted_on() -> None:
    steps, line = "batch_tokens,step_ms\n8,0.0079\n", "tok_s_user,tok_s_gpu\n0.1,1\n"
    with pytest.raises(ScenarioError, match="looks like seconds: multiply by 1000"):
        parse_csv_rows(steps, where="f.csv")
    with pytest.raises(ScenarioError, match=r"0\.1 tok/s a user is a TPOT of 1e\+04 ms"):
        parse_frontier(line, where="f.csv")
    (row,) = parse_csv_rows(steps, where="f.csv", any_step_time=True)
    assert row.seconds == pytest.approx(7.9e-6)
    assert parse_frontier(line, where="f.csv", any_step_time=True) == ([0.1], [1.0])
    (point,) = parse_telemetry("concurrency,tpot_ms\n1,7900\n", where="f", any_step_time=True)
    assert point.tpot_s == pytest.approx(7.9)


def test_forms_are_told_apart_and_converted() -> None:
    table = load_table(ROOT / "profiles" / "steps" / "vllm" / "v4_flash_tp4_b300.json")
    about = About("t", HERE, ("attention", "draft", "host"), 1024)
    for form in ("specsim", "sglang-sps", "csv"):
        text = write_table(table, form, tokens_per_request=8)  # type: ignore[arg-type]
        back = read_table(text, guess_form(text), about, where="x")
        assert back.verify.probes_N[0] == 1
        assert back.last_tokens == table.last_tokens
    additive = write_table(table, "sglang-additive", context_tokens=8192)
    assert guess_form(additive) == "sglang"
    assert read_table(additive, "sglang", about, where="x").attention is not None
    cases = json.loads(write_table(table, "vllm-cases", context_tokens=1024))["cases"]
    assert len(cases) == len(table.verify.probes_N)
    assert guess_form(json.dumps([CASE])) == "vllm-bench-forward"
    assert guess_form(json.dumps(ONE_BATCH)) == "sglang-one-batch"
    assert guess_form(Row("step", 1, 1, 0, 1.0).to_json()) == "rows"
    with pytest.raises(InputError, match="form cannot be told"):
        guess_form("hello")


def test_what_a_file_does_not_say_must_be_told() -> None:
    sps = '{"sample_batch_tokens":[1,8],"sample_steps_per_sec":[100.0,50.0],"max_batch_tokens":8}'
    with pytest.raises(InputError, match="give --status"):
        read_table(sps, "sglang", About("t"), where="x")
    with pytest.raises(InputError, match="give --includes"):
        read_table(sps, "sglang", About("t", HERE), where="x")
    table = StepTable("t", HERE, curve([1, 8], [0.01, 0.02]))
    additive = (
        '{"bias_seconds":0.01,"bs_probes":[1,8],"alpha_seconds":[0.001,0.004],'
        '"m_probes":[1,64],"theta_seconds":[0.0,0.006]}'
    )
    with pytest.raises(InputError, match="at which context"):
        read_table(additive, "sglang", About("t", HERE), where="x")
    with pytest.raises(InputError, match="give --context"):
        write_table(table, "sglang-additive")


def test_the_specsim_form_goes_through_unchanged() -> None:
    table = load_table(
        ROOT / "profiles" / "steps" / "aiconfigurator" / "h100_llama31-8b_tp1_bf16.json"
    )
    assert parse_table(write_table(table, "specsim"), where="x").to_json() == table.to_json()
