"""One self-contained page: no network, no library, inline SVG, a little script of its own."""

from __future__ import annotations

from importlib.resources import files

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from specsim.report.page import PART_NAMES, Page
from specsim.report.svg import marker


def html(page: Page) -> str:
    """Put a page's content into the template; the same content gives the same bytes."""
    folder = files("specsim.report") / "templates"
    text = {
        name: (folder / name).read_text(encoding="utf-8")
        for name in ("report.html.j2", "report.css", "report.js")
    }
    environment = Environment(
        loader=DictLoader({"report": text["report.html.j2"]}),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    # Style and script are this package's own files and may stand in the page as they are.
    return environment.get_template("report").render(
        page=page,
        css=Markup(text["report.css"]),  # noqa: S704
        js=Markup(text["report.js"]),  # noqa: S704
        part_names=PART_NAMES,
        marker=lambda index: Markup(marker(index, 8, 8)),  # noqa: S704
    )
