"""Verification rules that engines shipped by mistake; the lab must find each of them biased.

p = target law, q = draft law. Each is a right rule with one part changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from specsim.lossless.rejection import BlockRule, Law, TokenRule, residual


@dataclass(frozen=True, slots=True)
class TargetOnReject(TokenRule):
    """Token-level acceptance, but corrections drawn from p instead of from (p - q)+."""

    name: str = "target-on-reject"

    def correction(self, target: Law, draft: Law) -> Law:
        """Return p."""
        return target


@dataclass(frozen=True, slots=True)
class FreshOnMismatch(TargetOnReject):
    """Accept iff the draft equals a sample of the target, but emit *another* one if it does not."""

    name: str = "fresh-on-mismatch"

    def accepts(self, target: Law, draft: Law, token: int) -> Fraction:
        """Return p of the draft."""
        return target[token]


@dataclass(frozen=True, slots=True)
class BlockTokenResidual(BlockRule):
    """Block verification whose corrections come from the token rule's (p - q)+ (no w factor)."""

    name: str = "block-token-residual"

    def correction(self, target: Law, draft: Law, weight: Fraction) -> Law:
        """Return (p - q)+ normalised."""
        return residual(target, draft)


@dataclass(frozen=True, slots=True)
class BlockWeightAccept(BlockRule):
    """Block verification that accepts an inner prefix by its weight, as if it were the block."""

    name: str = "block-weight-accept"

    def accepts_inner(self, weight: Fraction, spare: Fraction) -> Fraction:
        """Return w."""
        return weight


FRESH_ON_MISMATCH = FreshOnMismatch()
TARGET_ON_REJECT = TargetOnReject()
BLOCK_TOKEN_RESIDUAL = BlockTokenResidual()
BLOCK_WEIGHT_ACCEPT = BlockWeightAccept()
