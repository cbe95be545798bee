"""Sequential Temperature Scaling of confidences, and how calibrated they are before and after.

STS walks the block left to right: with the temperatures of earlier positions fixed, it takes for
position k the temperature whose cumulative product a_k = prod sigmoid(logit(c_j) / T_j) has the
least expected calibration error against "the whole prefix 1..k was accepted". Fit and evaluation
use disjoint prompts, and records that a scheduler cut short are refused: what it did not verify is
missing because of the confidence itself.

Axes: N blocks, G positions, R resamples.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from scipy.stats import rankdata

from specsim.acceptance.trace import DenseTrace
from specsim.errors import InputError
from specsim.inputs import Node, is_number, parse_json

Floats = NDArray[np.float64]
BINS = 20
GRID: Floats = np.exp(np.linspace(np.log(0.2), np.log(5.0), 81))


@dataclass(frozen=True, slots=True)
class Records:
    """Fully verified blocks with what the confidence head said of them.

    Attributes:
        confidence_NG: P(draft k accepted | earlier ones were), inside (0, 1).
        num_accepted_N: accepted drafts.
        group_N: prompt of each block; groups are split and resampled whole.
        domain_N: index of the domain.
        domain_names: their names.
    """

    confidence_NG: Floats
    num_accepted_N: NDArray[np.int64]
    group_N: NDArray[np.int64]
    domain_N: NDArray[np.int64]
    domain_names: tuple[str, ...]

    @property
    def gamma(self) -> int:
        """Positions."""
        return int(self.confidence_NG.shape[1])

    def prefix_NG(self) -> NDArray[np.bool_]:
        """Whether the whole prefix 1..k of each block was accepted."""
        return self.num_accepted_N[:, None] > np.arange(self.gamma)

    def take(self, keep: NDArray[np.bool_]) -> Records:
        """The blocks where `keep` holds."""
        return replace(
            self,
            confidence_NG=self.confidence_NG[keep],
            num_accepted_N=self.num_accepted_N[keep],
            group_N=self.group_N[keep],
            domain_N=self.domain_N[keep],
        )

    def domain(self, name: str) -> Records:
        """The blocks of one domain."""
        return self.take(self.domain_N == self.domain_names.index(name))


def records_of_rounds(
    confidence_NG: Floats,
    num_accepted_N: NDArray[np.int64],
    verify_len_N: NDArray[np.int64],
    group_N: NDArray[np.int64],
) -> Records:
    """Make records of served rounds.

    Raises:
        InputError: a round verified less than the whole block, so its outcome is censored.
    """
    gamma = confidence_NG.shape[1]
    cut = verify_len_N < gamma
    if cut.any():
        row = int(np.argmax(cut))
        raise InputError(
            f"{int(cut.sum())} of {len(cut)} rounds were cut by a scheduler (round {row} verified "
            f"{verify_len_N[row]} of {gamma} drafts): "
            "calibrate on rounds that verified whole blocks"
        )
    domain = np.zeros(len(cut), dtype=np.int64)
    return Records(confidence_NG, num_accepted_N, group_N, domain, ("all",))


def records_of_trace(trace: DenseTrace) -> Records:
    """Make records of a dense trace: its whole blocks, grouped by sequence.

    Raises:
        InputError: a sequence's end cut every block.
    """
    whole = trace.whole_block_N()
    if not whole.any():
        raise InputError(
            "every block of this trace is cut by its sequence's end: capture longer texts"
        )
    lengths = np.diff(trace.sequence_offset_S1)
    return Records(
        trace.confidence_NG[whole].astype(np.float64),
        trace.num_accepted_N[whole].astype(np.int64),
        np.repeat(np.arange(trace.num_sequences), lengths)[whole],
        trace.domain_N()[whole].astype(np.int64),
        trace.domain_names,
    )


def split(
    records: Records, rng: np.random.Generator, *, fit: float = 0.5
) -> tuple[Records, Records]:
    """Split into fit and evaluation records with no prompt in both.

    Raises:
        InputError: there are fewer than two prompts.
    """
    groups = np.unique(records.group_N)
    if len(groups) < 2:
        raise InputError(f"{len(groups)} prompt(s): at least 2 are needed to fit and to evaluate")
    count = min(len(groups) - 1, max(1, round(fit * len(groups))))
    chosen = rng.permutation(groups)[:count]
    inside = np.isin(records.group_N, chosen)
    return records.take(inside), records.take(~inside)


def scale(confidence_NG: Floats, temperature_G: Floats) -> Floats:
    """Divide the logit of every confidence by its position's temperature."""
    scaled: Floats = expit(logit(confidence_NG) / temperature_G)
    return scaled


