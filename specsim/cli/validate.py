"""`specsim validate`: hold specsim against laws and published measurements."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def validate(
    name: str,
    /,
    *,
    json: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    points: Path | None = None,
) -> int:
    """Run a shipped comparison and say whether it passes.

    Parameters
    ----------
    name
        Which one: `queueing`, `replay`, `dspark_fig7`, `vllm_b300`, ..; a wrong name lists them.
    json
        Print {name, metrics, limits, failed, fitted_on, predicted, pass} instead of a table.
    points
        File of measured points, for `inferencemax`: aiconfigurator's silicon_sample.csv or alike.
    """
    from specsim.study.validation import validate as run_validation

    found = run_validation(name, points=points)
    if json:
        from specsim.study.store import to_json

        sys.stdout.write(to_json(found.as_dict()))
    else:
        from specsim.report.terminal import print_validation

        print_validation(found)
    return 0 if found.passed else 1
