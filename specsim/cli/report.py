"""`specsim report`: a stored run or study as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from specsim.cli.common import Json, Quiet, answer
from specsim.errors import InputError


def report(
    run: Path,
    /,
    *,
    format: Literal["html", "markdown", "png", "svg"] = "html",
    out: Annotated[Path | None, Parameter(show_default=False)] = None,
    perfetto: Annotated[Path | None, Parameter(show_default=False)] = None,
    policy: Annotated[str | None, Parameter(show_default=False)] = None,
    concurrency: Annotated[int | None, Parameter(show_default=False)] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Draw a stored run or study; nothing is simulated.

    Parameters
    ----------
    run
        The folder of a run or of a study.
    format
        A self-contained HTML page, Markdown, or the frontier alone as a picture.
    out
        The file; `report.html`, `report.md` or `frontier.*` in the run's folder if left out.
    perfetto
        Write the timeline of one policy under one load to this file instead, for ui.perfetto.dev.
    policy
        Which policy's timeline; may be left out if there is one.
    concurrency
        Under which load, users a rank; may be left out if there is one.
    """
    del quiet  # it says nothing on stderr
    if perfetto is not None:
        from specsim.report.perfetto import write_timeline

        packets = write_timeline(run, perfetto, policy=policy, concurrency=concurrency)
        text = f"{perfetto}: {packets} packets\n"
        answer({"file": str(perfetto), "packets": packets}, text, json=json)
        return 0
    if policy is not None or concurrency is not None:
        raise InputError("--policy and --concurrency choose a timeline; give --perfetto FILE too")
    from specsim.study.reports import write_report

    path = write_report(run, format=format, out=out)
    answer({"file": str(path)}, f"{path}\n", json=json)
    return 0
