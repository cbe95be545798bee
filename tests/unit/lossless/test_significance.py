from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import dirichlet_multinomial, multinomial, power_divergence

from specsim.errors import InputError
from specsim.lossless import significance
from specsim.lossless.significance import (
    distance,
    effect,
    exact_multinomial,
    g_test,
    least_effect,
    log_evidence,
    power,
    samples_needed,
    sequential_test,
    visible_bias,
)

LAW = np.array([0.5, 0.3, 0.2])
SKEW = np.array([0.53, 0.29, 0.18])


def test_g_agrees_with_scipy():
    counts = np.array([520, 280, 200])
    g, df, p_value = g_test(counts, LAW)
    reference = power_divergence(counts, LAW * 1000, lambda_="log-likelihood")
    assert g == pytest.approx(reference.statistic)
    assert df == 2
    assert p_value == pytest.approx(reference.pvalue)


def test_g_counts_empty_and_impossible_cells():
    assert g_test(np.array([50, 50, 1]), np.array([0.5, 0.5, 0.0])) == (math.inf, 1, 0.0)
    g, df, _ = g_test(np.array([60, 40, 0]), np.array([0.5, 0.5, 0.0]))
    assert df == 1
    assert g > 0
    g, df, _ = g_test(np.array([100, 0]), np.array([0.5, 0.5]))
    assert (g, df) == (pytest.approx(200 * math.log(2)), 1)
    assert g_test(np.array([7]), np.array([1.0])) == (0.0, 0, 1.0)


def test_g_pools_rare_cells():
    law = np.array([0.97, 0.01, 0.01, 0.01])
    _, df, p_pooled = g_test(np.array([195, 2, 2, 1]), law)
    assert df == 1
    assert p_pooled == pytest.approx(g_test(np.array([195, 5]), np.array([0.97, 0.03]))[2])
    assert g_test(np.array([970, 10, 10, 10]), law)[1] == 3


def test_g_has_its_level_and_sees_a_bias():
    rng = np.random.default_rng(0)
    null = [g_test(rng.multinomial(2000, LAW), LAW)[2] for _ in range(1500)]
    assert 0.03 < np.mean(np.array(null) < 0.05) < 0.07
    biased = [g_test(rng.multinomial(2000, SKEW), LAW)[2] for _ in range(1000)]
    size = effect(LAW, SKEW)
    assert np.mean(np.array(biased) < 0.05) == pytest.approx(
        power(2000, size, 2, alpha=0.05), abs=0.05
    )


@pytest.mark.parametrize(
    ("counts", "law", "message"),
    [
        ([1, 2], [0.5, 0.3, 0.2], "the same"),
        ([1, -2, 1], [0.5, 0.3, 0.2], "at least 0"),
        ([1, 2, 1], [0.5, 0.3, 0.3], "sums to 1.1"),
    ],
)
def test_bad_input_is_named(counts, law, message):
    with pytest.raises(InputError, match=message):
        g_test(np.array(counts), np.array(law))


def test_exact_multinomial_by_brute_force():
    total = 9
    for counts in ([3, 3, 3], [9, 0, 0], [5, 3, 1], [0, 0, 9]):
        seen = multinomial.pmf(counts, total, LAW)
        everything = (c for c in itertools.product(range(total + 1), repeat=3) if sum(c) == total)
        masses = np.array([multinomial.pmf(c, total, LAW) for c in everything])
        expected = masses[masses <= seen * (1 + 1e-9)].sum()
        assert exact_multinomial(np.array(counts), LAW) == pytest.approx(expected)
    assert exact_multinomial(np.array([5, 4]), np.array([0.5, 0.5])) == pytest.approx(1.0)
    assert exact_multinomial(np.array([1, 4]), np.array([0.0, 1.0])) == 0.0
    assert exact_multinomial(np.array([0, 4]), np.array([0.0, 1.0])) == 1.0
    with pytest.raises(InputError, match="count vectors, more than"):
        exact_multinomial(np.full(8, 100), np.full(8, 1 / 8))


