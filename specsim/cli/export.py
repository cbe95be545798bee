"""`specsim export`: a stored run for another tool, or its policy for an engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


def export(
    run: Path,
    /,
    *,
    format: Literal["vllm", "aiperf", "prometheus", "vllm-policy", "sglang-policy"],
    policy: Annotated[str | None, Parameter(show_default=False)] = None,
    concurrency: Annotated[int | None, Parameter(show_default=False)] = None,
    context: Annotated[int | None, Parameter(show_default=False)] = None,
    out: Annotated[Path | None, Parameter(show_default=False)] = None,
) -> int:
    """Write a stored run in another tool's shape, or its policy as engine configuration.

    Parameters
    ----------
    run
        The folder of a run.
    format
        vllm: result of `vllm bench serve`; aiperf: its summary; prometheus: text with vLLM's
        metric names; vllm-policy: --speculative-config; sglang-policy: flags, SPS table and
        calibration.
    policy
        Which policy; the best lossless one if left out.
    concurrency
        Which load; the heaviest if left out.
    context
        Context in tokens of the SPS table, where attention depends on it.
    out
        Folder to write into; the run's own if left out.
    """
    from specsim.study.exports import export as make

    found = make(run, format, policy=policy, concurrency=concurrency, context_tokens=context)
    folder = out or run
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in found.files.items():
        (folder / name).write_text(content, encoding="utf-8")
        sys.stdout.write(f"{folder / name}\n")
    for flag in found.flags:
        sys.stdout.write(f"{flag}\n")
    for note in found.notes:
        sys.stderr.write(f"beware: {note}\n")
    return 0
