"""Counting evidence against a law: G-test, exact multinomial, distance with interval, power.

p = target law. Counts are of independent samples; the null hypothesis is that they follow p.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Not scipy.stats: it takes half a second to import.
from scipy.special import chdtrc, chdtri, chndtr, gammaln

from specsim.errors import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

POOL_BELOW = 5.0
COMPOSITION_LIMIT = 5_000_000
CONCENTRATIONS = (1.0, 10.0, 1e2, 1e3, 1e4, 1e5, 1e6)


def _checked(counts_V: Ints, law_V: Floats) -> tuple[Floats, Floats]:
    counts, law = np.asarray(counts_V, dtype=np.float64), np.asarray(law_V, dtype=np.float64)
    if counts.shape != law.shape or counts.ndim != 1:
        raise InputError(f"{counts.shape} counts against a law of {law.shape}: the same [V] is due")
    if not ((counts >= 0).all() and (law >= 0).all()):
        raise InputError(f"counts and law must be at least 0, found {counts.min()} and {law.min()}")
    if not abs(law.sum() - 1) <= 1e-9:
        raise InputError(f"the law sums to {law.sum()}, it must sum to 1")
    return counts, law


def g_test(counts_V: Ints, law_V: Floats) -> tuple[float, int, float]:
    """Return G, its degrees of freedom and the chi-square p-value.

    Cells expected fewer than 5 times are pooled. A count where p is zero gives (inf, df, 0.0).

    Args:
        counts_V: how often each outcome was seen.
        law_V: its probability under the null, `[V]`.
    """
    counts, law = _checked(counts_V, law_V)
    possible = law > 0
    df = max(int(possible.sum()) - 1, 0)
    if (counts[~possible] > 0).any():
        return math.inf, df, 0.0
    counts, expected = counts[possible], law[possible] * counts.sum()
    small = expected < POOL_BELOW
    if small.any() and (small.sum() > 1 or not small.all()):
        counts = np.append(counts[~small], counts[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
    df = len(counts) - 1
    if df < 1:
        return 0.0, 0, 1.0
    seen = counts > 0
    g = 2.0 * float((counts[seen] * np.log(counts[seen] / expected[seen])).sum())
    g = max(g, 0.0)
    return g, df, float(chdtrc(df, g))


def exact_multinomial(counts_V: Ints, law_V: Floats) -> float:
    """Return the exact p-value: the probability of all counts no likelier than those seen.

    Raises:
        InputError: more than 5 million count vectors; use `g_test` then.
    """
    counts, law = _checked(counts_V, law_V)
    if (counts[law == 0] > 0).any():
        return 0.0
    counts, law = counts[law > 0], law[law > 0]
    total, cells = int(counts.sum()), len(counts)
    compositions = math.comb(total + cells - 1, cells - 1)
    if compositions > COMPOSITION_LIMIT:
        raise InputError(
            f"{total} samples over {cells} outcomes make {compositions} count vectors, more than "
            f"{COMPOSITION_LIMIT}: use the G-test, or fewer samples"
        )
    # Build log-probabilities cell by cell: rows are (samples left, log weight so far).
    left = np.array([total])
    weight = np.array([float(gammaln(total + 1))])
    for cell in range(cells - 1):
        spread = left + 1
        start = np.repeat(np.cumsum(spread) - spread, spread)
        taken = np.arange(int(spread.sum())) - start
        weight = np.repeat(weight, spread) + taken * math.log(law[cell]) - gammaln(taken + 1)
        left = np.repeat(left, spread) - taken
    weight = weight + left * math.log(law[-1]) - gammaln(left + 1)
    seen = float(gammaln(total + 1) + (counts * np.log(law) - gammaln(counts + 1)).sum())
    return min(1.0, float(np.exp(weight[weight <= seen + 1e-9]).sum()))


@dataclass(frozen=True, slots=True)
class Distance:
    """Total variation between a sampled law and p: estimate, and an interval that covers it."""

    estimate: float
    low: float
    high: float
    confidence: float


def distance(counts_V: Ints, law_V: Floats, *, confidence: float = 0.99) -> Distance:
    """Return the plug-in total variation with a distribution-free interval.

    One sample moves the estimate by at most 1/N, so it lies within t = sqrt(ln(2/alpha) / 2N) of
    its mean (McDiarmid); its mean is at least the truth and at most sqrt((V-1)/N)/2 above it.
    """
    counts, law = _checked(counts_V, law_V)
    total = counts.sum()
    estimate = 0.5 * float(np.abs(counts / total - law).sum())
    slack = math.sqrt(math.log(2 / (1 - confidence)) / (2 * total))
    upward = 0.5 * math.sqrt((len(law) - 1) / total)
    return Distance(
        estimate, max(0.0, estimate - slack - upward), min(1.0, estimate + slack), confidence
    )


def effect(law_V: Floats, other_V: Floats) -> float:
    """Return the chi-square effect size sum((r - p)^2 / p) of an alternative r."""
    law, other = np.asarray(law_V, dtype=np.float64), np.asarray(other_V, dtype=np.float64)
    if ((law == 0) & (other > 0)).any():
        return math.inf
    possible = law > 0
    return float(((other[possible] - law[possible]) ** 2 / law[possible]).sum())


def power(num_samples: int, size: float, df: int, *, alpha: float) -> float:
    """Return the chance that the G-test at level alpha sees an effect of this chi-square size."""
    if math.isinf(size):
        return 1.0
    return float(1 - chndtr(chdtri(df, alpha), df, max(num_samples * size, 1e-12)))


def least_effect(bias: float) -> float:
    """Return the smallest effect size of any law at total variation `bias` from p.

    Moving mass `bias` from a set of probability w to the rest costs bias^2 / (w (1 - w)), which is
    least, 4 bias^2, where w is one half: planning for it is on the safe side.
    """
    if not 0 < bias <= 1:
        raise InputError(f"bias {bias} must be above 0 and at most 1 (a total variation)")
    return 4 * bias * bias


def samples_needed(size: float, df: int, *, alpha: float, wanted: float = 0.9) -> int:
    """Return how many samples see an effect of this size with probability `wanted`.

    Args:
        size: from `effect` of a known alternative, or `least_effect` of a bias.
        df: outcomes with p > 0, less one.
        alpha: false-alarm rate of the test.
        wanted: power, below 1.
    """
    low, high = 1, 2
    while power(high, size, df, alpha=alpha) < wanted:
        low, high = high, high * 2
    while high - low > max(1, high // 10_000):
        middle = (low + high) // 2
        if power(middle, size, df, alpha=alpha) < wanted:
            low = middle
        else:
            high = middle
    return high


def log_evidence(counts_V: Ints, law_V: Floats) -> float:
    """Return the log of an e-value against p: a mixture of Dirichlet alternatives around p.

    Under p the e-value is a martingale with mean 1 whatever the sample size, so it exceeds
    1 / alpha with probability at most alpha at *any* time (Ville): look as often as you like.
    """
    counts, law = _checked(counts_V, law_V)
    if (counts[law == 0] > 0).any():
        return math.inf
    counts, law = counts[law > 0], law[law > 0]
    total = counts.sum()
    likelihood = float((counts * np.log(law)).sum())
    logs = []
    for concentration in CONCENTRATIONS:
        prior = concentration * law
        marginal = gammaln(concentration) - gammaln(concentration + total)
        marginal += (gammaln(prior + counts) - gammaln(prior)).sum()
        logs.append(float(marginal) - likelihood)
    return float(np.logaddexp.reduce(logs)) - math.log(len(logs))


@dataclass(frozen=True, slots=True)
class Sequential:
    """How a sequential test ended.

    Attributes:
        biased: whether the law was rejected; wrongly with probability at most `alpha`.
        num_samples: samples drawn.
        log_evidence: log of the e-value at the end.
        alpha: the stated false-alarm rate over the whole run.
        visible_bias: smallest total variation that a fixed-size G-test of `num_samples` would see
            with probability 0.9: what "not biased" means.
    """

    biased: bool
    num_samples: int
    log_evidence: float
    alpha: float
    visible_bias: float


def visible_bias(num_samples: int, df: int, *, alpha: float, wanted: float = 0.9) -> float:
    """Return the total variation that `num_samples` see with probability `wanted` (worst case)."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if middle and power(num_samples, least_effect(middle), df, alpha=alpha) >= wanted:
            high = middle
        else:
            low = middle
    return high


