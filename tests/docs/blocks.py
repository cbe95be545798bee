"""The documentation as a program: its commands and files, run in order, in one folder a page.

A fenced block is `console` (lines that begin with `$ ` are commands, the others what they print),
or any other language. An HTML comment right before a block says what to do with it:

    <!-- file: my_scheduler.py -->     write the block to this file
    <!-- run -->                       run this Python block
    <!-- skip: why -->                 do not run the block
    <!-- slow -->                      run it in the slow tests only
    <!-- exit: 3 -->                   its last command ends with 3 instead of 0
    <!-- output -->                    compare what is printed; a line `..` stands for any lines

Without `output` a command's exit code alone is checked. `python tests/docs/renew.py PAGE` runs a
page and writes what was printed into the blocks marked so.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from specsim.cli import main

ROOT = Path(__file__).parents[2]
_COMMENT = re.compile(r"^<!-- (file|run|skip|slow|exit|output)(?:: (.*?))? -->$")
_FENCE = re.compile(r"^```(\S*)\s*$")


@dataclass
class Block:
    """A fenced block.

    Attributes:
        page: its file.
        line: of its fence, from 1.
        language: of the fence.
        lines: what is inside.
        marks: what the comments before it say.
    """

    page: Path
    line: int
    language: str
    lines: list[str]
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass
class Command:
    """A command of a console block and the lines printed under it."""

    argv: list[str]
    text: str
    printed: list[str]
    at: int


def pages() -> list[Path]:
    docs = ROOT / "docs"
    found = [ROOT / "README.md", *sorted(docs.glob("*.md")), *sorted(docs.glob("guides/*.md"))]
    return [page for page in found if any(is_run(block) for block in blocks(page))]


def is_run(block: Block) -> bool:
    return block.language == "console" or "run" in block.marks


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    marks: dict[str, str] = {}
    inside: Block | None = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if inside is not None:
            if line == "```":
                found.append(inside)
                inside, marks = None, {}
            else:
                inside.lines.append(line)
            continue
        comment, fence = _COMMENT.match(line), _FENCE.match(line)
        if comment:
            marks[comment[1]] = comment[2] or ""
        elif fence:
            inside = Block(page, number, fence[1], [], marks)
        elif line.strip():
            marks = {}
    assert inside is None, f"{page}: a block without an end"
    return found


def commands(block: Block) -> list[Command]:
    found: list[Command] = []
    for at, line in enumerate(block.lines):
        if line.startswith("$ "):
            found.append(Command([], line[2:], [], at + 1))
        elif found and not found[-1].printed and found[-1].text.endswith("\\"):
            found[-1].text = found[-1].text[:-1] + line.strip()
            found[-1].at = at + 1
        else:
            assert found, f"{block.where}: text before the first command"
            found[-1].printed.append(line)
    for command in found:
        command.argv = shlex.split(command.text, comments=True)
    return found


def expanded(argv: list[str]) -> list[str]:
    """Expand patterns as a shell would."""
    out: list[str] = []
    for word in argv:
        there = sorted(glob.glob(word)) if "*" in word and "=" not in word else []
        out += there or [word]
    return out


@contextlib.contextmanager
def at_home(folder: Path) -> Iterator[None]:
    """Work in `folder`, and forget its modules afterwards."""
    before, path = Path.cwd(), list(sys.path)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", "") or "").startswith(str(folder)):
                del sys.modules[name]


def call(argv: list[str]) -> tuple[int, str]:
    """Run one command in this process; return its exit code and what it printed on stdout."""
    if argv[0] == "cd":
        return 0, ""
    if argv[0] == "mkdir":
        Path(argv[-1]).mkdir(parents=True, exist_ok=True)
        return 0, ""
    if argv[0] == "cp":
        Path(argv[2]).write_bytes(Path(argv[1]).read_bytes())
        return 0, ""
    assert argv[0] == "specsim", f"only specsim is run, not {argv[0]}; mark the block `skip: why`"
    target = None
    if ">" in argv:
        at = argv.index(">")
        argv, target = argv[:at], Path(argv[at + 1])
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(expanded(argv[1:]))
    if target is not None:
        target.write_text(out.getvalue(), encoding="utf-8")
        return code, ""
    return code, out.getvalue()


def said(text: str) -> list[str]:
    """Return what is printed as it stands in a page: no blanks at the ends of lines."""
    return [line.rstrip() for line in text.rstrip("\n").splitlines()]


_RUN = re.compile(r"runs/[0-9a-f]{12}")


def agrees(wanted: list[str], printed: list[str]) -> bool:
    """Say whether lines are as wanted, where `..` alone stands for any lines.

    The name of a run's folder may differ: it is a digest of its inputs, and a table that a page has
    just fitted bears the date.
    """
    wanted = [_RUN.sub("runs/*", line.rstrip()) for line in wanted]
    printed = [_RUN.sub("runs/*", line) for line in printed]
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == ".." else re.escape(line) + r"\n" for line in wanted
    )
    return re.fullmatch(pattern, "".join(line + "\n" for line in printed)) is not None
