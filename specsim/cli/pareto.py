"""`specsim pareto`: draw a frontier."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, validators

from specsim.cli.common import Jobs, Json, Quiet, Set, cores, progress


def pareto(
    target: str,
    /,
    *,
    axes: Literal["paper", "vllm", "inferencex", "aiperf", "trtllm"] = "paper",
    measured: Annotated[tuple[Path, ...], Parameter(negative=(), show_default=False)] = (),
    replications: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=100))] = 1,
    set_: Set = (),
    out: Path = Path("runs"),
    jobs: Jobs = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Draw throughput against speed, with published and measured lines under it.

    Parameters
    ----------
    target
        A scenario file or name with a frontier question, or the folder of a stored run.
    axes
        Whose definition of the two axes to use; it is printed on them.
    measured
        CSV file with columns tok_s_user, tok_s_gpu and, for several lines, policy; may be repeated.
    replications
        Seeds; two or more draw confidence bands.
    set_
        Change a value of the scenario; may be repeated.
    out
        Folder of run directories.
    jobs
        Processes; as many as there are processors if left out.
    """
    from specsim.report.frontiers import print_frontier
    from specsim.study.frontier import draw
    from specsim.study.store import to_json

    with progress(quiet=quiet) as show:
        drawn = draw(
            target,
            axes=axes,
            measured=measured,
            replications=replications,
            overrides=set_,
            out=out,
            jobs=cores(jobs),
            progress=show,
        )
    if json:
        sys.stdout.write(to_json(drawn.result))
    else:
        print_frontier(drawn.result, files=drawn.files)
    return 0
