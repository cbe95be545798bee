"""Rebuild the step-cost tables under profiles/steps/ from the data that they come from.

    python scripts/build_steps.py --source DIR

DIR holds `published/` (numbers read off the vLLM blog's figures and from the Rapid-MLX results) and
`gpu_profiles/derived_sps/` (tables computed from aiconfigurator, vidur and LLMServingSim profiles).
They are not part of this repository; without them the script says so and writes nothing.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path

from specsim.cost.table import Provenance, StepTable, curve, save_table
from specsim.interop.sglang import SpsAdditiveCostTable, from_additive

OUT = Path(__file__).parent.parent / "profiles" / "steps"

APACHE = "Apache-2.0"
DERIVED_FROM = {
    "aic-vllm0.24": (
        "aiconfigurator",
        "NVIDIA aiconfigurator kernel measurements (github.com/ai-dynamo/aiconfigurator, commit "
        "095f58a): GEMMs, all-reduce and decode attention of vLLM 0.24, added up over the layers",
        APACHE,
        "elementwise operators estimated at 4 x 2 us + bytes / 2.8 TB/s a layer",
    ),
    "vidur": (
        "vidur",
        "Microsoft vidur profiles (github.com/microsoft/vidur, commit 7d47513) of linear layers "
        "and all-reduce, added up over the layers; decode attention: ",
        "MIT AND Apache-2.0",
        "kernels of 2024",
    ),
    "lss": (
        "llmservingsim",
        "LLMServingSim layer-wise vLLM 0.19 profile (github.com/casys-kaist/LLMServingSim, commit "
        "5daddb2): layers, attention and language-model head added up",
        "MIT",
        "",
    ),
    "lss-v0": (
        "llmservingsim",
        "LLMServingSim v0 eager-mode layer timings (github.com/casys-kaist/LLMServingSim, commit "
        "5daddb2) at every token count 1..2048; decode attention of aiconfigurator (095f58a)",
        "MIT AND Apache-2.0",
        "eager mode: includes launch overhead of about 2 ms a step at one token",
    ),
}
LEFT_OUT = [
    "CPU and scheduler gap between steps",
    "sampling",
    "drafting",
    "padding to captured graph sizes",
    "overlap of kernels",
]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def captured(tokens: int) -> int:
    """Round a count read off the figure (0.1-0.5% accurate) to the engine's grid of sizes."""
    return tokens if tokens < 512 else 16 * round(tokens / 16)


def build_vllm(source: Path) -> dict[str, StepTable]:
    stem = "vllm_blog_v4flash0731_tp4_b300"
    verify = rows(source / "published" / f"{stem}_verify_cost_median.csv")
    draft = rows(source / "published" / f"{stem}_draft_cost_median.csv")
    graph = [row for row in verify if row["regime"] == "cudagraph"]
    eager = [row for row in verify if row["regime"] == "eager"]

    def seconds(part: list[dict[str, str]], column: str) -> list[float]:
        return [round(float(row[column]) / 1e3, 8) for row in part]

    moved = [int(r["target_tokens"]) for r in verify if captured(t := int(r["target_tokens"])) != t]
    table = StepTable(
        name="v4_flash_tp4_b300",
        provenance=Provenance(
            status="measured",
            source="vLLM blog on DSpark adaptive verification, 14 August 2026, cost-curve figure "
            "(github.com/vllm-project/vllm-project.github.io pull requests 296 and 297): medians "
            "of 5 startup profile steps a size, DeepSeek-V4-Flash-0731, TP4 on B300, read off the "
            "vector geometry",
            date="2026-08-14",
            licence="facts read off a published figure",
            left_out=[
                "host time between steps",
                "target and draft sampling",
                "prefill interference",
                "attention past the profile's own context",
            ],
            notes="vLLM installs the running maximum of these medians and reads it upwards "
            "(read: ceil, running_max: true). Attention is inside the verify steps at vLLM's "
            "profile context, 8,192 tokens by default; the figure does not say another. Counts "
            "from 512 on were read with 0.1-0.5% error and are rounded to the multiple of 16 "
            f"nearest to them (moved: {', '.join(map(str, moved))}). Graphs are captured up to "
            "1,024 tokens; the five larger points ran eagerly.",
        ),
        verify=curve(
            [captured(int(r["target_tokens"])) for r in graph], seconds(graph, "verify_ms_median")
        ),
        graph_limit_tokens=1024,
        past_limit=curve(
            [captured(int(r["target_tokens"])) for r in eager], seconds(eager, "verify_ms_median")
        ),
        draft=curve([int(r["num_requests"]) for r in draft], seconds(draft, "draft_ms_median")),
        includes=frozenset({"attention"}),
    )
    return {"vllm/v4_flash_tp4_b300": table}