def test_exact_and_g_agree_on_many_samples():
    counts = np.array([540, 270, 190])
    assert exact_multinomial(counts, LAW) == pytest.approx(g_test(counts, LAW)[2], rel=0.1)


def test_distance_interval_covers():
    rng = np.random.default_rng(1)
    truth = 0.5 * np.abs(SKEW - LAW).sum()
    covered = []
    for _ in range(400):
        found = distance(rng.multinomial(3000, SKEW), LAW, confidence=0.9)
        assert found.low <= found.estimate <= found.high + 1e-12
        covered.append(found.low <= truth <= found.high)
    assert np.mean(covered) >= 0.9
    wide = distance(np.array([50, 30, 20]), LAW)
    narrow = distance(np.array([50_000, 30_000, 20_000]), LAW)
    assert narrow.high < wide.high
    assert wide.estimate == pytest.approx(0)
    far = distance(np.array([0, 0, 100_000]), LAW)
    assert 0.78 < far.low < 0.8 < far.high < 0.82
    # By hand: N = 100, alpha = 0.01, V = 3.
    slack = math.sqrt(math.log(200) / 200)
    assert wide.high == pytest.approx(slack)
    middle = distance(np.array([0, 0, 100]), LAW)
    assert middle.low == pytest.approx(0.8 - slack - 0.5 * math.sqrt(2 / 100))


def test_power_and_samples_needed_fit_together():
    size = effect(LAW, SKEW)
    assert size == pytest.approx(0.03**2 / 0.5 + 0.01**2 / 0.3 + 0.02**2 / 0.2)
    needed = samples_needed(size, 2, alpha=1e-3, wanted=0.8)
    assert power(needed, size, 2, alpha=1e-3) >= 0.8
    assert power(int(needed * 0.99), size, 2, alpha=1e-3) < 0.8
    assert samples_needed(size, 2, alpha=1e-3) > needed
    assert effect(np.array([1.0, 0.0]), np.array([0.5, 0.5])) == math.inf
    assert power(1, math.inf, 1, alpha=1e-9) == 1.0
    assert power(10, 1e-9, 2, alpha=1e-3) == pytest.approx(1e-3, rel=1e-3)
    assert power(10, 0.0, 2, alpha=1e-3) == pytest.approx(1e-3, rel=1e-3)
    assert least_effect(0.1) == pytest.approx(0.04)
    # No alternative at that distance is harder to see.
    rng = np.random.default_rng(2)
    for _ in range(200):
        law, other = rng.dirichlet(np.ones(4)), rng.dirichlet(np.ones(4))
        bias = 0.5 * np.abs(law - other).sum()
        assert effect(law, other) >= least_effect(bias) - 1e-12
    with pytest.raises(InputError, match="bias 0"):
        least_effect(0)


def test_visible_bias_shrinks_with_samples():
    few, many = visible_bias(1000, 1, alpha=1e-6), visible_bias(100_000, 1, alpha=1e-6)
    assert few == pytest.approx(10 * many, rel=0.01)
    assert power(100_000, least_effect(many), 1, alpha=1e-6) == pytest.approx(0.9, abs=0.001)


def test_evidence_is_fair_under_the_null():
    # E[e-value] = 1, by summing over every count vector.
    total = 12
    mean = 0.0
    for counts in itertools.product(range(total + 1), repeat=3):
        if sum(counts) == total:
            mean += multinomial.pmf(counts, total, LAW) * math.exp(
                log_evidence(np.array(counts), LAW)
            )
    assert mean == pytest.approx(1.0)
    assert log_evidence(np.array([1, 1, 1]), np.array([0.5, 0.5, 0.0])) == math.inf


def test_sequential_test_keeps_its_false_alarm_rate_at_every_look():
    rng = np.random.default_rng(3)
    alarms = [
        sequential_test(
            lambda n: rng.multinomial(n, LAW), LAW, alpha=0.05, batch=50, max_samples=2000
        ).biased
        for _ in range(300)
    ]
    assert np.mean(alarms) <= 0.05


