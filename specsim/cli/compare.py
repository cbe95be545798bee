"""`specsim compare`: two stored runs or studies, difference by difference."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from specsim.cli.common import Json, Quiet


def compare(
    a: str,
    b: str,
    /,
    *,
    page: Annotated[Path | None, Parameter(show_default=False)] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Compare B with A: paired differences with intervals; nothing is simulated.

    Parameters
    ----------
    a
        The folder of a run or study; `FOLDER:policy` for one policy of it.
    b
        Likewise.
    page
        Write an HTML page to this file too.
    """
    del quiet  # it says nothing on stderr
    from specsim.report.comparison import page_of_comparison, print_comparison
    from specsim.report.html import html
    from specsim.study.compare import compare as find
    from specsim.study.store import to_json

    found = find(a, b)
    if page is not None:
        page.write_text(html(page_of_comparison(found)), encoding="utf-8")
    if json:
        sys.stdout.write(to_json(found))
    else:
        print_comparison(found)
    return 0
