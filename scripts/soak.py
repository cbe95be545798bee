"""A simulated week of ServeGen traffic on 32 ranks: is memory flat, and do the laws hold?

    python scripts/soak.py FOLDER --days 7 --requests 500000 --out soak.json

FOLDER holds ServeGen's chunk files (public client statistics). Its rates are divided so that about
`--requests` arrive in the stretch: bursts, daily rhythm and lengths stay, the level does not.
Resident memory is sampled every second of the run.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from specsim.study.run import run_scenario  # noqa: E402
from specsim.workload.servegen import load_clients  # noqa: E402

SCENARIO = """\
name: soak
question: {{kind: point}}
seed: 1
stop: {{kind: all_done}}
record: none
cluster: {{ranks: 32, gpus_per_rank: 1, max_requests_per_rank: 64, router: least_loaded}}
workload:
  arrivals: {{kind: servegen, folder: thinned, to_s: {to_s}}}
acceptance: {{kind: trace, trace: smollm2_markov_t1}}
cost:
  table: aiconfigurator/h100_llama31-8b_tp1_bf16
  read: linear
  draft: {{base_ms: 0.6, per_request_us: 2, label: assumed, source: a guess}}
  host: {{base_ms: 0.5, per_request_us: 5, label: assumed, source: a guess}}
policies:
  async_topk: {{scheduler: {{kind: async_topk, lag: 2}}, gamma: 7}}
"""


def thin(source: Path, target: Path, to_s: float, requests: float) -> tuple[float, float]:
    """Copy a folder with its rates divided; return the divisor and the requests expected."""
    clients, _ = load_clients(source)
    whole = sum(
        window.rate_per_s * max(0.0, min(client.window_s, to_s - window.start_s))
        for client in clients
        for window in client.windows
    )
    divisor = max(1.0, whole / requests)
    target.mkdir()
    for path in source.glob("chunk-*"):
        if path.suffix != ".csv":
            (target / path.name).write_bytes(path.read_bytes())
            continue
        rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
        lines = [",".join([r[0], repr(float(r[1]) / divisor), *r[2:]]) for r in rows if r]
        (target / path.name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return divisor, whole / divisor


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * 4096 / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--requests", type=float, default=500_000)
    parser.add_argument("--out", type=Path, default=Path("soak.json"))
    given = parser.parse_args()
    to_s = given.days * 86_400
    samples: list[tuple[float, float]] = []
    over = threading.Event()
    started = time.monotonic()

    def sample() -> None:
        while not over.wait(1.0):
            samples.append((time.monotonic() - started, resident_mib()))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        divisor, expected = thin(given.folder, folder / "thinned", to_s, given.requests)
        (folder / "soak.yaml").write_text(SCENARIO.format(to_s=to_s), encoding="utf-8")
        threading.Thread(target=sample, daemon=True).start()
        began_s, cpu_s = time.monotonic() - started, time.process_time()
        result = run_scenario(str(folder / "soak.yaml"), out=folder / "runs", jobs=1)
        wall_s, cpu_s = time.monotonic() - started - began_s, time.process_time() - cpu_s
        over.set()
    (row,) = result.summary["policies"]["async_topk"]["points"]
    counts = {k: v for k, v in row.items() if k.startswith("requests_") or k == "all_finished"}
    gone = ("waiting", "running", "cancelled", "timed_out", "failed")
    balance = row["requests_submitted"] - row["all_finished"]
    laws = {
        "submitted = finished + the others": balance == sum(row[f"requests_{g}"] for g in gone),
        "every request finished": balance == 0,
    }
    during = [mib for at, mib in samples if at > began_s]
    quarters = [during[len(during) * k // 4 : len(during) * (k + 1) // 4] for k in range(4)]
    memory = {
        "samples": len(during),
        "peak_mib_by_quarter": [round(max(q), 1) if q else None for q in quarters],
    }
    body = {
        "days": given.days,
        "ranks": 32,
        "rates_divided_by": round(divisor, 2),
        "requests_expected": round(expected),
        "counts": counts,
        "steps": row["steps"],
        "simulated_s_per_wall_s": round(row["span_s"] / wall_s),
        "wall_s": round(wall_s, 1),
        "cpu_s": round(cpu_s, 1),
        "resident_memory": memory,
        "laws": laws,
        "metrics": {k: row[k] for k in ("tok_s_user", "utilisation", "mean_running", "span_s")},
    }
    given.out.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(body, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
