"""How much faster two processes are than one on a sweep of 512 points; wants an idle machine.

python scripts/time_sweep.py [--repeats 5]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from specsim.study.executor import Place
from specsim.study.sweep import run_sweep

STUDY = """\
name: scaling
scenario: hello
set:
  stop: {kind: requests, num_requests: 150}
plan: {kind: grid, axes: {policies.async_topk.scheduler.lag: [1, 2, 3, 4]}}
policies: [async_topk]
concurrency: [4, 8, 16, 32]
replications: 32
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    took: dict[int, list[float]] = {1: [], 2: []}
    tables = set()
    for _ in range(given.repeats):
        for jobs in took:
            with tempfile.TemporaryDirectory() as folder:
                study = Path(folder) / "scaling.yaml"
                study.write_text(STUDY, encoding="utf-8")
                started = time.perf_counter()
                result = run_sweep(study, out=Path(folder) / "runs", place=Place(jobs))
                took[jobs].append(time.perf_counter() - started)
                tables.add((result.directory / "table.csv").read_bytes())
            load = ", ".join(f"{x:.2f}" for x in os.getloadavg())
            sys.stdout.write(f"{jobs} processes: {took[jobs][-1]:.1f} s; load {load}\n")
            sys.stdout.flush()
    one, two = (statistics.median(took[jobs]) for jobs in (1, 2))
    sys.stdout.write(
        f"median of {given.repeats}: {one:.1f} s and {two:.1f} s, {one / two:.2f} times as fast; "
        f"{len(result.table)} points, {len(tables)} different table(s); {os.cpu_count()} cores\n"
    )


if __name__ == "__main__":
    main()
