"""`specsim compare`: two stored runs or studies, difference by difference."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from specsim.cli.common import Json, Quiet
from specsim.errors import InputError


def compare(
    *runs: str,
    page: Annotated[Path | None, Parameter(show_default=False)] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Compare B with A: paired differences with intervals; nothing is simulated.

    Parameters
    ----------
    runs
        Two folders, A and B, of runs or of studies; `FOLDER:policy` for one policy of it.
    page
        Write an HTML page to this file too.
    """
    del quiet  # it says nothing on stderr
    from specsim.report.comparison import page_of_comparison, print_comparison
    from specsim.report.html import html
    from specsim.study.compare import compare as find
    from specsim.study.store import to_json

    if len(runs) != 2:
        shown = f" ({', '.join(runs)})" if runs else ""
        raise InputError(
            f"compare takes two runs, A and B, not {len(runs)}{shown}: name both; a pattern such "
            "as runs/* names all that are there"
        )
    found = find(*runs)
    if page is not None:
        page.write_text(html(page_of_comparison(found)), encoding="utf-8")
    if json:
        sys.stdout.write(to_json(found))
    else:
        print_comparison(found)
    return 0
