"""`specsim report`: a stored run or study as a page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


def report(
    run: Path,
    /,
    *,
    format: Literal["html", "markdown", "png", "svg"] = "html",
    out: Annotated[Path | None, Parameter(show_default=False)] = None,
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
    """
    from specsim.study.reports import write_report

    path = write_report(run, format=format, out=out)
    sys.stdout.write(f"{path}\n")
    return 0
