"""What is exported loads again, is complete, and says the same numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from specsim.acceptance.calibration import from_sglang
from specsim.errors import InputError
from specsim.interop import aiperf, vllm_bench
from specsim.interop.aiperf import parse_aiperf_summary
from specsim.interop.policy_export import vllm_policy
from specsim.interop.sglang import parse_sglang
from specsim.interop.vllm_bench import parse_vllm_bench
from specsim.report.perfetto import write_timeline
from specsim.study.exports import best_policy, export
from specsim.study.run import run_scenario
from specsim.study.store import read_summary
from tests.study_world import write_scenario


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    path = write_scenario(folder, requests=300)
    return run_scenario(str(path), out=folder / "runs").directory


def row(run: Path, policy: str = "topk"):  # type: ignore[no-untyped-def]
    return read_summary(run)["policies"][policy]["points"][0]


def test_vllm_shape_loads_again_and_says_the_same(run: Path) -> None:
    text = export(run, "vllm", policy="topk").files["vllm_bench.json"]
    found = parse_vllm_bench(text, where="f")[0]
    one = row(run)
    assert found.concurrency == 8
    assert found.completed == 300
    assert found.acceptance_length == pytest.approx(one["acceptance_length"], rel=0.02)
    assert found.draft_acceptance_rate == pytest.approx(one["draft_acceptance_rate"], rel=0.03)
    assert found.latency_s["tpot_s"]["p50"] == pytest.approx(one["tpot_p50_s"], rel=0.03)
    # First tokens count there and not here, so the throughput is a little higher.
    assert 1.0 < found.output_tok_per_s / one["output_tok_per_s"] < 1.06
    assert found.requests is not None
    assert len(found.requests.e2e_s_N) == 300


def test_vllm_fields_are_complete(run: Path) -> None:
    data = json.loads(export(run, "vllm", policy="topk").files["vllm_bench.json"])
    wanted = {*vllm_bench.HEAD, *vllm_bench.RESULTS, *vllm_bench.SPECULATIVE, *vllm_bench.DETAILS}
    wanted |= {
        f"{head}_{m}_ms"
        for m in ("ttft", "tpot", "itl", "e2el")
        for head in ("mean", "median", "std", "p99")
    }
    assert wanted <= set(data)
    rates = data["spec_decode_per_position_acceptance_rates"]
    assert len(rates) == 3  # gamma
    assert sorted(rates, reverse=True) == rates
    # Over the whole run, with the requests that were under way at its end.
    assert 1 + sum(rates) == pytest.approx(data["spec_decode_acceptance_length"], rel=0.01)
    assert data["spec_decode_acceptance_rate"] > 1  # percent
    assert len(data["itls"]) == data["completed"]
    tpot = [
        (e - t) / (n - 1)
        for e, t, n in zip(data["latencies"], data["ttfts"], data["output_lens"], strict=True)
        if n > 1
    ]
    assert data["mean_tpot_ms"] == pytest.approx(1e3 * np.mean(tpot))


def test_a_policy_without_drafts_has_no_acceptance(run: Path) -> None:
    data = json.loads(export(run, "vllm", policy="none").files["vllm_bench.json"])
    assert data["spec_decode_acceptance_rate"] is None
    assert parse_vllm_bench(json.dumps(data), where="f")[0].acceptance_length is None


def test_aiperf_shape_loads_again_and_is_complete(run: Path) -> None:
    text = export(run, "aiperf", policy="topk").files["profile_export_aiperf.json"]
    data, found, one = json.loads(text), parse_aiperf_summary(text, where="f"), row(run)
    assert set(aiperf.TOP) <= set(data)
    assert set(aiperf.STATISTICS) <= set(data["time_to_first_token"])
    assert found.concurrency == 8
    assert found.acceptance_length == pytest.approx(one["acceptance_length"], rel=0.02)
    assert found.draft_acceptance_rate == pytest.approx(one["draft_acceptance_rate"], rel=0.03)
    assert found.latency_s["tpot_s"]["p50"] == pytest.approx(one["tpot_p50_s"], rel=0.03)
    assert found.tok_s_user == pytest.approx(one["tok_s_user"], rel=0.15)
    # Per request and pooled differ, and both are there.
    per_request = data["spec_decode_acceptance_length"]["avg"]
    assert per_request != pytest.approx(found.acceptance_length, abs=1e-6)


def test_prometheus_text_is_well_formed_and_counts(run: Path) -> None:
    text = export(run, "prometheus", policy="topk").files["metrics.prom"]
    values = dict(re.findall(r"^(\S+?)\{model_name=\"tiny\"\} (\S+)$", text, re.MULTILINE))
    drafts = float(values["vllm:spec_decode_num_drafts_total"])
    accepted = float(values["vllm:spec_decode_num_accepted_tokens_total"])
    assert 1 + accepted / drafts == pytest.approx(row(run)["acceptance_length"], rel=0.02)
    buckets = [int(n) for n in re.findall(r"time_to_first_token_seconds_bucket\S+ (\d+)", text)]
    assert buckets == sorted(buckets)
    assert buckets[-1] == int(values["vllm:time_to_first_token_seconds_count"]) == 300
    for line in text.splitlines():
        assert re.match(r"^(# (HELP|TYPE) \S+ .+|\S+?(\{[^}]*\})? [-+0-9.e]+(inf)?)$", line), line


@pytest.mark.parametrize(
    ("slo", "best"),
    [
        (100.0, "slow"),  # fast has 500 at least, slow has more
        (60.0, "fast"),  # both are faster than that under every load asked, and fast held more
        (150.0, "fast"),
        (250.0, None),
    ],
)
def test_the_best_policy_may_be_faster_than_the_slo_under_every_load(
    slo: float, best: str | None
) -> None:
    def policy(*points: tuple[float, float], lossless: bool = True) -> dict[str, object]:
        rows = [{"tok_s_user": speed, "tok_s_gpu": most} for speed, most in points]
        return {"lossless": lossless, "points": rows}

    summary = {
        "question": {"headline_slo": slo},
        "policies": {
            "slow": policy((90.0, 900.0), (110.0, 600.0)),
            "fast": policy((120.0, 500.0), (200.0, 200.0)),
            "wrong": policy((120.0, 5000.0), (300.0, 2000.0), lossless=False),
        },
    }
    if slo == 60.0:
        summary["policies"]["fast"] = policy((120.0, 950.0), (200.0, 200.0))
    if best is None:
        with pytest.raises(InputError, match="no lossless policy"):
            best_policy(summary)
    else:
        assert best_policy(summary) == best


def test_the_best_policy_becomes_vllm_configuration(run: Path) -> None:
    assert best_policy(read_summary(run)) == "topk"
    found = export(run, "vllm-policy")
    config = json.loads(found.files["speculative_config.json"])
    assert config == {
        "method": "dspark",
        "num_speculative_tokens": 3,
        "draft_sample_method": "probabilistic",
        "enable_adaptive_verification": True,
    }
    assert found.flags[0].startswith("--speculative-config '{")
    assert any("lag 2" in note for note in found.notes)
    fixed = json.loads(export(run, "vllm-policy", policy="fixed").files["speculative_config.json"])
    assert fixed == {"method": "dspark", "num_speculative_tokens": 2}


def test_lengths_by_load_begin_at_one_and_leave_no_gap() -> None:
    entry = {"scheduler": {"kind": "fixed", "k": 3}, "gamma": 7, "lossless": True}
    found = vllm_policy(entry, [(1, 5), (16, 3), (64, 0)])
    config = json.loads(found.files["speculative_config.json"])
    assert config["num_speculative_tokens_per_batch_size"] == [
        [1, 15, 5], [16, 63, 3], [64, 65536, 0],
    ]  # fmt: skip
    with pytest.raises(InputError, match="start at 1"):
        vllm_policy(entry, [(2, 5)])


def test_sglang_files_load_in_sglangs_rules(run: Path) -> None:
    found = export(run, "sglang-policy", policy="topk", context_tokens=512)
    table = parse_sglang(found.files["dspark_sps.json"], where="f")
    assert type(table).__name__ == "SpsAdditiveCostTable"
    calibration = from_sglang(found.files["dspark_sts.json"], where="f", gamma=3)
    # The model's head is calibrated, so there is little to change.
    np.testing.assert_allclose(calibration.temperature_G, 1.0, atol=0.35)
    assert "--speculative-dspark-block-size 3" in found.flags
    assert "SGLANG_DSPARK_CONFIDENCE_RELAY_LAG_STEPS=2" in found.flags
    assert any("not of your drafter" in note for note in found.notes)


def test_an_unsafe_policy_is_not_exported() -> None:
    entry = {"scheduler": {"kind": "global"}, "gamma": 3, "lossless": False}
    with pytest.raises(InputError, match="not exported"):
        vllm_policy(entry)
    with pytest.raises(InputError, match='no policy like "threshold"'):
        vllm_policy({"scheduler": {"kind": "threshold"}, "gamma": 3, "lossless": True})


def test_mistakes(run: Path) -> None:
    with pytest.raises(InputError, match='did you mean "topk"'):
        export(run, "vllm", policy="topp")
    with pytest.raises(InputError, match="was not run at 9 users"):
        export(run, "vllm", policy="topk", concurrency=9)


@pytest.mark.parametrize(
    ("record", "form", "missing"),
    [
        ("none", "vllm", "requests"),
        ("none", "aiperf", "requests"),
        ("requests", "prometheus", "steps"),
    ],
)
def test_what_was_not_recorded_is_named(
    tmp_path: Path, record: str, form: str, missing: str
) -> None:
    path = write_scenario(tmp_path, requests=20)
    found = run_scenario(str(path), overrides=[f"record={record}"], out=tmp_path / "runs")
    with pytest.raises(
        InputError, match=rf"no {missing} of .*record: {record}.*--set record=steps"
    ):
        export(found.directory, form, policy="topk")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"has no \w+.parquet.*--set record=steps"):
        write_timeline(found.directory, tmp_path / "out.pftrace", policy="topk")