def sequential_test(
    sample: Callable[[int], Ints],
    law_V: Floats,
    *,
    alpha: float = 1e-6,
    batch: int = 10_000,
    max_samples: int = 1_000_000,
) -> Sequential:
    """Draw batches until the evidence against p reaches 1 / alpha, or `max_samples` are drawn.

    Args:
        sample: returns counts `[V]` of that many new samples.
        law_V: p.
        alpha: chance of ever rejecting a true p.
        batch: samples between two looks.
        max_samples: when to give up.
    """
    if not 0 < alpha < 1 or batch < 1 or max_samples < 1:
        raise InputError(
            f"alpha {alpha} must be within (0, 1), batch {batch} and max_samples {max_samples} "
            "at least 1"
        )
    counts_V = np.zeros(len(law_V), dtype=np.int64)
    drawn, evidence = 0, 0.0
    while drawn < max_samples:
        size = min(batch, max_samples - drawn)
        counts_V += sample(size)
        drawn += size
        evidence = log_evidence(counts_V, law_V)
        if evidence >= -math.log(alpha):
            break
    df = max(int((np.asarray(law_V) > 0).sum()) - 1, 1)
    return Sequential(
        evidence >= -math.log(alpha), drawn, evidence, alpha, visible_bias(drawn, df, alpha=alpha)
    )
