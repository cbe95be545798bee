"""`specsim export`: a stored run for another tool, or its policy for an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from specsim.cli.common import Json, Quiet, answer, beware


def export(
    run: Path,
    /,
    *,
    format: Literal["vllm", "aiperf", "prometheus", "vllm-policy", "sglang-policy"],
    policy: Annotated[str | None, Parameter(show_default=False)] = None,
    concurrency: Annotated[int | None, Parameter(show_default=False)] = None,
    context: Annotated[int | None, Parameter(show_default=False)] = None,
    out: Annotated[Path | None, Parameter(show_default=False)] = None,
    json: Json = False,
    quiet: Quiet = False,
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
    written = [str(folder / name) for name in found.files]
    body = {"files": written, "flags": list(found.flags), "notes": list(found.notes)}
    answer(body, "".join(f"{line}\n" for line in (*written, *found.flags)), json=json)
    for note in found.notes:
        beware(note, quiet=quiet)
    return 0
