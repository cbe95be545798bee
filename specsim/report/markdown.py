"""A page as Markdown, for pull requests and wikis: the same words and tables, no charts."""

from __future__ import annotations

from specsim.report.page import Page


def markdown(page: Page, *, picture: str = "") -> str:
    """Write a page as Markdown.

    Args:
        page: its content.
        picture: name of a picture to show under the answer; none if empty.
    """
    parts = [f"# {page.title}", ""]
    parts += [f"**{line}**" for line in page.answer]
    parts += [""]
    if page.description:
        parts += [page.description, ""]
    if page.tiles:
        parts += [f"- {value} {unit} ({note})" for value, unit, note in page.tiles] + [""]
    if page.warnings:
        parts += ["## Beware", "", *(f"- {line}" for line in page.warnings), ""]
    if picture:
        parts += [f"![{page.title}]({picture})", ""]
    for section in page.sections:
        if section.table is None:
            continue
        head, rows = section.table
        parts += [f"## {section.title}", "", section.lead, ""]
        parts.append("| " + " | ".join(_cell(text) for text in head) + " |")
        parts.append("|" + "---|" * len(head))
        parts += ["| " + " | ".join(_cell(text) for text, _ in row) + " |" for row in rows]
        parts.append("")
    parts += ["## How to run it again", ""]
    parts += [f"- {key}: `{value}`" for key, value in page.rerun]
    return "\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
