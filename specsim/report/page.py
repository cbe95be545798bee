"""What a page holds: sections of charts and tables, and how a stored run is opened for them.

`html` puts it on a page, `markdown` into a text; `run_page`, `study_page` and `comparison` lay
it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray

PART_NAMES = {
    "verify": "target forward",
    "prefill": "prompt tokens",
    "attention": "decode attention",
    "draft": "drafting",
    "host": "host",
    "rank_wait": "waiting for the slowest rank",
    "idle": "idle",
    "anchor": "anchor and bonus",
    "accepted": "accepted drafts",
    "rejected": "rejected drafts",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """A chart among several that a reader picks from.

    Attributes:
        label: its name in the menu.
        svg: the drawing.
        note: a sentence under it.
        keys: (marker, name) of lines that are no policies.
    """

    label: str
    svg: str
    note: str = ""
    keys: Sequence[tuple[int, str]] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a page.

    Attributes:
        key: its anchor.
        title: its heading.
        lead: one or two sentences on how to read it.
        choices: its charts; more than one become a menu.
        menu: what is chosen between.
        parts: names of stacked parts to explain by a legend.
        table: header and rows, each cell (text, sort key); None for none.
        folded: whether the table is shut at first.
        policy_column: index of the table's column that names the policy, for the filter; -1: none.
        notes: sentences under the table, such as why a cell is empty.
    """

    key: str
    title: str
    lead: str
    choices: Sequence[Choice] = ()
    menu: str = ""
    parts: Sequence[str] = ()
    table: tuple[Sequence[str], Sequence[Sequence[tuple[str, Any]]]] | None = None
    folded: bool = False
    policy_column: int = -1
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page."""

    title: str
    description: str
    answer: Sequence[str]
    tiles: Sequence[tuple[str, str, str]]
    warnings: Sequence[str]
    policies: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    rerun: Sequence[tuple[str, str]]
    source: str = ""
    small_print: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored run, opened.

    Attributes:
        directory: where it lies.
        summary, manifest: what it says.
    """

    directory: Path
    summary: Mapping[str, Any]
    manifest: Mapping[str, Any]

    def columns(
        self, file: str, policy: str, load: int | None, *, most_groups: int | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return the columns of one point; nothing if there are none.

        Args:
            file: `requests` or `steps`.
            policy, load: which point.
            most_groups: row groups that are read at most, spread evenly, of one the middle one;
                None for all.
        """
        path = self.directory / f"{file}.parquet"
        if not path.is_file():
            return {}
        where = pc.field("policy") == policy
        if load is not None:
            where &= pc.field("concurrency") == load
        (fragment,) = ds.dataset(path, format="parquet").get_fragments()
        groups = fragment.split_by_row_group(where)
        if not groups:
            return {}
        most = min(most_groups or len(groups), len(groups))
        picked = [groups[len(groups) * (2 * i + 1) // (2 * most)] for i in range(most)]
        table = pa.concat_tables(group.to_table(filter=where) for group in picked)
        return {
            name: table[name].to_numpy(zero_copy_only=False)
            for name in table.column_names
            if name not in ("policy", "concurrency")
        }


def shared_labels(summary: Mapping[str, Any]) -> list[str]:
    """Return the marks of most policies, which are said once instead of beside every name."""
    every = [label for p in summary["policies"].values() for label in p["labels"]]
    most = len(summary["policies"]) / 2
    # What biases the output is never left to a common line.
    return [x for x in dict.fromkeys(every) if every.count(x) > most and x != "unsafe"]


def ordered(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary with the baseline first and the others in the scenario's order."""
    names = [r["policy"] for r in summary.get("answer", ())] or list(summary["policies"])
    baseline = summary["question"].get("baseline")
    names = list(dict.fromkeys([*([baseline] if baseline else []), *names]))
    return {**summary, "policies": {name: summary["policies"][name] for name in names}}


def row_at(summary: Mapping[str, Any], policy: str, load: int | None) -> Mapping[str, Any]:
    """Return the metrics of a policy under a load; empty if it was not run."""
    rows: list[Mapping[str, Any]] = summary["policies"][policy]["points"]
    return next((row for row in rows if row["concurrency"] == load), {})


def number(value: float | None, form: str = ",.4g") -> str:
    """Write a number, or a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if form == ",.4g" and abs(value) >= 1000 else format(value, form)


def interval_text(half: float | None) -> str:
    """Write a half-width behind a number; nothing where there is none."""
    return f" ± {number(half)}" if half else ""
