"""Every command and example of the README, the tutorial and the guides, run as it stands there."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import (
    ROOT,
    Block,
    agrees,
    at_home,
    blocks,
    call,
    commands,
    pages,
    said,
)


def work_through(page: Path, folder: Path, *, slow: bool) -> int:
    """Run a page's blocks in order; return how many commands were run."""
    count = 0
    with at_home(folder):
        for block in blocks(page):
            if "skip" in block.marks or ("slow" in block.marks and not slow):
                continue
            if "file" in block.marks:
                path = Path(block.marks["file"])
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("\n".join(block.lines) + "\n", encoding="utf-8")
            if "run" in block.marks:
                script = Path("block.py")
                script.write_text("\n".join(block.lines) + "\n", encoding="utf-8")
                runpy.run_path(str(script), run_name="__main__")
                count += 1
            elif block.language == "console":
                count += console(block)
    return count


def console(block: Block) -> int:
    found = commands(block)
    for command in found:
        code, text = call(command.argv)
        wanted = int(block.marks.get("exit", 0)) if command is found[-1] else 0
        assert code == wanted, f"{block.where}: `{command.text}` ended with {code}\n{text}"
        if "output" in block.marks:
            assert agrees(command.printed, said(text)), (
                f"{block.where}: `{command.text}` prints\n{text}\n"
                f"renew it: python tests/docs/renew.py {block.page.relative_to(ROOT)}"
            )
    return len(found)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "96")
    # One process, which is warm already; results do not depend on it.
    monkeypatch.setattr("os.cpu_count", lambda: 1)


def names(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", pages(), ids=names)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    work_through(page, tmp_path, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in pages() if any("slow" in b.marks for b in blocks(p))], ids=names
)
def test_a_page_does_what_it_says_slow_parts_too(page: Path, tmp_path: Path) -> None:
    work_through(page, tmp_path, slow=True)


def test_pages_with_commands_are_found() -> None:
    found = {names(page) for page in pages()}
    assert {"README.md", "docs/tutorial.md", "docs/guides/my_scheduler.md"} <= found


def test_no_command_hides_in_another_kind_of_block() -> None:
    # A command in an unmarked block would be read by people and by no test.
    hidden = [
        f"{block.where}: {line}"
        for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
        if page.parent.name != "reference"
        for block in blocks(page)
        if block.language in ("", "bash", "sh", "shell", "text")
        for line in block.lines
        if line.startswith(("specsim ", "$ specsim "))
    ]
    assert not hidden


def test_the_runner_sees_a_wrong_page(tmp_path: Path) -> None:
    made = {
        "code": "```console\n$ specsim check nothing_there\n```\n",
        "output": "<!-- output -->\n```console\n$ specsim --version\nzero\n```\n",
    }
    for name, text in made.items():
        page = ROOT / "docs" / f"_{name}_of_a_test.md"
        page.write_text(text, encoding="utf-8")
        try:
            with pytest.raises(AssertionError, match=f"_{name}_of_a_test.md:"):
                work_through(page, tmp_path, slow=True)
        finally:
            page.unlink()


@pytest.mark.parametrize(
    ("wanted", "printed", "right"),
    [
        (["a", "..", "d"], ["a", "b", "c", "d"], True),
        (["a", "..", "d"], ["a", "d"], True),
        (["a", "d"], ["a", "b", "d"], False),
        (["a"], ["a "], False),
        ([], [], True),
    ],
)
def test_lines_agree(wanted: list[str], printed: list[str], right: bool) -> None:
    assert agrees(wanted, printed) == right


def test_generated_pages_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/write_docs.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
