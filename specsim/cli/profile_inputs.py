"""What the verbs of `specsim profile` share: reading what was given on the command line."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from specsim.errors import InputError

if TYPE_CHECKING:
    from specsim.cost.rows import Row
    from specsim.cost.table import Provenance, StepTable, Term
    from specsim.cost.telemetry import Telemetry
    from specsim.profiler.workload import TimedPart


def day(text: str | None) -> str:
    """Return the day that was given, or today, YYYY-MM-DD."""
    if text is None:
        return datetime.date.today().isoformat()
    try:
        if datetime.date.fromisoformat(text).isoformat() == text:
            return text
    except ValueError:
        pass
    raise InputError(f"--date: a day such as 2026-11-30 is needed, not {text!r}")


def note(text: str) -> None:
    """Say something on stderr."""
    sys.stderr.write(f"specsim: {text}\n")


def read_numbers(text: str, flag: str, *, least: int = 0, most: int = 10**9) -> list[int]:
    """Read whole numbers with commas between."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 20 for part in parts):
        raise InputError(f"{flag}: whole numbers with commas between are needed, not {text!r}")
    numbers = [int(part) for part in parts]
    for number in numbers:
        if not least <= number <= most:
            raise InputError(f"{flag}: {number} is not from {least} to {most}")
    return numbers


def read_parts(text: str) -> tuple[TimedPart, ...]:
    """Read names of timed parts."""
    known: tuple[TimedPart, ...] = ("verify", "draft", "sampler")
    asked = [part.strip() for part in text.split(",")]
    unknown = [part for part in asked if part not in known]
    if unknown:
        raise InputError(f"--parts: {unknown[0]!r} is none of {', '.join(known)}")
    return tuple(part for part in known if part in asked)


def read_terms(text: str | None) -> tuple[Term, ...] | None:
    """Read names of cost terms; None if nothing was given."""
    from specsim.cost.table import Term as Terms

    if text is None:
        return None
    known: tuple[Term, ...] = get_args(Terms)
    asked = [] if text == "none" else [part.strip() for part in text.split(",")]
    unknown = [part for part in asked if part not in known]
    if unknown:
        raise InputError(f"--includes: {unknown[0]!r} is none of {', '.join(known)}, none")
    return tuple(term for term in known if term in asked)


def find_table(name: str) -> Path:
    """Find a table by name or path."""
    from specsim.scenario.locate import Locator

    return Locator(Path())("steps", name)


def named_table(name: str) -> StepTable:
    """Load a table by name or path."""
    from specsim.cost.table import load_table

    return load_table(find_table(name))


def any_table(name: str) -> StepTable:
    """Load a table of specsim's or SGLang's form, to look at it."""
    from specsim.cost.table import Provenance
    from specsim.inputs import read_text
    from specsim.interop.tables import About, guess_form, read_table

    path = find_table(name)
    text = read_text(path)
    unsaid = Provenance(status="measured", source=str(path), date="2000-01-01", licence="not said")
    about = About(path.stem, unsaid, ("attention", "draft", "host"), 1)
    return read_table(text, guess_form(text), about, where=str(path))


def write_picture(tables: list[StepTable], plot: Path) -> None:
    """Write a picture of tables."""
    from specsim.report.steptable import draw as picture

    form = plot.suffix.lstrip(".").lower()
    if form not in ("png", "svg"):
        raise InputError(f"--plot: a .png or .svg file is needed, not {plot.name}")
    plot.parent.mkdir(parents=True, exist_ok=True)
    plot.write_bytes(picture(tables, form=form))


def read_telemetry(
    text: str,
    kind: Any,
    raw: Path,
    acceptance_length: float | None,
    tokens_per_request: float | None,
    deployment: str | None,
    *,
    any_step_time: bool = False,
) -> list[Telemetry]:
    """Read what a running engine showed."""
    from specsim.cost.telemetry import frontier_telemetry
    from specsim.interop.silicon import deployment_telemetry, load_points
    from specsim.interop.timings import parse_frontier, parse_telemetry

    if kind == "telemetry":
        return parse_telemetry(text, where=str(raw), any_step_time=any_step_time)
    if kind == "silicon":
        if deployment is None:
            raise InputError("served points are of many deployments; name one with --deployment")
        return deployment_telemetry(load_points(raw), deployment, where=str(raw))
    if kind != "frontier":
        raise InputError(
            f"--kind {kind} holds timings of steps; this needs telemetry, frontier or silicon"
        )
    if acceptance_length is None or tokens_per_request is None:
        raise InputError("a frontier line needs --acceptance-length and --tokens-per-request")
    speeds, gpus = parse_frontier(text, where=str(raw), any_step_time=any_step_time)
    return frontier_telemetry(
        speeds, gpus, acceptance_length=acceptance_length, tokens_per_request=tokens_per_request
    )


def read_raw(
    text: str,
    kind: Any,
    raw: Path,
    acceptance_length: float | None,
    tokens_per_request: float | None,
    deployment: str | None,
    *,
    any_step_time: bool = False,
) -> list[Row]:
    """Read timings of any kind of file as raw rows."""
    from specsim.cost.telemetry import telemetry_rows
    from specsim.interop.tables import read_rows

    if kind in ("telemetry", "frontier", "silicon"):
        return telemetry_rows(
            read_telemetry(
                text,
                kind,
                raw,
                acceptance_length,
                tokens_per_request,
                deployment,
                any_step_time=any_step_time,
            )
        )
    return read_rows(text, kind, where=str(raw), any_step_time=any_step_time)


def provenance_of(
    path: Path, status: Any, source: str | None, date: str | None, licence: str
) -> Provenance:
    """Say where numbers come from: as told, or as the manifest beside the file has it."""
    from specsim.cost.table import Provenance
    from specsim.profiler.manifest import described, read_manifest

    manifest = read_manifest(path)
    left_out: list[str] = []
    if manifest is not None:
        left_out = list(manifest.get("left_out", []))
        source = source or described(manifest)
    if source is None:
        raise InputError(f"{path} does not say where its numbers come from; give --source")
    return Provenance(
        status=status, source=source, date=day(date), licence=licence, left_out=left_out
    )