def ece(predicted_N: Floats, happened_N: NDArray[np.bool_], *, bins: int = BINS) -> float:
    """Expected calibration error over equal-width bins: sum of `|mean said - mean seen| n / N`."""
    index = np.minimum((predicted_N * bins).astype(np.int64), bins - 1)
    gap = np.bincount(index, weights=predicted_N - happened_N, minlength=bins)
    return float(np.abs(gap).sum() / len(predicted_N))


def brier(predicted_N: Floats, happened_N: NDArray[np.bool_]) -> float:
    """Mean squared error of the prediction."""
    return float(np.mean((predicted_N - happened_N) ** 2))


def auc(predicted_N: Floats, happened_N: NDArray[np.bool_]) -> float:
    """Area under the ROC curve, ties counted half; NaN if all outcomes are the same."""
    hits = int(happened_N.sum())
    misses = len(happened_N) - hits
    if hits == 0 or misses == 0:
        return float("nan")
    ranks = rankdata(predicted_N)
    return float((ranks[happened_N].sum() - hits * (hits + 1) / 2) / (hits * misses))


@dataclass(frozen=True, slots=True)
class Reliability:
    """A reliability curve: bins with blocks in them; mean said, share seen, and blocks of each."""

    said: Floats
    seen: Floats
    count: NDArray[np.int64]


def reliability(
    predicted_N: Floats, happened_N: NDArray[np.bool_], *, bins: int = BINS
) -> Reliability:
    """Bin predictions by equal width and compare with what happened."""
    index = np.minimum((predicted_N * bins).astype(np.int64), bins - 1)
    count = np.bincount(index, minlength=bins)
    full = count > 0
    said = np.bincount(index, weights=predicted_N, minlength=bins)[full] / count[full]
    seen = np.bincount(index, weights=happened_N, minlength=bins)[full] / count[full]
    return Reliability(said, seen, count[full])


def fit_sts(records: Records, *, grid: Floats = GRID, penalty: float = 0.002) -> Floats:
    """Fit one temperature a position, left to right.

    Args:
        records: the fit split.
        grid: temperatures tried.
        penalty: added to the ECE times `|log T|`. Without one, confidences that are calibrated
            already are "corrected" towards sampling noise.

    Returns:
        Temperatures [G].
    """
    happened_NG = records.prefix_NG()
    survived_N = np.ones(len(records.num_accepted_N))
    logit_NG = logit(records.confidence_NG)
    chosen = np.ones(records.gamma)
    for k in range(records.gamma):
        cost = [
            ece(survived_N * expit(logit_NG[:, k] / t), happened_NG[:, k])
            + penalty * abs(np.log(t))
            for t in grid
        ]
        chosen[k] = grid[int(np.argmin(cost))]
        survived_N = survived_N * expit(logit_NG[:, k] / chosen[k])
    return chosen


@dataclass(frozen=True, slots=True)
class Quality:
    """How calibrated one position's cumulative survival is; `ece_interval` is a 95 % bootstrap."""

    position: int
    ece: float
    ece_interval: tuple[float, float]
    conditional_ece: float
    brier: float
    auc: float
    conditional_auc: float
    blocks: int


