"""Every policy beyond the first ones: what it declares of itself is what enumeration finds.

p = target law, q = draft law.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from specsim.lossless import leaks
from specsim.lossless.conformance import (
    CHECKS,
    check_lengths,
    check_prefix_rule,
    judge,
)
from specsim.lossless.enumerate import enumerate_world
from specsim.schedulers import CONFIGS
from specsim.schedulers.base import BatchView, IntArray, Reads, Scheduler
from specsim.schedulers.engines import EnginePlanner
from specsim.schedulers.group import allocate_group
from specsim.schedulers.kernels import ascending
from specsim.schedulers.lookahead import Lookahead, learn
from specsim.schedulers.oracle import Oracle
from specsim.schedulers.per_request import Tetris
from specsim.schedulers.wrapped import Calibrated, Gated

BY_KIND: dict[str, Any] = {c.model_fields["kind"].annotation.__args__[0]: c for c in CONFIGS}
GREEDY = {"kind": "greedy"}
ASYNC = {"kind": "async_topk", "lag": 1}


def make(kind: str, **values: Any) -> Callable[[], Scheduler]:
    return BY_KIND[kind](kind=kind, **values).build


# Parameters under which a rule changes its mind as often as it can in a few small steps.
LOSSLESS: dict[str, Callable[[], Scheduler]] = {
    "batch_table": make("batch_table", ranges=[(1, 1, 2), (2, 9, 1)]),
    "goodput": make("goodput", every=1, start=0.9, memory=0.2),
    "adaptive_steps": make(
        "adaptive_steps", slots=[{"from_requests": 1, "steps": (0, 1, 2)}], every=1, warmup=0
    ),
    "bandit": make("bandit", memory=0.5),
    "specdec_pp": make("specdec_pp", stop=0.5),
    "fixed_budget": make("tetris", k=1, score="confidence"),
    "dcut": make("dcut", lag=1),
    "uniform": make("uniform", lag=1),
    "min_gain": make("min_gain", lag=1),
    "tiers": make("tiers", lag=1),
    "vllm": make("vllm"),
    "vllm_probes": make("vllm", probe_tokens=(1, 3)),
    "sglang": make("sglang", lag=1, tiers=(2, 4)),
    "trtllm": make("trtllm"),
    "trtllm_lengths": make("trtllm", lengths=(1, 2)),
    "lookahead": make("lookahead"),
    "lookahead_quick": make("lookahead", prior=0.01, memory=0.5),
    "calibrated_greedy": make("calibrated", inner=GREEDY, refit_every=1, distort=2.0),
    "calibrated_async": make("calibrated", inner=ASYNC, refit_every=1, full_rows=0),
    "gated_greedy": make("gated", inner=GREEDY, retry=2, memory=0.0, prior=0.0),
    "gated_async": make("gated", inner=ASYNC, retry=2, memory=0.5, prior=0.5),
}


@pytest.mark.parametrize("name", LOSSLESS)
def test_what_says_that_it_is_lossless_is(name: str) -> None:
    factory = LOSSLESS[name]
    assert factory().lossless
    verdict = judge(factory, count=4)
    assert verdict.lossless, verdict.found and verdict.found.peek and verdict.found.peek.describe()
    assert verdict.biased == 0


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("check", CHECKS[:-1], ids=lambda check: check.__name__)
def test_protocol_of_the_lossless(name: str, check: Callable[[Any], None]) -> None:
    check(LOSSLESS[name])


@pytest.mark.parametrize("kind", ["uniform", "min_gain", "tiers"])
def test_without_a_lag_it_leaks_and_says_so(kind: str) -> None:
    factory = make(kind, lag=0)
    assert not factory().lossless
    verdict = judge(factory, count=10)
    assert verdict.found is not None
    assert verdict.biased > 0


def test_optimal_is_the_papers_counterexample() -> None:
    found = enumerate_world(leaks.appendix_a(), make("optimal"))
    assert not make("optimal")().lossless
    assert found.first_token(1)[0] == (Fraction(17, 20), Fraction(3, 20))


def test_dcut_leaks_on_live_scores_and_not_on_old_ones() -> None:
    live, old = make("dcut", lag=0), make("dcut", lag=1)
    assert not live().lossless
    assert enumerate_world(leaks.dcut(), live, num_tokens=3).bias > 0
    assert enumerate_world(leaks.dcut(), old, num_tokens=3).exact
    one_share = make("dcut", lag=0, shares=(0.5,))
    assert one_share().lossless
    assert enumerate_world(leaks.dcut(), one_share, num_tokens=3).exact


def test_vllm_leaks_if_its_topk_puts_later_positions_first() -> None:
    seconds = (Fraction(0), *[Fraction(1)] * 3, *[Fraction(9)] * 3)  # room for one draft
    world = dataclasses.replace(leaks.tie(), verify_s_B=seconds)
    assert enumerate_world(world, make("vllm", ties="row")).exact
    later = make("vllm", ties="later")
    assert not later().lossless
    assert enumerate_world(world, later).bias > 0


def test_specdec_pp_may_read_the_token_that_it_keeps() -> None:
    verdict = judge(make("specdec_pp", stop=0.5), count=4, post_token=True)
    assert verdict.lossless


@dataclass
class ShowsSampled:
    """Hands a rule the confidences of a post-token world as q of the sampled tokens."""

    inner: Tetris
    reads = frozenset({"live"})
    lag = 0
    lossless = False

    def plan(self, view: BatchView) -> IntArray:
        shown = BatchView(
            step=view.step,
            gamma=view.gamma,
            request_id_R=view.request_id_R,
            base_tokens=view.base_tokens,
            verify_s_B=view.verify_s_B,
            fixed_s=view.fixed_s,
            sampled_RG=view.confidence_RG,
        )
        return self.inner.plan(shown)


@dataclass(frozen=True)
class TetrisHalf(Tetris):
    """C = k R with k = 1/2: one slot for two requests."""

    k: int = 0

    def plan(self, view: BatchView) -> IntArray:
        score_RG = np.cumprod(view.sampled_RG, axis=1)
        row = int(np.argmax(score_RG[:, 0]))
        return (np.arange(view.num_requests) == row).astype(np.int64)


def test_tetris_leaks_between_two_requests_and_not_with_one() -> None:
    assert not Tetris(1).lossless
    found = enumerate_world(leaks.tetris(), lambda: ShowsSampled(TetrisHalf()))
    assert found.first_token(1)[0] == (Fraction(77, 100), Fraction(23, 100))
    alone = enumerate_world(leaks.tetris(num_requests=1), lambda: ShowsSampled(Tetris(1)))
    assert alone.exact
    # The rule itself, with its whole budget, on worlds where two drafts compete for one slot each.
    verdict = judge(lambda: ShowsSampled(Tetris(1)), count=12, post_token=True)
    assert verdict.biased > 0


def test_the_oracle_emits_another_law() -> None:
    """gamma 1, p = (.7, .3), q = (.5, .5): what is accepted is emitted, else p is drawn anew."""
    p, q = (Fraction(7, 10), Fraction(3, 10)), (Fraction(1, 2), Fraction(1, 2))
    kept = [min(a, b) for a, b in zip(p, q, strict=True)]
    emitted = [k + (1 - sum(kept)) * a for k, a in zip(kept, p, strict=True)]
    assert sum(emitted) == 1
    assert emitted == [Fraction(64, 100), Fraction(36, 100)]
    assert not Oracle().lossless
    assert Oracle().bound


@dataclass(frozen=True)
class TwoRanks:
    """The lockstep equaliser over a world's requests, every other one on the second rank."""

    lag: int = 1

    @property
    def reads(self) -> frozenset[Reads]:
        return frozenset({"live", "lagged"}) if self.lag else frozenset({"live"})

    @property
    def lossless(self) -> bool:
        return self.lag > 0

    def plan(self, view: BatchView) -> IntArray:
        deciding_RG = view.lagged_survival_RG if self.lag else view.survival_RG
        ranks = [slice(0, None, 2), slice(1, None, 2)]
        live = [view.survival_RG[rows] for rows in ranks]
        plans = allocate_group(
            [ascending(deciding_RG[rows]) for rows in ranks],
            live,
            base_tokens_D=[max(len(rows), 1) for rows in live],
            verify_s_B=view.verify_s_B,
            fixed_s_D=[view.fixed_s] * 2,
        )
        verify_len_R = np.zeros(view.num_requests, dtype=np.int64)
        for rows, plan in zip(ranks, plans, strict=True):
            verify_len_R[rows] = plan
        return verify_len_R


