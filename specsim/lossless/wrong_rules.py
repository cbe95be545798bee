"""Verification rules that engines shipped by mistake; the lab must find each of them biased.

p = target law, q = draft law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from specsim.lossless.rejection import (
    ONE,
    ZERO,
    CommitLaw,
    Law,
    Tokens,
    acceptance,
    add_run,
    residual,
)


@dataclass(frozen=True, slots=True)
class FreshOnMismatch:
    """Accept iff the draft equals a sample of the target, but emit *another* one if it does not."""

    name: str = "fresh-on-mismatch"

    def commit_law(
        self, drafts: Tokens, target_rows: Sequence[Law], draft_rows: Sequence[Law]
    ) -> CommitLaw:
        """Return the exact law of the committed run."""
        law: CommitLaw = {}
        alive = ONE
        for k, token in enumerate(drafts):
            add_run(law, drafts[:k], target_rows[k], alive * (1 - target_rows[k][token]))
            alive *= target_rows[k][token]
        add_run(law, drafts, target_rows[len(drafts)], alive)
        return law


@dataclass(frozen=True, slots=True)
class TargetOnReject:
    """Token-level acceptance, but corrections drawn from p instead of from (p - q)+."""

    name: str = "target-on-reject"

    def commit_law(
        self, drafts: Tokens, target_rows: Sequence[Law], draft_rows: Sequence[Law]
    ) -> CommitLaw:
        """Return the exact law of the committed run."""
        law: CommitLaw = {}
        alive = ONE
        for k, token in enumerate(drafts):
            accept = acceptance(target_rows[k], draft_rows[k], token)
            add_run(law, drafts[:k], target_rows[k], alive * (1 - accept))
            alive *= accept
        add_run(law, drafts, target_rows[len(drafts)], alive)
        return law


@dataclass(frozen=True, slots=True)
class BlockTokenResidual:
    """Block verification whose corrections come from the token rule's (p - q)+ (no w factor)."""

    name: str = "block-token-residual"
    scale_residual: bool = False
    inner_rule: bool = True

    def commit_law(
        self, drafts: Tokens, target_rows: Sequence[Law], draft_rows: Sequence[Law]
    ) -> CommitLaw:
        """Return the exact law of the committed run."""
        weight = [ONE]
        for k, token in enumerate(drafts):
            q, p = draft_rows[k][token], target_rows[k][token]
            weight.append(min(ONE, weight[-1] * p / q) if q else ONE)
        law: CommitLaw = {}
        later_fail = ONE
        for i in range(len(drafts), -1, -1):
            if i == len(drafts):
                accept, tail = weight[i], target_rows[i]
            else:
                pairs = list(zip(target_rows[i], draft_rows[i], strict=True))
                spare = sum((max(weight[i] * p - q, ZERO) for p, q in pairs), ZERO)
                room = spare + 1 - weight[i]
                accept = (spare / room if room else ONE) if self.inner_rule else weight[i]
                scale = weight[i] if self.scale_residual else Fraction(1)
                tail = residual(target_rows[i], draft_rows[i], scale)
            if i == 0:
                accept = ONE
            add_run(law, drafts[:i], tail, later_fail * accept)
            later_fail *= 1 - accept
        return law


FRESH_ON_MISMATCH = FreshOnMismatch()
TARGET_ON_REJECT = TargetOnReject()
BLOCK_TOKEN_RESIDUAL = BlockTokenResidual()
BLOCK_WEIGHT_ACCEPT = BlockTokenResidual(
    name="block-weight-accept", scale_residual=True, inner_rule=False
)
