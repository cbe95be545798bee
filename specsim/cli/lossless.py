"""`specsim lossless`: prove, or refute, that a scheduler leaves the target distribution alone."""

from __future__ import annotations

import os
import sys
import time
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from specsim.cli.common import Jobs, Json, Quiet, Set, progress

if TYPE_CHECKING:
    from specsim.lossless.conformance import Report
    from specsim.lossless.report import Job
    from specsim.schedulers.base import SchedulerFactory
    from specsim.study.executor import Place

Rows = tuple[dict[str, Any], dict[str, Any] | None]

REFUTED = 3
"""Exit code for a scheduler that breaks its contract, or leaks without saying so."""

app = App(
    name="lossless",
    help="Prove, or refute, that a scheduler is lossless.",
    help_format="plaintext",
    result_action="return_value",
)


@app.default
def lossless(
    what: str,
    /,
    *,
    samples: int | None = None,
    json: Json = False,
    quiet: Quiet = False,
    set_: Set = (),
    post_token: Annotated[bool, Parameter(negative=())] = False,
    seed: int = 0,
    jobs: Jobs = None,
    scheduler: Annotated[str | None, Parameter(show_default=False)] = None,
    out: Path | None = None,
) -> int:
    """Enumerate small worlds exactly, sample them, and judge.

    The same seed gives the same numbers whatever the number of processes; the seconds of the
    Monte-Carlo runs go to stderr.

    Exit code 0: everything is as known or declared. 3: a scheduler leaks without saying so, breaks
    its contract, or a case has another answer than the known one. 2: a mistake in what was given.

    Parameters
    ----------
    what
        `appendix-a` or another group of the catalogue, `all`, the kind of a scheduler, or
        `my_module:MyScheduler`.
    samples
        Monte-Carlo samples a case; each case's own number if not given.
    set_
        A parameter of the scheduler, such as `--set lag=1`; may be repeated.
    post_token
        Judge with confidences that read the sampled token, as a drafter's own probability does.
    seed
        Seed of the Monte-Carlo streams.
    jobs
        Processes; if not given, as many as there are processors for `all`, and else one.
    scheduler
        Address of a Dask scheduler to run on instead, such as `tcp://10.0.0.1:8786`.
    out
        Folder to write `README.md` and `cases.json` to (for catalogue runs).
    """
    from specsim.errors import InputError
    from specsim.lossless.catalogue import CASES
    from specsim.study.executor import Place

    if samples is not None and samples < 1:
        raise InputError(f"--samples is {samples}; at least 1 is needed")
    if seed < 0:
        raise InputError(f"--seed is {seed}; a seed is at least 0")
    groups = tuple(dict.fromkeys(case.group for case in CASES))
    if what == "all" or what in groups:
        jobs = jobs or (len(os.sched_getaffinity(0)) if what == "all" else 1)
        return _catalogue(
            what,
            Place(jobs, scheduler),
            samples=samples,
            seed=seed,
            json_=json,
            out=out,
            quiet=quiet,
        )
    return _judge(
        what,
        set_,
        Place(jobs or 1, scheduler),
        samples=samples,
        seed=seed,
        json_=json,
        post_token=post_token,
        quiet=quiet,
    )


def _catalogue(
    what: str,
    place: Place,
    *,
    samples: int | None,
    seed: int,
    json_: bool,
    out: Path | None,
    quiet: bool,
) -> int:
    from specsim.lossless.report import collected, jobs, page
    from specsim.study.executor import run_tasks

    todo = jobs(None if what == "all" else what, samples=samples, seed=seed)
    rows: dict[int, Rows] = {}
    seconds: dict[str, float] = {}
    with progress(quiet=quiet) as done, place.make() as executor:
        for index, (row, spent_s) in run_tasks(executor, _timed, todo):
            rows[index] = row
            if row[1] is not None:
                seconds[todo[index].name] = spent_s
            done(len(rows), len(todo), todo[index].name)
    _say_seconds(seconds, quiet=quiet)
    result = collected(rows[index] for index in range(len(todo)))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        command = f"specsim lossless {what} --out {out.as_posix()}"
        (out / "README.md").write_text(page(result, command), encoding="utf-8")
        (out / "cases.json").write_text(dumps(result, indent=1) + "\n", encoding="utf-8")
    if json_:
        sys.stdout.write(dumps(result, indent=1) + "\n")
    else:
        sys.stdout.write(_table(result))
    return 0 if _all_right(result) else REFUTED


def _all_right(result: dict[str, Any]) -> bool:
    known = {row["case"]: row["expected"] for row in result["cases"]}
    seen = all(row["biased"] != known[row["case"]] for row in result["monte_carlo"])
    return seen and all(row["right"] for row in result["cases"])


