"""Cells that a fit does not see, to judge it by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from specsim.cost.rows import Cell, Row, cells
from specsim.cost.table import StepTable
from specsim.errors import InputError


def split_rows(
    rows: Sequence[Row], share: float, rng: np.random.Generator
) -> tuple[list[Row], list[Cell]]:
    """Hold out whole cells of the verify (or step) grid; return the other rows and those cells.

    Cells of the smallest and the largest B stay, so that predicting is interpolating. Rows of other
    parts are left out: a fit adds the sampler to its verify curve, and the cells are without it.

    Args:
        rows: the timings.
        share: part of the inner cells to hold out, above 0 and below 1.
        rng: picks them.

    Raises:
        InputError: a share outside (0, 1), or too few cells.
    """
    if not 0 < share < 1:
        raise InputError(f"the held-out share must be between 0 and 1, not {share}")
    part: Literal["verify", "step"] = "step"
    if any(row.part == "verify" for row in rows):
        part = "verify"
    timed = cells(rows, part)
    ends = {min(c.batch_tokens for c in timed), max(c.batch_tokens for c in timed)}
    inner = [cell for cell in timed if cell.batch_tokens not in ends]
    count = round(share * len(inner))
    if count < 1 or len(inner) - count < 2:
        raise InputError(f"{len(inner)} inner cells are too few to hold out {share:.0%} of them")
    picked = [inner[i] for i in sorted(rng.permutation(len(inner))[:count].tolist())]
    gone = {(c.batch_tokens, c.num_requests, c.context_tokens, c.mode) for c in picked}
    kept = [
        row
        for row in rows
        if row.part == part
        and (row.batch_tokens, row.num_requests, row.context_tokens, row.mode) not in gone
    ]
    return kept, picked


def held_out_errors(table: StepTable, held: Sequence[Cell]) -> list[float]:
    """Relative errors, with sign, of a table's linear reading at cells that it has not seen."""
    most = max(cell.batch_tokens for cell in held)
    verify_s_B = table.dense("linear", most)
    requests = max(cell.num_requests for cell in held)
    rows_CR = None if table.attention is None else table.attention.dense(requests)
    errors = []
    for cell in held:
        predicted = float(verify_s_B[cell.batch_tokens])
        if rows_CR is not None and table.attention is not None:
            contexts_C = table.attention.context_tokens_C
            predicted += float(
                np.interp(cell.context_tokens, contexts_C, rows_CR[:, cell.num_requests])
            )
        errors.append(predicted / cell.median_s - 1)
    return errors
