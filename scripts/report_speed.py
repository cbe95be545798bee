"""Measure how time and memory grow, and write reports/speed.

    python scripts/report_speed.py --out reports/speed

One core. Every figure is the median of five processor times (the least would flatter), on the
scenario of `specsim bench`: DSpark's asynchronous top-K, gamma 5, the table fitted to V4-Flash.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from specsim.engine.run import ClosedLoop, RunInput, Stop, simulate
from specsim.study.bench import bench, bench_input, timed
from specsim.study.store import to_json

REQUESTS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
STEPS = (1_000, 4_000, 16_000, 64_000, 256_000)
MEMORY_STEPS = (250_000, 1_000_000, 4_000_000, 16_000_000)
REPEATS = 5


def per_step_us(given: RunInput, **how: Any) -> float:
    """Return the median microseconds of a step, the start of the run taken off.

    A tenth of the run is timed too, and the difference is what the other nine tenths cost.
    """
    tokens = given.stop.tokens or 0
    short = replace(given, stop=Stop(tokens=tokens // 10))
    timed(short, **how)
    found = []
    for _ in range(REPEATS):
        long_run, short_run = timed(given, **how), timed(short, **how)
        steps = long_run.steps - short_run.steps
        found.append(1e6 * (long_run.seconds - short_run.seconds) / steps)
    return statistics.median(found)


def fleet(ranks: int, *, steps: int) -> RunInput:
    """Return a run of so many ranks with 32 users each, and so many steps over all of them."""
    given = bench_input(32, steps=steps)
    return replace(given, ranks=ranks, load=ClosedLoop(32 * ranks))


def slope(sizes: tuple[int, ...], costs: list[float]) -> float:
    """Return the exponent of the cost in the size, over the larger half of the sizes."""
    half = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[half:]), np.log(costs[half:]), 1)[0])


def peak_mib(steps: int) -> float:
    """Return the peak memory of a process that runs and sums up so many steps of 16 requests."""
    code = (
        "import resource; from dataclasses import replace; from specsim.engine.run import run; "
        "from specsim.metrics.catalog import measure, summarise; "
        "from specsim.metrics.record import Bounded; from specsim.study.bench import bench_input; "
        f"out = run(replace(bench_input(16, steps={steps}), record=Bounded())); "
        "summarise(measure(steps=out.steps, requests=out.requests, end_s=out.end_s, ranks=1, "
        "gpus_per_rank=1, cut_warmup=True, requests_each=out.requests_each)); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    return float(done.stdout)


def measure() -> dict[str, Any]:
    """Measure everything."""
    found: dict[str, Any] = {"load": os.getloadavg()[0], "bench": bench()}
    by_requests = [per_step_us(bench_input(r, steps=max(300, 200_000 // r))) for r in REQUESTS]
    found["requests"] = {
        "sizes": REQUESTS,
        "step_us": by_requests,
        "slope": slope(REQUESTS, by_requests),
    }
    by_ranks = [per_step_us(fleet(d, steps=20_000)) for d in RANKS]
    found["ranks"] = {"sizes": RANKS, "step_us": by_ranks, "slope": slope(RANKS, by_ranks)}
    found["general_step_us"] = {
        str(r): per_step_us(bench_input(r, steps=max(200, 30_000 // r)), how=simulate)
        for r in (16, 64, 256)
    }
    by_length = [timed(bench_input(16, steps=s)).seconds for s in STEPS]
    found["length"] = {"steps": STEPS, "seconds": by_length, "slope": slope(STEPS, by_length)}
    found["memory"] = {"steps": MEMORY_STEPS, "peak_mib": [peak_mib(s) for s in MEMORY_STEPS]}
    found["own_peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw time a step against requests and against ranks."""
    figure = Figure(figsize=(8.0, 3.4), layout="constrained")
    for axes, (key, label) in zip(
        figure.subplots(1, 2),
        (("requests", "requests on the rank"), ("ranks", "ranks, 32 requests each")),
        strict=True,
    ):
        sizes, costs = found[key]["sizes"], found[key]["step_us"]
        axes.loglog(sizes, costs, "o-", color="#0072B2", label="measured")
        line = costs[-1] * np.asarray(sizes) / sizes[-1]
        axes.loglog(sizes, line, "--", color="#999999", label="linear")
        axes.set_ylim(min(costs) / 2, max(costs) * 2)
        axes.set_xlabel(label)
        axes.set_ylabel("microseconds a step")
        axes.set_title(f"slope {found[key]['slope']:.2f} (upper half)", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def table(rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table, the first row as its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "| " + " | ".join("---" for _ in rows[0]) + " |")
    return "\n".join(lines)


def text(found: dict[str, Any]) -> str:
    """Return the report."""
    runs = found["bench"]
    speeds = [
        ("requests", "Mtok/s", "without recording", "steps/s", "us/step", "floor us", "ratio")
    ]
    for users in (256, 16):
        row = runs[f"run_{users}"]
        speeds.append(
            (
                str(users),
                f"{row['output_tok_per_s'] / 1e6:.1f}",
                f"{row['unrecorded_tok_per_s'] / 1e6:.1f}",
                f"{row['steps_per_s']:,.0f}",
                f"{row['step_us']:.2f}",
                f"{row['floor_us']:.2f}",
                f"{row['floor_ratio']:.2f}",
            )
        )
    plans = [("requests x gamma", "us a plan")]
    plans += [(k.removeprefix("us_"), f"{v:.1f}") for k, v in runs["planner"].items()]
    grows = [("", *map(str, found["requests"]["sizes"]))]
    grows.append(("us/step", *(f"{v:.1f}" for v in found["requests"]["step_us"])))
    ranks = [("ranks", *map(str, found["ranks"]["sizes"]))]
    ranks.append(("us/step", *(f"{v:.1f}" for v in found["ranks"]["step_us"])))
    memory = [("steps", *(f"{n:,}" for n in MEMORY_STEPS))]
    memory.append(("peak MiB", *(f"{v:.0f}" for v in found["memory"]["peak_mib"])))
    general = ", ".join(f"{v:.0f} us at {k}" for k, v in found["general_step_us"].items())
    length = ", ".join(
        f"{s:.2f} s for {n:,}"
        for n, s in zip(found["length"]["steps"], found["length"]["seconds"], strict=True)
    )
    return f"""# Speed

Measured by `python scripts/report_speed.py` on one core of a two-core virtual machine (load
average {found["load"]:.1f} when it began): medians of five processor times. The scenario is
`dspark_5` of `flash_120tps`: asynchronous top-K, gamma 5, closed loop, 512 output tokens a
request. The floor is one event of a bare SimPy loop, plus one gather and one library sort of the
same R x gamma survivals, timed in the same run.

{table(speeds)}

Runs that the compiled loop does not know (decision 6) go event by event, a step in
{general} requests.

{table(plans)}

A plan is `AsyncTopK.plan` on a view at hand, as an engine would call it.

## How it grows

![time a step against requests and ranks](complexity.png)

{table(grows)}

Slope {found["requests"]["slope"]:.2f} over the larger half; 1 is linear.

{table(ranks)}

Slope {found["ranks"]["slope"]:.2f}: the next rank to act is found by looking at all of them.

In the length of the run, steps of 16 requests: {length}
(slope {found["length"]["slope"]:.2f}).

## Memory

{table(memory)}

The peak of a process of its own, 16 requests on one rank, its summary included. Rows are kept up to
a million steps and half a million requests; beyond, steps are merged and requests sampled (decision
8), so memory is flat in simulated time.
"""


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("reports/speed"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    found = measure()
    (out / "speed.json").write_text(to_json(found), encoding="utf-8")
    draw(found, out / "complexity.png")
    (out / "README.md").write_text(text(found), encoding="utf-8")


if __name__ == "__main__":
    main()
