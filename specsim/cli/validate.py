"""`specsim validate`: hold specsim against laws and published measurements."""

from __future__ import annotations

import sys
from pathlib import Path

from specsim.cli.common import Json, Quiet


def validate(
    name: str,
    /,
    *,
    json: Json = False,
    quiet: Quiet = False,
    points: Path | None = None,
) -> int:
    """Run a shipped comparison and say whether it passes.

    Parameters
    ----------
    name
        Which one: `queueing`, `replay`, `dspark_fig7`, `vllm_b300`, ..; a wrong name lists them.
    points
        File of measured points, for `inferencemax`: aiconfigurator's silicon_sample.csv or alike.
    """
    del quiet  # it says nothing on stderr
    from specsim.study.validation import validate as run_validation

    found = run_validation(name, points=points)
    if json:
        from specsim.study.store import to_json

        sys.stdout.write(to_json(found.as_dict()))
    else:
        from specsim.report.terminal import print_validation

        print_validation(found)
    return 0 if found.passed else 1
