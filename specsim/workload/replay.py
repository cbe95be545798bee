"""Replay of a recorded trace: sliced in time, scaled in rate, as a feed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from specsim.errors import InputError
from specsim.registry import Config
from specsim.workload.feed import Arrival, FeedFactory
from specsim.workload.formats import Format, load_trace
from specsim.workload.trace_file import BadRows, RowReport, TraceTable

Locate = Callable[[str, str], Path]


class ColumnsConfig(Config):
    """What a plain CSV calls its columns, where the names are not known ones."""

    arrival_s: str | None = Field(default=None, description="Column of arrival times, seconds.")
    prompt_tokens: str | None = Field(default=None, description="Column of prompt lengths.")
    output_tokens: str | None = Field(default=None, description="Column of output lengths.")
    session: str | None = Field(default=None, description="Column of session names.")


class SliceConfig(Config):
    """A stretch of a trace in its own time, and how fast it is played."""

    from_s: float = Field(
        default=0.0, ge=0, le=1e9, description="Leave out what comes before, seconds of the trace."
    )
    to_s: float | None = Field(
        default=None, gt=0, le=1e9, description="Leave out what comes at this time or later."
    )
    rate_scale: float = Field(
        default=1.0, gt=0, le=1e6, description="Times its own rate: 2 plays it in half the time."
    )

    @model_validator(mode="after")
    def _ordered(self) -> SliceConfig:
        if self.to_s is not None and self.to_s <= self.from_s:
            raise PydanticCustomError(
                "cross_field",
                "{to_s} is not after from_s = {from_s}",
                {"at": "to_s", "to_s": self.to_s, "from_s": self.from_s},
            )
        return self


class ReplayConfig(SliceConfig):
    """Requests as a real service saw them, from a trace in its publisher's format.

    Times and lengths are the trace's, so the workload takes no lengths beside it.
    """

    kind: Literal["replay"]
    format: Format = Field(description="Whose format the file has.")
    file: str = Field(min_length=1, description="The trace, a path beside the scenario.")
    columns: ColumnsConfig | None = Field(
        default=None, description="For csv: the columns' names, where they are not known ones."
    )
    bad_rows: BadRows = Field(
        default="error", description="Stop at rows that make no sense, or drop and count them."
    )

    @model_validator(mode="after")
    def _columns_of_csv(self) -> ReplayConfig:
        if self.columns is not None and self.format != "csv":
            raise PydanticCustomError(
                "cross_field",
                'are for the format "csv"; "{format}" has columns of its own',
                {"at": "columns", "format": self.format},
            )
        return self

    def load(self, locate: Locate) -> TraceTable:
        """Read the trace and cut it; see `load_trace` for what it raises.

        Raises:
            InputError: nothing is left of it.
        """
        path = locate("workloads", self.file)
        columns = self.columns.model_dump(exclude_none=True) if self.columns else {}
        key = (self.format, tuple(sorted(columns.items())), self.bad_rows)
        whole = _loaded(path, Path.cwd(), path.stat().st_mtime_ns, *key)
        return cut(whole, self, path)

    def build(self, locate: Locate) -> tuple[FeedFactory, RowReport]:
        """Return the feed, and the account of the file's rows."""
        table = self.load(locate)
        return (lambda seed: replayed(table, rate_scale=self.rate_scale)), table.report


@lru_cache(maxsize=4)
def _loaded(
    path: Path,
    here: Path,
    written_ns: int,
    form: Format,
    columns: tuple[tuple[str, str], ...],
    bad_rows: BadRows,
) -> TraceTable:
    del here, written_ns  # parts of the cache's key: another folder or a new file is read again
    return load_trace(path, form, columns=dict(columns), bad_rows=bad_rows)


def cut(table: TraceTable, part: SliceConfig, path: Path) -> TraceTable:
    """Return the rows with `from_s <= at < to_s`, shifted so that `from_s` is 0.

    Raises:
        InputError: there are none.
    """
    first = int(np.searchsorted(table.at_s_N, part.from_s, side="left"))
    end = (
        len(table)
        if part.to_s is None
        else int(np.searchsorted(table.at_s_N, part.to_s, side="left"))
    )
    if first >= end:
        raise InputError(
            f"{path}: no request between from_s = {part.from_s:g} and to_s = "
            f"{'the end' if part.to_s is None else f'{part.to_s:g}'}; the trace runs from 0 to "
            f"{table.span_s:g} s"
        )
    report = table.report
    outside = len(table) - (end - first)
    if outside:
        report = RowReport(
            report.rows,
            report.kept - outside,
            report.refused.copy(),
            report.mended.copy(),
            list(report.notes),
        )
        report.refused["outside from_s .. to_s"] += outside
    rows = slice(first, end)
    return TraceTable(
        at_s_N=table.at_s_N[rows] - part.from_s,
        prompt_tokens_N=table.prompt_tokens_N[rows],
        output_tokens_N=table.output_tokens_N[rows],
        session_N=table.session_N[rows],
        turn_N=table.turn_N[rows],
        blocks_N=table.blocks_N[rows],
        block_tokens=table.block_tokens,
        report=report,
    )


def replayed(table: TraceTable, *, rate_scale: float = 1.0) -> Iterator[Arrival]:
    """Yield the trace's requests at their times divided by `rate_scale`."""
    columns = (
        (table.at_s_N / rate_scale).tolist(),
        table.prompt_tokens_N.tolist(),
        table.output_tokens_N.tolist(),
        table.session_N.tolist(),
        table.turn_N.tolist(),
        table.blocks_N or ((),) * len(table),
    )
    for at_s, prompt, output, session, turn, blocks in zip(*columns, strict=True):
        yield Arrival(
            at_s,
            prompt,
            output,
            session=session,
            turn=turn,
            block_tokens=table.block_tokens if blocks else 0,
            blocks=blocks,
        )
