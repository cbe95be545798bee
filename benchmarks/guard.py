"""A guard on ratios, for CI: a step may not drift from its floor, nor kernels from their twins.

    python benchmarks/guard.py

Ratios of processor times taken turn by turn on the same machine; the limits leave twice the room of
what was measured (reports/speed), so that only a real loss trips them. Exit code 1 if one does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from specsim.engine.run import simulate
from specsim.schedulers.kernels import NO_PATIENCE_LIMIT, ascending, capacity, capacity_twin
from specsim.study.bench import bench_input, event_us, gather_and_sort_us, planning_view, timed

TURNS = 7


def seconds(call: Callable[[], object]) -> float:
    """Return the processor seconds of a call."""
    started = time.process_time()
    call()
    return time.process_time() - started


def least(first: Callable[[], float], second: Callable[[], float]) -> float:
    """Return the ratio of the least of each over some turns; noise only ever adds."""
    first(), second()
    pairs = [(first(), second()) for _ in range(TURNS)]
    return min(a for a, _ in pairs) / min(b for _, b in pairs)


def main() -> int:
    """Measure every ratio, print it beside its limit, and say whether all hold."""
    given = bench_input(256, steps=1500)
    view = planning_view(256, 7)
    ascending_C = ascending(view.lagged_survival_RG)
    walk = (ascending_C, 256, view.base_tokens, view.verify_s_B, view.fixed_s, NO_PATIENCE_LIMIT)
    ratios = (
        (
            "a step of the compiled loop over its floor, 256 requests",
            least(
                lambda: timed(given).step_us, lambda: event_us() + gather_and_sort_us(given, 256)
            ),
            5.0,
        ),
        (
            "a step of the compiled loop over one event by event, 256 requests",
            least(lambda: timed(given).step_us, lambda: timed(given, how=simulate).step_us),
            0.7,
        ),
        (
            "the walk over its numpy twin, 256 x 7",
            least(
                lambda: seconds(lambda: [capacity(*walk) for _ in range(100)]),
                lambda: seconds(lambda: [capacity_twin(*walk) for _ in range(100)]),
            ),
            0.2,
        ),
    )
    for name, ratio, limit in ratios:
        verdict = "ok" if ratio <= limit else "TOO SLOW"
        sys.stdout.write(f"{verdict}: {name}: {ratio:.3f} (limit {limit:g})\n")
    return 0 if all(ratio <= limit for _, ratio, limit in ratios) else 1


if __name__ == "__main__":
    raise SystemExit(main())
