"""A file of another tool with anything broken in it is read or refused; it never is our fault."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from specsim.acceptance.calibration import from_sglang
from specsim.cost.rows import parse_rows
from specsim.cost.shape import shape_of_config
from specsim.cost.table import parse_table
from specsim.errors import SpecsimError
from specsim.interop.aiperf import parse_aiperf_records, parse_aiperf_summary
from specsim.interop.deepspec import parse_deepspec_head
from specsim.interop.inferencex import acceptance_of_golden, golden_lengths, parse_inferencex_row
from specsim.interop.sglang import parse_sglang
from specsim.interop.sglang_bench import parse_sglang_bench
from specsim.interop.sglang_records import (
    conditional_acceptance,
    parse_records,
    records_json,
    trace_of,
)
from specsim.interop.timings import parse_one_batch
from specsim.interop.trtllm import parse_trtllm_bench
from specsim.interop.vllm import parse_bench_forward
from specsim.interop.vllm_bench import parse_spec_metrics, parse_vllm_bench

JUNK = (
    None,
    True,
    "",
    "x",
    -1,
    0,
    1.5,
    10**30,
    float("nan"),
    float("inf"),
    [],
    [None],
    {},
    {"x": 1},
)

SPECULATION = {
    "acceptance_histogram": [1, 2],
    "num_spec_steps": 3,
    "num_accepted_draft_tokens": 2,
    "num_draft_tokens": 6,
}
DETAILS = {"input_lens": [10, 20], "output_lens": [3, 2], "ttfts": [0.1, 0.2],
           "itls": [[0.01, 0.02], [0.03]]}  # fmt: skip


def _records(value: Any) -> None:
    recording = parse_records(json.dumps(value), where="f")
    conditional_acceptance(recording)
    trace_of(recording)


def _golden(value: Any) -> None:
    for name in (golden := golden_lengths(json.dumps(value), where="f")):
        acceptance_of_golden(golden, name)


def _text(reader: Callable[..., Any]) -> Callable[[Any], None]:
    return lambda value: reader(json.dumps(value), where="f")


FILES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "vllm": (
        {"label": "a", "max_concurrency": 8, "request_rate": "inf", "duration": 1.0,
         "completed": 2, "output_throughput": 9.0, "median_tpot_ms": 8.0,
         "spec_decode_acceptance_rate": 42.5, "spec_decode_draft_tokens": 4,
         "spec_decode_accepted_tokens": 2,
         "spec_decode_per_position_acceptance_rates": [0.8, 0.5], **DETAILS},
        _text(parse_vllm_bench),
    ),
    "vllm per request": (
        [{"metrics": {"speculative_decoding": SPECULATION}}],
        lambda value: parse_spec_metrics(value if isinstance(value, list) else [value], where="f"),
    ),
    "sglang": (
        {"tag": "a", "request_rate": 4, "output_throughput": 1.0, "total_throughput": 2.0,
         "median_tpot_ms": 5.0, "accept_length": 3.2, **DETAILS},
        _text(parse_sglang_bench),
    ),
    "sglang records": (
        records_json(gamma=2, mode="static", steps=[
            {"forward_ct": 1, "reqs": [("a", 2, 1, [0.5, 0.5]), ("b", 2, 0, [0.5, 0.5])]}
        ]),
        _records,
    ),
    "aiperf": (
        {"benchmark_id": "b", "input_config": {"loadgen": {"concurrency": 4}},
         "output_token_throughput": {"unit": "tokens/sec", "avg": 100.0},
         "time_to_first_token": {"unit": "ms", "avg": 10.0, "p50": 9.0},
         "pooled_spec_decode_acceptance_histogram": {"0": 1, "2": 3}},
        _text(parse_aiperf_summary),
    ),
    "aiperf records": (
        {"metadata": {"was_cancelled": False},
         "metrics": {"input_sequence_length": {"value": 5, "unit": "tokens"},
                     "request_latency": {"value": 5, "unit": "ms"}},
         "spec_decode_acceptance": SPECULATION, "error": None},
        _text(parse_aiperf_records),
    ),
    "trtllm": (
        {"engine": {"model": "m"}, "world_info": {"world_size": 2},
         "request_info": {"num_requests": 3}, "performance": {"total_latency_ms": 5.0},
         "streaming_metrics": {"avg_ttft_ms": 3.0, "ttft_percentiles": {"p50": 1.0}},
         "decoding_stats": {"acceptance_length_percentiles": {"average": 2.0}}},
        _text(parse_trtllm_bench),
    ),
    "inferencex": (
        {"hw": "h200", "framework": "vllm", "precision": "fp8", "conc": 8, "tp": 4,
         "output_tput_per_gpu": 5.0, "median_tpot": 0.01, "is_multinode": False},
        lambda value: parse_inferencex_row(value, where="f"),
    ),
    "golden": ({"m.yaml": {"data": {"m": {"on": {"1": 1.8, "2": 2.4}}}}}, _golden),
    "deepspec": (
        {"spec": {"dataset": "d", "draft_tokens_per_proposal": 7, "acceptance_length": 3.0,
                  "verify_rate": 0.8, "accept_rates_by_position": [0.9]},
         "confidence": {"per_position": [
             {"ece": 0.1, "auc": 0.8, "brier": 0.1,
              "reliability": [{"avg_pred": 0.5, "avg_target": 0.4, "weight": 10}]}]}},
        _text(parse_deepspec_head),
    ),
    "bench forward": (
        [{"case": "a", "requests": [{"query_len": 2, "kv_len": 9, "count": 2}], "median_us": 9.0,
          "ranks": [{"latency_us": {"median": 9.0, "samples_us": [9.0, 9.5]}}]}],
        _text(parse_bench_forward),
    ),
    "one batch": (
        {"run_name": "r", "batch_size": 4, "input_len": 64, "output_len": 8,
         "median_decode_latency": 0.01},
        _text(parse_one_batch),
    ),
    "rows": (
        {"part": "verify", "batch_tokens": 8, "num_requests": 2, "context_tokens": 0,
         "seconds": 0.1, "mode": "graph", "repeat": 1},
        _text(parse_rows),
    ),
    "sps": (
        {"sample_batch_tokens": [1, 2], "sample_steps_per_sec": [9.0, 8.0], "max_batch_tokens": 4},
        _text(parse_sglang),
    ),
    "additive": (
        {"bias_seconds": 0.1, "bs_probes": [1, 2], "alpha_seconds": [0.1, 0.2],
         "m_probes": [1, 2], "theta_seconds": [0.0, 0.1]},
        _text(parse_sglang),
    ),
    "sts": (
        {"temperatures": [1.0, 1.2], "dataset": "d", "num_samples": 9, "ece_before": 0.1,
         "ece_after": 0.05},
        lambda value: from_sglang(json.dumps(value), where="f", gamma=2),
    ),
    "config": (
        {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99,
         "intermediate_size": 128, "num_key_value_heads": 2, "num_experts": 4,
         "num_experts_per_tok": 2},
        lambda value: shape_of_config(value, where="f"),
    ),
    "table": (
        {"format": "specsim.steps/1", "name": "t", "verify": {"batch_tokens": [1, 2],
         "seconds": [0.1, 0.2]}, "includes": ["draft"],
         "provenance": {"status": "measured", "source": "s", "date": "2026-01-01",
                        "licence": "MIT", "left_out": ["x"]}},
        _text(parse_table),
    ),
}  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        yield from _places(value[key], (*path, key))


def _broken(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the value with each place taken out or replaced by junk."""
    for path in _places(value):
        for junk in JUNK:
            made = copy.deepcopy(value)
            at = made
            for key in path[:-1]:
                at = at[key]
            if not path:
                made = junk
            else:
                at[path[-1]] = junk
            yield f"{path} is {junk!r:.40}", made
        if path:
            made = copy.deepcopy(value)
            at = made
            for key in path[:-1]:
                at = at[key]
            del at[path[-1]]
            yield f"{path} is absent", made


@pytest.mark.parametrize("name", FILES)
def test_anything_broken_is_read_or_refused(name: str) -> None:
    value, reader = FILES[name]
    reader(value)
    refused = 0
    for what, broken in _broken(value):
        try:
            reader(broken)
        except SpecsimError:
            refused += 1
        except Exception as error:  # the point of this test
            pytest.fail(f"{name}: {what}: {type(error).__name__}: {error}")
    assert refused > 5
