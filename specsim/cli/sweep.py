"""`specsim sweep`: run a study."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from specsim.cli.common import Jobs, Json, Quiet, cores, progress


def sweep(
    study: str,
    /,
    *,
    out: Path = Path("runs"),
    jobs: Jobs = None,
    executor: Literal["processes", "dask"] = "processes",
    scheduler: Annotated[str | None, Parameter(show_default=False)] = None,
    retry_failed: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run every point of a study that is not finished yet, and write its table.

    A sweep that was killed goes on where it was. Points that fail are listed and do not stop it;
    the exit code is 1 if any failed.

    Parameters
    ----------
    study
        A study file, or the name of a shipped one.
    out
        Folder of run directories; finished points are kept in its `points`.
    jobs
        Processes; as many as there are processors if left out.
    executor
        This machine's processes, or a Dask cluster.
    scheduler
        Address of the Dask scheduler, such as `tcp://10.0.0.1:8786`; its workers need specsim
        installed and `--out` on a file system that they share.
    retry_failed
        Run points again that failed before.
    """
    from specsim.errors import InputError
    from specsim.study.executor import Place
    from specsim.study.grid import find_study
    from specsim.study.store import to_json
    from specsim.study.sweep import run_sweep

    if (executor == "dask") != (scheduler is not None):
        raise InputError("--executor dask and --scheduler ADDRESS belong together: give both")
    place = Place(jobs=cores(jobs), scheduler=scheduler)
    with progress(quiet=quiet) as show:
        result = run_sweep(
            find_study(study), out=out, place=place, retry_failed=retry_failed, progress=show
        )
    if json:
        sys.stdout.write(to_json(result.summary))
    else:
        from specsim.report.studies import print_study

        print_study(result.summary, directory=result.directory, ran=result.ran)
    return 1 if result.summary["failed"] else 0
