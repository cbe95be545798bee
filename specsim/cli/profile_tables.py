"""`specsim profile show`, `compare`, `convert` and `check`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from specsim.cli.common import Json, Quiet, answer, within
from specsim.cli.profile_inputs import (
    any_table,
    day,
    find_table,
    named_table,
    provenance_of,
    read_numbers,
    read_terms,
    write_picture,
)
from specsim.errors import InputError

MOST_AT = 10**7
"""Largest B that readings are asked at: step times are laid out token by token up to it."""


def show(
    table: str,
    /,
    *,
    at: str | None = None,
    plot: Path | None = None,
    json: Json = False,
    quiet: Quiet = False,
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
    """
    del quiet  # it says nothing on stderr
    from specsim.report.steptable import as_text, describe

    found = named_table(table)
    said = describe(
        found, at_tokens=read_numbers(at, "--at", least=1, most=MOST_AT) if at else None
    )
    if json:
        from specsim.study.store import to_json

        sys.stdout.write(to_json(said))
    else:
        sys.stdout.write(as_text(said))
    if plot is not None:
        write_picture([found], plot)
    return 0


def compare(
    tables: Annotated[list[str], Parameter(consume_multiple=True)],
    /,
    *,
    at: str | None = None,
    read: Literal["floor", "linear", "ceil"] = "linear",
    plot: Path | None = None,
    json: Json = False,
    quiet: Quiet = False,
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
    """
    del quiet  # it says nothing on stderr
    from specsim.report.steptable import comparison, comparison_text

    if len(tables) < 2:
        raise InputError(f"compare needs two or more tables, not {len(tables)}")
    found = [named_table(name) for name in tables]
    rows = comparison(
        found, read=read, at_tokens=read_numbers(at, "--at", least=1, most=MOST_AT) if at else None
    )
    if json:
        from specsim.study.store import to_json

        sys.stdout.write(to_json({"read": read, "rows": rows}))
    else:
        sys.stdout.write(comparison_text([t.name for t in found], rows))
    if plot is not None:
        write_picture(found, plot)
    return 0


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
    context: Annotated[int | None, within(least=1, most=10**9)] = None,
    tokens_per_request: Annotated[float, within(least=1, most=10**6)] = 1.0,
    reading: Literal["probes", "ceil"] = "probes",
    includes: str | None = None,
    status: Literal["measured", "derived", "fitted", "synthetic"] | None = None,
    source: str | None = None,
    date: str | None = None,
    licence: str = "not said",
    json: Json = False,
    quiet: Quiet = False,
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
    del quiet  # it says nothing on stderr
    from specsim.inputs import read_text
    from specsim.interop.tables import About, guess_form, read_table, write_table

    path = Path(table) if Path(table).is_file() else find_table(table)
    text = read_text(path)
    about = About(
        name=name or path.name.split(".")[0],
        provenance=provenance_of(path, status, source, date, licence) if status else None,
        includes=read_terms(includes),
        context_tokens=context,
    )
    found = read_table(text, from_ or guess_form(text), about, where=str(path))
    if to == "specsim" and out is not None:
        from specsim.cost.table import save_table

        save_table(found, out)
        answer({"file": str(out)}, "", json=json)
        return 0
    written = write_table(
        found, to, context_tokens=context, tokens_per_request=tokens_per_request, reading=reading
    )
    if out is None:
        answer({"text": written}, written, json=json)
    else:
        out.write_text(written, encoding="utf-8")
        answer({"file": str(out)}, "", json=json)
    return 0


def check(
    table: str,
    /,
    *,
    model: str | None = None,
    gpu: str | None = None,
    gpus: Annotated[int, within(least=1, most=10**5)] = 1,
    weight_bytes: Annotated[float, within(above=0, most=16)] = 2.0,
    json: Json = False,
    quiet: Quiet = False,
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
    """
    del quiet  # it says nothing on stderr
    from specsim.report.steptable import check_lines, check_table_facts

    facts = check_table_facts(
        any_table(table), model=model, gpu=gpu, gpus=gpus, weight_bytes=weight_bytes
    )
    if json:
        from specsim.study.store import to_json

        sys.stdout.write(to_json(facts))
    else:
        sys.stdout.write(check_lines(facts))
    return 1 if facts["refused"] else 0


def roofline(
    *,
    model: str,
    gpu: str,
    out: Path,
    gpus: Annotated[int, within(least=1, most=10**5)] = 1,
    weight_bytes: Annotated[float, within(above=0, most=16)] = 2.0,
    efficiency: Annotated[float, within(above=0, most=1)] = 0.7,
    launch_ms: Annotated[float, within(least=0, most=10**6)] = 2.0,
    max_tokens: Annotated[int, within(least=1, most=10**6)] = 2048,
    max_requests: Annotated[int, within(least=1, most=10**6)] = 256,
    date: str | None = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Make a table of nothing but hardware limits: the last resort where nobody has measured.

    Parameters
    ----------
    model
        Preset or config file.
    gpu
        GPU preset.
    out
        Table file to write.
    gpus
        GPUs that share the model.
    weight_bytes
        Bytes a weight: 2 for bf16, 1 for fp8, 0.5 for fp4.
    efficiency
        Share of the limits that kernels reach; an assumption.
    launch_ms
        Constant milliseconds a step; an assumption.
    max_tokens
        Last probe of the tokens.
    max_requests
        Last probe of the requests.
    date
        Day, YYYY-MM-DD; today if left out.
    """
    del quiet  # it says nothing on stderr
    from specsim.cost.roofline import Roofline, gpu_named, roofline_table
    from specsim.cost.shape import load_shape
    from specsim.cost.table import save_table

    limits = Roofline(load_shape(model), gpu_named(gpu), gpus, weight_bytes)
    made = roofline_table(
        limits,
        name=out.stem,
        date=day(date),
        max_tokens=max_tokens,
        max_requests=max_requests,
        efficiency=efficiency,
        launch_s=launch_ms * 1e-3,
    )
    save_table(made, out)
    text = f"written: {out} (derived from data-sheet limits; nothing was measured)\n"
    answer({"file": str(out)}, text, json=json)
    return 0
