"""Write what commands print into the blocks marked `output`: python tests/docs/renew.py PAGE .."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
os.environ["COLUMNS"] = "96"
os.cpu_count = lambda: 1

from tests.docs.blocks import at_home, blocks, call, commands, is_run, said  # noqa: E402


def renew(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    shift = 0
    with tempfile.TemporaryDirectory() as folder, at_home(Path(folder)):
        for block in blocks(page):
            if "skip" in block.marks:
                continue
            if "file" in block.marks:
                target = Path(block.marks["file"])
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text("\n".join(block.lines) + "\n", encoding="utf-8")
            if not is_run(block) or block.language != "console":
                continue
            new: list[str] = []
            at = 0
            for command in commands(block):
                code, text = call(command.argv)
                print(f"{block.where}: {command.text}: {code}", file=sys.stderr)
                new += block.lines[at : command.at] + said(text)
                at = command.at + len(command.printed)
            if "output" in block.marks:
                start = block.line + shift
                lines[start : start + len(block.lines)] = new
                shift += len(new) - len(block.lines)
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        renew(Path(name).resolve())
