from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specsim.report.terminal import print_answer, verdict
from tests.unit.report.made_up_summaries import frontier_summary, point_summary


def printed(summary: dict[str, Any], width: int = 120) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, highlight=False)
    print_answer(summary, directory=Path("runs/0123456789ab"), console=console)
    return file.getvalue()


def row(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.split()[:1] == [name]]
    return line.split()


def test_the_frontier_table_reads_every_policy_at_the_headline_slo() -> None:
    text = printed(frontier_summary())
    assert "at 120 tok/s/user" in text
    # topk: 230 (1 - 0.8 u / 64) tok/s/user, 16000 sqrt(u / 64) tok/s/GPU, linear between loads.
    speed = {users: 230 * (1 - 0.8 * users / 64) for users in (16, 64)}
    share = (120 - speed[64]) / (speed[16] - speed[64])
    held = 16000 + share * (8000 - 16000)
    assert row(text, "topk")[1:5] == [f"{held:,.0f}", f"{held / 120:.1f}", "4.50", "25.0%"]
    assert row(text, "mtp1")[5] == "1.00"


def test_a_policy_that_cannot_hold_the_slo_has_a_dash_and_a_reason() -> None:
    text = printed(frontier_summary())
    assert row(text, "slow")[1:6] == ["-"] * 5
    assert "note: too slow for 120 tok/s/user under every load asked: slow" in text
    assert "above the 1,950 tok/s/GPU of mtp1, so no speed-up: ask for fewer users: topk" in text


def test_the_verdict_never_recommends_an_unsafe_policy() -> None:
    summary = frontier_summary()
    held = {r["policy"]: r["tok_s_gpu"] for r in summary["answer"] if r["slo_tok_s_user"] == 120}
    assert held["peek"] > held["topk"]  # else this test says nothing
    assert "topk holds the most: 11,710 tok/s/GPU" in verdict(summary)
    assert "6.01 times mtp1" in verdict(summary)


def test_the_verdict_has_its_error_and_names_whom_it_cannot_tell_apart() -> None:
    summary = frontier_summary()
    for policy in summary["policies"].values():
        for point in policy["points"]:
            for metric in ("tok_s_gpu", "tok_s_user"):
                point[f"{metric}_ci95"] = 0.01 * point[metric]
    near = summary["policies"]["near"] = copy.deepcopy(summary["policies"]["topk"])
    for point in near["points"]:
        point["tok_s_gpu"] *= 0.99
    # One percent up and down along both axes, by hand, on the stretch that holds the SLO.
    lo, hi = ({u: 230 * (1 - 0.8 * u / 64) * (1 + e) for u in (16, 64)} for e in (-0.01, 0.01))
    cuts = [
        (1 + e) * (16000 + (120 - s[64]) / (s[16] - s[64]) * (8000 - 16000))
        for e, s in ((-0.01, lo), (0.01, hi))
    ]
    error = (cuts[1] - cuts[0]) / 2 / 11710
    assert f"11,710 ± {error:.1%} tok/s/GPU" in verdict(summary)
    assert "within that error: near (-1.0%)." in verdict(summary)
    near["lossless"] = False
    assert "within that error" not in verdict(summary)


def test_no_error_without_every_points_interval() -> None:
    summary = frontier_summary()
    for point in summary["policies"]["topk"]["points"]:
        for metric in ("tok_s_gpu", "tok_s_user"):
            point[f"{metric}_ci95"] = 0.01 * point[metric]
    assert "±" in verdict(summary)
    summary["policies"]["topk"]["points"][1]["tok_s_user_ci95"] = None
    assert "±" not in verdict(summary)


def test_who_may_hold_more_under_loads_that_nobody_asked_is_named() -> None:
    summary = frontier_summary()
    fast = summary["policies"]["fast"] = copy.deepcopy(summary["policies"]["topk"])
    for point in fast["points"]:
        point["tok_s_user"] += 200
        point["tok_s_gpu"] /= 2
    assert "topk holds the most: 11,710" in verdict(summary)
    assert "with more users than were asked fast (at least 8,000) may hold more." in verdict(
        summary
    )


def test_whose_acceptance_it_is_is_said_once() -> None:
    summary = frontier_summary()
    for name, policy in summary["policies"].items():
        policy["acceptance"] = {"target": "Model", "drafter": "d", "status": "measured"}
        if name == "mtp1":
            policy["acceptance"] = {"model": "parametric", "status": "fitted", "source": "a fit"}
    text = printed(summary)
    assert text.count("acceptance: measured, of Model\n") == 1
    assert "acceptance: fitted, of a parametric model (a fit)" in text


def test_a_policy_that_outruns_the_grid_is_shown_with_what_it_holds_at_least() -> None:
    # topk is still faster than the SLO under the largest load, and mtp1 is not: mtp1 must not win.
    summary = frontier_summary()
    for point in summary["policies"]["topk"]["points"]:
        point["tok_s_user"] += 100
    assert "topk holds the most of what was asked, at least 16,000" in verdict(summary)
    text = printed(summary)
    assert row(text, "topk")[1] == ">16,000"
    assert "note: faster than 120 tok/s/user under every load asked" in text


def test_the_verdict_when_nobody_reaches_the_slo() -> None:
    summary = frontier_summary()
    summary["question"]["headline_slo"] = 235.0  # only the unsafe policy is that fast
    assert "No lossless policy reaches 235" in verdict(summary)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    "summary", [frontier_summary(), point_summary(), point_summary(makespan_s=12.5)]
)
def test_names_and_marks_survive_narrow_terminals(summary: dict[str, Any], width: int) -> None:
    text = printed(summary, width)
    for name in summary["policies"]:
        assert name in text
    table, _, _ = text.partition("verified tok/request:")
    assert "unsafe" in table
    assert "fitted cost" in table
    assert "\N{HORIZONTAL ELLIPSIS}" not in table
    assert "stored in runs/0123456789ab" in text


def test_the_point_table_shows_times_in_milliseconds_and_a_batchs_makespan() -> None:
    assert "12.30" in row(printed(point_summary()), "mtp1")
    assert "makespan" not in printed(point_summary())
    assert row(printed(point_summary(makespan_s=12.5)), "mtp1")[1] == "12.50"


def test_warnings_are_printed() -> None:
    assert "beware: peek: this scheduler changes" in printed(frontier_summary())


def test_marks_that_every_policy_bears_are_said_once() -> None:
    summary = frontier_summary()
    for policy in summary["policies"].values():
        policy["labels"].append("tilted trace")
    text = printed(summary)
    assert text.count("tilted trace") == 1
    assert "every policy: tilted trace." in text
    assert "unsafe" in text.partition("every policy")[0]
