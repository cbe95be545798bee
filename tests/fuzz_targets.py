"""Every loader of files that users give, as a function of bytes: for Hypothesis and for atheris.

`Target.run(data, folder)` may raise what `specsim.errors` names and nothing else; anything besides
is a fault of ours. A target that reads several files, or one of several forms, takes the form from
the first byte and splits files at `SPLIT`.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specsim.errors import SpecsimError

ROOT = Path(__file__).parents[1]
SPLIT = b"\n<<<>>>\n"


@dataclass(frozen=True)
class Target:
    """One loader.

    Attributes:
        name: for the command line and for folders.
        run: reads `data`, laid down under `folder`; raises `SpecsimError` if it is wrong.
        seeds: inputs that are right, or nearly.
    """

    name: str
    run: Callable[[bytes, Path], object]
    seeds: Callable[[], Sequence[bytes]]


def laid(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def text_of(data: bytes, folder: Path, read: Callable[[Path], str]) -> str:
    """Read through the product's own function, so that decoding is tried too."""
    return read(laid(folder, "input.txt", data))


# Scenarios and studies


def _scenario(data: bytes, folder: Path) -> object:
    from specsim.scenario.load import load_scenario

    return load_scenario(laid(folder, "a.yaml", data))


def _scenario_seeds() -> list[bytes]:
    bad = ROOT / "tests" / "cli" / "bad_inputs"
    shipped = sorted((ROOT / "scenarios").glob("*.yaml"))
    return [p.read_bytes() for p in [*shipped, *sorted(bad.glob("*.yaml"))]]


_TINY = b"""{name: t, question: {kind: point, concurrency: 2}, seed: 1,
stop: {kind: requests, num_requests: 9}, cluster: {gpus_per_rank: 1, max_requests_per_rank: 4},
workload: {arrivals: {kind: closed_loop}, prompt_tokens: {kind: fixed, tokens: 9},
  output_tokens: {kind: fixed, tokens: 9}},
acceptance: {kind: trace, trace: smollm2_markov_t1},
cost: {table: aiconfigurator/h100_llama31-8b_tp1_bf16, read: linear,
  host: {base_ms: 1, per_request_us: 0, label: assumed, source: t},
  draft: {base_ms: 1, per_request_us: 0, label: assumed, source: t}},
policies: {one: {scheduler: {kind: fixed, k: 1}, gamma: 2}}}
"""
"""A small scenario for studies: what is tried there is the study, and reading this one is quick."""


def _study(data: bytes, folder: Path) -> object:
    from specsim.study.grid import load_study

    laid(folder, "tiny.yaml", _TINY)
    return load_study(laid(folder, "s.yaml", data))


def _study_seeds() -> list[bytes]:
    return [
        (ROOT / "scenarios" / "studies" / "lag.yaml").read_bytes(),
        b"name: s\nscenario: hello\nplan: {kind: grid, axes: {seed: [1, 2]}}\n"
        b"replications: 2\nmetrics: [tok_s_gpu]\n",
        b"name: s\nscenario: hello\nplan: {kind: latin_hypercube, samples: 3, ranges: "
        b"{stop.num_requests: {low: 10, high: 20, whole: true}}}\n",
        b"name: s\nscenario: hello\nplan: {kind: list, points: [{seed: 1}, {seed: 2}]}\n",
        b"name: s\nscenario: tiny.yaml\nset: {seed: 3}\npolicies: [one]\nconcurrency: [1, 4]\n"
        b"plan: {kind: grid, axes: {stop.num_requests: [5, 6], policies.one.gamma: [1, 2]}}\n",
        b"name: s\nscenario: tiny.yaml\nplan: {kind: latin_hypercube, samples: 2, seed: 4, ranges: "
        b"{cost.host.base_ms: {low: 1, high: 2}, stop.num_requests: {low: 2, high: 9, scale: log, "
        b"whole: true}}}\n",
    ]


