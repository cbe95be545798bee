"""Known cases with known answers: each is a test, a row of `reports/lossless/` and of the CLI.

p = target law, q = draft law. `lossless` of a case is the right answer, `law` the right law of the
first request's first token where one is known beforehand (derived by hand or from the paper).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from specsim.lossless import leaks, liars
from specsim.lossless.case import Case
from specsim.lossless.rejection import Law
from specsim.lossless.rule_cases import verification_cases
from specsim.lossless.worlds import World, law
from specsim.schedulers.base import Reads, SchedulerFactory
from specsim.schedulers.greedy import Greedy, PatientGreedy
from specsim.schedulers.threshold import Threshold
from specsim.schedulers.topk import AsyncTopK, GlobalSearch, Stale

LEAKY = law("17/20", "3/20")
TRUE = law("7/10", "3/10")
HALF = law("1/2", "1/2")
_LIVE: frozenset[Reads] = frozenset({"live"})
_BOTH: frozenset[Reads] = frozenset({"live", "lagged"})


def _patience(lag: int) -> SchedulerFactory:
    return lambda: PatientGreedy(1, lag, _BOTH if lag else _LIVE, lossless=lag > 0)


def _async(lag: int) -> SchedulerFactory:
    return lambda: AsyncTopK(lag)


def _appendix_a() -> list[Case]:
    def case(name: str, scheduler: str, factory: SchedulerFactory, *, exact: bool) -> Case:
        return Case(
            f"appendix-a/{name}",
            "appendix-a",
            scheduler,
            leaks.appendix_a,
            factory,
            exact,
            TRUE if exact else LEAKY,
            num_tokens=3,
        )

    return [
        case("global", "global search on live survivals", GlobalSearch, exact=False),
        case("patience-live", "greedy, patience 1, on live survivals", _patience(0), exact=False),
        case(
            "patience-lagged", "greedy, patience 1, on lagged survivals", _patience(1), exact=True
        ),
        case("early-stop", "Algorithm 1, strict early stop", Greedy, exact=True),
        case("async-lag-1", "asynchronous top-K, lag 1", _async(1), exact=True),
        case("async-lag-2", "asynchronous top-K, lag 2", _async(2), exact=True),
        case("async-lag-0", "asynchronous top-K, lag 0", _async(0), exact=False),
        case("stale", "K and lengths from one old snapshot, lag 1", lambda: Stale(1), exact=True),
    ]


def _nested() -> list[Case]:
    rows: list[tuple[str, str, SchedulerFactory, bool]] = [
        ("async-lag-1", "asynchronous top-K, lag 1", _async(1), True),
        ("async-lag-2", "asynchronous top-K, lag 2", _async(2), True),
        ("async-lag-0", "asynchronous top-K, lag 0", _async(0), False),
        ("patience-lagged", "greedy, patience 1, on lagged survivals", _patience(1), True),
        (
            "smoothed-first",
            "K smoothed over steps, the present one included",
            liars.SmoothedBudget,
            False,
        ),
        (
            "smoothed-after",
            "K smoothed over past steps",
            lambda: liars.SmoothedBudget(first=False),
            True,
        ),
    ]
    return [
        Case(f"several-rounds/{name}", "several-rounds", text, leaks.nested, made, ok, num_tokens=3)
        for name, text, made, ok in rows
    ]


def _requests() -> list[Case]:
    return [
        Case(
            "ties/position-last",
            "ties",
            "top-1, equal survivals by later position",
            leaks.tie,
            liars.TieLast,
            False,
            LEAKY,
        ),
        Case(
            "ties/position-first",
            "ties",
            "top-1, equal survivals by earlier position",
            leaks.tie,
            liars.FixedTopK,
            True,
            TRUE,
            num_tokens=2,
        ),
        Case(
            "joint/cross-peek",
            "several-requests",
            "each admitted by the other's unverified draft",
            leaks.cross,
            liars.CrossPeek,
            False,
            TRUE,
        ),
        Case(
            "joint/top-k",
            "several-requests",
            "top-1 in the same world",
            leaks.cross,
            liars.FixedTopK,
            True,
            TRUE,
            num_tokens=2,
        ),
    ]


def _post_token() -> list[Case]:
    def make(
        name: str,
        text: str,
        world: Callable[[], World],
        factory: SchedulerFactory,
        right: Law | None,
        *,
        exact: bool,
        group: str = "post-token",
        num_tokens: int = 1,
    ) -> Case:
        return Case(name, group, text, world, factory, exact, right, num_tokens)

    return [
        make(
            "post-token/drop",
            "drop the token whose own draft probability is below 1/2",
            leaks.post_token,
            lambda: Threshold(0.5, "conditional"),
            TRUE,
            exact=False,
        ),
        make(
            "post-token/keep",
            "keep that token and stop after it",
            leaks.post_token,
            liars.ThresholdKeep,
            HALF,
            exact=True,
        ),
        make(
            "post-token/tetris",
            "TETRIS: rank by the sampled token's probability, two requests, one slot",
            leaks.tetris,
            liars.FixedTopK,
            law("77/100", "23/100"),
            exact=False,
        ),
        make(
            "post-token/tetris-alone",
            "the same with one request",
            lambda: leaks.tetris(num_requests=1),
            liars.FixedTopK,
            TRUE,
            exact=True,
        ),
        make(
            "published/d-cut",
            "D-Cut, best of four budget shares on live scores",
            leaks.dcut,
            liars.DCut,
            TRUE,
            exact=False,
            group="published",
            num_tokens=3,
        ),
        make(
            "published/d-cut-one-bucket",
            "D-Cut's ranking under a constant budget",
            leaks.dcut,
            lambda: liars.DCut((0.5,)),
            TRUE,
            exact=True,
            group="published",
            num_tokens=3,
        ),
        make(
            "published/adaspec-verifier",
            "AdaSpec as summarised: sampled tokens ranked by draft confidence under a budget",
            leaks.tetris,
            liars.FixedTopK,
            law("77/100", "23/100"),
            exact=False,
            group="published",
        ),
        make(
            "published/echo-drop",
            "ECHO as summarised: sparse gates on the sampled token, gated draft dropped",
            leaks.post_token,
            lambda: liars.SparseGate(budget=1, depths=(1,)),
            TRUE,
            exact=False,
            group="published",
        ),
        make(
            "published/echo-keep",
            "the same, gated draft kept",
            leaks.post_token,
            lambda: liars.SparseGate(budget=1, depths=(1,), keep=True),
            HALF,
            exact=True,
            group="published",
        ),
        make(
            "published/echo-pre-token",
            "the same gates on pre-token confidences, two requests, freed budget moved on",
            leaks.cross,
            lambda: liars.SparseGate(budget=3, depths=(2,)),
            TRUE,
            exact=True,
            group="published",
        ),
    ]


def _live_argmax() -> list[Case]:
    def pair(name: str, text: str, make: Callable[[int], SchedulerFactory]) -> list[Case]:
        return [
            Case(
                f"live-argmax/{name}-{label}",
                "live-argmax",
                f"{text}, {label} scores",
                leaks.appendix_a,
                make(lag),
                lag > 0,
                TRUE if lag else LEAKY,
                num_tokens=3,
            )
            for label, lag in (("live", 0), ("lagged", 1))
        ]

    return [
        *pair(
            "minimum-gain",
            "argmax behind a 4 % guard",
            lambda lag: lambda: liars.MinimumGain(lag=lag),
        ),
        *pair(
            "tiers",
            "best captured tier (0 or 2 drafts)",
            lambda lag: lambda: liars.TierAware((0, 2), lag),
        ),
        *pair(
            "uniform",
            "uniform length with hysteresis",
            lambda lag: lambda: liars.UniformHysteresis(lag=lag),
        ),
    ]


CASES: tuple[Case, ...] = (
    *_appendix_a(),
    *_nested(),
    *_requests(),
    *_post_token(),
    *_live_argmax(),
    *verification_cases(),
)
"""The whole catalogue."""


def cases(group: str | None = None) -> tuple[Case, ...]:
    """Return the cases of one group, or all."""
    return tuple(case for case in CASES if group in (None, case.group))


def theta_appendix_a() -> dict[str, Fraction]:
    """Return theta of each plan of Appendix A: none, one draft, two after A, two after B."""
    first, after_a, after_b = Fraction(4, 5), Fraction(9, 10), Fraction(0)
    none, one, two = leaks.SPS_APPENDIX_A
    return {
        "0": none,
        "1": (1 + first) * one,
        "2 after A": (1 + first + first * after_a) * two,
        "2 after B": (1 + first + first * after_b) * two,
    }