def _table(result: dict[str, Any]) -> str:
    sampled = {row["case"]: row for row in result["monte_carlo"]}
    lines = []
    for row in result["cases"]:
        verdict = "lossless" if row["lossless"] else "LEAKS"
        mark = "" if row["right"] else "  <- NOT the known answer"
        if row["case"] == "battery":
            what = f"{row['worlds']} worlds, {row['leaves']} outcomes"
            lines.append(f"{verdict:<9} {'battery: ' + row['scheduler']:<60} {what}{mark}")
            continue
        law = ", ".join(row["law"])
        law = law if len(law) <= 30 else f"bias {row['bias']}"[:40]
        drawn = sampled.get(row["case"])
        p_value = f"  p = {drawn['p_value']:.2g} of {drawn['samples']:,}" if drawn else ""
        lines.append(f"{verdict:<9} {row['case']:<36} ({law}){p_value}{mark}")
    return "\n".join(lines) + "\n"


def _judge(
    what: str,
    settings: tuple[str, ...],
    place: Place,
    *,
    samples: int | None,
    seed: int,
    json_: bool,
    post_token: bool,
    quiet: bool,
) -> int:
    from specsim.lossless.conformance import check_scheduler
    from specsim.lossless.kinds import factory_of
    from specsim.lossless.report import battery_row

    factory = factory_of(what, settings)
    report = check_scheduler(factory, post_token=post_token)
    rows = []
    if report.verdict is not None:
        rows = _sampled(what, factory, samples, seed, place, quiet=quiet)
    if json_:
        row = battery_row(what, report)
        sys.stdout.write(dumps({"cases": [row], "monte_carlo": rows}, indent=1) + "\n")
    else:
        sys.stdout.write(_verdict(what, report, rows))
    return 0 if report.as_declared else REFUTED


def _sampled(
    what: str,
    factory: SchedulerFactory,
    samples: int | None,
    seed: int,
    place: Place,
    *,
    quiet: bool,
) -> list[dict[str, Any]]:
    from functools import partial

    from specsim.lossless import leaks
    from specsim.lossless.case import Case
    from specsim.lossless.report import sample_case, sampled_row
    from specsim.study.montecarlo import sample_on

    rows, seconds = [], {}
    for world in (leaks.appendix_a, leaks.nested, leaks.tie, leaks.cross):
        case = Case(f"{what} in {world().name}", "user", what, world, factory, lossless=True)
        began = time.perf_counter()
        one = sample_case(case, samples=samples, seed=seed, sampler=partial(sample_on, place))
        if one is not None:
            seconds[case.name] = time.perf_counter() - began
            rows.append(sampled_row(one))
    _say_seconds(seconds, quiet=quiet)
    return rows


def _verdict(what: str, report: Report, rows: list[dict[str, Any]]) -> str:
    from specsim.lossless.battery import CROWDS, LONGEST_RUN
    from specsim.lossless.conformance import LEAK_CHECKS
    from specsim.lossless.report import ALPHA

    verdict = report.verdict
    leaks = (LEAK_CHECKS & report.failures.keys()) - report.faults
    said = {True: "lossless", False: "not lossless", None: "nothing"}[report.declared]
    if report.lossless and verdict is not None:
        lines = [
            f"LOSSLESS  {what}: exact in {verdict.worlds} worlds, {verdict.leaves} outcomes",
            "Laws were enumerated for up to 3 requests; plans alone were tried with up to "
            f"{max(CROWDS)} requests and {LONGEST_RUN} steps.",
            "What it does only beyond that was not seen.",
        ]
    elif leaks:
        lines = [f"REFUTED  {what} (it says of itself: {said})"]
    else:
        lines = [f"BROKEN  {what}: it does not do what a scheduler must, lossless or not"]
    # The enumerated counterexample is the one that can be read: it comes first, unless the plan
    # changed by itself, which it would only show by chance.
    first = "check_deterministic" if "check_deterministic" in report.failures else "check_lossless"
    ordered = sorted(report.failures.items(), key=lambda item: item[0] != first)
    checks_of: dict[str, list[str]] = {}
    for name, message in ordered:
        checks_of.setdefault(message, []).append(name)
    for message, names in checks_of.items():
        lines += ["", f"{', '.join(names)} failed:", message]
    if rows:
        lines += [
            "",
            f"Monte Carlo, first tokens (p below {ALPHA:g} refutes; worlds share random numbers):",
        ]
    for row in rows:
        lines.append(
            f"  {row['case']}: p = {row['p_value']:.3g} of {row['samples']:,} samples, total "
            f"variation {row['tv']['low']:.4f}..{row['tv']['high']:.4f}; a bias of "
            f"{row['visible_bias']:.4f} would be seen"
        )
    return "\n".join(lines) + "\n"


def _timed(job: Job) -> tuple[Rows, float]:
    """Run a job; return its rows, and the seconds that its Monte-Carlo run took."""
    from specsim.lossless.report import drawn_row, exact_row

    exact = exact_row(job)
    began = time.perf_counter()
    drawn = drawn_row(job)
    return (exact, drawn), time.perf_counter() - began


def _say_seconds(seconds: dict[str, float], *, quiet: bool) -> None:
    for name, spent_s in {} if quiet else seconds.items():
        sys.stderr.write(f"Monte Carlo of {name}: {spent_s:.2f} s\n")
