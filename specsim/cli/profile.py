"""`specsim profile`: measure, fit, show, compare, convert and check step-cost tables."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from specsim.cli.common import Json, Quiet, Seed, answer, progress, within
from specsim.cli.profile_inputs import (
    named_table,
    note,
    provenance_of,
    read_numbers,
    read_parts,
    read_raw,
    read_telemetry,
)
from specsim.cli.profile_tables import check, compare, convert, roofline, show
from specsim.errors import InputError

app = App(
    name="profile",
    help="Measure and convert step-cost tables.",
    result_action="return_value",
)

_Flag = Parameter(negative=(), show_default=False)


@app.command
def run(
    *,
    out: Path,
    server: str | None = None,
    preset: str = "tiny",
    model: str | None = None,
    device: Literal["cpu", "cuda"] = "cpu",
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
    tp: Annotated[int, within(least=1, most=1024)] = 1,
    batch_tokens: str | None = None,
    requests: str = "1,2,4,8,16",
    context: str = "256",
    parts: str = "verify",
    mode: Literal["eager", "graph", "both"] = "eager",
    kv: Literal["contiguous", "paged"] = "contiguous",
    gamma: Annotated[int, within(least=0, most=64)] = 7,
    draft_layers: Annotated[int, within(least=0, most=64)] = 2,
    repeats: Annotated[int, within(least=1, most=100_000)] = 10,
    warmup: Annotated[int, within(least=0, most=1000)] = 2,
    threads: Annotated[int, within(least=1, most=4096)] = 1,
    clock: Literal["processor", "wall"] = "processor",
    seed: Seed = 0,
    warm_l2: Annotated[bool, _Flag] = False,
    concurrency: str = "1,2,4,8",
    max_tokens: Annotated[int, within(least=1, most=10**6)] = 256,
    tokens_per_request: Annotated[int, within(least=1, most=64)] = 1,
    model_name: str | None = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Time steps into a file of raw rows: of random weights on this machine, or of a server.

    Parameters
    ----------
    out
        File of rows (JSON lines). Rows already there are kept, and a sweep that was interrupted
        goes on; a manifest is written beside it.
    server
        Measure this OpenAI-compatible server instead, such as http://localhost:8000.
    preset
        Dimensions: tiny, llama-3.1-8b, llama-3.1-70b, qwen3-4b, qwen3-8b, qwen3-14b, qwen3-32b,
        v4-flash-slice.
    model
        A Hugging Face config.json, or the folder that holds one, instead of a preset.
    device
        Where to time.
    dtype
        float32, bfloat16 or float16; float32 on a CPU and bfloat16 on CUDA if left out.
    tp
        Tensor-parallel size: one shard is timed, without the all-reduce.
    batch_tokens
        Token counts of the forward, such as 1,2,4,8; SGLang's default sweep if left out.
    requests
        Requests of the step.
    context
        KV tokens that each request holds already.
    parts
        What to time: any of verify,draft,sampler.
    mode
        Steps launched eagerly, replayed from CUDA graphs, or both.
    kv
        Layout of the KV cache.
    gamma
        Drafts of a block.
    draft_layers
        Layers of the drafter.
    repeats
        Timings of each cell, interleaved.
    warmup
        Untimed runs before a cell's first timing.
    threads
        CPU threads.
    clock
        On a CPU: processor time, which neighbours on a shared machine do not stretch, or wall time.
    seed
        Of weights and of the visiting order.
    warm_l2
        Do not flush the L2 cache before each timing on CUDA.
    concurrency
        Numbers of requests that stream from the server at once.
    max_tokens
        Output tokens of each request to the server.
    tokens_per_request
        Tokens that the server verifies a request and step: 1 without speculation, 1 + k with.
    model_name
        Model to ask the server for; its first one if left out.
    """

    def say(line: str) -> None:
        if not quiet:
            note(line)

    with progress(quiet=quiet) as show:
        if server is not None:
            from specsim.profiler.server import ServerLoad, profile_server

            loads = read_numbers(concurrency, "--concurrency")
            load = ServerLoad(max_tokens=max_tokens, tokens_per_request=tokens_per_request)
            found = profile_server(server, loads, load, out, model=model_name, progress=show)
            body = {"file": str(out), "timed": found.timed, "kept": found.resumed, "dropped": []}
            text = f"{found.timed} rows of {server}, {found.resumed} kept, in {out}\n"
            answer(body, text, json=json)
            return 0
        from specsim.cost.shape import load_shape
        from specsim.profiler.run import RunPlan, profile_run
        from specsim.profiler.workload import default_tokens

        counts = read_numbers(requests, "--requests")
        tokens = (
            default_tokens(max(counts) * (gamma + 1))
            if batch_tokens is None
            else read_numbers(batch_tokens, "--batch-tokens")
        )
        plan = RunPlan(
            shape=load_shape(model or preset),
            device=device,
            dtype=dtype or ("float32" if device == "cpu" else "bfloat16"),
            batch_tokens=tuple(tokens),
            requests=tuple(counts),
            contexts=tuple(read_numbers(context, "--context")),
            parts=read_parts(parts),
            modes=("graph", "eager") if mode == "both" else (mode,),
            tensor_parallel=tp,
            kv=kv,
            gamma=gamma,
            draft_layers=draft_layers,
            repeats=repeats,
            warmup=warmup,
            seed=seed,
            threads=threads,
            clock=clock,
            flush_l2=not warm_l2,
        )
        result = profile_run(plan, out, progress=show, on_note=say)
    dropped = [
        f"dropped {case.batch_tokens} tokens x {case.num_requests} requests: {reason}"
        for case, reason in result.dropped
    ]
    body = {"file": str(out), "timed": result.timed, "kept": result.resumed, "dropped": dropped}
    text = f"{result.timed} rows timed, {result.resumed} kept, in {out}\n"
    answer(body, text, json=json)
    for line in dropped:
        say(line)
    return 0


