"""`specsim rerun`: a stored run once more from its manifest, and what differs."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import specsim
from specsim.errors import InputError
from specsim.scenario.load import LoadedScenario
from specsim.scenario.schema import Scenario
from specsim.scenario.source import Source
from specsim.study.run import Progress, run_loaded
from specsim.study.store import read_manifest

FILES = ("summary.json", "requests.parquet", "steps.parquet")
"""What the same scenario and seed give the same bytes of; a manifest has wall times in it."""


@dataclass(frozen=True, slots=True)
class Rerun:
    """How a second run compares with the first.

    Attributes:
        run: the first.
        files: `same`, `differs` or `missing`, by name.
        notes: why bytes may differ, where that is known.
        directory: the new run, if it was kept.
    """

    run: str
    files: dict[str, str]
    notes: list[str]
    directory: str | None

    @property
    def same(self) -> bool:
        """Whether every byte agrees."""
        return set(self.files.values()) == {"same"}

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self) | {"same": self.same}

    def text(self) -> str:
        """Return it in lines."""
        lines = [f"{name}: {state}" for name, state in self.files.items()]
        lines += [f"note: {note}" for note in self.notes]
        verdict = "the same bytes" if self.same else "NOT the same bytes"
        kept = f"; kept in {self.directory}" if self.directory else ""
        return "\n".join([*lines, f"{self.run}: run again, {verdict}{kept}"]) + "\n"


def rerun(
    directory: Path,
    *,
    beside: Path,
    out: Path | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Rerun:
    """Run what a manifest says again and compare.

    Args:
        directory: of a stored run.
        beside: the folder that its scenario lay in, for profiles beside it.
        out: folder of runs to keep the new one in; it is removed if None.
        jobs: processes.
        progress: told of every finished point.

    Raises:
        InputError: there is no whole run, or its scenario is none for this version.
    """
    manifest = read_manifest(directory)
    if manifest.get("status") != "complete" or "scenario" not in manifest:
        raise InputError(
            f"{directory}: holds no complete run; run its scenario again with `specsim run`"
        )
    notes = []
    if manifest.get("specsim") != specsim.__version__:
        notes.append(f"stored by specsim {manifest.get('specsim')}, this is {specsim.__version__}")
    try:
        scenario = Scenario.model_validate_json(str(manifest["scenario"]), strict=True)
    except ValidationError as error:
        raise InputError(
            f"{directory}: its scenario is none for specsim {specsim.__version__} "
            f"({error.errors()[0]['msg']}); it was stored by {manifest.get('specsim')}"
        ) from error
    # Only the name of the file counts: it stands in the manifest, and its folder is `beside`.
    path = beside / Path(str(manifest.get("scenario_file", "scenario.yaml"))).name
    overrides = tuple(str(text) for text in manifest.get("overrides", ()))
    loaded = LoadedScenario(scenario, path, overrides, Source(str(path)))
    with tempfile.TemporaryDirectory(prefix="specsim-rerun-") as scratch:
        result = run_loaded(loaded, out=out or Path(scratch), jobs=jobs, progress=progress)
        new = result.summary["hash"]
        if new != manifest.get("hash"):
            names = ", ".join(map(str, manifest.get("profiles", ()))) or "none"
            notes.append(f"a profile has changed since (it reads {names})")
        pairs = {name: (directory / name, result.directory / name) for name in FILES}
        # A scenario says what it records: what neither run has is not missed.
        files = {
            name: _state(old, new)
            for name, (old, new) in pairs.items()
            if old.exists() or new.exists()
        }
    return Rerun(str(directory), files, notes, str(result.directory) if out else None)


def _state(old: Path, new: Path) -> str:
    try:
        return "same" if old.read_bytes() == new.read_bytes() else "differs"
    except FileNotFoundError:
        return "missing"
