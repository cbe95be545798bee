"""Sweeps: interleaved, resumable, and shrinking when memory runs out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specsim.cost.fit import fit_table
from specsim.cost.rows import Row
from specsim.cost.table import Provenance
from specsim.errors import InputError
from specsim.profiler.sweep import is_out_of_memory, run_sweep
from specsim.profiler.timer import CpuTimer
from specsim.profiler.workload import Case, grid

HERE = Provenance(status="synthetic", source="a test", date="2026-11-29", licence="Apache-2.0")


class FakeDevice:
    """Work advances a clock by what the case costs; the clock is all that a timer sees."""

    def __init__(self, cost: Callable[[Case], float]) -> None:
        self.time, self.cost, self.ran = 0.0, cost, []
        self.timer = CpuTimer(lambda: self.time, least_s=0.0)

    def work(self, case: Case) -> Callable[[], None]:
        def run() -> None:
            self.time += self.cost(case)
            self.ran.append(case)

        return run


def linear(case: Case) -> float:
    return 5e-3 + 1e-4 * case.batch_tokens + 2e-5 * case.num_requests


CASES = grid([1, 2, 4, 8, 16], [1, 2, 4], [64])


def sweep(device: FakeDevice, done: list[Row] | None = None, **options: int) -> list[Row]:
    rows: list[Row] = []
    run_sweep(
        CASES,
        make_work=device.work,
        timer=device.timer,
        repeats=options.get("repeats", 3),
        warmup=options.get("warmup", 2),
        seed=0,
        on_row=rows.append,
        done=done or [],
    )
    return rows


def test_rows_hold_the_time_that_passed() -> None:
    rows = sweep(FakeDevice(linear))
    assert len(rows) == 3 * len(CASES)
    for row in rows:
        assert row.seconds == pytest.approx(
            5e-3 + 1e-4 * row.batch_tokens + 2e-5 * row.num_requests
        )


def test_what_a_sweep_times_can_be_fitted_back() -> None:
    table = fit_table(sweep(FakeDevice(linear)), name="t", provenance=HERE).table
    seconds = dict(zip(table.verify.probes_N.tolist(), table.verify.seconds_N, strict=True))
    assert seconds[16] - seconds[1] == pytest.approx(15e-4)


def test_repeats_are_interleaved_and_warmed_up_once() -> None:
    device = FakeDevice(linear)
    rows = sweep(device)
    assert len(device.ran) == 3 * len(CASES) + 2 * len(CASES)
    order = [(r.batch_tokens, r.num_requests) for r in rows]
    count = len(CASES)
    rounds = [order[i * count : (i + 1) * count] for i in range(3)]
    assert all(sorted(one) == sorted(rounds[0]) for one in rounds)
    assert rounds[0] != rounds[1]


def test_an_interrupted_sweep_goes_on() -> None:
    whole = sweep(FakeDevice(linear))
    first = whole[: len(whole) // 2]
    rest = sweep(FakeDevice(linear), done=first)
    assert len(first) + len(rest) == len(whole)

    def cells_of(rows: list[Row]) -> set[tuple[int, int, int]]:
        return {(row.batch_tokens, row.num_requests, row.repeat) for row in rows}

    assert cells_of([*first, *rest]) == cells_of(whole)


def test_out_of_memory_drops_what_is_as_large() -> None:
    def limited(case: Case) -> float:
        if case.batch_tokens >= 8 and case.num_requests >= 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        return linear(case)

    device = FakeDevice(limited)
    rows: list[Row] = []
    result = run_sweep(
        CASES,
        make_work=device.work,
        timer=device.timer,
        repeats=2,
        warmup=1,
        seed=0,
        on_row=rows.append,
    )
    dropped = {(c.batch_tokens, c.num_requests) for c, _ in result.dropped}
    assert dropped == {(8, 2), (16, 2), (8, 4), (16, 4)}
    assert all("out of memory" in reason for _, reason in result.dropped)
    kept = {(c.batch_tokens, c.num_requests) for c in CASES} - dropped
    assert {(r.batch_tokens, r.num_requests) for r in rows} == kept


def test_other_errors_are_not_swallowed() -> None:
    def broken(case: Case) -> float:
        raise RuntimeError("illegal memory access")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        sweep(FakeDevice(broken))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("illegal memory access"))


def test_nothing_fits() -> None:
    def never(case: Case) -> float:
        raise MemoryError

    with pytest.raises(InputError, match="no cell of the grid fits"):
        sweep(FakeDevice(never))
    with pytest.raises(InputError, match="repeats must be at least 1"):
        sweep(FakeDevice(linear), repeats=0)


def test_short_work_is_repeated_until_the_clock_can_tell() -> None:
    time = [0.0]

    def clock() -> float:
        return time[0]

    def work() -> None:
        time[0] += 1e-3

    runs = [0]

    def counted() -> None:
        runs[0] += 1
        work()

    assert CpuTimer(clock, least_s=4.5e-3).seconds(counted) == pytest.approx(1e-3)
    assert runs[0] == 5
