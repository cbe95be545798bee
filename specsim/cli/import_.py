"""`specsim import`: files of other tools in specsim's vocabulary."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from specsim.cli.common import Json, Quiet


def import_(
    kind: Literal[
        "vllm",
        "sglang",
        "aiperf",
        "aiperf-records",
        "trtllm",
        "inferencex",
        "golden",
        "deepspec",
        "sglang-records",
    ],
    file: Path,
    /,
    *,
    gpus: Annotated[int | None, Parameter(show_default=False)] = None,
    model: Annotated[str | None, Parameter(show_default=False)] = None,
    out: Annotated[Path | None, Parameter(show_default=False)] = None,
    json: Json = True,
    quiet: Quiet = False,
) -> int:
    """Read another tool's file: times in seconds, rates as fractions, lengths with the bonus in.

    Parameters
    ----------
    kind
        Which tool wrote it: benchmark results of vllm, sglang, aiperf, trtllm, inferencex or
        deepspec; golden acceptance lengths of InferenceX; per-step records of SGLang.
    file
        The file.
    gpus
        Accelerators behind a result, where its file does not say.
    model
        Which golden lengths (`model/mode`); they are listed if left out.
    out
        Of results: a CSV of points for `specsim pareto --measured`. Of records: a trace (.npz).
    """
    del json, quiet  # JSON is all that it prints
    from specsim.study.imports import (
        import_golden,
        import_records,
        import_results,
        measured_csv,
    )
    from specsim.study.store import to_json

    if kind == "golden":
        sys.stdout.write(to_json(import_golden(file, model)))
    elif kind == "sglang-records":
        sys.stdout.write(to_json(import_records(file, out)))
    else:
        found = import_results(file, kind, gpus=gpus)
        if out is not None:
            out.write_text(measured_csv(found), encoding="utf-8")
        sys.stdout.write(to_json([result.as_dict() for result in found]))
    return 0
