"""`specsim profile`: measure, fit, show, compare, convert and check step-cost tables."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from cyclopts import App, Parameter

from specsim.errors import InputError

if TYPE_CHECKING:
    from specsim.cost.rows import Row
    from specsim.cost.table import Provenance, StepTable, Term

app = App(
    name="profile",
    help="Measure and convert step-cost tables.",
    result_action="return_value",
)

_Flag = Parameter(negative=(), show_default=False)
_Part = Literal["verify", "draft", "sampler"]


@app.command
def run(
    *,
    out: Path,
    server: str | None = None,
    preset: str = "tiny",
    model: str | None = None,
    device: Literal["cpu", "cuda"] = "cpu",
    dtype: str | None = None,
    tp: int = 1,
    batch_tokens: str | None = None,
    requests: str = "1,2,4,8,16",
    context: str = "256",
    parts: str = "verify",
    mode: Literal["eager", "graph", "both"] = "eager",
    kv: Literal["contiguous", "paged"] = "contiguous",
    gamma: int = 7,
    draft_layers: int = 2,
    repeats: int = 10,
    warmup: int = 2,
    threads: int = 1,
    clock: Literal["processor", "wall"] = "processor",
    seed: int = 0,
    warm_l2: Annotated[bool, _Flag] = False,
    concurrency: str = "1,2,4,8",
    max_tokens: int = 256,
    tokens_per_request: int = 1,
    model_name: str | None = None,
    quiet: Annotated[bool, _Flag] = False,
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
    quiet
        No progress on stderr.
    """
    from specsim.cli.progress import progress_bar

    with progress_bar(show=not quiet and sys.stderr.isatty()) as progress:
        if server is not None:
            from specsim.profiler.server import ServerLoad, measure_server

            load = ServerLoad(max_tokens=max_tokens, tokens_per_request=tokens_per_request)
            rows = measure_server(
                server,
                _numbers(concurrency, "--concurrency"),
                load,
                model=model_name,
                progress=progress,
            )
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text("".join(row.to_json() + "\n" for row in rows), encoding="utf-8")
            sys.stdout.write(f"{len(rows)} rows of {server} in {out}\n")
            return 0
        from specsim.cost.shape import load_shape
        from specsim.profiler.run import RunPlan, profile_run
        from specsim.profiler.workload import default_tokens

        counts = _numbers(requests, "--requests")
        tokens = (
            default_tokens(max(counts) * (gamma + 1))
            if batch_tokens is None
            else _numbers(batch_tokens, "--batch-tokens")
        )
        plan = RunPlan(
            shape=load_shape(model or preset),
            device=device,
            dtype=dtype or ("float32" if device == "cpu" else "bfloat16"),
            batch_tokens=tuple(tokens),
            requests=tuple(counts),
            contexts=tuple(_numbers(context, "--context")),
            parts=_parts(parts),
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
        result = profile_run(plan, out, progress=progress, on_note=_note)
    sys.stdout.write(f"{result.timed} rows timed, {result.resumed} kept, in {out}\n")
    for case, reason in result.dropped:
        _note(f"dropped {case.batch_tokens} tokens x {case.num_requests} requests: {reason}")
    return 0


@app.command
def fit(
    raw: Path,
    /,
    *,
    out: Path | None = None,
    name: str | None = None,
    kind: Literal[
        "rows", "telemetry", "frontier", "vllm-bench-forward", "sglang-one-batch", "csv"
    ] = "rows",
    form: Literal["auto", "staircase", "additive"] = "auto",
    monotone: Literal["none", "running_max", "isotonic"] = "none",
    graph_limit: int | None = None,
    acceptance_length: float | None = None,
    tokens_per_request: float | None = None,
    hold_out: float | None = None,
    seed: int = 0,
    status: Literal["measured", "derived", "fitted", "synthetic"] = "measured",
    source: str | None = None,
    date: str | None = None,
    licence: str = "Apache-2.0",
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
        What the file holds. telemetry: a CSV of concurrency, tpot_ms and, where the engine
        speculates, acceptance_length, tokens_per_request. frontier: a CSV of tok_s_user, tok_s_gpu.
    form
        staircase: medians by tokens; additive: tokens apart from requests and context.
    monotone
        What to do with medians that fall.
    graph_limit
        Largest captured graph, in tokens; larger steps are kept apart.
    acceptance_length
        Tokens that a step commits for a request (frontier).
    tokens_per_request
        Tokens verified a request, anchor included (frontier).
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
    from specsim.cost.fit import fit_table, held_out_errors, split_rows
    from specsim.cost.table import save_table
    from specsim.interop.tables import read_text
    from specsim.report.steptable import fit_text
    from specsim.rng import stream

    rows = _rows_of(read_text(raw), kind, raw, acceptance_length, tokens_per_request)
    provenance = _provenance(raw, status, source, date, licence)
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
    sys.stdout.write(fit_text(result, errors))
    if out is not None:
        save_table(result.table, out)
        sys.stdout.write(f"written: {out}\n")
    return 0


@app.command
def show(
    table: str,
    /,
    *,
    at: str | None = None,
    plot: Path | None = None,
    json: Annotated[bool, _Flag] = False,
) -> int:
    """Say and draw what a table holds: knee, risers, cliff, and what each reading charges.

    Parameters
    ----------
    table
        A table file, or the name of a shipped one such as vllm/v4_flash_tp4_b300.
    at
        Token counts at which the readings are compared; where they differ most if left out.
    plot
        Picture to write, .png or .svg.
    json
        Print JSON instead of text.
    """
    from specsim.report.steptable import as_text, describe

    found = _table(table)
    said = describe(found, at_tokens=_numbers(at, "--at") if at else None)
    if json:
        from specsim.study.store import to_json

        sys.stdout.write(to_json(said))
    else:
        sys.stdout.write(as_text(said))
    if plot is not None:
        _draw([found], plot)
    return 0


@app.command
def compare(
    tables: Annotated[list[str], Parameter(consume_multiple=True)],
    /,
    *,
    at: str | None = None,
    read: Literal["floor", "linear", "ceil"] = "linear",
    plot: Path | None = None,
    json: Annotated[bool, _Flag] = False,
) -> int:
    """Set tables beside each other: step times and their ratio to the first.

    Parameters
    ----------
    tables
        Two or more table files or names.
    at
        Token counts; powers of two within every table if left out.
    read
        How to read between probes.
    plot
        Picture to write, .png or .svg.
    json
        Print JSON instead of text.
    """
    from specsim.report.steptable import comparison, comparison_text

    if len(tables) < 2:
        raise InputError(f"compare needs two or more tables, not {len(tables)}")
    found = [_table(name) for name in tables]
    rows = comparison(found, read=read, at_tokens=_numbers(at, "--at") if at else None)
    if json:
        from specsim.study.store import to_json

        sys.stdout.write(to_json({"read": read, "rows": rows}))
    else:
        sys.stdout.write(comparison_text([t.name for t in found], rows))
    if plot is not None:
        _draw(found, plot)
    return 0


@app.command
def convert(
    table: str,
    /,
    *,
    to: Literal["specsim", "sglang-sps", "sglang-additive", "csv", "vllm-cases"],
    out: Path | None = None,
    from_: Annotated[
        Literal["specsim", "sglang", "vllm-bench-forward", "sglang-one-batch", "csv", "rows"]
        | None,
        Parameter(name="--from"),
    ] = None,
    name: str | None = None,
    context: int | None = None,
    tokens_per_request: float = 1.0,
    reading: Literal["probes", "ceil"] = "probes",
    includes: str | None = None,
    status: Literal["measured", "derived", "fitted", "synthetic"] | None = None,
    source: str | None = None,
    date: str | None = None,
    licence: str = "not said",
) -> int:
    """Turn a table or timings of one tool into another's form.

    Parameters
    ----------
    table
        A file, or the name of a shipped table.
    to
        Form to write.
    out
        File to write; standard output if left out.
    from_
        Form of the file; told by its fields if left out.
    name
        Name of the table; that of the file if left out.
    context
        Context in tokens: of SGLang's additive file, or to write for.
    tokens_per_request
        B / R of the steps written (sglang-sps).
    reading
        probes: the probes as they are, which SGLang reads from below; ceil: so that SGLang charges
        the next probe's cost, as vLLM does.
    includes
        Terms inside an SGLang file's timed steps: any of attention,draft,host, or none.
    status
        What kind of numbers a foreign file holds.
    source
        Where they come from.
    date
        Day of the measurement; today if left out.
    licence
        Licence of a foreign file's numbers.
    """
    from specsim.interop.tables import About, guess_form, read_table, read_text, write_table

    path = Path(table) if Path(table).is_file() else _locate(table)
    text = read_text(path)
    about = About(
        name=name or path.name.split(".")[0],
        provenance=_provenance(path, status, source, date, licence) if status else None,
        includes=_terms(includes),
        context_tokens=context,
    )
    found = read_table(text, from_ or guess_form(text), about, where=str(path))
    if to == "specsim" and out is not None:
        from specsim.cost.table import save_table

        save_table(found, out)
        return 0
    written = write_table(
        found, to, context_tokens=context, tokens_per_request=tokens_per_request, reading=reading
    )
    if out is None:
        sys.stdout.write(written)
    else:
        out.write_text(written, encoding="utf-8")
    return 0


@app.command
def check(
    table: str,
    /,
    *,
    model: str | None = None,
    gpu: str | None = None,
    gpus: int = 1,
    weight_bytes: float = 2.0,
    json: Annotated[bool, _Flag] = False,
) -> int:
    """Say everything wrong or odd about a table; exit code 1 if it should not be used.

    Parameters
    ----------
    table
        A table of specsim's or SGLang's form, or the name of a shipped one.
    model
        Preset or config file whose weights the step must read; with `gpu`.
    gpu
        GPU preset, to flag steps that beat the hardware; with `model`.
    gpus
        GPUs that share the model.
    weight_bytes
        Bytes a weight: 2 for bf16, 1 for fp8, 0.5 for fp4.
    json
        Print JSON instead of text.
    """
    from specsim.report.steptable import check_lines, check_table_facts

    facts = check_table_facts(
        _any_table(table), model=model, gpu=gpu, gpus=gpus, weight_bytes=weight_bytes
    )
    if json:
        from specsim.study.store import to_json

        sys.stdout.write(to_json(facts))
    else:
        sys.stdout.write(check_lines(facts))
    return 1 if facts["refused"] else 0


def _note(text: str) -> None:
    sys.stderr.write(f"specsim: {text}\n")


def _numbers(text: str, flag: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise InputError(f"{flag}: whole numbers with commas between are needed, not {text!r}")
    return [int(part) for part in parts]


def _parts(text: str) -> tuple[_Part, ...]:
    known: tuple[_Part, ...] = ("verify", "draft", "sampler")
    asked = [part.strip() for part in text.split(",")]
    unknown = [part for part in asked if part not in known]
    if unknown:
        raise InputError(f"--parts: {unknown[0]!r} is none of {', '.join(known)}")
    return tuple(part for part in known if part in asked)


def _terms(text: str | None) -> tuple[Term, ...] | None:
    from specsim.cost.table import Term as Terms

    if text is None:
        return None
    known: tuple[Term, ...] = get_args(Terms)
    asked = [] if text == "none" else [part.strip() for part in text.split(",")]
    unknown = [part for part in asked if part not in known]
    if unknown:
        raise InputError(f"--includes: {unknown[0]!r} is none of {', '.join(known)}, none")
    return tuple(term for term in known if term in asked)


def _locate(name: str) -> Path:
    from specsim.scenario.locate import Locator

    return Locator(Path())("steps", name)


def _table(name: str) -> StepTable:
    from specsim.cost.table import load_table

    return load_table(_locate(name))


def _any_table(name: str) -> StepTable:
    from specsim.cost.table import Provenance
    from specsim.interop.tables import About, guess_form, read_table, read_text

    path = _locate(name)
    text = read_text(path)
    unsaid = Provenance(status="measured", source=str(path), date="2000-01-01", licence="not said")
    about = About(path.stem, unsaid, ("attention", "draft", "host"), 1)
    return read_table(text, guess_form(text), about, where=str(path))


def _draw(tables: list[StepTable], plot: Path) -> None:
    from specsim.report.steptable import draw

    form = plot.suffix.lstrip(".").lower()
    if form not in ("png", "svg"):
        raise InputError(f"--plot: a .png or .svg file is needed, not {plot.name}")
    plot.parent.mkdir(parents=True, exist_ok=True)
    plot.write_bytes(draw(tables, form=form))


def _rows_of(
    text: str,
    kind: Any,
    raw: Path,
    acceptance_length: float | None,
    tokens_per_request: float | None,
) -> list[Row]:
    from specsim.cost.telemetry import frontier_telemetry, telemetry_rows
    from specsim.interop.tables import read_rows
    from specsim.interop.timings import parse_frontier, parse_telemetry

    if kind == "telemetry":
        return telemetry_rows(parse_telemetry(text, where=str(raw)))
    if kind == "frontier":
        if acceptance_length is None or tokens_per_request is None:
            raise InputError("a frontier line needs --acceptance-length and --tokens-per-request")
        speeds, gpus = parse_frontier(text, where=str(raw))
        return telemetry_rows(
            frontier_telemetry(
                speeds,
                gpus,
                acceptance_length=acceptance_length,
                tokens_per_request=tokens_per_request,
            )
        )
    return read_rows(text, kind, where=str(raw))


def _provenance(
    path: Path, status: Any, source: str | None, date: str | None, licence: str
) -> Provenance:
    from specsim.cost.table import Provenance
    from specsim.profiler.manifest import described, read_manifest

    manifest = read_manifest(path)
    left_out: list[str] = []
    if manifest is not None:
        left_out = list(manifest.get("left_out", []))
        source = source or described(manifest)
    if source is None:
        raise InputError(f"{path} does not say where its numbers come from; give --source")
    today = datetime.date.today().isoformat()
    return Provenance(
        status=status, source=source, date=date or today, licence=licence, left_out=left_out
    )
