"""Clocks for a piece of work on a CPU or a CUDA device. The only module that reads one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

Work = Callable[[], object]

now: Callable[[], float] = time.perf_counter
"""The clock of everything that is timed from outside."""

processor_time: Callable[[], float] = time.process_time
"""Seconds that the processor worked for this process: on a shared machine wall time measures the
neighbours too."""


class Timer(Protocol):
    """Times one run of a piece of work."""

    def seconds(self, work: Work) -> float:
        """Run `work` once or more and return the seconds that one run took."""
        ...


class CpuTimer:
    """Time on a CPU; short work is repeated until the clock can tell it from noise.

    Args:
        clock: seconds, monotonic: wall time, or `processor_time` with one thread.
        least_s: shortest stretch that is timed as one.
    """

    def __init__(self, clock: Callable[[], float] = now, *, least_s: float = 4e-3) -> None:
        self._clock, self._least_s = clock, least_s

    def seconds(self, work: Work) -> float:
        """Return the mean of as many runs as fill `least_s`."""
        runs = 0
        start = self._clock()
        while True:
            work()
            runs += 1
            spent = self._clock() - start
            if spent >= self._least_s:
                return spent / runs


class CudaTimer:
    """CUDA events around one run, the L2 cache flushed before.

    Args:
        torch: the module.
        flush_bytes: size of the buffer written before each run; 0 leaves the cache warm.
    """

    def __init__(self, torch: Any, *, flush_bytes: int = 256 << 20) -> None:
        self._torch = torch
        self._buffer = (
            torch.empty(flush_bytes, dtype=torch.int8, device="cuda") if flush_bytes else None
        )

    def seconds(self, work: Work) -> float:
        """Return the device time of one run."""
        cuda = self._torch.cuda
        if self._buffer is not None:
            self._buffer.zero_()
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e-3
