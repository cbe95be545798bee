"""`specsim init`: a scenario with comments, to be changed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from specsim.cli.common import Json, Quiet, answer


def init(
    file: Path = Path("scenario.yaml"),
    /,
    *,
    engine: Literal["h100-8b", "h100-70b", "b300-v4-flash", "paper-v4-flash"] = "h100-8b",
    workload: Literal["chat", "poisson", "batch"] = "chat",
    table: Annotated[str | None, Parameter(show_default=False)] = None,
    force: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Write a scenario with comments, to be changed; `specsim run FILE` answers it.

    Parameters
    ----------
    file
        The file to write.
    engine
        Whose step costs: a table that ships, with what it leaves out marked as assumed.
    workload
        Who comes when: users who wait for their answer (chat), open arrivals, or one batch.
    table
        A step table of your own instead of the engine's: a file or a name, such as one that
        `specsim profile fit` has written.
    force
        Replace FILE if it is there.
    """
    from specsim.scenario.template import write_template

    del quiet  # it says nothing on stderr
    path = write_template(file, engine=engine, workload=workload, table=table, replace=force)
    text = f"{path}\nnext: specsim check {path}, then specsim run {path}\n"
    answer({"file": str(path)}, text, json=json)
    return 0
