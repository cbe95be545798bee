"""The report in `reports/lossless` is what the lab finds today, and rows say what was found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specsim.lossless import leaks, liars
from specsim.lossless.case import Case
from specsim.lossless.catalogue import CASES, cases
from specsim.lossless.conformance import Report, Verdict, check_scheduler
from specsim.lossless.kinds import shipped
from specsim.lossless.montecarlo import judged
from specsim.lossless.report import (
    ALPHA,
    Job,
    SampledCase,
    _law,
    battery_row,
    case_row,
    collected,
    drawn_row,
    jobs,
    notes_rows,
    page,
    sample_case,
    sampled_row,
)
from specsim.lossless.significance import visible_bias
from specsim.lossless.worlds import law
from specsim.schedulers.static import FixedLength
from specsim.schedulers.topk import GlobalSearch

FOLDER = Path(__file__).parents[3] / "reports" / "lossless"
SAID = json.loads((FOLDER / "cases.json").read_text(encoding="utf-8"))
ROWS = {row["case"]: row for row in SAID["cases"] if row["case"] != "battery"}
BATTERY = {row["scheduler"]: row for row in SAID["cases"] if row["case"] == "battery"}
DRAWN = {row["case"]: row for row in SAID["monte_carlo"]}


def test_the_page_is_redrawn_from_its_rows() -> None:
    text = page(SAID, "specsim lossless all --out reports/lossless")
    assert text == (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [case.name for case in CASES] == list(ROWS)
    assert [name for name, _ in shipped()] == list(BATTERY)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_report_says_what_enumeration_finds(case: Case) -> None:
    assert case_row(case.run()) == ROWS[case.name]


@pytest.mark.parametrize("name", ["none", "global", "async_topk lag=2", "tetris k=1 score=sampled"])
def test_the_report_says_what_the_battery_finds(name: str) -> None:
    """Two that are exact and two that leak: each meets every world of the battery."""
    assert battery_row(name, check_scheduler(dict(shipped())[name])) == BATTERY[name]


@pytest.mark.parametrize("name", ["ties/position-last", "several-rounds/async-lag-2"])
def test_the_report_says_what_its_seed_draws(name: str) -> None:
    found = drawn_row(Job("case", name, None, 0))
    told = DRAWN[name]
    assert {k: v for k, v in found.items() if isinstance(v, str | int | bool | list)} == {
        k: v for k, v in told.items() if isinstance(v, str | int | bool | list)
    }
    for field in ("g", "p_value", "visible_bias"):
        assert found[field] == pytest.approx(told[field], rel=1e-9)
    assert found["tv"] == pytest.approx(told["tv"], rel=1e-9)


def test_the_report_has_the_facts_beside_the_laws() -> None:
    found = json.loads(json.dumps(notes_rows()))
    assert [note["note"] for note in found] == [note["note"] for note in SAID["notes"]]
    for ours, told in zip(found, SAID["notes"], strict=True):
        for key, value in told.items():
            assert ours[key] == (pytest.approx(value) if key in ("before", "after") else value)


def test_a_battery_row_is_right_if_the_scheduler_is_sound_and_says_what_is_true() -> None:
    verdict = Verdict(lossless=True, worlds=7, leaves=99, found=None, biased=0)
    leak = {"check_lossless": "x"}
    for failures, declared, right in (
        ({}, True, True),
        (leak, False, True),
        ({}, False, False),  # exact and says otherwise
        (leak, True, False),
        (leak | {"check_lengths": "y"}, False, False),  # broken
        ({}, None, False),
    ):
        row = battery_row("x", Report(failures, verdict, declared))
        assert row["right"] is right
        assert row["lossless"] is (not failures)
        assert row["failures"] == failures
        assert (row["worlds"], row["leaves"], row["biased_worlds"]) == (7, 99, 0)
        assert (row["law"], row["target"], row["case"]) == ([], [], "battery")
    none = battery_row("x", Report({"check_protocol": "z"}, None, None))
    assert (none["worlds"], none["leaves"], none["biased_worlds"]) == (0, 0, None)
    assert not none["right"]
    found = replace(verdict, lossless=False, found=cases("appendix-a")[0].run().found, biased=3)
    row = battery_row("x", Report(leak, found, declared=False))
    assert (row["law"], row["target"]) == (["17/20", "3/20"], ["7/10", "3/10"])
    assert row["biased_worlds"] == 3


def test_a_sampled_row_is_biased_below_alpha_and_says_what_it_could_see() -> None:
    case = cases("appendix-a")[0]
    sampled = judged(np.array([6_900, 3_100]), np.array([0.7, 0.3]))
    for p_value, biased in ((ALPHA, False), (ALPHA / 2, True), (0.0, True)):
        one = SampledCase(case, replace(sampled, p_value=p_value))
        row = sampled_row(one)
        assert row["biased"] is one.biased is biased
        assert row["p_value"] == p_value
    assert row["samples"] == 10_000
    assert row["counts"] == [6_900, 3_100]
    assert row["law"] == [0.7, 0.3]
    assert row["tv"]["estimate"] == pytest.approx(0.01)
    assert row["tv"]["confidence"] == 0.99
    assert row["tv"]["low"] == 0.0
    assert row["visible_bias"] == visible_bias(10_000, 1, alpha=ALPHA)
    one_outcome = SampledCase(case, judged(np.array([50]), np.array([1.0])))
    assert sampled_row(one_outcome)["visible_bias"] == visible_bias(50, 1, alpha=ALPHA)


def test_a_case_is_sampled_as_it_was_asked_for() -> None:
    asked: list[Any] = []

    def sampler(world: Any, factory: Any, **more: Any) -> Any:
        asked.append(more)
        return judged(np.array([7, 3]), np.array([0.7, 0.3]))

    case = Case("x", "g", "s", leaks.cross, liars.FixedTopK, lossless=True)
    assert (case.num_tokens, case.samples) == (1, 100_000)
    sample_case(case, sampler=sampler)
    sample_case(replace(case, num_tokens=2), samples=5, seed=9, sampler=sampler)
    plain = {"num_samples": 100_000, "seed": 0, "num_tokens": 1, "watch": (1, 2), "rule": "token"}
    assert asked == [plain, plain | {"num_samples": 5, "seed": 9, "num_tokens": 2}]


def test_laws_that_are_long_are_written_in_decimals() -> None:
    assert _law([]) == "-"
    assert _law(["1"]) == "(1)"
    fits, long = ["1" * 15, "1" * 15], ["1" * 15, "1" * 16]
    assert len(_law(fits)) == 34
    assert _law(fits) == f"({'1' * 15}, {'1' * 15})"
    assert _law(["1/3", "2/3", "100000/333333", "11111111/99999999"]) == (
        "(0.333333, 0.666667, 0.300000, 0.111111)"
    )
    assert _law(long).endswith(".000000)")
    assert _law(["0", "1/8"], longest=3) == "(0.000000, 0.125000)"


def test_rows_that_are_not_as_known_stand_out_on_the_page() -> None:
    case = replace(cases("ties")[0], lossless=True)
    row = case_row(case.run())
    assert not row["right"]
    assert (row["expected"], row["lossless"], row["tokens"]) == (True, False, 1)
    text = page(collected([(row, None)]), "x")
    assert "| **no** | **NO** | - | - |" in text
    leak = battery_row("liar", Report({"check_lossless": "a", "check_lengths": "b"}, None, None))
    text = page(collected([(leak, None)]), "x")
    assert "| liar | leaks | leaks | 0 | None | 0 | check_lossless, check_lengths |" in text


def test_jobs_are_of_one_group_or_of_everything() -> None:
    assert [job.name for job in jobs("ties")] == ["ties/position-last", "ties/position-first"]
    assert {(job.kind, job.samples, job.seed) for job in jobs("ties", samples=4, seed=2)} == {
        ("case", 4, 2)
    }
    assert len(jobs()) == len(CASES) + len(shipped())
    assert drawn_row(Job("battery", "none", None, 0)) is None


def test_a_case_is_lossless_if_the_law_is_right_and_nothing_peeks() -> None:
    """A peek alone is a leak too: the same plan bends another world's law."""
    hidden = Case("x", "g", "s", leaks.cross, liars.CrossPeek, lossless=False)
    bent = hidden.run()
    assert not bent.lossless
    assert bent.right
    equal = replace(hidden, world=lambda: leaks.plain(law(1, 0), law(1, 0), name="sure"))
    assert replace(equal, factory=lambda: FixedLength(1), lossless=True).run().right
    peek = Case("x", "g", "s", leaks.appendix_a, GlobalSearch, lossless=False, law=law(1, 0))
    assert not peek.run().right
