"""Served points: reading them, and carrying step costs to lengths that were not fitted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specsim.errors import InputError, ScenarioError
from specsim.interop.silicon import ServedPoint, load_points
from specsim.study.validate_inferencemax import errors_of, predict, terms, validate

SHARED = Path(__file__).parents[4] / "shared" / "data" / "gpu_profiles" / "aiconfigurator"
COLUMNS = (
    "id,silicon_data_source,backend,backend_version,model_path,system,precision,mode,isl,osl,"
    "gemm_quant_mode,moe_quant_mode,batch_size,tp_size,pp_size,attention_dp_size,moe_tp_size,"
    "moe_ep_size,silicon_tpot_ms"
)
ROW = (
    "a,x; silicon_concurrency=16; y,vllm,0.19.0,meta-llama/Llama-3.1-70B,h100_sxm,fp8,agg,1024,"
    "1024,fp8,,16.0,4.0,1.0,1.0,,,12.5"
)
POINT = ServedPoint(
    name="a",
    group=("g",),
    model="meta-llama/Llama-3.1-70B",
    system="h100_sxm",
    precision="fp8",
    disaggregated=False,
    num_gpus=4,
    attention_dp=1,
    decode_workers=1,
    isl_tokens=1024,
    osl_tokens=1024,
    concurrency=16,
    tpot_s=12.5e-3,
)
TRUTH = np.array([3.0, 1.5, 1.8, 2.2])


def write(folder: Path, *lines: str) -> Path:
    path = folder / "points.csv"
    path.write_text("\n".join([COLUMNS, *lines]) + "\n")
    return path


def deployment(coefficients: np.ndarray, lengths: list[tuple[int, int]]) -> list[ServedPoint]:
    """Points that obey the law exactly."""
    found = []
    for isl, osl in lengths:
        for concurrency in (4, 8, 16, 32, 64):
            point = replace(POINT, isl_tokens=isl, osl_tokens=osl, concurrency=concurrency)
            found.append(replace(point, tpot_s=float(terms(point) @ coefficients)))
    return found


def test_a_row_is_read(tmp_path: Path) -> None:
    (point,) = load_points(write(tmp_path, ROW))
    assert replace(point, group=("g",)) == POINT
    assert "meta-llama/Llama-3.1-70B" in point.group


def test_concurrency_is_the_batch_of_all_ranks_where_it_is_not_said(tmp_path: Path) -> None:
    line = ROW.replace(" silicon_concurrency=16;", "").replace(",4.0,1.0,1.0,,,", ",4.0,1.0,4.0,,,")
    (point,) = load_points(write(tmp_path, line))
    assert point.concurrency == 64


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            ",1024,1024,",
            ",0,1024,",
            "points.csv:2: isl: must be a number above 0 up to 1e+09, not '0'",
        ),
        (
            "12.5",
            "nan",
            "points.csv:2: silicon_tpot_ms: must be a number above 0 up to 1e+09, not 'nan'",
        ),
        (",agg,", ",both,", "points.csv:2: mode: must be agg or disagg, not 'both'"),
        ("silicon_tpot_ms", "tpot_ms", "silicon_tpot_ms: column is missing"),
        ("silicon_tpot_ms", "tpot_ms", "tpot_ms: column is not known"),
    ],
)
def test_faults_are_named_by_row_and_field(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    path = tmp_path / "points.csv"
    path.write_text((COLUMNS + "\n" + ROW + "\n").replace(old, new))
    with pytest.raises(ScenarioError) as caught:
        load_points(path)
    assert expected in str(caught.value)


def test_terms_grow_as_they_should() -> None:
    base = terms(POINT)
    longer = terms(replace(POINT, isl_tokens=8192))
    assert longer[2] > base[2]  # KV
    assert longer[3] == pytest.approx(8 * base[3])  # prefill
    assert longer[1] == base[1]  # weights
    apart = terms(replace(POINT, disaggregated=True))
    assert apart[3] == 0.0
    assert terms(POINT, 32)[3] == pytest.approx(2 * base[3])
    assert terms(replace(POINT, num_gpus=8))[1] == pytest.approx(base[1] / 2)


def test_a_law_near_the_prior_is_carried_to_other_lengths() -> None:
    points = deployment(TRUTH, [(1024, 1024), (8192, 1024), (1024, 8192)])
    predictions, skipped = predict(points)
    assert not skipped
    assert len(predictions) == 10
    assert {p.fitted_on for p in predictions} == {(1024, 1024)}
    found = errors_of(predictions)
    assert found["median_error"] < 0.06
    assert found["baseline_median_error"] > 2 * found["median_error"]


def test_a_wrong_law_is_seen() -> None:
    # The prefill of the longer prompts costs ten times what the law says.
    points = deployment(TRUTH, [(1024, 1024)])
    points += deployment(TRUTH * np.array([1, 1, 1, 10]), [(8192, 1024)])
    assert errors_of(predict(points)[0])["median_error"] > 0.3


def test_deployments_that_cannot_be_judged_are_listed() -> None:
    one = deployment(TRUTH, [(1024, 1024)])
    other = [replace(p, group=("h",), model="somebody/Unknown-1B") for p in one]
    single = [replace(one[0], group=("i",)), replace(one[0], group=("i",), isl_tokens=2048)]
    predictions, skipped = predict([*one, *other, *single])
    assert predictions == []
    assert {s.group: s.reason for s in skipped} == {
        ("g",): "one length only",
        ("h",): "no dimensions of somebody/Unknown-1B known",
        ("i",): "no length with two concurrencies",
    }


def test_a_file_is_needed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--points FILE\.csv"):
        validate()
    with pytest.raises(InputError, match="no deployment has a length with two concurrencies"):
        validate(write(tmp_path, ROW))
    with pytest.raises(ScenarioError, match="cannot be read"):
        validate(tmp_path / "absent.csv")


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"served points absent: no folder {SHARED}")
def test_the_served_points_pass() -> None:
    found = validate(SHARED / "silicon_sample.csv")
    value = {check.name: check.value for check in found.checks}
    assert found.passed
    assert value["points"] > 1400
    assert value["median_error"] < 0.11  # 0.0998 when written
    assert value["median_error_over_baseline"] < 0.65  # 0.59
