"""A parametric acceptance model: easy and hard requests, easy and hard tokens, a head that errs.

Draft k of a block is accepted, given that drafts 1..k-1 were, with probability

    c_k = sigmoid(m_k + difficulty_sd * z + noise_sd * g(e_k)),   g(e) = (exp(skew e) - 1) / skew,

where z is the request's own standard normal (it persists along the request, so some requests are
hard throughout), and e_k is a fresh one for each draft; `skew` > 0 makes surely accepted tokens
common. m_k is solved so that replay with full verification shows the wanted conditional acceptance
at every position. The head reports sigmoid(scale_k logit(c_k) + shift_k + noise_k n) instead of
c_k; with scale 1, shift 0 and noise 0 it is perfectly calibrated.

Replay visits hard requests more often (they need more rounds for the same text), so m_k is solved
under weights 1 / acceptance length, which is what counting rounds, as the paper does, amounts to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from specsim.acceptance.presets import PRESETS, Preset
from specsim.acceptance.trace import DenseTrace
from specsim.errors import InputError
from specsim.registry import Config
from specsim.rng import stream

FloatArray = NDArray[np.float64]
Probability = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Spread = Annotated[float, Field(ge=0, le=6)]

_NODES = 48
_LOGIT_LIMIT = 30.0


@dataclass(frozen=True, slots=True)
class Heterogeneity:
    """How requests and tokens differ, in logits.

    Attributes:
        difficulty_sd: between requests, persistent.
        noise_sd: between drafts, independent.
        skew: g of Tukey's g distribution for the drafts; 0 is normal.
    """

    difficulty_sd: float
    noise_sd: float
    skew: float = 0.0

    def of_tokens(self, normal: FloatArray) -> FloatArray:
        """Turn standard normals into the drafts' part of the logit."""
        if self.skew:
            return self.noise_sd * np.expm1(self.skew * normal) / self.skew
        return self.noise_sd * normal


def normal_nodes() -> tuple[FloatArray, FloatArray]:
    """Return nodes and weights that integrate over a standard normal (Gauss-Hermite)."""
    node_Q, weight_Q = np.polynomial.hermite_e.hermegauss(_NODES)
    return node_Q, weight_Q / weight_Q.sum()


def normal_quantiles(count: int) -> FloatArray:
    """Return `count` equally likely standard normals, their mid quantiles, increasing."""
    from scipy.special import ndtri  # slow to import, and a run starts without it

    return np.asarray(ndtri((np.arange(count) + 0.5) / count), dtype=np.float64)


def sigmoid(logit: FloatArray) -> FloatArray:
    """Return 1 / (1 + exp(-logit))."""
    return 1.0 / (1.0 + np.exp(-logit))


def solve_means(conditional_G: FloatArray, spread: Heterogeneity) -> FloatArray:
    """Return m_k, `[G]`, so that replay shows `conditional_G` under full verification.

    Args:
        conditional_G: wanted conditional acceptance at positions 1..G, each in (0, 1).
        spread: how requests and drafts differ.
    """
    normal_Q, share_Q = normal_nodes()
    logit_ZE = spread.difficulty_sd * normal_Q[:, None] + spread.of_tokens(normal_Q)
    weight_Z = share_Q
    mean_G = np.log(conditional_G / (1 - conditional_G))
    for _ in range(60):
        survival_Z = np.ones(len(normal_Q))
        length_Z = np.ones(len(normal_Q))
        before_G = mean_G.copy()
        for k, wanted in enumerate(conditional_G):
            reach_Z = weight_Z * survival_Z
            reach_ZE = np.outer(reach_Z / reach_Z.sum(), share_Q)
            mean_G[k] = _solve_one(float(wanted), logit_ZE, reach_ZE, float(mean_G[k]))
            survival_Z = survival_Z * (sigmoid(mean_G[k] + logit_ZE) @ share_Q)
            length_Z += survival_Z
        weight_Z = share_Q / length_Z
        weight_Z /= weight_Z.sum()
        if np.abs(mean_G - before_G).max() < 1e-9:
            break
    return mean_G


def _solve_one(wanted: float, logit_ZE: FloatArray, reach_ZE: FloatArray, guess: float) -> float:
    """Find m with E[sigmoid(m + logit)] = wanted, by Newton within a bracket."""
    low, high, m = -60.0, 60.0, guess
    for _ in range(100):
        p_ZE = sigmoid(m + logit_ZE)
        found = float((reach_ZE * p_ZE).sum())
        if abs(found - wanted) < 1e-12:
            break
        low, high = (m, high) if found < wanted else (low, m)
        slope = float((reach_ZE * p_ZE * (1 - p_ZE)).sum())
        step = m + (wanted - found) / max(slope, 1e-12)
        m = step if low < step < high else (low + high) / 2
    return m