def bootstrap_ece(
    predicted_N: Floats,
    happened_N: NDArray[np.bool_],
    group_N: NDArray[np.int64],
    rng: np.random.Generator,
    *,
    resamples: int = 400,
    bins: int = BINS,
) -> tuple[float, float]:
    """95 % percentile interval of the ECE, prompts resampled whole."""
    _, group = np.unique(group_N, return_inverse=True)
    groups = int(group.max()) + 1
    index = np.minimum((predicted_N * bins).astype(np.int64), bins - 1)
    cell = group * bins + index
    gap = np.bincount(cell, weights=predicted_N - happened_N, minlength=groups * bins)
    size = np.bincount(group, minlength=groups)
    weight = rng.multinomial(groups, np.full(groups, 1 / groups), size=resamples)
    values = np.abs(weight @ gap.reshape(groups, bins)).sum(axis=1) / (weight @ size)
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def evaluate(records: Records, temperature_G: Floats, rng: np.random.Generator) -> list[Quality]:
    """Measure every position of `records` after scaling (all ones: as the head said it)."""
    confidence = scale(records.confidence_NG, temperature_G)
    survival = np.cumprod(confidence, axis=1, dtype=np.float64)
    happened = records.prefix_NG()
    out = []
    for k in range(records.gamma):
        reached = records.num_accepted_N >= k
        ran = bool(reached.any())
        out.append(
            Quality(
                position=k + 1,
                ece=ece(survival[:, k], happened[:, k]),
                ece_interval=bootstrap_ece(survival[:, k], happened[:, k], records.group_N, rng),
                conditional_ece=ece(confidence[reached, k], happened[reached, k])
                if ran
                else float("nan"),
                brier=brier(survival[:, k], happened[:, k]),
                auc=auc(survival[:, k], happened[:, k]),
                conditional_auc=auc(confidence[reached, k], happened[reached, k]),
                blocks=len(reached),
            )
        )
    return out


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted temperatures with the evidence, as SGLang's calibration file holds it."""

    temperature_G: Floats
    dataset: str
    num_samples: int
    ece_before: float
    ece_after: float


def to_sglang(calibration: Calibration) -> str:
    """Return SGLang's calibration JSON (`dspark_sts.py`); the ECEs are means over positions."""
    body = {
        "temperatures": [round(float(t), 6) for t in calibration.temperature_G],
        "dataset": calibration.dataset,
        "num_samples": calibration.num_samples,
        "ece_before": calibration.ece_before,
        "ece_after": calibration.ece_after,
    }
    return json.dumps(body, indent=2) + "\n"


def from_sglang(text: str, *, where: str, gamma: int) -> Calibration:
    """Read SGLang's calibration JSON.

    Args:
        text: the file's text.
        where: its name, for errors.
        gamma: drafts a block that it must be for.

    Raises:
        InputError: not that format, a temperature that is not positive, or another gamma.
    """
    body = Node(parse_json(text, where), where)
    values = body.get("temperatures").value if body.has("temperatures") else None
    if not isinstance(values, list) or not values or not all(map(_positive, values)):
        raise InputError(
            f"{where}: `temperatures` must be a list of positive numbers, found {values!r}"
        )
    if len(values) != gamma:
        raise InputError(
            f"{where}: {len(values)} temperatures, but gamma is {gamma}: fit again for this gamma"
        )
    return Calibration(
        np.array(values, dtype=np.float64),
        body.get("dataset").text(),
        0 if (count := body.maybe("num_samples")) is None else count.whole(),
        _mean(body.maybe("ece_before")),
        _mean(body.maybe("ece_after")),
    )


def _mean(found: Node | None) -> float:
    """Return a number, or the mean of a list of them; NaN where it is absent."""
    if found is None:
        return math.nan
    each = found.items() if isinstance(found.value, list) else [found]
    return float(np.mean([value.number() for value in each])) if each else math.nan


def _positive(value: object) -> bool:
    return is_number(value) and value > 0  # type: ignore[operator]


def calibrate(
    records: Records, rng: np.random.Generator, *, dataset: str, penalty: float = 0.002
) -> tuple[Calibration, list[Quality], list[Quality]]:
    """Fit on half of the prompts, evaluate on the others.

    Returns:
        The calibration, and the qualities of the evaluation half before and after.
    """
    fit, held_out = split(records, rng)
    temperature = fit_sts(fit, penalty=penalty)
    before = evaluate(held_out, np.ones(records.gamma), rng)
    after = evaluate(held_out, temperature, rng)
    return (
        Calibration(
            temperature,
            dataset,
            len(fit.num_accepted_N),
            float(np.mean([q.ece for q in before])),
            float(np.mean([q.ece for q in after])),
        ),
        before,
        after,
    )


def apply(trace: DenseTrace, temperature_G: Floats) -> DenseTrace:
    """Return the trace with scaled confidences; its metadata says so.

    Raises:
        InputError: gamma differs.
    """
    if len(temperature_G) != trace.gamma:
        raise InputError(f"{len(temperature_G)} temperatures for a trace of gamma {trace.gamma}")
    scaled = scale(np.clip(trace.confidence_NG.astype(np.float64), 1e-4, 1 - 1e-4), temperature_G)
    metadata = dict(trace.metadata) | {"sts_temperatures": [float(t) for t in temperature_G]}
    kept = np.clip(scaled, 1e-4, 0.9995).astype(np.float16)
    return replace(trace, confidence_NG=kept, metadata=metadata)