def test_sequential_test_stops_early_and_says_what_it_could_see():
    rng = np.random.default_rng(4)
    drawn = []

    def biased(n):
        drawn.append(n)
        return rng.multinomial(n, [0.85, 0.15])

    found = sequential_test(biased, np.array([0.7, 0.3]), alpha=1e-9, batch=500)
    assert found.biased
    assert found.num_samples == sum(drawn) < 5000
    assert found.log_evidence >= -math.log(1e-9)
    fair = sequential_test(
        lambda n: rng.multinomial(n, [0.7, 0.3]), np.array([0.7, 0.3]), max_samples=25_000
    )
    assert not fair.biased
    assert fair.num_samples == 25_000
    assert fair.alpha == 1e-6
    assert fair.visible_bias == pytest.approx(visible_bias(25_000, 1, alpha=1e-6))
    with pytest.raises(InputError, match="alpha 2"):
        sequential_test(biased, LAW, alpha=2)


def test_what_few_samples_cannot_see_is_a_bias_of_one():
    assert visible_bias(1, 1, alpha=1e-6) == 1.0


def test_a_sequential_test_of_one_outcome_says_what_a_test_of_two_could_see():
    found = sequential_test(lambda size: np.array([size]), np.array([1.0]), max_samples=500)
    assert not found.biased
    assert found.visible_bias == visible_bias(500, 1, alpha=found.alpha)