def synthesise(
    preset: Preset,
    *,
    mix: Mapping[str, float],
    gamma: int,
    sequences: int,
    anchors: int,
    seed: int,
    label: str,
    source: str,
) -> DenseTrace:
    """Draw a dense trace from the model.

    Difficulties are stratified (mid quantiles in a random order within each domain), so that a
    trace of few sequences has the whole range of them. Position k has its own streams: traces of
    different gamma agree on the drafts that they share.

    Args:
        preset: the calibration.
        mix: share of the sequences by domain; scaled to sum to 1.
        gamma: drafts a block, at least 1.
        sequences: number of sequences S.
        anchors: blocks of each.
        seed: the scenario's seed.
        label: `fitted`, `synthetic` or `assumed`; becomes the trace's status.
        source: where the numbers come from, in words.

    Raises:
        InputError: gamma exceeds the block that the calibration knows.
    """
    if preset.longest is not None and gamma > preset.longest:
        raise InputError(
            f"acceptance: gamma {gamma} is more than the {preset.longest} drafts that calibration "
            f'"{preset.name}" knows of (a drafter with that block size); use gamma 1..'
            f"{preset.longest}" + (" or another drafter_block" if preset.name == "domains" else "")
        )
    domains = tuple(d for d in preset.conditional if mix[d] > 0)
    count_D = _apportion(np.array([mix[d] for d in domains]), sequences)
    kept = [(d, int(n)) for d, n in zip(domains, count_D, strict=True) if n]
    rows = sum(n for _, n in kept) * anchors
    confidence_NG = np.empty((rows, gamma), dtype=np.float32)
    truth_NG = np.empty((rows, gamma), dtype=np.float32)
    accepted_N = np.zeros(rows, dtype=np.uint8)
    first = 0
    for domain, number in kept:
        part = slice(first, first + number * anchors)
        _fill(
            preset,
            domain,
            number,
            seed,
            confidence_NG[part],
            truth_NG[part],
            accepted_N[part],
        )
        first += number * anchors
    sequences = rows // anchors
    return DenseTrace(
        confidence_NG=confidence_NG,
        num_accepted_N=accepted_N,
        sequence_offset_S1=np.arange(sequences + 1, dtype=np.int64) * anchors,
        sequence_domain_S=np.repeat(np.arange(len(kept)), [n for _, n in kept]).astype(np.uint8),
        domain_names=tuple(d for d, _ in kept),
        accept_rate_NG=truth_NG,
        metadata={
            "status": label,
            "source": source or preset.source,
            "model": "parametric",
            "calibration": preset.name,
            "parameters": asdict(preset),
            "mix": {d: n / sequences for d, n in kept},
            "seed": seed,
        },
    )


def _fill(
    preset: Preset,
    domain: str,
    sequences: int,
    seed: int,
    confidence_NG: NDArray[np.float32],
    truth_NG: NDArray[np.float32],
    accepted_N: NDArray[np.uint8],
) -> None:
    """Draw one domain's blocks into the arrays given."""
    gamma = confidence_NG.shape[1]
    anchors = len(accepted_N) // sequences
    spread = Heterogeneity(preset.difficulty_sd, preset.noise_sd, preset.skew)
    # Solved for the whole block of the figure, whatever part of it is drawn here.
    block = max(gamma, len(preset.conditional[domain]))
    mean_G = solve_means(preset.conditional_at(domain, block), spread)[:gamma]
    name = f"acceptance/parametric/{domain}"
    order_S = stream(seed, f"{name}/difficulty").permutation(sequences)
    request_N = np.repeat(
        spread.difficulty_sd * normal_quantiles(sequences)[order_S], anchors
    ).astype(np.float32)
    alive_N = np.ones(len(accepted_N), dtype=bool)
    flat = not (spread.noise_sd or preset.head_noise_sd or spread.difficulty_sd)
    for k in range(gamma):
        rng = stream(seed, f"{name}/draft/{k + 1}")
        luck_N = rng.random(len(alive_N), dtype=np.float32)
        logit_N = request_N + np.float32(mean_G[k])
        if spread.noise_sd:
            normal_N = rng.standard_normal(len(alive_N), dtype=np.float32)
            logit_N += spread.of_tokens(normal_N)  # type: ignore[arg-type]
        np.clip(logit_N, -_LOGIT_LIMIT, _LOGIT_LIMIT, out=logit_N)
        truth_N = 1 / (1 + np.exp(-logit_N))
        if flat:
            truth_N[:] = preset.conditional_at(domain, gamma)[k]
        truth_NG[:, k] = np.where(alive_N, truth_N, np.nan)
        scale, shift, noise_sd = preset.head_at(k)
        if (scale, shift, noise_sd) == (1.0, 0.0, 0.0):
            confidence_NG[:, k] = truth_N
        else:
            said_N = np.float32(scale) * logit_N + np.float32(shift)
            if noise_sd:
                head = stream(seed, f"{name}/head/{k + 1}")
                said_N += np.float32(noise_sd) * head.standard_normal(
                    len(alive_N), dtype=np.float32
                )
            confidence_NG[:, k] = 1 / (1 + np.exp(-said_N))
        alive_N &= luck_N < truth_N
        accepted_N += alive_N


