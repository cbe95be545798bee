"""`specsim run`: answer a scenario's question."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators


def run(
    scenario: str,
    /,
    *,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative=(), show_default=False)] = (),
    json: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    quiet: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    out: Path = Path("runs"),
    jobs: Annotated[int | None, Parameter(validator=validators.Number(gte=1, lte=512))] = None,
) -> int:
    """Run a scenario and answer its question.

    Parameters
    ----------
    scenario
        A scenario file, or the name of a shipped one (see `specsim list scenarios`).
    set_
        Change a value of the scenario, such as `--set policies.greedy.gamma=5`; may be repeated.
    json
        Print the summary as JSON instead of a table.
    quiet
        No progress on stderr.
    out
        Folder in which the run's own folder is made.
    jobs
        Processes; as many as there are processors if left out. The result does not depend on it.
    """
    from specsim.cli.progress import progress_bar
    from specsim.study.run import run_scenario

    with progress_bar(show=not quiet and sys.stderr.isatty()) as progress:
        result = run_scenario(
            scenario,
            overrides=set_,
            out=out,
            jobs=jobs or os.cpu_count() or 1,
            progress=progress,
        )
    if json:
        from specsim.study.store import to_json

        sys.stdout.write(to_json(result.summary))
    else:
        from specsim.report.terminal import print_answer

        print_answer(result.summary, directory=result.directory)
    return 0