def _words(data: bytes, folder: Path) -> object:
    """Text that comes by the command line: SLOs, search spaces, overrides, settings."""
    from specsim.lossless.kinds import parse_settings
    from specsim.scenario.load import load_scenario
    from specsim.study.slo import parse_slo
    from specsim.study.tune import parse_space

    text = data[1:].decode("utf-8", "replace")
    hello = ROOT / "scenarios" / "hello.yaml"
    forms: list[Callable[[], object]] = [
        lambda: parse_slo([text]),
        lambda: parse_space([text]),
        lambda: parse_settings((text,)),
        lambda: load_scenario(hello, overrides=[text]),
    ]
    return forms[data[0] % len(forms)]() if data else None


def _words_seeds() -> list[bytes]:
    return [b"\0tok_s_user>=80", b"\1a.b=1:2:log", b"\2k=3", b"\3seed=4"]


# Step-cost tables, and files that become some


def _steps(data: bytes, folder: Path) -> object:
    from specsim.cost.table import load_table

    return load_table(laid(folder, "t.json", data))


def _steps_seeds() -> list[bytes]:
    folder = ROOT / "profiles" / "steps"
    small = sorted(folder.rglob("*.json"), key=lambda p: p.stat().st_size)[:6]
    return [p.read_bytes() for p in small]


def _timings(data: bytes, folder: Path) -> object:
    from specsim.acceptance.calibration import from_sglang
    from specsim.cost.rows import load_rows
    from specsim.cost.shape import load_shape
    from specsim.cost.table import Provenance
    from specsim.inputs import read_text
    from specsim.interop.silicon import load_points
    from specsim.interop.tables import About, guess_form, read_rows, read_table
    from specsim.interop.timings import parse_frontier, parse_telemetry

    if not data:
        return None
    path = laid(folder, "input.txt", data[1:])

    def text() -> str:
        return read_text(path)

    here = Provenance(status="measured", source="a test", date="2026-11-30", licence="Apache-2.0")
    about = About("t", here, ("draft", "attention", "host"), 128)
    forms: list[Callable[[], object]] = [
        lambda: load_rows(path),
        lambda: load_shape(str(path)),
        lambda: load_points(path),
        lambda: guess_form(text()),
        lambda: read_table(text(), "sglang", about, where="f"),
        lambda: read_rows(text(), "vllm-bench-forward", where="f"),
        lambda: read_rows(text(), "sglang-one-batch", where="f"),
        lambda: read_rows(text(), "csv", where="f"),
        lambda: parse_telemetry(text(), where="f"),
        lambda: parse_frontier(text(), where="f"),
        lambda: from_sglang(text(), where="f", gamma=3),
    ]
    return forms[data[0] % len(forms)]()


def _timings_seeds() -> list[bytes]:
    row = {
        "part": "verify", "batch_tokens": 8, "num_requests": 4, "context_tokens": 128,
        "seconds": 0.01, "repeat": 0, "mode": "eager",
    }  # fmt: skip
    config = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100,
    }  # fmt: skip
    sps = {
        "sample_batch_tokens": [1, 8],
        "sample_steps_per_sec": [100.0, 90.0],
        "max_batch_tokens": 8,
    }
    case = {
        "case": "8*6@1024",
        "requests": [{"query_len": 6, "kv_len": 1030, "num_draft_tokens": 5, "count": 7}],
        "median_us": 9000.0,
    }
    from specsim.interop.silicon import _NEEDED

    cells = ["agg" if name == "mode" else "8" for name in _NEEDED]
    served = ",".join(_NEEDED) + "\n" + ",".join(cells) + "\n"
    one_batch = {
        "run_name": "r", "batch_size": 4, "input_len": 8, "output_len": 8,
        "prefill_latency": 0.1, "median_decode_latency": 0.01,
    }  # fmt: skip
    lines = [
        json.dumps(row),
        json.dumps(config),
        served,
        '{"format": "specsim.steps/1"}',
        json.dumps(sps),
        json.dumps([case]),
        json.dumps(one_batch),
        "batch_tokens,seconds\n1,0.01\n8,0.02\n",
        "concurrency,tpot_ms,acceptance_length,tokens_per_request\n1,10,2.5,4\n8,14,2.4,4\n",
        "tok_s_user,tok_s_gpu\n100,200\n50,400\n",
        json.dumps({"temperatures": [1.0, 1.1, 0.9], "dataset": "d", "num_samples": 3}),
    ]
    return [bytes([n]) + line.encode() for n, line in enumerate(lines)]