def _apportion(share_D: FloatArray, total: int) -> NDArray[np.int64]:
    """Split `total` in proportion to `share_D` into whole numbers (largest remainders)."""
    exact_D = share_D / share_D.sum() * total
    count_D: NDArray[np.int64] = np.floor(exact_D).astype(np.int64)
    remainder_D = exact_D - count_D
    for d in np.argsort(-remainder_D, kind="stable")[: total - int(count_D.sum())]:
        count_D[d] += 1
    return count_D


Calibration = Literal["domains", "gsm8k", "humaneval", "mt_bench", "alpaca", "constant"]


class ParametricConfig(Config):
    """Blocks from the parametric model, under a calibration to published figures.

    `domains` is Figure 2 (three domains, perfectly calibrated head), `gsm8k`, `humaneval` and
    `mt_bench` are Figure 5, `alpaca` is Figure 6, each fitted to its own figure alone; `constant`
    takes `conditional_acceptance` from the scenario.
    """

    kind: Literal["parametric"]
    calibration: Calibration
    mix: dict[str, Share] | None = Field(
        default=None,
        min_length=1,
        description="Share of the requests by domain (domains only); equal if left out.",
    )
    conditional_acceptance: tuple[Probability, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="P(draft k accepted | earlier ones were) at k = 1, 2, ..; the last goes on "
        "(constant only).",
    )
    drafter_block: Literal[3, 7, 11, 15] | None = Field(
        default=None,
        description="Drafts a block that the drafter was trained for (domains only; Figure 4); 7 "
        "if left out.",
    )
    difficulty_sd: Spread | None = Field(
        default=None, description="Spread between requests, logits (domains and constant only)."
    )
    noise_sd: Spread | None = Field(
        default=None, description="Spread between drafts, logits (domains and constant only)."
    )
    sequences: int = Field(default=512, ge=1, le=65_536, description="Sequences to synthesise.")
    anchors: int = Field(
        default=1024,
        ge=16,
        le=1_000_000,
        description="Blocks of each; a longer request goes on in another sequence, of another "
        "difficulty.",
    )
    label: Literal["fitted", "synthetic", "assumed"] = Field(
        default="synthetic", description="What kind of numbers mix and spreads are."
    )
    source: str = Field(default="", max_length=500, description="Where they come from.")

    @model_validator(mode="after")
    def _consistent(self) -> ParametricConfig:
        constant, domains = self.calibration == "constant", self.calibration == "domains"
        if constant and self.conditional_acceptance is None:
            raise _cross("conditional_acceptance", "calibration constant needs it: add a list")
        if not constant and self.conditional_acceptance is not None:
            raise _cross("conditional_acceptance", "is of calibration constant only; leave it out")
        for name in ("mix", "drafter_block"):
            if not domains and getattr(self, name) is not None:
                raise _cross(name, "is of calibration domains only; leave it out")
        for name in ("difficulty_sd", "noise_sd"):
            if not (domains or constant) and getattr(self, name) is not None:
                raise _cross(
                    name,
                    "would undo the fit of this calibration; it is of domains and constant only",
                )
        if self.mix is not None:
            known = PRESETS["domains"].conditional
            for domain in self.mix:
                if domain not in known:
                    raise _cross("mix", f'"{domain}" is no domain; legal are {", ".join(known)}')
            if sum(self.mix.values()) <= 0:
                raise _cross("mix", "the shares sum to 0; at least one must be above 0")
        if self.sequences * self.anchors > 20_000_000:
            raise _cross(
                "sequences",
                f"{self.sequences} x {self.anchors} anchors are more than 20000000; use fewer",
            )
        return self

    def preset(self) -> Preset:
        """Return the calibration with this config's changes."""
        if self.calibration == "constant":
            found = Preset(
                name="constant",
                conditional={"all": self.conditional_acceptance or ()},
                source="given in the scenario",
            )
        elif self.drafter_block in (None, 7):
            found = PRESETS[self.calibration]
        else:
            found = PRESETS[f"domains_block{self.drafter_block}"]
        changed = {
            name: value
            for name in ("difficulty_sd", "noise_sd")
            if (value := getattr(self, name)) is not None
        }
        return replace(found, **changed)

    def build(self, *, seed: int, gamma: int, locate: Callable[[str, str], Path]) -> DenseTrace:
        """Synthesise the trace.

        Args:
            seed: the scenario's seed.
            gamma: the policy's drafts a block.
            locate: unused; nothing is read.
        """
        preset = self.preset()
        mix = dict.fromkeys(preset.conditional, 0.0) | (
            self.mix or dict.fromkeys(preset.conditional, 1.0)
        )
        return synthesise(
            preset,
            mix=mix,
            gamma=max(gamma, 1),
            sequences=self.sequences,
            anchors=self.anchors,
            seed=seed,
            label=self.label,
            source=self.source,
        )


def _cross(at: str, message: str) -> PydanticCustomError:
    return PydanticCustomError("cross_field", "{message}", {"at": at, "message": message})
