"""`specsim check`: everything that is wrong with files, without running them."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from specsim.cli.common import Json, Quiet, Set, answer, beware


def check(
    files: Annotated[tuple[str, ...], Parameter(negative=())],
    /,
    *,
    set_: Set = (),
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Say everything that is wrong with scenarios, studies, step tables and traces; run nothing.

    Parameters
    ----------
    files
        Scenario or study files, names of shipped ones, step tables (.json) and traces (.npz).
    set_
        Change a value of the scenarios, such as `--set policies.greedy.gamma=5`; may be repeated.
    """
    from specsim.study.checks import check_files

    found = check_files(files, overrides=set_)
    body = [{"file": c.file, "kind": c.kind, "says": c.says, "notes": c.notes} for c in found]
    answer(body, "".join(f"{c.file}: right; {c.says}\n" for c in found), json=json)
    for checked in found:
        for note in checked.notes:
            beware(f"{checked.file}: {note}", quiet=quiet)
    return 0
