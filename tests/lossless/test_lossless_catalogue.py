from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from specsim.lossless import leaks, liars
from specsim.lossless.catalogue import CASES, cases, theta_appendix_a
from specsim.lossless.enumerate import enumerate_world
from specsim.lossless.montecarlo import sample_world
from specsim.lossless.rejection import BLOCK_RULE, TARGET_SAMPLE_RULE, TOKEN_RULE
from specsim.lossless.report import ALPHA, collected, drawn_row, exact_row, jobs, page, sample_case
from specsim.lossless.significance import effect, power, samples_needed
from specsim.lossless.worlds import law
from specsim.schedulers.base import BatchView
from specsim.schedulers.greedy import Greedy
from specsim.schedulers.static import FixedLength


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_catalogue_has_its_known_answers(case):
    result = case.run()
    law_found, _ = result.found.first_token(result.found.watched[0])
    if case.law is not None:
        assert law_found == case.law
    assert result.lossless == case.lossless
    assert result.found.exact == case.lossless, "a leak here always bends the followed law"
    assert result.right
    assert sum(result.found.law.values()) == 1
    assert sum(result.found.target.values()) == 1


def test_wrong_answers_would_be_seen():
    from dataclasses import replace

    case = CASES[0]
    assert not replace(case, lossless=True).run().right
    assert not replace(case, law=law("1/2", "1/2")).run().right


def test_case_names_are_unique_and_grouped():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    groups = {case.group for case in CASES}
    assert {
        "appendix-a",
        "several-rounds",
        "ties",
        "several-requests",
        "post-token",
        "live-argmax",
        "published",
        "verification",
    } == groups
    assert len(cases("appendix-a")) == 8


def test_appendix_a_numbers():
    assert theta_appendix_a() == {
        "0": Fraction(1),
        "1": Fraction(9, 10),
        "2 after A": Fraction(1134, 1000),
        "2 after B": Fraction(81, 100),
    }
    lengths = set()

    class Watched(Greedy):
        def plan(self, view: BatchView):
            found = Greedy.plan(self, view)
            lengths.update(found.tolist())
            return found

    assert enumerate_world(leaks.appendix_a(), Watched, num_tokens=3).exact
    assert lengths == {0}


def test_verification_facts():
    world = leaks.plain(law("1/2", "3/10", "1/5"), law("1/5", "1/2", "3/10"), name="x")
    target_sample = enumerate_world(world, lambda: FixedLength(1), rule=TARGET_SAMPLE_RULE)
    assert target_sample.mean_committed - 1 == Fraction(31, 100)
    assert enumerate_world(world, lambda: FixedLength(1)).mean_committed - 1 == Fraction(7, 10)
    one, two = (
        enumerate_world(leaks.block_world(), lambda: FixedLength(2), rule=rule)
        for rule in (TOKEN_RULE, BLOCK_RULE)
    )
    assert one.mean_committed == 1 + Fraction(10, 9)
    assert two.mean_committed == 1 + Fraction(11, 9)


@pytest.mark.parametrize("case", cases("appendix-a"), ids=lambda case: case.name)
def test_a_hundred_thousand_samples_tell(case):
    one = sample_case(case, samples=100_000)
    if case.lossless:
        assert one.sampled.p_value > 1e-4
        assert not one.biased
    else:
        assert one.sampled.p_value < 1e-12
        assert one.biased
        assert one.sampled.distance.low > 0.1


def bfloat16_effect():
    found = enumerate_world(leaks.bfloat16(), lambda: FixedLength(1))
    bent, target = found.first_token(1)
    assert 0 < found.bias < Fraction(2, 1000)
    return effect(np.array(target, dtype=float), np.array(bent, dtype=float))


def test_bfloat16_is_biased_exactly_and_needs_millions_of_samples():
    size = bfloat16_effect()
    assert 3_000_000 < samples_needed(size, 3, alpha=ALPHA) < 10_000_000
    assert power(10_000_000, size, 3, alpha=ALPHA) > 0.999
    assert power(100_000, size, 3, alpha=ALPHA) < 0.01


@pytest.mark.slow
def test_bfloat16_is_seen_in_ten_million_samples_and_float32_is_clean():
    found = sample_world(leaks.bfloat16(), lambda: FixedLength(1), num_samples=10_000_000)
    assert found.p_value < 1e-12
    assert found.distance.low > 0
    from dataclasses import replace

    world = leaks.bfloat16()
    request = replace(world.requests[0], draft=world.requests[0].believed_draft)
    clean = replace(world, requests=(replace(request, believed_draft=None),))
    exact = sample_world(clean, lambda: FixedLength(1), num_samples=10_000_000)
    assert exact.p_value > 1e-4


def test_reports_are_pages_and_rows():
    todo = jobs("ties", samples=2000)
    result = collected((exact_row(job), drawn_row(job)) for job in todo)
    rows = {row["case"]: row for row in result["cases"]}
    assert rows["ties/position-last"]["law"] == ["17/20", "3/20"]
    assert rows["ties/position-last"]["target"] == ["7/10", "3/10"]
    assert rows["ties/position-last"]["lossless"] is False
    assert rows["ties/position-first"]["lossless"] is True
    assert all(row["right"] and row["worlds"] == 1 and row["leaves"] > 0 for row in rows.values())
    drawn = {row["case"]: row for row in result["monte_carlo"]}
    assert drawn["ties/position-last"]["samples"] == 2000
    assert drawn["ties/position-last"]["biased"]
    assert not drawn["ties/position-first"]["biased"]
    text = page(result, "make it")
    assert "Rebuilt by `make it`." in text
    assert "| ties/position-last | top-1, equal survivals by later position | (17/20, 3/20)" in text
    assert "| **no** | yes | 2,000 |" in text
    assert any("order-preserving" in row["note"] for row in result["notes"])


def test_rules_that_only_enumeration_knows_are_not_sampled():
    fresh = next(case for case in CASES if case.name == "verification/target-sample-fresh")
    assert sample_case(fresh) is None
    block = next(case for case in CASES if case.name == "verification/block")
    assert sample_case(block, samples=1000).sampled.counts_V.sum() == 1000


def test_jobs_of_everything_have_the_batteries_last():
    todo = jobs()
    kinds = [job.kind for job in todo]
    assert kinds.index("battery") == len(CASES)
    assert "greedy" in {job.name for job in todo if job.kind == "battery"}
    job = next(job for job in todo if job.name == "none")
    row, none = exact_row(job), drawn_row(job)
    assert none is None
    assert row["lossless"]
    assert row["right"]
    assert "| none | lossless | lossless |" in page(collected([(row, None)]), "x")


def test_liars_say_of_themselves_what_is_true():
    for made in (
        liars.TieLast(),
        liars.PeekNext(),
        liars.BatchGate(),
        liars.CrossPeek(),
        liars.MinimumGain(),
        liars.TierAware(),
        liars.UniformHysteresis(),
        liars.SmoothedBudget(),
        liars.DCut(),
    ):
        assert not made.lossless
    for made in (
        liars.MinimumGain(lag=1),
        liars.TierAware(lag=1),
        liars.UniformHysteresis(lag=1),
        liars.SmoothedBudget(first=False),
        liars.DCut((1.0,)),
        liars.ThresholdKeep(),
        liars.FixedTopK(),
        liars.SparseGate(),
    ):
        assert made.lossless
