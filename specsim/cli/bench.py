"""`specsim bench`: how fast this machine simulates."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter, validators

from specsim.cli.common import Json, Quiet


def bench(
    *,
    repeats: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=1000))] = 5,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Time runs, plans and sampling on this machine, beside the floor of a step.

    Parameters
    ----------
    repeats
        How often; medians are printed.
    """
    del quiet  # it says nothing on stderr
    from specsim.report.terminal import print_bench
    from specsim.study.bench import bench as measure
    from specsim.study.store import to_json

    found = measure(repeats=repeats)
    if json:
        sys.stdout.write(to_json(found))
    else:
        print_bench(found)
    return 0
