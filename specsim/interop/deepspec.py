"""DeepSpec's evaluation results: rows, and what its confidence head was worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specsim.errors import InputError
from specsim.interop.results import BenchResult, from_json, number


@dataclass(frozen=True, slots=True)
class HeadPosition:
    """The confidence head at one position of the block.

    Attributes:
        position: 1, 2, ..
        ece, auc, brier: fractions.
        bins: (mean predicted, share observed, weight) of each reliability bin.
    """

    position: int
    ece: float
    auc: float
    brier: float
    bins: tuple[tuple[float, float, float], ...]


def parse_deepspec_row(data: Mapping[str, Any], *, where: str) -> BenchResult:
    """Read a row of `eval/base_evaluator.py`.

    `acceptance_length` has the bonus in. `verify_rate` is (accepted + steps) / (proposed + steps),
    not the draft acceptance rate, which follows from it and the length. `accept_rates_by_position`
    is unconditional.

    Raises:
        InputError: it is no such row.
    """
    length, gamma = number(data, "acceptance_length"), number(data, "draft_tokens_per_proposal")
    if length is None or not gamma:
        raise InputError(
            f'{where}: no DeepSpec row: "acceptance_length" and "draft_tokens_per_proposal" are '
            "needed"
        )
    verify_rate = number(data, "verify_rate")
    # proposed a step = length / verify_rate - 1, less than gamma where confidence cut blocks.
    proposed = gamma if verify_rate is None else length / verify_rate - 1
    return BenchResult(
        source="deepspec",
        label=str(data.get("dataset") or ""),
        acceptance_length=length,
        draft_acceptance_rate=(length - 1) / proposed if proposed > 0 else None,
        survival_G=tuple(data.get("accept_rates_by_position") or ()),
    )


def parse_deepspec_head(text: str, *, where: str) -> tuple[BenchResult, list[HeadPosition]]:
    """Read the JSON of `eval/dspark/confidence_head.py`.

    Raises:
        InputError: it is no such file.
    """
    data = from_json(text, where)
    if not isinstance(data, dict) or "confidence" not in data or "spec" not in data:
        raise InputError(f'{where}: no confidence_head result: "spec" and "confidence" are needed')
    positions: list[HeadPosition] = []
    for entry in data["confidence"].get("per_position") or ():
        # DeepSpec counts positions from 0.
        bins = tuple(
            (float(b["avg_pred"]), float(b["avg_target"]), float(b["weight"]))
            for b in entry.get("reliability") or ()
            if b.get("weight")
        )
        positions.append(
            HeadPosition(
                len(positions) + 1,
                float(entry["ece"]),
                float(entry["auc"]),
                float(entry["brier"]),
                bins,
            )
        )
    return parse_deepspec_row(data["spec"], where=f"{where}: spec"), positions
