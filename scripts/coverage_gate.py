"""Hold each pure package to a limit of branches and lines: python scripts/coverage_gate.py

Reads what `pytest --cov` has measured (`make test` does both). The packages are those of
`[tool.coverage.run] source` in pyproject.toml. Bodies of compiled functions (`@njit`) are left out,
as nothing can trace them; their plain twins are counted. Exit code 1 if a package lacks.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from coverage import Coverage
from coverage.exceptions import CoverageException

LIMIT = 0.90
SHOWN = 8


@dataclass
class Package:
    """What is known of one package.

    Attributes:
        taken, branches: branches that some test took, of those in the code.
        run, lines: lines that some test ran, of those in the code.
        lacking: by file, (branches not taken, lines not run).
    """

    taken: int = 0
    branches: int = 0
    run: int = 0
    lines: int = 0
    lacking: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Share of branches taken, or of lines run if that is less; 1 of nothing."""
        parts = [(self.taken, self.branches), (self.run, self.lines)]
        return min((had / there for had, there in parts if there), default=1.0)


def packages(report: Mapping[str, Any]) -> dict[str, Package]:
    """Add up a report of `coverage json`, folder by folder."""
    found: dict[str, Package] = {}
    for name, file in sorted(report["files"].items()):
        path, counts = PurePosixPath(name.replace("\\", "/")), file["summary"]
        package = found.setdefault(str(PurePosixPath(*path.parts[:2])), Package())
        package.taken += counts["covered_branches"]
        package.branches += counts["num_branches"]
        package.run += counts["covered_lines"]
        package.lines += counts["num_statements"]
        if counts["missing_branches"] or counts["missing_lines"]:
            package.lacking[name] = (counts["missing_branches"], counts["missing_lines"])
    return found


def told(found: Mapping[str, Package], *, limit: float) -> tuple[str, bool]:
    """Return a table with the worst files of what lacks, and whether every package has enough."""
    width = max(map(len, found))
    lines, enough = [], True
    for name, package in found.items():
        good = package.share >= limit
        enough &= good
        lines.append(
            f"{name:{width}}  {package.taken:4} of {package.branches:4} branches, "
            f"{package.run:5} of {package.lines:5} lines{'' if good else '  LACKS'}"
        )
        if not good:
            worst = sorted(package.lacking.items(), key=lambda item: (-sum(item[1]), item[0]))
            lines += [
                f"    {file}: {branches} branches not taken, {missed} lines not run"
                for file, (branches, missed) in worst[:SHOWN]
            ]
            if len(worst) > SHOWN:
                lines.append(f"    and {len(worst) - SHOWN} more files")
            lines.append(f"    see them: python -m coverage report -m --include='{name}/*'")
    verdict = "enough" if enough else "NOT enough"
    lines.append(f"limit {limit:.0%} of branches and of lines, in each: {verdict}")
    return "\n".join(lines) + "\n", enough


def measured(data: Path, config: Path) -> dict[str, Any]:
    """Return the JSON report of what was measured."""
    coverage = Coverage(data_file=str(data), config_file=str(config))
    coverage.load()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "coverage.json"
        coverage.json_report(outfile=str(path))
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(".coverage"))
    parser.add_argument("--config", type=Path, default=Path("pyproject.toml"))
    parser.add_argument("--limit", type=float, default=LIMIT)
    given = parser.parse_args()
    try:
        found = packages(measured(given.data, given.config))
    except CoverageException as error:
        print(f"nothing to judge: {error}; run `make test`, which measures", file=sys.stderr)
        return 1
    wanted = {
        str(PurePosixPath(name))
        for name in Coverage(config_file=str(given.config)).get_option("run:source") or []
    }
    absent = sorted(wanted - found.keys())
    if absent:
        print(f"nothing was measured of {', '.join(absent)}; run `make test`", file=sys.stderr)
        return 1
    text, enough = told(found, limit=given.limit)
    sys.stdout.write(text)
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
