"""Run the same scenarios under several Pythons and compare what they store.

    python scripts/same_bytes.py .venv/bin/python /opt/venv312/bin/python /opt/venv313/bin/python

Each interpreter needs what specsim depends on; the code is that of this checkout. Compared are
integers (integer columns of requests and steps, and summary.json without its floats), floats (the
other columns), and the bytes of summary.json. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
LIBRARIES = ("numpy", "scipy", "numba", "pyarrow")
PARTS = ("integers", "floats", "summary.json")
REPLAY = "{kind: replay, format: csv, file: log.csv}"
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    # The compiled loop; a recorded acceptance trace, closed loop.
    "hello": ("hello", ("stop.num_requests=300",)),
    # The compiled loop; a parametric acceptance model, which draws its own random blocks.
    "parametric": (
        "flash_120tps",
        ("question={kind: point, concurrency: 64}", "stop.num_requests=300"),
    ),
    # A tilted trace, a batch, long-tailed lengths.
    "batch": ("batch", ("workload.arrivals.num_requests=200",)),
    # Arrivals and lengths of a log.
    "replay": (
        "hello",
        ("question={kind: point}", "stop={kind: all_done}", f"workload={{arrivals: {REPLAY}}}"),
    ),
    # Event by event, as their plans are no fixed rule: policies that engines and papers publish.
    "published": (
        "hello",
        (
            "stop.num_requests=150",
            *(
                f"policies.{kind}={{scheduler: {{kind: {kind}}}, gamma: 7}}"
                for kind in ("goodput", "adaptive_steps", "bandit", "vllm", "sglang", "trtllm")
            ),
        ),
    ),
    # Event by event: Poisson arrivals, two ranks in lockstep, prefill, KV memory that runs out,
    # users who lose patience, a rank that dies.
    "fleet": (
        "hello",
        (
            "question={kind: point}",
            "stop.num_requests=300",
            "workload.arrivals={kind: poisson, rate_per_s: 30}",
            "workload.patience={total_s: 8, cancel_share: 0.1, cancel_after_s: 1}",
            "cluster.ranks=2",
            "cluster.router=least_kv",
            "cluster.kv={blocks_per_rank: 900, admission: optimistic}",
            "cluster.prefill={kind: mixed, tokens_per_step: 512}",
            "cluster.lockstep={budget: per_rank}",
            "cluster.deaths=[{rank: 1, at_s: 6, back_s: 8}]",
        ),
    ),
}


def one(folder: Path) -> dict[str, Any]:
    """Run every case in this process and digest what it stores."""
    from specsim.study.run import run_scenario

    os.chdir(folder)
    rows = (f"{0.05 * n:.2f},{40 + 37 * n % 900},{5 + 13 * n % 300}\n" for n in range(200))
    Path("log.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(rows))
    found = {}
    for name, (scenario, overrides) in CASES.items():
        run = run_scenario(scenario, overrides=overrides, out=Path("runs") / name)
        found[name] = digests(run.directory)
    libraries = {library: version(library) for library in LIBRARIES}
    return {"python": platform.python_version(), "libraries": libraries, "cases": found}


def digests(directory: Path) -> dict[str, str]:
    """Digest the columns of a stored run by kind, and its summary."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    integers, floats = hashlib.sha256(), hashlib.sha256()
    for name in ("requests", "steps"):
        table = pq.read_table(directory / f"{name}.parquet")
        for column in table.column_names:
            values = table[column].combine_chunks()
            if pa.types.is_dictionary(values.type):
                integers.update(json.dumps(values.to_pylist()).encode())
                continue
            array = values.to_numpy(zero_copy_only=False)
            real = np.issubdtype(array.dtype, np.floating)
            (floats if real else integers).update(f"{name}.{column}".encode() + array.tobytes())
    raw = (directory / "summary.json").read_bytes()
    integers.update(json.dumps(without_floats(json.loads(raw))).encode())
    parts = (integers, floats, hashlib.sha256(raw))
    return {name: part.hexdigest() for name, part in zip(PARTS, parts, strict=True)}


def without_floats(value: Any) -> Any:
    """Return JSON with every float left out."""
    if isinstance(value, dict):
        return {key: without_floats(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_floats(inner) for inner in value]
    return None if isinstance(value, float) else value


def told(runs: Sequence[Mapping[str, Any]]) -> tuple[str, bool]:
    """Return the digests of every run and a verdict, and whether nothing differs."""
    lines, good = [], True
    for run in runs:
        libraries = ", ".join(f"{name} {text}" for name, text in run["libraries"].items())
        lines.append(f"Python {run['python']} ({libraries})")
    for case in CASES:
        lines.append("")
        for part in PARTS:
            seen = [run["cases"][case][part] for run in runs]
            same = len(set(seen)) == 1
            good &= same
            shown = seen[:1] if same else seen
            verdict = "same" if same else "DIFFERS"
            lines.append(f"{case:10}  {part:12}  {verdict:7}  {' '.join(d[:16] for d in shown)}")
    lines += ["", "the same everywhere" if good else "NOT the same everywhere"]
    return "\n".join(lines) + "\n", good


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pythons", nargs="*", type=Path, help="interpreters; this one if left out")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(one(given.one)))
        return 0
    runs = []
    for python in given.pythons or [Path(sys.executable)]:
        with tempfile.TemporaryDirectory(prefix="same-bytes-") as folder:
            command = [str(python), str(Path(__file__).resolve()), "--one", folder]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603
        if done.returncode:
            print(f"{python}: ended with {done.returncode}", file=sys.stderr)
            return 1
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    text, good = told(runs)
    sys.stdout.write(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
