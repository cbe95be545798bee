"""Known cases with known answers: each is a test, a row of `reports/lossless/` and of the CLI.

p = target law, q = draft law. `lossless` of a case is the right answer, `law` the right law of the
first request's first token where one is known beforehand (derived by hand or from the paper).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from specsim.lossless import leaks, liars, wrong_rules
from specsim.lossless.enumerate import Enumeration, enumerate_world
from specsim.lossless.rejection import BLOCK_RULE, TARGET_SAMPLE_RULE, TOKEN_RULE, Law, Rule
from specsim.lossless.worlds import World, law
from specsim.schedulers.base import Reads, SchedulerFactory
from specsim.schedulers.greedy import Greedy, PatientGreedy
from specsim.schedulers.static import FixedLength
from specsim.schedulers.threshold import Threshold
from specsim.schedulers.topk import AsyncTopK, GlobalSearch, Stale

LEAKY = law("17/20", "3/20")
TRUE = law("7/10", "3/10")
HALF = law("1/2", "1/2")
P3 = law("1/2", "3/10", "1/5")
Q3 = law("1/5", "1/2", "3/10")
_LIVE: frozenset[Reads] = frozenset({"live"})
_BOTH: frozenset[Reads] = frozenset({"live", "lagged"})


@dataclass(frozen=True)
class Case:
    """One scheduler or rule in one world, with the right answer.

    Attributes:
        name: unique, for tests and JSON.
        group: `appendix-a`, `ties`, `several-requests`, `post-token`, `live-argmax`, `published`,
            `verification`.
        scheduler: what is judged, in words.
        world: makes the world.
        factory: makes the scheduler.
        lossless: the right answer.
        law: the right law of the first request's first token, where it is known.
        num_tokens: output tokens that enumeration follows.
        rule: how drafts are verified.
        samples: Monte-Carlo samples that it takes to see the bias.
    """

    name: str
    group: str
    scheduler: str
    world: Callable[[], World]
    factory: SchedulerFactory
    lossless: bool
    law: Law | None = None
    num_tokens: int = 1
    rule: Rule = TOKEN_RULE
    samples: int = 100_000

    def run(self) -> CaseResult:
        """Enumerate the case."""
        found = enumerate_world(
            self.world(), self.factory, num_tokens=self.num_tokens, rule=self.rule
        )
        return CaseResult(self, found)


@dataclass(frozen=True)
class CaseResult:
    """What enumeration found for a case."""

    case: Case
    found: Enumeration

    @property
    def lossless(self) -> bool:
        """Exact, and without an admission that anticipates."""
        return self.found.exact and self.found.peek is None

    @property
    def right(self) -> bool:
        """Whether the answer is the known one."""
        first = self.found.first_token(self.found.watched[0])[0]
        return self.lossless == self.case.lossless and self.case.law in (None, first)


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


def _verification() -> list[Case]:
    def make(
        name: str,
        text: str,
        world: Callable[[], World],
        *,
        exact: bool,
        rule: Rule = TOKEN_RULE,
        length: int = 1,
        right: Law | None = None,
        num_tokens: int = 1,
        samples: int = 100_000,
        factory: SchedulerFactory | None = None,
    ) -> Case:
        return Case(
            f"verification/{name}",
            "verification",
            text,
            world,
            factory or (lambda: FixedLength(length)),
            exact,
            right,
            num_tokens,
            rule,
            samples,
        )

    def plain(
        target: Law,
        draft: Law,
        *,
        believed_draft: Law | None = None,
        believed_target: Law | None = None,
    ) -> Callable[[], World]:
        return lambda: leaks.plain(
            target,
            draft,
            name="verification",
            believed_draft=believed_draft,
            believed_target=believed_target,
        )

    one_hot = law(0, 1, 0)
    return [
        make(
            "bfloat16",
            "q rounded to bfloat16 for sampling, float32 for accepting",
            leaks.bfloat16,
            exact=False,
            samples=10_000_000,
        ),
        make(
            "argmax-proposal",
            "greedy proposal, accepted by the ratio to q",
            plain(P3, one_hot, believed_draft=Q3),
            exact=False,
        ),
        make(
            "temperature-draft",
            "drafter ignores the temperature",
            plain(P3, Q3, believed_draft=leaks.tempered(Q3, 2)),
            exact=False,
        ),
        make(
            "temperature-target",
            "verifier ignores the temperature",
            plain(leaks.tempered(P3, 2), Q3, believed_target=P3),
            exact=False,
            right=P3,
        ),
        make(
            "top-p-draft",
            "drafts from a nucleus, accepted with q from before top-p",
            plain(P3, leaks.nucleus(Q3, "4/5"), believed_draft=Q3),
            exact=False,
        ),
        make(
            "top-p-target",
            "q full, p cut to a nucleus",
            plain(leaks.nucleus(P3, "4/5"), Q3),
            exact=True,
            right=law("5/8", "3/8", 0),
        ),
        make(
            "target-sample",
            "accept iff equal to a sample of the target, emit that sample",
            plain(P3, Q3),
            exact=True,
            rule=TARGET_SAMPLE_RULE,
            right=P3,
        ),
        make(
            "target-sample-fresh",
            "the same, but emit another sample on a mismatch",
            plain(P3, Q3),
            exact=False,
            rule=wrong_rules.FRESH_ON_MISMATCH,
        ),
        make(
            "target-on-reject",
            "corrections drawn from p instead of from (p - q)+",
            plain(P3, Q3),
            exact=False,
            rule=wrong_rules.TARGET_ON_REJECT,
        ),
        make(
            "token",
            "token-level rejection, gamma 2",
            leaks.block_world,
            exact=True,
            length=2,
            num_tokens=3,
        ),
        make(
            "block",
            "block verification, gamma 2",
            leaks.block_world,
            exact=True,
            rule=BLOCK_RULE,
            length=2,
            num_tokens=3,
        ),
        make(
            "block-adaptive",
            "block verification under asynchronous top-K, lag 1",
            leaks.nested,
            exact=True,
            rule=BLOCK_RULE,
            num_tokens=3,
            factory=_async(1),
        ),
        make(
            "block-token-residual",
            "block verification, corrections from (p - q)+",
            leaks.block_residual_world,
            exact=False,
            rule=wrong_rules.BLOCK_TOKEN_RESIDUAL,
            length=2,
            num_tokens=2,
        ),
        make(
            "block-weight-accept",
            "block verification, inner prefixes accepted by their weight",
            leaks.block_world,
            exact=False,
            rule=wrong_rules.BLOCK_WEIGHT_ACCEPT,
            length=2,
        ),
    ]


CASES: tuple[Case, ...] = (
    *_appendix_a(),
    *_nested(),
    *_requests(),
    *_post_token(),
    *_live_argmax(),
    *_verification(),
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
