from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from made_up_summaries import frontier_summary, point_summary
from rich.console import Console

from specsim.report.terminal import print_answer, verdict


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
    assert "no value: slow never reaches 120 tok/s/user" in text
    assert text.count("slow never reaches 120 tok/s/user") == 1


def test_the_verdict_never_recommends_an_unsafe_policy() -> None:
    summary = frontier_summary()
    held = {r["policy"]: r["tok_s_gpu"] for r in summary["answer"] if r["slo_tok_s_user"] == 120}
    assert held["peek"] > held["topk"]  # else this test says nothing
    (line,) = verdict(summary)
    assert "topk holds the most" in line
    assert "times mtp1" in line


def test_the_verdict_when_nobody_reaches_the_slo() -> None:
    summary = frontier_summary()
    for record in summary["answer"]:
        record["tok_s_gpu"] = None
    assert "No policy reaches 120" in verdict(summary)[0]


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
