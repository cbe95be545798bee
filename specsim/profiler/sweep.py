"""Walks a grid in interleaved repeats, row by row, so that it can stop and go on.

Every repeat visits all cells in a fresh random order: slow drifts (clocks, heat, neighbours) then
hit all cells alike instead of the last ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from specsim.cost.rows import Row
from specsim.errors import InputError
from specsim.profiler.timer import Timer, Work
from specsim.profiler.workload import Case
from specsim.rng import stream

Progress = Callable[[int, int, str], None]


@dataclass(slots=True)
class SweepResult:
    """What a sweep did.

    Attributes:
        timed: rows taken now.
        resumed: rows that were there already.
        dropped: cells given up, with the reason.
    """

    timed: int = 0
    resumed: int = 0
    dropped: list[tuple[Case, str]] = field(default_factory=list)


def run_sweep(
    cases: Sequence[Case],
    *,
    make_work: Callable[[Case], Work],
    timer: Timer,
    repeats: int,
    warmup: int,
    seed: int,
    on_row: Callable[[Row], None],
    done: Iterable[Row] = (),
    progress: Progress = lambda now, total, what: None,
) -> SweepResult:
    """Time every cell `repeats` times.

    A cell that runs out of memory is dropped, and with it every cell that is at least as large in
    tokens, in requests and in KV.

    Args:
        cases: the grid.
        make_work: makes a cell's work; may raise an out-of-memory error, as may the work.
        timer: the clock.
        repeats: timings of each cell.
        warmup: untimed runs before a cell's first timing.
        seed: of the visiting orders.
        on_row: gets each row as it is taken.
        done: rows of an earlier, interrupted sweep.
        progress: told `(now, total, what)`.

    Raises:
        InputError: no repeats, or no cell fits into memory.
    """
    if repeats < 1 or warmup < 0:
        raise InputError(
            f"repeats must be at least 1 and warm-up at least 0, not {repeats} and {warmup}"
        )
    have = {
        (row.part, row.batch_tokens, row.num_requests, row.context_tokens, row.mode, row.repeat)
        for row in done
    }
    result = SweepResult(resumed=len(have))
    ready: dict[Case, Work] = {}
    gone: set[Case] = set()
    total = len(cases) * repeats
    for repeat in range(repeats):
        order = stream(seed, f"profile/{repeat}").permutation(len(cases))
        for step, index in enumerate(order.tolist()):
            case = cases[index]
            progress(repeat * len(cases) + step, total, _named(case))
            if case in gone or (*case.key, repeat) in have:
                continue
            try:
                if case not in ready:
                    ready[case] = make_work(case)
                    for _ in range(warmup):
                        ready[case]()
                seconds = timer.seconds(ready[case])
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                for other in _as_large(case, cases):
                    if other not in gone:
                        gone.add(other)
                        ready.pop(other, None)
                        result.dropped.append((other, f"out of memory at {_named(case)}"))
                continue
            on_row(
                Row(
                    part=case.part,
                    batch_tokens=case.batch_tokens,
                    num_requests=case.num_requests,
                    context_tokens=case.context_tokens,
                    seconds=seconds,
                    mode=case.mode,
                    repeat=repeat,
                )
            )
            result.timed += 1
    if not result.timed and not result.resumed:
        raise InputError("no cell of the grid fits into memory; take fewer tokens or less context")
    return result


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on the host or on a device."""
    return isinstance(error, MemoryError) or "out of memory" in str(error).lower()


def graph_work(torch: Any, work: Work) -> Work:
    """Capture `work` into a CUDA graph and return its replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    replay: Work = graph.replay
    return replay


def _as_large(case: Case, cases: Sequence[Case]) -> list[Case]:
    return [
        other
        for other in cases
        if other.part == case.part
        and other.batch_tokens >= case.batch_tokens
        and other.num_requests >= case.num_requests
        and other.cache_tokens >= case.cache_tokens
    ]


def _named(case: Case) -> str:
    return (
        f"{case.part} {case.mode}: {case.batch_tokens} tokens, {case.num_requests} requests, "
        f"context {case.context_tokens}"
    )
