"""`specsim profile run` on this machine: a grid of cells into a file of rows, with its manifest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from specsim.cost.shape import ModelShape
from specsim.errors import InputError
from specsim.profiler.manifest import DEVICE_SAME, device_facts, write_manifest
from specsim.profiler.model import DecodeModel, KvLayout, import_torch
from specsim.profiler.rowfile import kept_rows, row_writer
from specsim.profiler.sweep import Progress, SweepResult, graph_work, run_sweep
from specsim.profiler.timer import CpuTimer, CudaTimer, Timer, Work, now, processor_time
from specsim.profiler.workload import Case, StepMode, TimedPart, grid


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything that decides what is timed.

    Attributes:
        shape: the whole model's dimensions.
        device: `cpu` or `cuda`.
        dtype: name of a torch dtype.
        batch_tokens, requests, contexts: the grid.
        parts: what to time.
        modes: graph, eager or both; graphs on CUDA only.
        tensor_parallel: GPUs that share the model; one shard is timed, without the all-reduce.
        kv: layout of the KV pool.
        gamma: drafts of a block.
        draft_layers: layers of the drafter.
        max_width: widest request of a verify cell; gamma + 1 if None.
        repeats, warmup: timings, and untimed runs before the first.
        seed: of weights and orders.
        threads: CPU threads; the library's own choice if None.
        clock: on a CPU, `processor` time (of this process; one thread only) or `wall` time.
        flush_l2: whether the L2 cache is flushed before each timing on CUDA.
    """

    shape: ModelShape
    device: Literal["cpu", "cuda"]
    dtype: str
    batch_tokens: tuple[int, ...]
    requests: tuple[int, ...]
    contexts: tuple[int, ...]
    parts: tuple[TimedPart, ...] = ("verify",)
    modes: tuple[StepMode, ...] = ("eager",)
    tensor_parallel: int = 1
    kv: KvLayout = "contiguous"
    gamma: int = 7
    draft_layers: int = 2
    max_width: int | None = None
    repeats: int = 10
    warmup: int = 2
    seed: int = 0
    threads: int | None = 1
    clock: Literal["processor", "wall"] = "processor"
    flush_l2: bool = True


LEFT_OUT = (
    "host time between steps",
    "all-reduce of tensor parallelism",
    "embedding look-up",
)


def profile_run(
    plan: RunPlan,
    out: Path,
    *,
    progress: Progress = lambda now, total, what: None,
    on_note: Callable[[str], None] = lambda text: None,
) -> SweepResult:
    """Time the plan's grid; rows are appended to `out`, and those already there are kept.

    Raises:
        InputError: a plan that makes no sense or does not fit, no such device, or rows of another
            set-up in `out`.
        MissingDependencyError: torch is not installed.
    """
    torch = import_torch()
    if plan.device == "cuda" and not torch.cuda.is_available():
        raise InputError("no CUDA device is visible to torch; use --device cpu")
    if plan.device == "cpu" and "graph" in plan.modes:
        raise InputError("graphs are captured on CUDA only; use --mode eager on a CPU")
    if plan.device == "cpu" and plan.clock == "processor" and plan.threads != 1:
        raise InputError(
            f"processor time adds up over threads, and {plan.threads} are asked for: use "
            "--threads 1 or --clock wall"
        )
    if plan.device == "cpu" and plan.threads:
        torch.set_num_threads(plan.threads)
    cases = grid(
        plan.batch_tokens,
        plan.requests,
        plan.contexts,
        parts=plan.parts,
        modes=plan.modes,
        gamma=plan.gamma,
        max_width=plan.max_width,
    )
    if plan.shape.experts and "graph" in plan.modes:
        on_note("experts are chosen by the data, so a mixture of experts is timed eagerly only")
        cases = [replace(case, mode="eager") for case in cases]
        cases = list(dict.fromkeys(cases))
    manifest = _manifest(plan, torch)
    done = kept_rows(out, manifest, DEVICE_SAME)
    model, cases = _fitting_model(plan, cases, on_note)
    timer: Timer = (
        CudaTimer(torch, flush_bytes=(256 << 20) if plan.flush_l2 else 0)
        if plan.device == "cuda"
        else CpuTimer(processor_time if plan.clock == "processor" else now)
    )

    def make_work(case: Case) -> Work:
        work = model.work(case)
        return graph_work(torch, work) if case.mode == "graph" else work

    with row_writer(out, manifest) as on_row:
        result = run_sweep(
            cases,
            make_work=make_work,
            timer=timer,
            repeats=plan.repeats,
            warmup=plan.warmup,
            seed=plan.seed,
            on_row=on_row,
            done=done,
            progress=progress,
        )
    dropped = [{"cell": list(case.key), "reason": reason} for case, reason in result.dropped]
    write_manifest(out, {**manifest, "complete": True, "dropped": dropped})
    return result


def _fitting_model(
    plan: RunPlan, cases: Sequence[Case], on_note: Callable[[str], None]
) -> tuple[DecodeModel, list[Case]]:
    """Make the model with the largest KV pool that fits, and drop the cells that need more."""
    shape = plan.shape.shard(plan.tensor_parallel)
    kept = sorted(cases, key=lambda case: case.cache_tokens)
    while True:
        # Pages are whole: each request may waste most of one.
        pool = max(case.cache_tokens + 16 * case.num_requests for case in kept)
        try:
            model = DecodeModel(
                shape,
                device=plan.device,
                dtype=plan.dtype,
                pool_tokens=pool,
                kv=plan.kv,
                draft_layers=plan.draft_layers if "draft" in plan.parts else 0,
                seed=plan.seed,
            )
        except (RuntimeError, MemoryError) as error:
            if "memory" not in str(error).lower() and not isinstance(error, MemoryError):
                raise
            smaller = [case for case in kept if case.cache_tokens < kept[-1].cache_tokens]
            if not smaller:
                raise InputError(
                    f"the model does not fit into memory ({error}); time a smaller model or a "
                    "shard (--tp)"
                ) from error
            on_note(
                f"dropped {len(kept) - len(smaller)} cells: {kept[-1].cache_tokens} KV tokens do "
                "not fit into memory"
            )
            kept = smaller
            continue
        wanted = set(kept)
        return model, [case for case in cases if case in wanted]


def _manifest(plan: RunPlan, torch: Any) -> dict[str, Any]:
    data = asdict(plan)
    data["shape"] = plan.shape.model_dump()
    data["device"] = device_facts(torch, plan.device)
    data["left_out"] = list(LEFT_OUT)
    return data