def test_a_sequential_test_counts_the_freedom_of_its_law():
    law = np.array([0.25, 0.25, 0.25, 0.25, 0.0])
    found = sequential_test(lambda size: np.array([size // 4] * 4 + [0]), law, max_samples=400)
    assert found.visible_bias == visible_bias(400, 3, alpha=found.alpha)


def test_cells_expected_five_times_stand_alone():
    law = np.array([0.5, 0.25, 0.25])
    assert g_test(np.array([10, 5, 5]), law)[1] == 2  # 10, 5 and 5 expected
    assert g_test(np.array([9, 5, 5]), law)[1] == 1  # 4.75 each: pooled
    # One rare cell has nobody to be pooled with, and all of them together say nothing.
    lone = np.array([0.9, 0.1])
    assert g_test(np.array([30, 10]), lone)[1] == 1
    assert g_test(np.array([4, 2]), np.array([0.5, 0.5])) == (0.0, 0, 1.0)
    assert g_test(np.array([3]), np.array([1.0])) == (0.0, 0, 1.0)
    assert g_test(np.array([70, 30]), np.array([0.7, 0.3]))[0] == 0.0


def test_laws_sum_to_one_but_for_rounding():
    counts = np.array([1, 1])
    for off, legal in ((5e-10, True), (2e-9, False), (-2e-9, False)):
        law = np.array([0.5, 0.5 + off])
        if legal:
            g_test(counts, law)
        else:
            with pytest.raises(InputError, match="it must sum to 1"):
                g_test(counts, law)
    with pytest.raises(InputError, match="the same"):
        g_test(np.array([[1, 1]]), np.array([[0.5, 0.5]]))
    with pytest.raises(InputError, match=r"found 1\.0 and -0\.5"):
        g_test(counts, np.array([1.5, -0.5]))


def test_count_vectors_are_counted_before_they_are_made(monkeypatch):
    monkeypatch.setattr(significance, "COMPOSITION_LIMIT", 10)
    half = np.array([0.5, 0.5])
    assert exact_multinomial(np.array([5, 4]), half) == pytest.approx(1.0)  # 10 vectors
    with pytest.raises(InputError, match="10 samples over 2 outcomes make 11 count vectors, more"):
        exact_multinomial(np.array([5, 5]), half)
    assert exact_multinomial(np.array([2, 0, 0, 0]), np.array([1.0, 0, 0, 0])) == 1.0


def test_the_published_limits_are_what_they_are_said_to_be():
    assert significance.COMPOSITION_LIMIT == 5_000_000
    assert significance.POOL_BELOW == 5
    for bias, legal in ((1.0, True), (1e-300, True), (1.0000001, False), (0.0, False), (-1, False)):
        if legal:
            assert least_effect(bias) == 4 * bias * bias
        else:
            with pytest.raises(InputError, match="must be above 0 and at most 1"):
                least_effect(bias)


def test_so_many_samples_are_needed_and_not_one_less():
    for size, df, wanted in ((0.5, 1, 0.9), (0.05, 3, 0.5), (3.0, 2, 0.99)):
        needed = samples_needed(size, df, alpha=1e-4, wanted=wanted)
        assert power(needed, size, df, alpha=1e-4) >= wanted
        assert power(needed - 1, size, df, alpha=1e-4) < wanted
    assert samples_needed(0.05, 3, alpha=1e-4) == samples_needed(0.05, 3, alpha=1e-4, wanted=0.9)
    assert samples_needed(1e9, 1, alpha=0.5, wanted=0.5) == 2
    bias = visible_bias(5000, 2, alpha=1e-4)
    assert bias == visible_bias(5000, 2, alpha=1e-4, wanted=0.9)
    assert power(5000, least_effect(bias), 2, alpha=1e-4) >= 0.9
    assert power(5000, least_effect(bias * 0.9999), 2, alpha=1e-4) < 0.9


def test_evidence_is_the_mean_of_seven_dirichlet_alternatives():
    counts = np.array([9, 2, 1])
    ratios = [
        dirichlet_multinomial.pmf(counts, 10.0**power * LAW, 12) / multinomial.pmf(counts, 12, LAW)
        for power in range(7)
    ]
    assert log_evidence(counts, LAW) == pytest.approx(math.log(np.mean(ratios)))
    assert log_evidence(np.array([9, 0, 3]), np.array([0.5, 0.0, 0.5])) == pytest.approx(
        log_evidence(np.array([9, 3]), np.array([0.5, 0.5]))
    )


def test_a_sequential_test_asks_for_batches_and_a_rest():
    asked = []

    def fair(size):
        asked.append(size)
        return np.array([size // 2, size - size // 2])

    half = np.array([0.5, 0.5])
    sequential_test(fair, half, batch=400, max_samples=1000)
    assert asked == [400, 400, 200]
    asked.clear()
    assert sequential_test(fair, half).num_samples == 1_000_000
    assert asked == [10_000] * 100
    assert sequential_test(fair, half, batch=1, max_samples=1).num_samples == 1
    for wrong in ({"alpha": 0.0}, {"alpha": 1.0}, {"batch": 0}, {"max_samples": 0}):
        with pytest.raises(InputError, match=r"must be within \(0, 1\), batch"):
            sequential_test(fair, half, **wrong)


def test_a_sequential_test_ends_at_the_first_look_that_suffices():
    skew, half = np.array([90, 10]), np.array([0.5, 0.5])
    first = log_evidence(skew, half)
    for alpha, looks in ((math.exp(-first + 1e-9), 1), (math.exp(-first - 1e-9), 2)):
        found = sequential_test(lambda size: skew, half, alpha=alpha, batch=100, max_samples=10**4)
        assert found.biased
        assert found.num_samples == 100 * looks


def test_an_interval_stays_within_zero_and_one():
    found = distance(np.array([0, 3]), np.array([1.0, 0.0]))
    assert (found.estimate, found.high, found.confidence) == (1.0, 1.0, 0.99)
    assert distance(np.array([50, 50]), np.array([0.5, 0.5])).low == 0.0
    lone = distance(np.array([100]), np.array([1.0]))
    assert lone.high == pytest.approx(math.sqrt(math.log(200) / 200))


def test_outcomes_that_neither_law_has_add_no_effect():
    size = effect(np.array([0.5, 0.5, 0.0]), np.array([0.6, 0.4, 0.0]))
    assert size == pytest.approx(2 * 0.1**2 / 0.5)
