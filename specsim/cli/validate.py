"""`specsim validate`: hold specsim against laws and published measurements."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter


def validate(
    name: str, /, *, json: Annotated[bool, Parameter(negative=(), show_default=False)] = False
) -> int:
    """Run a shipped comparison and say whether it passes.

    Parameters
    ----------
    name
        Which one: `queueing`, `replay`, `dspark_fig7`, ..; a wrong name lists them.
    json
        Print {name, metrics, limits, failed, fitted_on, predicted, pass} instead of a table.
    """
    from specsim.study.validation import validate as run_validation

    found = run_validation(name)
    if json:
        from specsim.study.store import to_json

        sys.stdout.write(to_json(found.as_dict()))
    else:
        from specsim.report.terminal import print_validation

        print_validation(found)
    return 0 if found.passed else 1
