"""`specsim import`: files of other tools in specsim's vocabulary."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from specsim.acceptance.trace import save_trace
from specsim.errors import InputError
from specsim.inputs import parse_json, read_text
from specsim.interop.aiperf import parse_aiperf_records, parse_aiperf_summary
from specsim.interop.deepspec import parse_deepspec_head
from specsim.interop.inferencex import acceptance_of_golden, golden_lengths, parse_inferencex_row
from specsim.interop.results import BenchResult
from specsim.interop.sglang_bench import parse_sglang_bench
from specsim.interop.sglang_records import conditional_acceptance, parse_records, trace_of
from specsim.interop.trtllm import parse_trtllm_bench
from specsim.interop.vllm_bench import parse_vllm_bench

Kind = Literal[
    "vllm", "sglang", "aiperf", "aiperf-records", "trtllm", "inferencex", "golden", "deepspec",
    "sglang-records",
]  # fmt: skip


def import_results(path: Path, kind: Kind, *, gpus: int | None = None) -> list[BenchResult]:
    """Read benchmark results.

    Args:
        path: the file.
        kind: which tool wrote it.
        gpus: accelerators, where the file does not say.

    Raises:
        InputError: it is no such file.
    """
    text, where = read_text(path), str(path)
    readers: dict[str, Callable[[], list[BenchResult]]] = {
        "vllm": lambda: parse_vllm_bench(text, where=where),
        "sglang": lambda: parse_sglang_bench(text, where=where),
        "aiperf": lambda: [parse_aiperf_summary(text, where=where)],
        "aiperf-records": lambda: [parse_aiperf_records(text, where=where)],
        "trtllm": lambda: [parse_trtllm_bench(text, where=where)],
        "inferencex": lambda: _inferencex(text, where),
        "deepspec": lambda: [parse_deepspec_head(text, where=where)[0]],
    }
    if kind not in readers:
        raise InputError(f'"{kind}" holds no benchmark results; legal are {", ".join(readers)}')
    found = readers[kind]()
    return [replace(r, gpus=r.gpus or gpus) for r in found]


def _inferencex(text: str, where: str) -> list[BenchResult]:
    data = parse_json(text, where)
    rows = data if isinstance(data, list) else [data]
    return [parse_inferencex_row(row, where=f"{where}: row {n}") for n, row in enumerate(rows)]


def measured_csv(results: list[BenchResult]) -> str:
    """Write results as the points that `specsim pareto --measured` reads.

    Raises:
        InputError: a result lacks TPOT, throughput or GPUs.
    """
    file = io.StringIO()
    writer = csv.DictWriter(file, ["policy", "tok_s_user", "tok_s_gpu"], lineterminator="\n")
    writer.writeheader()
    for result in results:
        writer.writerow(result.frontier_row())
    return file.getvalue()


def import_golden(path: Path, name: str | None) -> dict[str, Any]:
    """Return an acceptance model of golden acceptance lengths, as a scenario says it.

    Args:
        path: JSON of the golden lengths.
        name: `model/mode`; lists them if None.

    Raises:
        InputError: no such file or model.
    """
    golden = golden_lengths(read_text(path), where=str(path))
    if name is None:
        return {"models": sorted(golden)}
    found, notes = acceptance_of_golden(golden, name)
    return {
        "acceptance": {
            "kind": "parametric",
            "calibration": "constant",
            "conditional_acceptance": found,
            "label": "fitted",
            "source": f"InferenceX golden acceptance lengths of {name}",
        },
        "gamma": len(found),
        "notes": notes,
    }


def import_records(path: Path, trace_out: Path | None) -> dict[str, Any]:
    """Return what SGLang's per-step records say; write them as a trace if asked.

    Raises:
        InputError: they are none, or were cut by windows and cannot be a trace.
    """
    recording = parse_records(read_text(path), where=str(path))
    found_G, count_G = conditional_acceptance(recording)
    if trace_out is not None:
        save_trace(trace_of(recording), trace_out)
    return {
        "gamma": recording.gamma,
        "mode": recording.mode,
        "steps": len(recording.steps),
        "rows_without_confidence": recording.left_out,
        "conditional_acceptance": [None if v != v else float(v) for v in found_G],
        "drafts_counted": count_G.tolist(),
        **({"trace": str(trace_out)} if trace_out else {}),
    }