# Benchmark results and records of other tools


_IMPORTS = ("vllm", "sglang", "aiperf", "aiperf-records", "trtllm", "inferencex", "deepspec")


def _imports(data: bytes, folder: Path) -> object:
    from specsim.study.imports import import_golden, import_records, import_results, measured_csv
    from specsim.study.store import to_json

    if not data:
        return None
    path = laid(folder, "input.json", data[1:])
    which = data[0] % (len(_IMPORTS) + 2)
    if which == len(_IMPORTS):
        names = import_golden(path, None)["models"]
        return [import_golden(path, name) for name in names]
    if which == len(_IMPORTS) + 1:
        return import_records(path, folder / "out.npz")
    results = import_results(path, _IMPORTS[which], gpus=4)  # type: ignore[arg-type]
    return to_json([r.as_dict() for r in results]), measured_csv(results)


def _imports_seeds() -> list[bytes]:
    vllm = {
        "label": "mine", "request_rate": "inf", "max_concurrency": 32, "duration": 10.0,
        "completed": 100, "output_throughput": 2000.0, "median_tpot_ms": 8.0,
        "spec_decode_acceptance_rate": 42.5, "spec_decode_num_drafts": 1000,
        "spec_decode_draft_tokens": 4000, "spec_decode_accepted_tokens": 1700,
        "spec_decode_per_position_acceptance_rates": [0.8, 0.5], "input_lens": [10, 20],
        "output_lens": [3, 2], "ttfts": [0.1, 0.2], "itls": [[0.01, 0.02], [0.03]],
    }  # fmt: skip
    sglang = {
        "backend": "sglang", "max_concurrency": 8, "duration": 5.0, "completed": 10,
        "output_throughput": 100.0, "median_tpot_ms": 9.0, "accept_length": 2.5,
        "total_throughput": 300.0, "ttfts": [0.1], "output_lens": [10], "itls": [[0.01]],
    }  # fmt: skip
    stat = {"unit": "ms", "avg": 10.0, "p50": 9.0, "p99": 20.0}
    aiperf = {
        "time_to_first_token": stat, "inter_token_latency": stat, "request_latency": stat,
        "output_token_throughput": {"unit": "tokens/sec", "avg": 100.0},
        "input_config": {"loadgen": {"concurrency": 8}},
    }  # fmt: skip
    record = {
        "metadata": {"request_start_ns": 0, "request_end_ns": 10**9},
        "metrics": {
            "time_to_first_token": {"value": 10.0, "unit": "ms"},
            "output_sequence_length": {"value": 10, "unit": "tokens"},
            "request_latency": {"value": 100.0, "unit": "ms"},
        },
        "error": None,
    }  # fmt: skip
    trtllm = {
        "engine": {"model": "m"}, "world_info": {"world_size": 4},
        "performance": {"system_output_throughput_tok_s": 100.0},
        "streaming_metrics": {"tpot_percentiles": {"average": 9.0, "p50": 9.0}},
    }  # fmt: skip
    inferencex = {
        "hw": "h200", "tp": 4, "conc": 8, "output_tput_per_gpu": 100.0, "median_tpot": 0.01,
        "median_intvty": 100.0,
    }  # fmt: skip
    spec = {
        "dataset": "gsm8k", "draft_tokens_per_proposal": 7, "acceptance_length": 6.11,
        "verify_rate": 0.77, "accept_rates_by_position": [0.93, 0.86],
    }  # fmt: skip
    position = {
        "ece": 0.1, "auc": 0.8, "brier": 0.2,
        "reliability": [{"avg_pred": 0.5, "avg_target": 0.5, "weight": 3}],
    }  # fmt: skip
    deepspec = {"spec": spec, "confidence": {"per_position": [position]}}
    golden = {"m": {"chat": {"1": 1.7, "2": 2.1}}}
    step = {
        "forward_ct": 1, "requests": [{"rid": "a", "verify_len": 3, "acc_len": 2,
        "correct_drafts": 1, "confidence": [0.9, 0.8, 0.7]}], "step_time_ms": 3.0,
    }  # fmt: skip
    records = {"gamma": 3, "mode": "static", "records": [step]}
    bodies = [vllm, sglang, aiperf, record, trtllm, inferencex, deepspec, golden, records]
    return [bytes([n]) + json.dumps(body).encode() for n, body in enumerate(bodies)]


