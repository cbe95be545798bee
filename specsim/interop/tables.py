"""Step tables from and to other tools' files, by the name of the form.

What a file does not say (where its numbers come from, what its steps include) must be told.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specsim.cost.fit import fit_table
from specsim.cost.rows import Row, parse_rows
from specsim.cost.table import Provenance, StepTable, Term, parse_table
from specsim.errors import InputError
from specsim.interop.sglang import (
    SpsAdditiveCostTable,
    SpsCostTable,
    from_additive,
    from_sps,
    parse_sglang,
    sglang_json,
    to_additive,
    to_sps,
)
from specsim.interop.timings import parse_csv_rows, parse_one_batch
from specsim.interop.vllm import bench_forward_cases, parse_bench_forward

Source = Literal["specsim", "sglang", "vllm-bench-forward", "sglang-one-batch", "csv", "rows"]
Target = Literal["specsim", "sglang-sps", "sglang-additive", "csv", "vllm-cases"]


@dataclass(frozen=True, slots=True)
class About:
    """What other tools' files leave out.

    Attributes:
        name: name of the table.
        provenance: where the numbers come from; None if nobody said.
        includes: terms inside the timed steps; None if nobody said.
        context_tokens: context of every request in the timed steps, for SGLang's additive form.
    """

    name: str
    provenance: Provenance | None = None
    includes: tuple[Term, ...] | None = None
    context_tokens: int | None = None


def guess_form(text: str) -> Source:
    """Tell a file's form by fields that no other form has.

    Raises:
        InputError: none of them is there; say the form.
    """
    for form, mark in (
        ("specsim", '"specsim.steps/'),
        ("sglang", '"sample_batch_tokens"'),
        ("sglang", '"bias_seconds"'),
        ("vllm-bench-forward", '"median_us"'),
        ("sglang-one-batch", '"median_decode_latency"'),
        ("rows", '"batch_tokens"'),
        ("csv", "batch_tokens"),
    ):
        if mark in text:
            return form  # type: ignore[return-value]
    raise InputError(
        "this file's form cannot be told; say --from specsim, sglang, vllm-bench-forward, "
        "sglang-one-batch, csv or rows"
    )


def read_table(text: str, form: Source, about: About, *, where: str) -> StepTable:
    """Read a table of any form.

    Args:
        text: the file's text.
        form: which form.
        about: what the file does not say; not needed for specsim's own form.
        where: the file's name in errors.

    Raises:
        ScenarioError: the file is wrong.
        InputError: something that the form leaves out was not said.
    """
    if form == "specsim":
        return parse_table(text, where=where)
    if about.provenance is None:
        raise InputError(
            f"{where}: a {form} file does not say where its numbers come from; give --status "
            "(measured, derived, fitted or synthetic) and --source"
        )
    if form == "sglang":
        return _from_sglang(text, about, about.provenance, where)
    rows = read_rows(text, form, where=where)
    return fit_table(
        rows, name=about.name, provenance=about.provenance, includes=about.includes or ()
    ).table


def read_rows(text: str, form: Source, *, where: str, any_step_time: bool = False) -> list[Row]:
    """Read timings of any form that holds them; `any_step_time` as `parse_csv_rows` has it.

    Raises:
        ScenarioError: the file is wrong.
        InputError: the form holds a table, not timings.
    """
    if form == "rows":
        return parse_rows(text, where=where)
    if form == "vllm-bench-forward":
        return parse_bench_forward(text, where=where)
    if form == "sglang-one-batch":
        return parse_one_batch(text, where=where)
    if form == "csv":
        return parse_csv_rows(text, where=where, any_step_time=any_step_time)
    raise InputError(f"{where}: a {form} file holds a table, not timings")


def _from_sglang(text: str, about: About, provenance: Provenance, where: str) -> StepTable:
    found = parse_sglang(text, where=where)
    if isinstance(found, SpsCostTable):
        if about.includes is None:
            raise InputError(
                f"{where}: SGLang's table does not say what its steps include; give --includes "
                "with any of attention, draft, host (SGLang's own profiler times all three)"
            )
        return from_sps(found, name=about.name, provenance=provenance, includes=about.includes)
    if about.context_tokens is None:
        raise InputError(
            f"{where}: SGLang's additive table does not say at which context it was measured; "
            "give --context"
        )
    tables: dict[int, SpsAdditiveCostTable] = {about.context_tokens: found}
    # Attention is in alpha, which becomes a curve of its own.
    inside: list[Term] = [term for term in about.includes or () if term != "attention"]
    return from_additive(tables, name=about.name, provenance=provenance, includes=inside)


def write_table(
    table: StepTable,
    form: Target,
    *,
    context_tokens: int | None = None,
    tokens_per_request: float = 1.0,
    reading: Literal["probes", "ceil"] = "probes",
) -> str:
    """Return the text of a table in another form.

    Args:
        table: the table.
        form: which form.
        context_tokens: context of every request, where attention depends on it.
        tokens_per_request: B / R of the steps written down (SGLang's plain form).
        reading: see `interop.sglang.to_sps`.

    Raises:
        InputError: the form needs something that was not said, or cannot hold the table.
    """
    if form == "specsim":
        return json.dumps(table.to_json(), indent=2) + "\n"
    if form == "sglang-sps":
        found = to_sps(
            table,
            context_tokens=context_tokens,
            tokens_per_request=tokens_per_request,
            reading=reading,
        )
        return sglang_json(found) + "\n"
    if form == "sglang-additive":
        if context_tokens is None:
            raise InputError("SGLang's additive form is for one context; give --context")
        return sglang_json(to_additive(table, context_tokens=context_tokens)) + "\n"
    if form == "vllm-cases":
        return bench_forward_cases(_cells(table, context_tokens or 0))
    return _csv(table)


def _cells(table: StepTable, context_tokens: int) -> Sequence[Row]:
    """One-token-a-request steps at the table's probes, to be timed by another tool."""
    return [
        Row("step", tokens, tokens, context_tokens, seconds)
        for tokens, seconds in zip(
            table.verify.probes_N.tolist(), table.verify.seconds_N.tolist(), strict=True
        )
    ]


def _csv(table: StepTable) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["batch_tokens", "seconds"])
    for part in (table.verify, table.past_limit):
        if part is not None:
            writer.writerows(zip(part.probes_N.tolist(), part.seconds_N.tolist(), strict=True))
    return out.getvalue()
