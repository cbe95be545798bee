"""Each calibration, synthesised and replayed, shows the figures that it was fitted to."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specsim.acceptance.parametric import ParametricConfig
from specsim.acceptance.presets import PRESETS
from specsim.acceptance.trace import DenseTrace

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "profiles" / "published"
FIGURE5 = {"gsm8k": "math", "humaneval": "code", "mt_bench": "chat"}
FloatArray = NDArray[np.float64]


def rows(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def trace_of(calibration: str, gamma: int = 7, **fields: object) -> DenseTrace:
    given = {"sequences": 256, "anchors": 1024} | fields
    domain = given.pop("domain", None)
    if domain is not None:
        given["mix"] = {domain: 1.0}
    config = ParametricConfig(kind="parametric", calibration=calibration, **given)  # type: ignore[arg-type]
    return config.build(seed=17, gamma=gamma, locate=lambda group, name: Path())


def rounds(trace: DenseTrace, length_N: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Replay all sequences side by side; yield the rows of each round's blocks."""
    row_S = trace.sequence_offset_S1[:-1].copy()
    end_S = trace.sequence_offset_S1[1:] - trace.gamma
    while True:
        alive_S = row_S < end_S
        if not alive_S.any():
            return
        row_S, end_S = row_S[alive_S], end_S[alive_S]
        yield row_S
        row_S = row_S + np.minimum(length_N[row_S], trace.num_accepted_N[row_S]) + 1


def replay(trace: DenseTrace, length_N: NDArray[np.int64]) -> tuple[float, float]:
    """Accepted and verified tokens a round, bonus and anchor in."""
    seen_N = np.concatenate(list(rounds(trace, length_N)))
    accepted_N = np.minimum(length_N[seen_N], trace.num_accepted_N[seen_N])
    return 1 + float(accepted_N.mean()), 1 + float(length_N[seen_N].mean())


def whole(trace: DenseTrace) -> NDArray[np.int64]:
    return np.full(trace.num_anchors, trace.gamma)


@pytest.mark.parametrize("domain", ["math", "code", "chat"])
def test_figure_2_and_table_1(domain: str) -> None:
    trace = trace_of("domains", domain=domain)
    seen_N = np.concatenate(list(rounds(trace, whole(trace))))
    reach_G = np.array([(trace.num_accepted_N[seen_N] >= k).mean() for k in range(8)])
    published = [
        float(r["conditional_acceptance"])
        for r in rows("paper_fig2_conditional_acceptance_by_position.csv")
        if (r["domain"], r["drafter"]) == (domain, "DSpark")
    ]
    assert reach_G[1:] / reach_G[:-1] == pytest.approx(published, abs=0.01)
    lengths = [
        float(r["accepted_length_incl_bonus_T1_gamma7"])
        for r in rows("paper_table1_accepted_length.csv")
        if (r["target"], r["drafter"], r["domain"]) == ("Qwen3-4B", "DSpark", domain)
    ]
    assert len(lengths) == 3
    # The figure's own positions add up to a length 0.04 off the table's for code.
    assert replay(trace, whole(trace))[0] == pytest.approx(np.mean(lengths), abs=0.07)


@pytest.mark.parametrize("block", [3, 7, 11, 15])
@pytest.mark.parametrize("domain", ["math", "code", "chat"])
def test_figure_4(domain: str, block: int) -> None:
    trace = trace_of("domains", gamma=block, domain=domain, drafter_block=block, sequences=192)
    (published,) = (
        float(r["value(accepted_length or ms per round @bs128)"])
        for r in rows("paper_fig4_block_size.csv")
        if (r["panel"], r["drafter"], r["gamma"]) == (domain, "DSpark_markov", str(block))
    )
    assert replay(trace, whole(trace))[0] == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize("name", FIGURE5)
