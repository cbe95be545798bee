"""Cases of the catalogue that judge verification: which rule, and which laws it is given.

p = target law, q = draft law.
"""

from __future__ import annotations

from collections.abc import Callable

from specsim.lossless import leaks, wrong_rules
from specsim.lossless.case import Case
from specsim.lossless.rejection import BLOCK_RULE, TARGET_SAMPLE_RULE, TOKEN_RULE, Law, Rule
from specsim.lossless.worlds import World, law
from specsim.schedulers.base import SchedulerFactory
from specsim.schedulers.static import FixedLength
from specsim.schedulers.topk import AsyncTopK

P3 = law("1/2", "3/10", "1/5")
Q3 = law("1/5", "1/2", "3/10")


def verification_cases() -> list[Case]:
    """Return the cases that judge how drafts are drawn, accepted and corrected."""

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
            factory=lambda: AsyncTopK(1),
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
