"""The shipped step tables: sound files, and the vLLM one against what vLLM installed."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from specsim.cost.table import load_table

ROOT = Path(__file__).parents[3]
STEPS = ROOT / "profiles" / "steps"
SHARED = ROOT.parent / "shared" / "data"
PUBLISHED = SHARED / "published"
needs_shared = pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason=f"published numbers absent: no folder {PUBLISHED}"
)


def rows(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / name).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("path", sorted(STEPS.glob("*/*.json")), ids=lambda p: p.stem)
def test_every_shipped_table_loads_and_says_what_it_leaves_out(path: Path) -> None:
    table = load_table(path)
    assert table.name in (path.stem, f"{path.parent.name}/{path.stem}")
    assert table.provenance.left_out
    assert len(table.verify.probes_N) > 1


@needs_shared
def test_the_running_maximum_of_the_medians_is_the_table_that_vllm_installed() -> None:
    table = load_table(STEPS / "vllm" / "v4_flash_tp4_b300.json")
    installed_s_B = table.dense("ceil", 2048, running_max=True)
    # The level of one token (one request) has no width in the published step line, so it is not
    # among the steps read off it; both lines start at 2.
    first = 2
    for row in rows("vllm_blog_v4flash0731_tp4_b300_verify_cost_table_steps.csv"):
        read = int(row["tokens_up_to_inclusive"])
        last = read if read < 512 else 16 * round(read / 16)  # the grid the engine captures
        np.testing.assert_allclose(
            installed_s_B[first : last + 1] * 1e3, float(row["verify_ms"]), rtol=1e-9
        )
        first = last + 1
    assert first == 2049

    assert table.draft is not None
    draft_s_R = table.draft.dense("ceil", 256, running_max=True)
    first = 2
    for row in rows("vllm_blog_v4flash0731_tp4_b300_draft_cost_table_steps.csv"):
        last = int(row["requests_up_to_inclusive"])
        np.testing.assert_allclose(
            draft_s_R[first : last + 1] * 1e3, float(row["draft_ms"]), rtol=1e-9
        )
        first = last + 1
    assert first == 257


@needs_shared
def test_the_raw_medians_are_kept_as_they_are() -> None:
    table = load_table(STEPS / "vllm" / "v4_flash_tp4_b300.json")
    medians = rows("vllm_blog_v4flash0731_tp4_b300_verify_cost_median.csv")
    assert table.past_limit is not None
    kept = np.concatenate([table.verify.seconds_N, table.past_limit.seconds_N])
    np.testing.assert_allclose(kept * 1e3, [float(row["verify_ms_median"]) for row in medians])
    assert np.any(np.diff(table.verify.seconds_N) < 0), "the medians are not monotone"


def test_the_cliff_lies_right_past_1024_tokens() -> None:
    table = load_table(STEPS / "vllm" / "v4_flash_tp4_b300.json")
    dense_B = table.dense("ceil", 1536, running_max=True)
    assert dense_B[1024] == pytest.approx(0.02063)
    assert dense_B[1025] == pytest.approx(0.10449)


@needs_shared
def test_the_rebuild_script_writes_the_shipped_files(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "build_steps.py"
    command = [sys.executable, str(script), "--source", str(SHARED), "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    built = sorted(tmp_path.glob("*/*.json"))
    assert len(built) >= 16
    for path in built:
        shipped = STEPS / path.relative_to(tmp_path)
        assert path.read_bytes() == shipped.read_bytes(), path.stem


def test_the_rebuild_script_says_when_the_source_is_absent(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "build_steps.py"
    command = [sys.executable, str(script), "--source", str(tmp_path), "--out", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "source data absent" in done.stderr
    assert not list(tmp_path.iterdir())
