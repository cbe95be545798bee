"""Write the pages that code decides: docs/concepts/metrics.md and docs/reference/cli.md.

python scripts/write_docs.py            # after a change to metrics/catalog.py or a verb
python scripts/write_docs.py --check    # exit code 1 if a page is out of date
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from specsim.cli import VERBS, make_app  # noqa: E402
from specsim.metrics.account import ACCOUNT  # noqa: E402
from specsim.metrics.catalog import CATALOG  # noqa: E402

_METRICS = """\
# Metrics

<!-- Written by scripts/write_docs.py from specsim/metrics; a test keeps it fresh. -->

Names as in `summary.json` and in the tables of studies. *R* is the number of requests that decode
in a step. A step commits `num_accepted + 1` tokens a request; those past the request's end are paid
for and not emitted. The window is the run without its warm-up (MSER-5; a batch has none).
`<name>_ci95`, where it is there, is the half-width of a 95 % interval from 20 batch means of the
window's steps. `time_<part>_share` splits the window's rank-seconds into verify, prefill,
attention, draft, host, rank_wait and idle. `longest_forward_tokens` is the largest forward of the
run; `makespan_s` the end of a batch; `position_acceptance` the shares of all request-steps that
accepted at least 1, 2, .. gamma drafts, those not verified among the denominators (vLLM's rates by
position).

| name | unit | definition |
|---|---|---|
"""
_CLI = """\
# Command line

<!-- Written by scripts/write_docs.py from the verbs' own signatures; a test keeps it fresh. -->

Results go to stdout, progress and warnings to stderr. Exit codes: 0 done; 1 a comparison or a
point of a study failed; 2 a mistake in what was given; 3 a scheduler that is not what it says it
is; 70 a fault of specsim; 130 interrupted.

"""


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def metrics_page() -> str:
    rows = [row(f"`{m.name}`", m.unit, m.definition) for m in CATALOG]
    more = "\n## Account of every request\n\nCounted over the whole run, warm-up included.\n\n"
    more += "| name | definition |\n|---|---|\n"
    return _METRICS + "".join(rows) + more + "".join(row(f"`{n}`", d) for n, d in ACCOUNT.items())


def cli_page() -> str:
    app = make_app()
    parts = [_CLI]
    for name, _, _ in VERBS:
        text = app[name].generate_docs(output_format="markdown", heading_level=2, recursive=True)
        text = text.replace("```console\n", "```text\nspecsim ")
        parts.append("\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n\n")
    return "".join(parts).rstrip("\n") + "\n"


PAGES = {
    Path("docs/concepts/metrics.md"): metrics_page,
    Path("docs/reference/cli.md"): cli_page,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    for path, make in PAGES.items():
        page, text = ROOT / path, make()
        if page.is_file() and page.read_text(encoding="utf-8") == text:
            continue
        stale.append(path)
        if not check:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{path}: {'is out of date: run scripts/write_docs.py' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
