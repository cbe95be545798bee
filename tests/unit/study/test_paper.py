"""The paper's numbers: the walk that counts rounds, what is exact, and what is told of the rest."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from specsim.acceptance.trace import DenseTrace
from specsim.study import paper, paper_text

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "profiles" / "published"


def test_the_walk_visits_what_decoding_would() -> None:
    trace = DenseTrace(
        confidence_NG=np.full((9, 2), 0.5, dtype=np.float32),
        num_accepted_N=np.array([2, 0, 0, 1, 0, 0, 0, 2, 0], dtype=np.uint8),
        sequence_offset_S1=np.array([0, 6, 9]),
        sequence_domain_S=np.zeros(2, dtype=np.uint8),
        domain_names=("d",),
    )
    found = paper.replay(trace, np.full(9, 2))
    assert sorted(found.row_N.tolist()) == [0, 3, 6, 7]  # 0 -> 3 -> 5 is cut; 6 -> 7 -> past
    capped = paper.replay(trace, np.ones(9, dtype=np.int64))
    assert sorted(capped.row_N.tolist()) == [0, 2, 3, 6, 7]
    assert capped.accepted_N.max() == 1


def test_appendix_a_is_exact_and_algorithm_1_keeps_the_law() -> None:
    items = paper.appendix_a_items()
    assert [i.difference for i in items] == pytest.approx([0.0] * 4, abs=1e-15)


def test_table_1_follows_from_figure_2() -> None:
    for item in paper.table1(PUBLISHED):
        assert abs(item.difference) < 0.06, item


def test_the_disagreements_are_read_from_the_figures() -> None:
    found = {d.where: d for d in paper_text.disagreements(PUBLISHED)}
    assert "0.905" in found["DSpark, math, acceptance at position 1"].figure
    assert "math 6.11" in found["Figure 5's panels"].figure
    assert "math 5.57" in found["Figure 5's panels"].figure
    assert len(found) == 6


def test_the_stored_report_holds_every_published_number() -> None:
    with (ROOT / "reports" / "dspark_paper" / "numbers.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    figures = {row["figure"] for row in rows}
    assert figures == {"Figure 2", "Table 1", "Figure 5", "Figure 6", "Figure 7", "Figure 8",
                       "Appendix A"}  # fmt: skip
    assert sum(row["figure"] == "Figure 8" for row in rows) == 42
    for row in rows:
        assert row["how"] in ("input", "fitted to it", "predicted", "exact")
        if row["figure"] == "Table 1":  # ..and what it says is what comes out today
            assert float(row["difference"]) == pytest.approx(
                float(row["simulated"]) - float(row["published"]), abs=1e-4
            )
