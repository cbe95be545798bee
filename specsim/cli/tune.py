"""`specsim tune`: search a policy's parameters under an SLO."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from specsim.cli.common import Jobs, Json, Quiet, Set, cores, progress


def tune(
    scenario: str,
    /,
    *,
    policy: str,
    search: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)],
    slo: Annotated[float | None, Parameter(show_default=False)] = None,
    trials: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=100_000))] = 40,
    set_: Set = (),
    out: Path = Path("runs"),
    jobs: Jobs = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Search for the most throughput of a policy under an SLO (needs the extra `tune`).

    Parameters
    ----------
    scenario
        A scenario file, or the name of a shipped one.
    policy
        The policy whose throughput counts.
    search
        What to vary; may be repeated: `path=low:high`, `path=low:high:log`, `path=low:high:int`,
        `path=a,b,c`.
    slo
        Least speed of one user, tok/s; a frontier's headline SLO if left out.
    trials
        How many variants to try.
    set_
        Change a value of the scenario; may be repeated.
    out
        Folder of run directories; points are shared with sweeps.
    jobs
        Processes; as many as there are processors if left out.
    """
    from specsim.study.executor import Place
    from specsim.study.store import to_json
    from specsim.study.tune import parse_space
    from specsim.study.tune import tune as find

    with progress(quiet=quiet) as show:
        found = find(
            scenario,
            policy,
            parse_space(search),
            slo_tok_s_user=slo,
            trials=trials,
            overrides=set_,
            out=out,
            place=Place(cores(jobs)),
            progress=show,
        )
    if json:
        sys.stdout.write(to_json(found))
        return 0
    best, before = found["best"], found["as_it_was"]
    held = "" if found["holds_slo"] else " (misses the SLO)"
    sys.stdout.write(
        f"{found['policy']} at {found['slo_tok_s_user']:g} tok/s/user, {len(found['trials'])} "
        f"trials{held}\n"
    )
    for name, one in (("best", best), ("as it was", before)):
        total = one["tok_s_gpu"]
        sys.stdout.write(f"{name}: {'-' if total is None else f'{total:,.1f}'} tok/s/GPU\n")
    for path, value in best["values"].items():
        sys.stdout.write(f"  --set {path}={value}\n")
    return 0