def test_the_equaliser_is_lossless_on_old_survivals_and_not_on_live_ones() -> None:
    assert judge(TwoRanks, count=10).lossless
    assert judge(lambda: TwoRanks(lag=0), count=10).biased > 0


# Planted liars: small changes to the rules above that the same battery must catch.


@dataclass(slots=True)
class LearnsFirst(Lookahead):
    """Takes note of this step's confidences before it plans."""

    def plan(self, view: BatchView) -> IntArray:
        if self._sum_VG is None:
            super(LearnsFirst, self).plan(view)
        bin_RG = np.minimum((view.confidence_RG * 16).astype(np.int64), 15)
        learn(view.confidence_RG, bin_RG, 0.01, self._sum_VG, self._weight_VG)
        return super(LearnsFirst, self).plan(view)


@dataclass(slots=True)
class GatesOnLive(Gated):
    """Closes the gate by the live survivals of the whole block."""

    def drafting(self, view: BatchView) -> Any:
        return view.survival_RG[:, -1] > 0.3


class CalibratesOnLive(Calibrated):
    """Finds its temperature from this step's own confidences."""

    def plan(self, view: BatchView) -> IntArray:
        self.distort = 4.0 if float(view.confidence_RG.mean()) > 0.6 else 1.0
        return super().plan(view)


LIARS: dict[str, Callable[[], Scheduler]] = {
    "learns first": lambda: LearnsFirst(prior=0.01, memory=0.5),
    "gates on live": lambda: GatesOnLive(make("greedy")(), 0.2, 2, 0.5, 0.5, 0.0),
    "calibrates on live": lambda: CalibratesOnLive(make("threshold", threshold=0.6)(), 1, 0, 0, 1),
}


@pytest.mark.parametrize("name", LIARS)
def test_planted_liars_are_caught(name: str) -> None:
    verdict = judge(LIARS[name], count=12)
    assert verdict.found is not None


def test_a_planner_that_is_out_of_range_is_named() -> None:
    class TooLong(EnginePlanner):
        def plan(self, view: BatchView) -> IntArray:
            return super().plan(view) + view.gamma

    with pytest.raises(AssertionError, match="verify length"):
        check_lengths(lambda: TooLong(lag=1))
    check_prefix_rule(lambda: EnginePlanner(lag=1))
