"""One case of the catalogue: a scheduler or rule in a world, and the right answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specsim.lossless.enumerate import Enumeration, enumerate_world
from specsim.lossless.rejection import TOKEN_RULE, Law, Rule
from specsim.lossless.worlds import World
from specsim.schedulers.base import SchedulerFactory


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
