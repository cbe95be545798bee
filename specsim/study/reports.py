"""`specsim report`: from a stored run or study to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from specsim.errors import InputError
from specsim.jsontext import shaped
from specsim.report.figures import frontier_files
from specsim.report.html import html
from specsim.report.markdown import markdown
from specsim.report.overlays import published_for
from specsim.report.page import Page, Stored
from specsim.report.run_page import page_of_run
from specsim.report.study_page import page_of_study
from specsim.study.store import read_manifest, read_summary

_NAMES = {"html": "report.html", "markdown": "report.md"}


def write_report(
    directory: Path, *, format: Literal["html", "markdown", "png", "svg"], out: Path | None = None
) -> Path:
    """Draw a stored run or study and return the file written.

    Args:
        directory: of the run or study.
        format: what to write.
        out: the file; a standard name in the directory if None.

    Raises:
        InputError: there is no run, it has no picture, or the file cannot be written.
    """
    page = open_page(directory)
    path = out or directory / _NAMES.get(format, f"frontier.{format}")
    summary = read_summary(directory)
    if format == "html":
        content = html(page).encode()
    elif format == "markdown":
        picture = "frontier.svg" if (directory / "frontier.svg").is_file() else ""
        content = markdown(page, picture=picture).encode()
    else:
        if summary.get("question", {}).get("kind") != "frontier":
            raise InputError(f"{directory}: only a frontier has a picture; use --format html")
        drawn = frontier_files(summary, published=published_for(summary))
        content = drawn[f"frontier.{format}"]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path


def open_page(directory: Path) -> Page:
    """Lay out the page of a stored run or study.

    Raises:
        InputError: there is neither.
    """
    summary, manifest = read_summary(directory), read_manifest(directory)
    with shaped(str(directory), "stored run or study"):
        if "study" in summary:
            return page_of_study(summary, manifest, directory=directory)
        stored = Stored(directory, summary, manifest)
        return page_of_run(stored, published=published_for(summary))