# Recorded traffic


_FORMATS = ("azure_llm_2023", "mooncake", "burstgpt", "ragpulse", "qwen_bailian", "csv")


def _traffic(data: bytes, folder: Path) -> object:
    from specsim.workload.formats import load_trace, read_columns
    from specsim.workload.servegen import load_clients

    if not data:
        return None
    which = data[0] % (len(_FORMATS) + 2)
    if which == len(_FORMATS):
        trace, _, lengths = data[1:].partition(SPLIT)
        laid(folder, "chunk-0-trace.csv", trace)
        laid(folder, "chunk-0-dataset.json", lengths)
        return load_clients(folder)
    path = laid(folder, "input.txt", data[1:])
    if which == len(_FORMATS) + 1:
        return read_columns(path, ("prompt_tokens", "output_tokens"))
    return load_trace(path, _FORMATS[which], bad_rows="drop" if data[0] & 128 else "error")  # type: ignore[arg-type]


def _traffic_seeds() -> list[bytes]:
    azure = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,374,44\r\n"
        "2023-11-16 18:17:04.0319600,396,109\r\n"
    )
    mooncake = '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
    burst = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
    )
    rag = (
        '{"timestamp": "3.5", "input_length": 100, "output_length": 20, "session_id": "a", '
        '"hash_ids": {"sys_prompt": [1], "passages_ids": [2], "history": [], '
        '"web_search": [], "user_input": [3]}}\n'
    )
    qwen = (
        '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 9, '
        '"output_length": 5, "type": "text", "turn": 1, "hash_ids": [1]}\n'
    )
    plain = "arrival_s,prompt_tokens,output_tokens,session\n0,10,20,a\n1.5,11,21,a\n"
    lengths = {"0": {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{5: 1.0}"}}
    servegen = b"0,0.5,1.2,Gamma,0.7,2.0\n600,0.4,1.1,Weibull,0.9,2.5\n" + SPLIT
    bodies = [azure, mooncake, burst, rag, qwen, plain]
    found = [bytes([n]) + body.encode() for n, body in enumerate(bodies)]
    found.append(bytes([len(_FORMATS)]) + servegen + json.dumps(lengths).encode())
    found.append(bytes([len(_FORMATS) + 1]) + b"prompt_tokens,output_tokens\n3,4\n5,6\n")
    return found


# Archives and tensors


def archive(members: Sequence[tuple[str, bytes]]) -> bytes:
    """Make a zip whose checksums are right whatever its members hold."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, content in members:
            made.writestr(zipfile.ZipInfo(name), content)
    return file.getvalue()


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array), allow_pickle=False)
    return file.getvalue()


_TRACE = (
    "confidence_NG", "num_accepted_N", "sequence_offset_S1", "sequence_domain_S", "metadata",
    "accept_rate_NG",
)  # fmt: skip
_TOKENS = ("train_token", "train_length", "train_prompt_tokens", "train_domain")


def _npz(data: bytes, folder: Path) -> object:
    """The first byte: the whole archive as it is, or its members, which are then packed rightly."""
    from specsim.acceptance.trace import load_trace

    if not data:
        return None
    raw = data[1:]
    if data[0] & 1:
        raw = archive([(f"{n}.npy", m) for n, m in zip(_TRACE, raw.split(SPLIT), strict=False)])
    trace = load_trace(laid(folder, "t.npz", raw))
    return trace.whole_block_N(), trace.domain_N()


def _npz_seeds() -> list[bytes]:
    members = [
        npy(np.full((4, 2), 0.5, np.float16)),
        npy(np.array([0, 1, 2, 1], np.uint8)),
        npy(np.array([0, 2, 4], np.int64)),
        npy(np.array([0, 1], np.uint8)),
        npy(np.array('{"domain_names": ["a", "b"]}')),
    ]
    whole = archive([(f"{n}.npy", m) for n, m in zip(_TRACE, members, strict=False)])
    return [b"\0" + whole, b"\1" + SPLIT.join(members)]


def _token_file(data: bytes, folder: Path) -> object:
    from specsim.drafter.textstore import read_token_file

    if not data:
        return None
    raw = data[1:]
    if data[0] & 1:
        raw = archive([(f"{n}.npy", m) for n, m in zip(_TOKENS, raw.split(SPLIT), strict=False)])
    return read_token_file(laid(folder, "t.npz", raw))


def _token_file_seeds() -> list[bytes]:
    parts = ([1, 2, 3, 4, 5], [2, 3], [1, 1], [0, 1])
    members = [npy(np.array(part, np.int32)) for part in parts]
    whole = archive([(f"{n}.npy", m) for n, m in zip(_TOKENS, members, strict=True)])
    return [b"\0" + whole, b"\1" + SPLIT.join(members)]


CONFIG = {
    "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 32,
    "intermediate_size": 32, "block_size": 3, "target_layer_ids": [1], "mask_token_id": 0,
    "markov_rank": 4, "enable_confidence_head": True,
}  # fmt: skip


def safetensors(header: bytes, body: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + body


def _drafter(data: bytes, folder: Path) -> object:
    """The first byte: a raw weights file, or a header whose length is put before it."""
    from specsim.drafter.checkpoint import load_drafter

    if not data:
        return None
    config, _, weights = data[1:].partition(SPLIT)
    if data[0] & 1:
        header, _, body = weights.partition(SPLIT)
        weights = safetensors(header, body)
    laid(folder, "config.json", config)
    laid(folder, "model.safetensors", weights)
    return load_drafter(folder)


def _drafter_seeds() -> list[bytes]:
    config = json.dumps(CONFIG).encode()
    header = json.dumps(
        {"norm.weight": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
    ).encode()
    return [
        b"\1" + config + SPLIT + header + SPLIT + bytes(16),
        b"\0" + config + SPLIT + safetensors(header, bytes(16)),
    ]


def _corpus(data: bytes, folder: Path) -> object:
    from specsim.drafter.corpus import read_corpus

    return read_corpus([laid(folder, "c.jsonl", data)])


def _corpus_seeds() -> list[bytes]:
    row = {"domain": "math", "source": "s", "prompt": "1 + 1"}
    return [json.dumps(row).encode() + b"\n"]


# What specsim wrote itself, and somebody or a full disk changed


def _stored(data: bytes, folder: Path) -> object:
    from specsim.study.compare import compare
    from specsim.study.reports import open_page

    if not data:
        return None
    manifest, _, summary = data[1:].partition(SPLIT)
    laid(folder, "manifest.json", manifest)
    laid(folder, "summary.json", summary)
    if data[0] & 1:
        return compare(str(folder), str(folder))
    return open_page(folder)


def _stored_seeds() -> list[bytes]:
    manifest = {"status": "complete", "hash": "0" * 64, "points": {"done": 0, "of": 0}}
    summary = {"scenario": "s", "question": {"kind": "point"}, "policies": {}, "status": "complete"}
    body = json.dumps(manifest).encode() + SPLIT + json.dumps(summary).encode()
    return [b"\0" + body, b"\1" + body]


TARGETS = {
    target.name: target
    for target in (
        Target("scenario", _scenario, _scenario_seeds),
        Target("study", _study, _study_seeds),
        Target("words", _words, _words_seeds),
        Target("steps", _steps, _steps_seeds),
        Target("timings", _timings, _timings_seeds),
        Target("imports", _imports, _imports_seeds),
        Target("traffic", _traffic, _traffic_seeds),
        Target("npz", _npz, _npz_seeds),
        Target("token_file", _token_file, _token_file_seeds),
        Target("drafter", _drafter, _drafter_seeds),
        Target("corpus", _corpus, _corpus_seeds),
        Target("stored", _stored, _stored_seeds),
    )
}  # fmt: skip


def fault_of(target: Target, data: bytes, folder: Path) -> BaseException | None:
    """Return what a loader raised that it should not have, or None."""
    try:
        target.run(data, folder)
    except SpecsimError:
        return None
    except Exception as error:
        return error
    return None