def test_figure_5_at_all_thresholds(name: str) -> None:
    trace = trace_of(name)
    panel = [r for r in rows("paper_fig5_threshold_sweep.csv") if r["domain"] == FIGURE5[name]]
    assert len(panel) == 10
    for row in panel:
        keep_NG = trace.confidence_NG >= float(row["threshold"])
        accepted, verified = replay(trace, np.cumprod(keep_NG, axis=1).sum(axis=1))
        assert accepted == pytest.approx(
            float(row["accepted_tokens_per_step_incl_bonus"]), rel=0.03
        )
        assert verified == pytest.approx(
            float(row["verified_tokens_per_step_incl_anchor"]), rel=0.03
        )


def test_figure_5_panels_are_not_each_other() -> None:
    """The 3 % of the test above tell the panels apart: no calibration passes for another."""
    accepted = {name: replay(trace_of(name), whole(trace_of(name)))[0] for name in FIGURE5}
    assert accepted["gsm8k"] > 1.08 * accepted["humaneval"] > 1.08**2 * accepted["mt_bench"]


def ece(said_N: FloatArray, kept_N: FloatArray) -> float:
    bin_N = np.minimum((said_N * 20).astype(int), 19)
    return float(np.abs(np.bincount(bin_N, said_N - kept_N, 20)).sum() / len(said_N))


def auc(said_N: FloatArray, kept_N: FloatArray) -> float:
    rank_N = np.empty(len(said_N))
    rank_N[np.argsort(said_N, kind="stable")] = np.arange(1, len(said_N) + 1)
    yes = kept_N.sum()
    return float((rank_N[kept_N > 0].sum() - yes * (yes + 1) / 2) / (yes * (len(kept_N) - yes)))


def test_figure_6() -> None:
    trace = trace_of("alpaca")
    seen_N = np.concatenate(list(rounds(trace, whole(trace))))
    assert len(seen_N) > 40_000
    said_NG = trace.confidence_NG[seen_N].astype(np.float64)
    kept_NG = (trace.num_accepted_N[seen_N, None] > np.arange(7)).astype(np.float64)
    said_NG = np.clip(said_NG, 1e-7, 1 - 1e-7)
    logit_NG = np.log(said_NG / (1 - said_NG))
    raw_NG = np.cumprod(said_NG, axis=1)
    scaled_NG = np.empty_like(raw_NG)
    before_N = np.ones(len(seen_N))
    fit = slice(0, None, 2)  # temperatures are fitted on one half and judged on the other
    judge = slice(1, None, 2)
    for k in range(7):
        grid = np.geomspace(0.4, 3.0, 48)
        tried = [
            ece(before_N[fit] / (1 + np.exp(-logit_NG[fit, k] / t)), kept_NG[fit, k]) for t in grid
        ]
        before_N = before_N / (1 + np.exp(-logit_NG[:, k] / grid[int(np.argmin(tried))]))
        scaled_NG[:, k] = before_N
    for row in rows("paper_fig6_ece_auc.csv"):
        k = int(row["position"]) - 1
        kept_N = kept_NG[judge, k]
        assert auc(raw_NG[judge, k], kept_N) == pytest.approx(float(row["auc"]), abs=0.01)
        raw, scaled = ece(raw_NG[judge, k], kept_N), ece(scaled_NG[judge, k], kept_N)
        assert raw == pytest.approx(float(row["ece_before_pct"]) / 100, abs=0.01)
        assert scaled == pytest.approx(float(row["ece_after_sts_pct"]) / 100, abs=0.008)
        assert scaled < raw / 2


def test_the_library_holds_what_the_fit_stored() -> None:
    stored = json.loads((ROOT / "profiles" / "fits" / "acceptance.json").read_text())
    assert set(stored) == set(PRESETS)
    for name, fitted in stored.items():
        preset = PRESETS[name]
        for field in ("difficulty_sd", "noise_sd", "skew"):
            assert getattr(preset, field) == fitted[field], (name, field)
        for field in ("head_scale", "head_shift", "head_noise_sd"):
            assert list(getattr(preset, field)) == fitted[field], (name, field)
        assert {d: list(v) for d, v in preset.conditional.items()} == fitted["conditional"]
        assert preset.source == fitted["source"]
        assert fitted["status"] == "fitted"
