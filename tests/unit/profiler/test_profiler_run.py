"""The whole of `profile run` on this machine, in miniature."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specsim.cost.fit import fit_table
from specsim.cost.rows import load_rows
from specsim.cost.shape import SHAPES
from specsim.cost.table import Provenance
from specsim.errors import InputError
from specsim.profiler.manifest import described, manifest_path, read_manifest
from specsim.profiler.run import RunPlan, profile_run

torch = pytest.importorskip("torch")

PLAN = RunPlan(
    shape=SHAPES["tiny-moe"],
    device="cpu",
    dtype="float32",
    batch_tokens=(1, 2, 4, 16),
    requests=(1, 2),
    contexts=(16,),
    parts=("verify", "draft", "sampler"),
    gamma=7,
    draft_layers=1,
    repeats=2,
    warmup=1,
)


def test_rows_manifest_and_a_table_come_out(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "raw.jsonl"
    result = profile_run(PLAN, out)
    rows = load_rows(out)
    assert len(rows) == result.timed
    assert {row.part for row in rows} == {"verify", "draft", "sampler"}
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest["complete"] is True
    assert "experts" in described(manifest)
    provenance = Provenance(
        status="measured", source=described(manifest), date="2026-11-29", licence="Apache-2.0"
    )
    table = fit_table(rows, name="t", provenance=provenance).table
    assert table.draft is not None
    assert table.verify.probes_N.tolist() == [1, 2, 4, 16]


def test_more_repeats_are_added_to_the_same_file(tmp_path: Path) -> None:
    out = tmp_path / "raw.jsonl"
    first = profile_run(PLAN, out)
    again = profile_run(replace(PLAN, repeats=3), out)
    assert again.resumed == first.timed
    assert again.timed * 2 == first.timed
    assert profile_run(replace(PLAN, repeats=3), out).timed == 0


def test_rows_of_another_set_up_are_not_mixed_in(tmp_path: Path) -> None:
    out = tmp_path / "raw.jsonl"
    profile_run(PLAN, out)
    before = out.read_bytes()
    with pytest.raises(InputError, match="was begun with kv"):
        profile_run(replace(PLAN, kv="paged"), out)
    data = json.loads(manifest_path(out).read_text())
    data["device"]["name"] = "Another Processor"
    manifest_path(out).write_text(json.dumps(data))
    with pytest.raises(InputError, match="was begun with device"):
        profile_run(PLAN, out)
    manifest_path(out).unlink()
    with pytest.raises(InputError, match="no manifest beside it"):
        profile_run(PLAN, out)
    assert out.read_bytes() == before


def test_graphs_and_cuda_are_refused_where_they_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="graphs are captured on CUDA only"):
        profile_run(replace(PLAN, modes=("graph",)), tmp_path / "raw.jsonl")
    with pytest.raises(InputError, match="processor time adds up over threads"):
        profile_run(replace(PLAN, threads=2), tmp_path / "raw.jsonl")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no CUDA device"):
            profile_run(replace(PLAN, device="cuda"), tmp_path / "raw.jsonl")
    assert not (tmp_path / "raw.jsonl").exists()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_the_same_path_runs_on_cuda(tmp_path: Path) -> None:
    out = tmp_path / "raw.jsonl"
    plan = replace(
        PLAN,
        shape=SHAPES["tiny"],
        device="cuda",
        dtype="bfloat16",
        modes=("graph", "eager"),
        batch_tokens=(1, 2, 4, 8, 16),
        repeats=5,
    )
    result = profile_run(plan, out)
    assert result.timed
    rows = load_rows(out)
    assert {row.mode for row in rows if row.part == "verify"} == {"graph", "eager"}
    assert all(row.seconds > 0 for row in rows)


def test_a_run_killed_within_a_line_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "raw.jsonl"
    first = profile_run(PLAN, out)
    whole = out.read_bytes()
    out.write_bytes(whole[:-30])  # the last line is cut short
    again = profile_run(PLAN, out)
    assert (again.resumed, again.timed) == (first.timed - 1, 1)
    assert len(load_rows(out)) == first.timed
    out.write_bytes(whole[:30])  # and so is the only one
    assert profile_run(PLAN, out).timed == first.timed
