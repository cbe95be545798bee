"""What is odd about a table, found and placed."""

from __future__ import annotations

from pathlib import Path

import pytest

from specsim.cost.diagnose import findings, knee_tokens, risers
from specsim.cost.table import Provenance, StepTable, curve, load_table

STEPS = Path(__file__).parents[3] / "profiles" / "steps"
HERE = Provenance(status="synthetic", source="a test", date="2026-11-29", licence="Apache-2.0")


def table(probes: list[int], seconds: list[float], **parts: object) -> StepTable:
    return StepTable("t", HERE, curve(probes, seconds), **parts)  # type: ignore[arg-type]


def kinds(found: StepTable) -> set[str]:
    return {finding.kind for finding in findings(found)}


def test_a_sound_staircase_has_nothing_odd() -> None:
    probes = list(range(8, 136, 8))
    assert findings(table(probes, [5e-3 + 1e-3 * ((p + 31) // 32) for p in probes])) == []


def test_flat_tables_are_refused() -> None:
    (only,) = [f for f in findings(table([1, 2, 4], [1.0, 1.005, 1.0])) if f.refuse]
    assert only.kind == "flat"
    assert not any(f.refuse for f in findings(table([1, 2, 4], [1.0, 1.02, 1.1])))


def test_risers_and_knee_of_a_known_staircase() -> None:
    probes = list(range(8, 264, 8))
    found = curve(probes, [5e-3 if p <= 128 else 8e-3 for p in probes])
    assert [(r.before_tokens, r.after_tokens) for r in risers(found)] == [(128, 136)]
    bent = curve([1, 64, 128, 256, 512], [5.0, 5.1, 5.2, 10.0, 20.0])
    assert knee_tokens(bent) == 128
    assert knee_tokens(curve([1, 2, 3], [1.0, 1.1, 1.2])) == 3
    assert knee_tokens(curve([1, 2, 3], [1.0, 1.5, 2.0])) == 1


def test_the_b300_table_has_its_known_oddities() -> None:
    found = load_table(STEPS / "vllm" / "v4_flash_tp4_b300.json")
    assert kinds(found) == {"cliff", "non_monotone", "fall_inside_wave"}
    messages = " ".join(finding.message for finding in findings(found))
    assert "graph limit of 1024 tokens a step costs 5.1 times" in messages
    assert "17.76 ms at 672 tokens" in messages  # 672 -> 688 falls to 15.99
    assert "15.99 ms at 688" in messages
    assert "at 176" in messages  # 168 -> 176 falls to 10.41
    assert not any(finding.refuse for finding in findings(found))


def test_a_cliff_inside_the_curve_is_named() -> None:
    (cliff,) = [
        f for f in findings(table([512, 1024, 1536], [15e-3, 20e-3, 104e-3])) if f.kind == "cliff"
    ]
    assert "from 1024 to 1536 tokens" in cliff.message
    assert "graph_limit_tokens" in cliff.message
    # Twice the tokens for twice the time is no cliff.
    assert "cliff" not in kinds(table([512, 1024, 2048], [15e-3, 20e-3, 44e-3]))


def test_few_probes_over_a_wide_range_are_sparse() -> None:
    assert kinds(table([1, 128], [5e-3, 9e-3])) == {"sparse"}
    assert "sparse" not in kinds(table([1, 8], [5e-3, 9e-3]))


@pytest.mark.parametrize("path", sorted(STEPS.glob("*/*.json")), ids=lambda p: p.stem)
def test_no_shipped_table_is_refused(path: Path) -> None:
    assert not any(finding.refuse for finding in findings(load_table(path)))
