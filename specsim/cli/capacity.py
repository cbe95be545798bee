"""`specsim capacity`: the largest load that holds an SLO."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from specsim.cli.common import Jobs, Json, Quiet, Set, progress


def capacity(
    scenario: str,
    /,
    *,
    slo: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)],
    policy: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    low: Annotated[float | None, Parameter(show_default=False)] = None,
    high: Annotated[float | None, Parameter(show_default=False)] = None,
    replications: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=1000))] = 3,
    set_: Set = (),
    jobs: Jobs = None,
    out: Annotated[Path | None, Parameter(show_default=False)] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Find the largest number of users, or rate, at which an SLO holds.

    Parameters
    ----------
    scenario
        A scenario file, or the name of a shipped one. With closed_loop arrivals the users a rank
        are varied, else the arrival rate.
    slo
        What must hold; may be repeated: `tok_s_user>=80`, `tpot_p99<=50ms`,
        `goodput(ttft<=500ms,tpot<=50ms)>=95%`, or `mlperf:llama2-70b-interactive`.
    policy
        Only this policy; may be repeated.
    low
        Least load tried.
    high
        Largest load tried.
    replications
        Seeds of each load, the same for all loads.
    set_
        Change a value of the scenario; may be repeated.
    jobs
        Processes; as many as there are processors if left out.
    out
        Write the result as JSON to this file too.
    """
    from specsim.report.capacity import print_capacity
    from specsim.study.capacity import capacity as find
    from specsim.study.executor import Place
    from specsim.study.store import to_json

    with progress(quiet=quiet) as show:
        found = find(
            scenario,
            slo,
            overrides=set_,
            policies=policy,
            low=low,
            high=high,
            replications=replications,
            place=Place(jobs or min(os.cpu_count() or 1, replications)),
            progress=show,
        )
    if out is not None:
        out.write_text(to_json(found), encoding="utf-8")
    if json:
        sys.stdout.write(to_json(found))
    else:
        print_capacity(found)
    return 0
