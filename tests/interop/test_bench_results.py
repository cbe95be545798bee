"""Benchmark files of other tools: every trap between their vocabulary and ours has a test.

The files here are written by hand from the documented fields, not copied from a run.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from specsim.errors import InputError, SpecsimError
from specsim.interop.aiperf import parse_aiperf_records, parse_aiperf_summary
from specsim.interop.deepspec import parse_deepspec_head, parse_deepspec_row
from specsim.interop.inferencex import (
    acceptance_of_golden,
    golden_lengths,
    parse_inferencex_row,
)
from specsim.interop.results import conditional
from specsim.interop.sglang_bench import parse_sglang_bench
from specsim.interop.trtllm import parse_trtllm_bench
from specsim.interop.vllm_bench import parse_spec_metrics, parse_vllm_bench

VLLM = {
    "label": "mine",
    "request_rate": "inf",
    "max_concurrency": 32,
    "duration": 10.0,
    "completed": 100,
    "output_throughput": 2000.0,
    "total_token_throughput": 5000.0,
    "request_throughput": 10.0,
    "mean_ttft_ms": 50.0,
    "median_tpot_ms": 8.0,
    "p99_tpot_ms": 12.0,
    "mean_e2el_ms": 1650.0,
    "spec_decode_acceptance_rate": 42.5,
    "spec_decode_acceptance_length": 2.7,
    "spec_decode_num_drafts": 1000,
    "spec_decode_draft_tokens": 4000,
    "spec_decode_accepted_tokens": 1700,
    "spec_decode_per_position_acceptance_rates": [0.8, 0.5, 0.3, 0.1],
}


def vllm(**changes: object):  # type: ignore[no-untyped-def]
    return parse_vllm_bench(json.dumps(VLLM | changes), where="f.json")[0]


def test_vllm_percent_and_milliseconds() -> None:
    found = vllm()
    assert found.draft_acceptance_rate == pytest.approx(0.425)
    assert found.acceptance_length == 2.7  # bonus in, as ours
    assert found.request_rate_per_s is None  # "inf"
    assert found.latency_s["tpot_s"] == pytest.approx({"p50": 0.008, "p99": 0.012})
    assert found.latency_s["e2e_s"] == pytest.approx({"mean": 1.65})
    assert found.survival_G == (0.8, 0.5, 0.3, 0.1)
    assert conditional(found.survival_G) == pytest.approx([0.8, 0.625, 0.6, 1 / 3])


def test_vllm_a_fraction_is_recognised_by_the_counts() -> None:
    found = vllm(spec_decode_acceptance_rate=0.425)
    assert found.draft_acceptance_rate == pytest.approx(0.425)
    assert "fraction" in found.notes[0]
    # Without counts the documented unit holds.
    bare = vllm(spec_decode_draft_tokens=None, spec_decode_acceptance_rate=0.425)
    assert bare.draft_acceptance_rate == pytest.approx(0.00425)


def test_vllm_lines_and_details() -> None:
    detailed = VLLM | {
        "input_lens": [10, 20], "output_lens": [3, 2], "ttfts": [0.1, 0.2],
        "itls": [[0.01, 0.02], [0.03]],
    }  # fmt: skip
    text = "\n".join(json.dumps(r) for r in (VLLM, detailed))
    first, second = parse_vllm_bench(text, where="f.jsonl")
    assert first.requests is None
    assert second.requests is not None
    np.testing.assert_allclose(second.requests.e2e_s_N, [0.13, 0.23])


def test_pooled_and_per_request_lengths_differ() -> None:
    def response(histogram: list[int], drafted: int) -> dict[str, object]:
        accepted = sum(k * v for k, v in enumerate(histogram))
        return {
            "metrics": {
                "speculative_decoding": {
                    "acceptance_histogram": histogram,
                    "num_spec_steps": sum(histogram),
                    "num_accepted_draft_tokens": accepted,
                    "num_draft_tokens": drafted,
                }
            }
        }

    found = parse_spec_metrics([response([0, 0, 10], 20), response([30, 0, 0], 60)], where="r")
    assert found.mean_acceptance_length == pytest.approx((3 + 1) / 2)
    assert found.pooled_acceptance_length == pytest.approx(1 + 20 / 40)
    assert found.histogram_G.tolist() == [30, 0, 10]
    broken = response([1, 1], 4)
    broken["metrics"]["speculative_decoding"]["num_spec_steps"] = 3  # type: ignore[index]
    with pytest.raises(InputError, match="the histogram counts 2 steps"):
        parse_spec_metrics([broken], where="r")


def test_sglang_names_and_lines() -> None:
    serving = {
        "tag": "a", "max_concurrency": 8, "request_rate": math.inf, "duration": 2.0,
        "completed": 5, "output_throughput": 100.0, "total_throughput": 300.0,
        "median_tpot_ms": 5.0, "mean_e2e_latency_ms": 800.0, "accept_length": 3.2,
    }  # fmt: skip
    one = {"run_name": "x", "batch_size": 4, "median_decode_latency": 0.01,
           "median_decode_throughput": 400.0, "total_latency": 3.0,
           "overall_throughput": 200.0}  # fmt: skip
    server = {"run_name": "y", "batch_size": 4, "latency": 3.0, "output_throughput": 90.0,
              "overall_throughput": 120.0, "last_ttft": 0.2, "acc_length": 2.5}  # fmt: skip
    text = "\n".join(json.dumps(r) for r in (serving, one, server))
    a, b, c = parse_sglang_bench(text, where="f")
    assert a.latency_s["e2e_s"] == {"mean": 0.8}  # e2e_latency, not e2el
    assert a.total_tok_per_s == 300  # total_throughput, not total_token_throughput
    assert a.acceptance_length == 3.2
    assert a.request_rate_per_s is None
    assert b.latency_s["tpot_s"] == {"p50": 0.01}  # already seconds
    assert c.acceptance_length == 2.5
    with pytest.raises(InputError, match=r"f:1: no result of bench_serving"):
        parse_sglang_bench('{"x": 1}', where="f")


def test_aiperf_summary_prefers_the_pooled_length() -> None:
    summary = {
        "benchmark_id": "b",
        "input_config": {"loadgen": {"concurrency": 16}},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 900.0},
        "time_to_first_token": {"unit": "ms", "avg": 40.0, "p99": 80.0},
        "inter_token_latency": {"unit": "ms", "avg": 7.0, "p50": 6.5},
        "spec_decode_acceptance_length": {"unit": "tokens", "avg": 2.9},
        "spec_decode_token_weighted_acceptance_length": {"unit": "tokens", "avg": 2.4},
        "spec_decode_overall_draft_acceptance_rate": {"unit": "%", "avg": 35.0},
        "pooled_spec_decode_acceptance_histogram": {"0": 50, "1": 30, "2": 20},
    }
    found = parse_aiperf_summary(json.dumps(summary), where="f")
    assert found.concurrency == 16
    assert found.acceptance_length == 2.4
    assert found.draft_acceptance_rate == pytest.approx(0.35)
    assert found.latency_s["tpot_s"] == pytest.approx(
        {"mean": 0.007, "p50": 0.0065}
    )  # inter_token_latency
    assert found.survival_G == pytest.approx((0.5, 0.2))
    del summary["spec_decode_token_weighted_acceptance_length"]
    alone = parse_aiperf_summary(json.dumps(summary), where="f")
    assert alone.acceptance_length == 2.9
    assert "mean over requests" in alone.notes[0]
    summary["request_latency"] = {"unit": "fortnights", "avg": 1.0}
    with pytest.raises(InputError, match="fortnights"):
        parse_aiperf_summary(json.dumps(summary), where="f")


def test_aiperf_records_are_pooled_and_failures_counted() -> None:
    def record(steps: int, accepted: int, drafted: int, **more: object) -> str:
        return json.dumps(
            {
                "metadata": {"was_cancelled": False},
                "metrics": {
                    "output_sequence_length": {"value": 10, "unit": "tokens"},
                    "request_latency": {"value": 2_000_000, "unit": "ns"},
                    "time_to_first_token": {"value": 1.5, "unit": "ms"},
                },
                "spec_decode_acceptance": {
                    "num_spec_steps": steps,
                    "num_accepted_draft_tokens": accepted,
                    "num_draft_tokens": drafted,
                    "draft_acceptance_rate": accepted / drafted,
                },
            }
            | more
        )

    text = "\n".join([record(10, 20, 40), record(30, 0, 60), record(1, 1, 1, error="boom")])
    found = parse_aiperf_records(text, where="f")
    assert found.acceptance_length == pytest.approx(1.5)
    assert found.draft_acceptance_rate == pytest.approx(0.2)
    assert found.requests is not None
    np.testing.assert_allclose(found.requests.e2e_s_N, [0.002, 0.002])
    assert "1 cancelled or failed" in found.notes[0]


def test_trtllm_is_taken_with_a_warning() -> None:
    report = {
        "engine": {"model": "m"},
        "world_info": {"world_size": 8},
        "request_info": {"num_requests": 10, "avg_num_concurrent_requests": 4.0},
        "performance": {
            "total_latency_ms": 5000.0, "system_output_throughput_tok_s": 700.0,
            "output_throughput_per_user_tok_s": 90.0,
            "request_latency_percentiles_ms": {"p50": 400.0, "minimum": 100.0},
        },
        "streaming_metrics": {"avg_tpot_ms": 6.0, "tpot_percentiles": {"p99": 9.0}},
        "decoding_stats": {"acceptance_length_percentiles": {"average": 2.2}},
    }  # fmt: skip
    found = parse_trtllm_bench(json.dumps(report), where="f")
    assert found.gpus == 8
    assert found.latency_s["e2e_s"] == pytest.approx({"p50": 0.4, "min": 0.1})
    assert found.latency_s["tpot_s"] == pytest.approx({"p99": 0.009, "mean": 0.006})
    assert "one draft length" in found.notes[0]
    assert found.frontier_row() == {
        "policy": "m", "tok_s_user": pytest.approx(1 / 0.006), "tok_s_gpu": 87.5,
    }  # fmt: skip


def test_inferencex_rows_are_seconds_and_per_gpu() -> None:
    row = {"hw": "b300", "conc": 64, "tp": 4, "pp": 1, "output_tput_per_gpu": 500.0,
           "tput_per_gpu": 1500.0, "median_tpot": 0.01, "median_intvty": 100.0}  # fmt: skip
    found = parse_inferencex_row(row, where="f")
    assert found.gpus == 4
    assert found.output_tok_per_s == 2000
    assert found.latency_s["tpot_s"] == pytest.approx(
        {"p50": 0.01}
    )  # seconds there, not milliseconds
    assert found.frontier_row()["tok_s_user"] == pytest.approx(100)


def test_golden_lengths_have_the_bonus_in() -> None:
    text = json.dumps({"m": {"thinking_on": {"1": 1.84, "2": 2.51, "3": 3.01, "4": 2.9}}})
    golden = golden_lengths(text, where="f")
    found, notes = acceptance_of_golden(golden, "m/thinking_on")
    assert found == pytest.approx([0.84, 0.67 / 0.84, 0.5 / 0.67], abs=1e-6)
    # ..which gives the lengths back, as 1 + the sum of survivals.
    assert 1 + np.cumprod(found).sum() == pytest.approx(3.01)
    assert any("ends at 3" in note for note in notes)
    with pytest.raises(InputError, match="1 to 2 is possible"):
        golden_lengths('{"m": {"on": {"1": 2.4}}}', where="f")
    with pytest.raises(InputError, match="did you mean"):
        acceptance_of_golden(golden, "m/thinking_om")


def test_deepspec_verify_rate_is_no_acceptance_rate() -> None:
    row = {"dataset": "gsm8k", "draft_tokens_per_proposal": 7, "acceptance_length": 6.11,
           "verify_rate": 6.11 / 7.95, "accept_rates_by_position": [0.93, 0.86]}  # fmt: skip
    found = parse_deepspec_row(row, where="f")
    assert found.draft_acceptance_rate == pytest.approx(5.11 / 6.95)  # bonus in neither
    assert found.survival_G == (0.93, 0.86)
    head = {
        "spec": row,
        "confidence": {
            "per_position": [
                {"position": 0, "ece": 0.057, "auc": 0.818, "brier": 0.1,
                 "reliability": [{"avg_pred": 0.5, "avg_target": 0.4, "weight": 10},
                                 {"avg_pred": 0.9, "avg_target": 0.9, "weight": 0}]}
            ]
        },
    }  # fmt: skip
    _, positions = parse_deepspec_head(json.dumps(head), where="f")
    assert positions[0].position == 1
    assert positions[0].bins == ((0.5, 0.4, 10.0),)


@pytest.mark.parametrize(
    "reader", [parse_vllm_bench, parse_aiperf_summary, parse_trtllm_bench, golden_lengths]
)
def test_pointers_and_broken_files_are_named(reader) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SpecsimError, match=r"f\.json:1:2: not JSON"):
        reader("{", where="f.json")
    with pytest.raises(InputError, match=r"f\.json"):
        reader("{}", where="f.json")


def test_a_git_lfs_pointer_is_recognised() -> None:
    with pytest.raises(SpecsimError, match="Git LFS pointer"):
        parse_trtllm_bench("version https://git-lfs.github.com/spec/v1", where="f")


def test_survivals_that_rise_are_refused() -> None:
    with pytest.raises(InputError, match="position 2"):
        conditional((0.5, 0.6))