@app.command
def fit(
    raw: Path,
    /,
    *,
    out: Path | None = None,
    name: str | None = None,
    kind: Literal[
        "rows",
        "telemetry",
        "frontier",
        "silicon",
        "vllm-bench-forward",
        "sglang-one-batch",
        "csv",
    ] = "rows",
    form: Literal["auto", "staircase", "additive", "linear"] = "auto",
    monotone: Literal["none", "running_max", "isotonic"] = "none",
    graph_limit: Annotated[int | None, within(least=1, most=10**9)] = None,
    acceptance_length: float | None = None,
    tokens_per_request: float | None = None,
    per_request_share: Annotated[float | None, within(least=0, most=1)] = None,
    deployment: str | None = None,
    any_step_time: Annotated[bool, _Flag] = False,
    host_of: str | None = None,
    read: Literal["floor", "linear", "ceil"] = "ceil",
    hold_out: float | None = None,
    seed: Seed = 0,
    status: Literal["measured", "derived", "fitted", "synthetic"] = "measured",
    source: str | None = None,
    date: str | None = None,
    licence: str = "Apache-2.0",
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Make a step table of raw rows, telemetry or a frontier line.

    Parameters
    ----------
    raw
        The file.
    out
        Table file to write; nothing is written if left out.
    name
        Name of the table; that of the file if left out.
    kind
        What the file holds. telemetry: a CSV of concurrency, tpot_ms (or tpot_s, tpot_us) and,
        where the engine speculates, acceptance_length, tokens_per_request. frontier: a CSV of
        tok_s_user, tok_s_gpu.
        silicon: aiconfigurator's silicon_sample.csv, of which --deployment names one.
    form
        staircase: medians by tokens; additive: tokens apart from requests and context; linear: of
        telemetry, bias + requests + tokens + KV with intervals.
    monotone
        What to do with medians that fall.
    graph_limit
        Largest captured graph, in tokens; larger steps are kept apart.
    acceptance_length
        Tokens that a step commits for a request (frontier).
    tokens_per_request
        Tokens verified a request, anchor included (frontier).
    per_request_share
        Where every load had the same number of tokens a request, how much of the slope is put on
        requests, 0 to 1, the rest on tokens (linear form); 0 if left out, which makes tokens dear.
    deployment
        Words that name one deployment of a silicon file, such as "Llama-3.1-70B h100 fp8 4.0
        1024x1024".
    any_step_time
        Believe step times below 0.2 ms or above 1 s, which are else taken for a wrong unit.
    host_of
        Instead of a table, fit host time on this no-speculation telemetry: what the table of that
        name or file leaves of its steps.
    read
        How the engine reads that table.
    hold_out
        Also fit on the rest of the cells after holding out this share, and say how well they are
        predicted.
    seed
        Picks the held-out cells.
    status
        What kind of numbers these are.
    source
        Where they come from; read from the manifest of `profile run` if left out.
    date
        Day of the measurement; today if left out.
    licence
        Licence of the numbers.
    """
    del quiet  # it says nothing on stderr
    from specsim.cost.fit import fit_table
    from specsim.cost.holdout import held_out_errors, split_rows
    from specsim.cost.table import save_table
    from specsim.cost.telemetry import fit_host, fit_linear, linear_table
    from specsim.inputs import read_text
    from specsim.report.steptable import fit_text, host_text, linear_text
    from specsim.rng import stream

    loads = (raw, acceptance_length, tokens_per_request, deployment)
    if per_request_share is not None and (host_of is not None or form != "linear"):
        raise InputError("--per-request-share splits a slope; it needs --form linear")
    if host_of is not None or form == "linear":
        points = read_telemetry(read_text(raw), kind, *loads, any_step_time=any_step_time)
        if host_of is not None:
            host = fit_host(named_table(host_of), points, read=read)
            answer(asdict(host), host_text(host, points, str(raw)), json=json)
            return 0
        told_linear = provenance_of(raw, "fitted", source, date, licence)
        line = fit_linear(points, per_request_share=per_request_share)
        made = linear_table(
            line, points, name=name or raw.name.split(".")[0], provenance=told_linear
        )
        if out is not None:
            save_table(made, out)
        answer(
            asdict(line) | {"file": str(out) if out else None},
            linear_text(line) + _written(out),
            json=json,
        )
        return 0
    rows = read_raw(read_text(raw), kind, *loads, any_step_time=any_step_time)
    provenance = provenance_of(raw, status, source, date, licence)
    told = {
        "name": name or raw.name.split(".")[0],
        "provenance": provenance,
        "form": form,
        "monotone": monotone,
        "graph_limit_tokens": graph_limit,
    }
    result = fit_table(rows, **told)  # type: ignore[arg-type]
    errors: list[float] = []
    if hold_out is not None:
        kept, held = split_rows(rows, hold_out, stream(seed, "profile/hold_out"))
        errors = held_out_errors(fit_table(kept, **told).table, held)  # type: ignore[arg-type]
    if out is not None:
        save_table(result.table, out)
    body = {
        "name": result.table.name,
        "form": result.form,
        "batch_tokens": [int(n) for n in result.table.verify.probes_N],
        "leave_one_out": list(result.leave_one_out),
        "held_out": errors,
        "findings": [asdict(finding) for finding in result.findings],
        "file": str(out) if out else None,
    }
    answer(body, fit_text(result, errors) + _written(out), json=json)
    return 0


def _written(out: Path | None) -> str:
    return "" if out is None else f"written: {out}\n"


for _verb in (show, compare, convert, check, roofline):
    app.command(_verb)
