"""`specsim rerun`: a stored run once more, and whether the bytes agree."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from specsim.cli.common import Jobs, Json, Quiet, answer, cores, progress


def rerun(
    run: Path,
    /,
    *,
    beside: Path = Path(),
    out: Annotated[Path | None, Parameter(show_default=False)] = None,
    jobs: Jobs = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run a stored run again from its manifest; exit code 0 if every byte agrees, else 1.

    Parameters
    ----------
    run
        The folder of a run.
    beside
        Folder that the scenario lay in, where it names profiles or schedulers beside it.
    out
        Keep the new run in this folder of runs; it is removed if left out.
    jobs
        Processes; as many as there are processors if left out. The result does not depend on it.
    """
    from specsim.study.rerun import rerun as again

    with progress(quiet=quiet) as show:
        found = again(run, beside=beside, out=out, jobs=cores(jobs), progress=show)
    answer(found.as_dict(), found.text(), json=json)
    return 0 if found.same else 1
