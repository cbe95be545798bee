"""DeepSpec's evaluation results: rows, and what its confidence head was worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specsim.inputs import Node
from specsim.interop.results import BenchResult, number, opened, shares


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


def parse_deepspec_row(row: Mapping[str, Any], *, where: str) -> BenchResult:
    """Read a row of `eval/base_evaluator.py`.

    `acceptance_length` has the bonus in. `verify_rate` is (accepted + steps) / (proposed + steps),
    not the draft acceptance rate, which follows from it and the length. `accept_rates_by_position`
    is unconditional.

    Raises:
        InputError: it is no such row.
    """
    data = Node(row, where)
    if not data.has("acceptance_length") or not data.has("draft_tokens_per_proposal"):
        raise data.error(
            'no DeepSpec row: "acceptance_length" and "draft_tokens_per_proposal" are needed'
        )
    length = data.get("acceptance_length").number(least=1.0)
    gamma = data.get("draft_tokens_per_proposal").whole(least=1)
    verify_rate = number(data, "verify_rate", least=1e-9, most=1.0)
    # proposed a step = length / verify_rate - 1, less than gamma where confidence cut blocks.
    proposed = gamma if verify_rate is None else length / verify_rate - 1
    return BenchResult(
        source="deepspec",
        label=data.get("dataset").text(),
        acceptance_length=length,
        draft_acceptance_rate=(length - 1) / proposed if proposed > 0 else None,
        survival_G=shares(data.maybe("accept_rates_by_position")),
    )


def parse_deepspec_head(text: str, *, where: str) -> tuple[BenchResult, list[HeadPosition]]:
    """Read the JSON of `eval/dspark/confidence_head.py`.

    Raises:
        InputError: it is no such file.
    """
    data = opened(text, where)
    if not data.has("confidence") or not data.has("spec"):
        raise data.error('no confidence_head result: "spec" and "confidence" are needed')
    entries = data.get("confidence").maybe("per_position")
    # DeepSpec counts positions from 0.
    positions = []
    for at, entry in enumerate(() if entries is None else entries.items(), start=1):
        ece, auc, brier = (entry.get(key).number() for key in ("ece", "auc", "brier"))
        positions.append(HeadPosition(at, ece, auc, brier, _bins(entry)))
    return parse_deepspec_row(data.get("spec").value, where=f"{where}: spec"), positions


def _bins(entry: Node) -> tuple[tuple[float, float, float], ...]:
    bins = entry.maybe("reliability")
    return tuple(
        (one.get("avg_pred").number(), one.get("avg_target").number(), weight)
        for one in (() if bins is None else bins.items())
        if (weight := number(one, "weight"))
    )
