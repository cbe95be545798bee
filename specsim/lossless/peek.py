"""Finds an admission that anticipates: two draft outcomes that the plan must not tell apart.

Let x be the drafts of one step and l(x) the planned lengths, everything earlier being fixed.

- *Own token.* Whether x[r, k] is admitted must be the same for all x that agree on x[r, <k] and on
  the other requests. Otherwise request r's own output law is bent.
- *Jointly.* Whether the plan is exactly l must depend on the admitted drafts alone. This is
  stronger: if request 1 is judged by an unverified draft of request 2 and request 2 by one of
  request 1, each marginal is exact and yet the two outputs are correlated.

If the joint condition holds, sum over l of E[M_end; plan = l] telescopes to the target law, where
M is the product over requests of the output law given the admitted drafts, a martingale.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specsim.lossless.rejection import Tokens

if TYPE_CHECKING:
    from specsim.lossless.worlds import World

Outcome = tuple[float, ...]
"""Confidences of one request's block, as the scheduler sees them."""

Drafts = tuple[Tokens, ...]
Lengths = tuple[int, ...]


@dataclass(frozen=True)
class Peek:
    """Two draft outcomes of one step, and plans that differ where they must not.

    Attributes:
        world: where it happened.
        step: index of the step.
        request_ids: rows of the step.
        kind: `own` (a request's own token) or `joint` (unverified drafts of several requests).
        request_id: the request whose admission anticipates.
        position: the draft, from 1, whose admission differs.
        drafts: the two outcomes, one run of tokens a row.
        confidences: what the scheduler saw of each.
        lengths: the two plans.
    """

    world: World
    step: int
    request_ids: tuple[int, ...]
    kind: str
    request_id: int
    position: int
    drafts: tuple[Drafts, Drafts]
    confidences: tuple[tuple[Outcome, ...], tuple[Outcome, ...]]
    lengths: tuple[Lengths, Lengths]

    def describe(self) -> str:
        """Return the two outcomes and admissions, and what is wrong with them."""
        lines = []
        for label, drafts, confidences, lengths in zip(
            "AB", self.drafts, self.confidences, self.lengths, strict=True
        ):
            lines.append(f"  outcome {label} of step {self.step}:")
            for row, request_id in enumerate(self.request_ids):
                seen = ", ".join(f"{c:.4g}" for c in confidences[row])
                lines.append(
                    f"    request {request_id}: drafts {list(drafts[row])}, confidences "
                    f"({seen}) -> verify {lengths[row]}"
                )
        if self.kind == "own":
            lines.append(
                f"  draft {self.position} of request {self.request_id} is admitted in one and not "
                f"in the other, but the outcomes agree on its earlier drafts and on all other "
                "requests: the plan depends on the token that it admits"
            )
        else:
            lines.append(
                f"  the outcomes agree on every draft that A admits, but the plans differ at "
                f"request {self.request_id}: the plan depends on unverified drafts of several "
                "requests at once, which correlates their outputs"
            )
        return "\n".join(lines)


def _own_peek(
    plans: Mapping[Drafts, Lengths], gamma: int
) -> tuple[int, int, Drafts, Drafts] | None:
    """Return (row, position from 0, outcome, outcome) of the first own-token peek."""
    num_rows = len(next(iter(plans)))
    for row, k in itertools.product(range(num_rows), range(gamma)):
        seen: dict[Drafts, tuple[bool, Drafts]] = {}
        for drafts, lengths in plans.items():
            key = (*drafts[:row], drafts[row][:k], *drafts[row + 1 :])
            admitted = lengths[row] > k
            before = seen.setdefault(key, (admitted, drafts))
            if before[0] != admitted:
                return row, k, before[1], drafts
    return None


def _joint_peek(plans: Mapping[Drafts, Lengths]) -> tuple[Drafts, Drafts] | None:
    """Return two outcomes that agree on all that the first admits, with different plans."""
    for lengths in dict.fromkeys(plans.values()):
        admitted: dict[Drafts, Drafts] = {}
        for drafts, planned in plans.items():
            if planned == lengths:
                key = tuple(x[:n] for x, n in zip(drafts, lengths, strict=True))
                admitted.setdefault(key, drafts)
        for drafts, planned in plans.items():
            if planned != lengths:
                key = tuple(x[:n] for x, n in zip(drafts, lengths, strict=True))
                if key in admitted:
                    return admitted[key], drafts
    return None


def find_peek(
    world: World,
    step: int,
    request_ids: tuple[int, ...],
    plans: Mapping[Drafts, Lengths],
    confidences: Mapping[Drafts, tuple[Outcome, ...]],
) -> Peek | None:
    """Return the first anticipating admission among all outcomes of one step, or None."""
    if len(set(plans.values())) == 1:
        return None
    if own := _own_peek(plans, world.gamma):
        row, k, one, other = own
        kind = "own"
    elif joint := _joint_peek(plans):
        one, other = joint
        kind = "joint"
        row = next(
            r for r, (a, b) in enumerate(zip(plans[one], plans[other], strict=True)) if a != b
        )
        k = min(plans[one][row], plans[other][row])
    else:
        return None
    return Peek(
        world=world,
        step=step,
        request_ids=request_ids,
        kind=kind,
        request_id=request_ids[row],
        position=k + 1,
        drafts=(one, other),
        confidences=(confidences[one], confidences[other]),
        lengths=(plans[one], plans[other]),
    )