def build_rapidmlx(source: Path) -> dict[str, StepTable]:
    found = rows(source / "published" / "rapidmlx_m3ultra_qwen35_9b_4bit_sps.csv")
    table = StepTable(
        name="m3ultra_qwen35_9b_4bit",
        provenance=Provenance(
            status="measured",
            source="Rapid-MLX (github.com/raullenchai/Rapid-MLX) branch "
            "spike/dspark-scheduler-eval, spike/dspark/results.json: steps per second of "
            "Qwen3.5-9B 4-bit on an M3 Ultra",
            date="2026-11-29",
            licence="facts from published results",
            left_out=["whatever the profile run left out; its results do not say"],
            notes="The date is the day of reading. Step time falls slightly from 16 to 32 tokens: "
            "that is in the measurement.",
        ),
        verify=curve(
            [int(r["batch_tokens"]) for r in found],
            [round(1 / float(r["steps_per_s"]), 8) for r in found],
        ),
    )
    return {"rapidmlx/m3ultra_qwen35_9b_4bit": table}


def build_derived(source: Path) -> dict[str, StepTable]:
    tables = {}
    for path in sorted((source / "gpu_profiles" / "derived_sps").glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        stem, kind = path.stem.rsplit("_", 1)
        folder, origin, licence, remark = DERIVED_FROM[kind]
        note = data["note"]
        if kind == "vidur":
            analytic = "analytic" in note
            origin += (
                "analytic, context bytes / 1.6 TB/s"
                if analytic
                else "aiconfigurator H100 (095f58a)"
            )
            licence = "MIT" if analytic else licence
        if isinstance(note, dict):
            near = sorted(name for name, exact in note.items() if not exact)
            remark += f"; GEMM shapes interpolated: {', '.join(near)}" if near else ""
        name = stem if kind != "lss-v0" else f"{stem}_eager"
        by_context = {
            int(context): SpsAdditiveCostTable(**data[f"sglang_additive_ctx{context}"])
            for context in data["ctx"]
        }
        provenance = Provenance(
            status="derived",
            source=origin,
            date="2026-11-29",
            licence=licence,
            left_out=LEFT_OUT,
            notes=f"Absolute speed is an upper bound; the shape is what is real. {remark}".strip(),
        )
        tables[f"{folder}/{name}"] = from_additive(by_context, name=name, provenance=provenance)
    return tables


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True, help="folder of the source data")
    parser.add_argument("--out", type=Path, default=OUT, help="where to write; profiles/steps")
    args = parser.parse_args()
    needed = [args.source / "published", args.source / "gpu_profiles" / "derived_sps"]
    absent = [str(path) for path in needed if not path.is_dir()]
    if absent:
        print(f"source data absent: {', '.join(absent)}; nothing is written", file=sys.stderr)
        return 2
    built = {
        **build_vllm(args.source),
        **build_rapidmlx(args.source),
        **build_derived(args.source),
    }
    for name, table in built.items():
        save_table(table, args.out / f"{name}.json")
        print(f"{name}: {table.provenance.status}, {len(table.verify.probes_N)} probes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
