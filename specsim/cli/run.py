"""`specsim run`: answer a scenario's question."""

from __future__ import annotations

import sys
from pathlib import Path

from specsim.cli.common import Jobs, Json, Quiet, Set, cores, progress


def run(
    scenario: str,
    /,
    *,
    set_: Set = (),
    json: Json = False,
    quiet: Quiet = False,
    out: Path = Path("runs"),
    jobs: Jobs = None,
) -> int:
    """Run a scenario and answer its question.

    Parameters
    ----------
    scenario
        A scenario file, or the name of a shipped one (see `specsim list scenarios`).
    set_
        Change a value of the scenario, such as `--set policies.greedy.gamma=5`; may be repeated.
    out
        Folder in which the run's own folder is made.
    jobs
        Processes; as many as there are processors if left out. The result does not depend on it.
    """
    from specsim.study.run import run_scenario

    with progress(quiet=quiet) as show:
        result = run_scenario(
            scenario,
            overrides=set_,
            out=out,
            jobs=cores(jobs),
            progress=show,
        )
    if json:
        from specsim.study.store import to_json

        sys.stdout.write(to_json(result.summary))
    else:
        from specsim.report.terminal import print_answer

        print_answer(result.summary, directory=result.directory)
    return 0
