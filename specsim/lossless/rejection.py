"""Verification rules: how a block of drafts and two laws become committed tokens.

p = target law, q = draft law. A rule is stated twice. `commit_law` gives the exact law of what one
block commits, in rationals, for enumeration; `verify_tokens` and `verify_block` sample it for many
blocks at once from uniforms that the caller draws, so that the torch twin can be compared number by
number. Rules that are known to be wrong are in `liars.py`.

Support: q may be positive where p is zero (such drafts are always rejected) and p may be positive
where q is zero (the residual covers it). A draft token with q = 0 cannot have been drawn from q: an
honest rule never meets one, and the formulas count its acceptance ratio as 1.

Sources: token rule, Leviathan et al. 2023 and Chen et al. 2023; block rule, Sun et al. 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Law = tuple[Fraction, ...]
"""Probabilities of tokens 0..V-1, summing to one."""

Tokens = tuple[int, ...]
CommitLaw = dict[Tokens, Fraction]
"""Probability of each committed run: accepted drafts, then one correction or bonus token."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ZERO = Fraction(0)
ONE = Fraction(1)


class Rule(Protocol):
    """How drafts are accepted: the exact law of what one block commits."""

    @property
    def name(self) -> str:
        """A short name for reports."""
        ...

    def commit_law(
        self, drafts: Tokens, target_rows: Sequence[Law], draft_rows: Sequence[Law]
    ) -> CommitLaw:
        """Return the law of the committed run given the verified drafts.

        Args:
            drafts: the `l` verified draft tokens.
            target_rows: p after the context and 0..l drafts, `l + 1` laws.
            draft_rows: q of each verified draft, `l` laws, as the rule believes them to be.
        """
        ...


def total_variation(one: Law, other: Law) -> Fraction:
    """Return half the L1 distance of two laws."""
    return sum((abs(a - b) for a, b in zip(one, other, strict=True)), ZERO) / 2


def residual(target: Law, draft: Law, scale: Fraction = ONE) -> Law:
    """Return `(scale p - q)+` normalised; p where nothing is left (it is never drawn from then)."""
    left = [max(scale * p - q, ZERO) for p, q in zip(target, draft, strict=True)]
    mass = sum(left, ZERO)
    return tuple(x / mass for x in left) if mass else target


def acceptance(target: Law, draft: Law, token: int) -> Fraction:
    """Return `min(1, p / q)` of a drafted token (1 where q is zero)."""
    q = draft[token]
    return ONE if q <= target[token] else target[token] / q


def add_run(law: CommitLaw, prefix: Tokens, tail: Law, weight: Fraction) -> None:
    """Add `weight` times the law `tail` of one more token after `prefix`."""
    if not weight:
        return
    for token, mass in enumerate(tail):
        if mass:
            run = (*prefix, token)
            law[run] = law.get(run, ZERO) + weight * mass


@dataclass(frozen=True, slots=True)
class TokenRule:
    """Token-level rejection sampling: accept with min(1, p/q), correct from (p - q)+."""

    name: str = "token"

    def accepts(self, target: Law, draft: Law, token: int) -> Fraction:
        """Return the probability that a draft is accepted."""
        return acceptance(target, draft, token)

    def correction(self, target: Law, draft: Law) -> Law:
        """Return the law of the token that takes a rejected draft's place."""
        return residual(target, draft)

    def commit_law(
        self, drafts: Tokens, target_rows: Sequence[Law], draft_rows: Sequence[Law]
    ) -> CommitLaw:
        """Return the exact law of the committed run."""
        law: CommitLaw = {}
        alive = ONE
        for k, token in enumerate(drafts):
            p, q = target_rows[k], draft_rows[k]
            accept = self.accepts(p, q, token)
            add_run(law, drafts[:k], self.correction(p, q), alive * (1 - accept))
            alive *= accept
        add_run(law, drafts, target_rows[len(drafts)], alive)
        return law


@dataclass(frozen=True, slots=True)
class BlockRule:
    """Block verification: couples the whole block and keeps the longest accepted prefix.

    With w_0 = 1 and w_i = min(1, w_{i-1} p(x_i) / q(x_i)), prefix i < l is accepted with
    h_i = S_i / (S_i + 1 - w_i), S_i = sum over x of (w_i p(x) - q(x))+ at the next position, and
    the whole block with w_l; the last accepted prefix counts, the correction is (w_i p - q)+.
    """

    name: str = "block"

    def accepts_inner(self, weight: Fraction, spare: Fraction) -> Fraction:
        """Return h of w and S: how likely a prefix that is not the whole block is accepted."""
        room = spare + 1 - weight
        return spare / room if room else ONE

    def correction(self, target: Law, draft: Law, weight: Fraction) -> Law:
        """Return the law of the token after an accepted prefix of this weight."""
        return residual(target, draft, weight)

    def commit_law(
        self, drafts: Tokens, target_rows: Sequence[Law], draft_rows: Sequence[Law]
    ) -> CommitLaw:
        """Return the exact law of the committed run."""
        length = len(drafts)
        weight = [ONE]
        for k, token in enumerate(drafts):
            q, p = draft_rows[k][token], target_rows[k][token]
            weight.append(min(ONE, weight[-1] * p / q) if q else ONE)
        law: CommitLaw = {}
        later_fail = ONE
        for i in range(length, -1, -1):
            accept, tail = weight[i], target_rows[i]
            if i < length:
                pairs = zip(target_rows[i], draft_rows[i], strict=True)
                spare = sum((max(weight[i] * p - q, ZERO) for p, q in pairs), ZERO)
                accept = self.accepts_inner(weight[i], spare)
                tail = self.correction(target_rows[i], draft_rows[i], weight[i])
            if i == 0:
                # The empty prefix is what remains when nothing else was accepted.
                accept = ONE
            add_run(law, drafts[:i], tail, later_fail * accept)
            later_fail *= 1 - accept
        return law


@dataclass(frozen=True, slots=True)
class TargetSampleRule:
    """Accept iff the draft equals a sample of the target, and emit that sample either way.

    Exact whatever q is; accepts with probability sum(p q), less than the token rule's 1 - TV.
    """

    name: str = "target-sample"

    def commit_law(
        self, drafts: Tokens, target_rows: Sequence[Law], draft_rows: Sequence[Law]
    ) -> CommitLaw:
        """Return the exact law of the committed run."""
        law: CommitLaw = {}
        alive = ONE
        for k, token in enumerate(drafts):
            row = target_rows[k]
            others = tuple(ZERO if x == token else mass for x, mass in enumerate(row))
            add_run(law, drafts[:k], others, alive)
            alive *= row[token]
        add_run(law, drafts, target_rows[len(drafts)], alive)
        return law


TOKEN_RULE = TokenRule()
BLOCK_RULE = BlockRule()
TARGET_SAMPLE_RULE = TargetSampleRule()


def expected_accepted(law: CommitLaw) -> Fraction:
    """Return the mean number of accepted drafts under a law of committed runs."""
    return sum((mass * (len(run) - 1) for run, mass in law.items()), ZERO)


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round float32 to the nearest bfloat16 (ties to even), kept in float32.

    Args:
        values: finite float32 of any shape.
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def draw(law_SV: Floats, pick_S: Floats) -> Ints:
    """Return one token of each row by inversion, int64 `[S]`.

    Args:
        law_SV: non-negative rows `[S, V]` (or `[1, V]` for all); they need not sum to one.
        pick_S: uniforms in [0, 1).
    """
    if len(law_SV) == 1:
        cumulative_V = np.cumsum(law_SV[0])
        picked_S = np.searchsorted(cumulative_V, pick_S * cumulative_V[-1], side="right")
        token_S: Ints = np.minimum(picked_S, np.flatnonzero(law_SV[0] > 0)[-1]).astype(np.int64)
        return token_S
    cumulative_SV = np.cumsum(law_SV, axis=1)
    level_S = pick_S * cumulative_SV[:, -1]
    token_S = (cumulative_SV <= level_S[:, None]).sum(axis=1, dtype=np.int64)
    # Rounding may carry the level to the very end; fall back to the last token with mass.
    last_S = law_SV.shape[1] - 1 - np.argmax(law_SV[:, ::-1] > 0, axis=1)
    clipped_S: Ints = np.minimum(token_S, last_S)
    return clipped_S


def verify_tokens(
    draft_SG: Ints,
    target_SGV: Floats,
    draft_SGV: Floats,
    verify_len_S: Ints,
    accept_SG: Floats,
    pick_S: Floats,
) -> tuple[Ints, Ints]:
    """Verify many blocks by token-level rejection sampling.

    Args:
        draft_SG: drafted tokens, `[S, G]`.
        target_SGV: p after the context and 0..G drafts, `[S or 1, G + 1, V]`.
        draft_SGV: q that each draft was drawn from, `[S or 1, G, V]`.
        verify_len_S: how many drafts of each block are verified, 0..G.
        accept_SG: uniforms for acceptance, `[S, G]`.
        pick_S: uniforms for the correction or bonus token, `[S]`.

    Returns:
        num_accepted_S and the correction or bonus token_S.
    """
    rows_S = np.arange(len(draft_SG))
    p_rows_S = rows_S if len(target_SGV) > 1 else np.zeros_like(rows_S)
    q_rows_S = rows_S if len(draft_SGV) > 1 else np.zeros_like(rows_S)
    gamma = draft_SG.shape[1]
    position_G = np.arange(gamma)
    p_SG = target_SGV[p_rows_S[:, None], position_G, draft_SG]
    q_SG = draft_SGV[q_rows_S[:, None], position_G, draft_SG]
    accepted_SG = (accept_SG * q_SG < p_SG) & (position_G < verify_len_S[:, None])
    num_accepted_S: Ints = np.logical_and.accumulate(accepted_SG, axis=1).sum(axis=1)
    p_SV = target_SGV[p_rows_S, num_accepted_S]
    if gamma == 0:
        return num_accepted_S, draw(p_SV, pick_S)
    corrected_S = num_accepted_S < verify_len_S
    q_SV = draft_SGV[q_rows_S, np.minimum(num_accepted_S, gamma - 1)]
    left_SV = np.maximum(p_SV - q_SV, 0.0)
    use_left_S = corrected_S & (left_SV.sum(axis=1) > 0)
    return num_accepted_S, draw(np.where(use_left_S[:, None], left_SV, p_SV), pick_S)


def verify_block(
    draft_SG: Ints,
    target_SGV: Floats,
    draft_SGV: Floats,
    verify_len_S: Ints,
    accept_SG: Floats,
    pick_S: Floats,
) -> tuple[Ints, Ints]:
    """Verify many blocks by block verification; arguments and result as `verify_tokens`."""
    num_blocks, gamma = draft_SG.shape
    rows_S = np.arange(num_blocks)
    p_rows_S = rows_S if len(target_SGV) > 1 else np.zeros_like(rows_S)
    q_rows_S = rows_S if len(draft_SGV) > 1 else np.zeros_like(rows_S)
    weight_S = np.ones(num_blocks)
    best_weight_S = np.ones(num_blocks)
    num_accepted_S = np.zeros(num_blocks, dtype=np.int64)
    for k in range(gamma):
        token_S = draft_SG[:, k]
        q_S = draft_SGV[q_rows_S, k, token_S]
        p_S = target_SGV[p_rows_S, k, token_S]
        ratio_S = np.divide(p_S, q_S, out=np.ones(num_blocks), where=q_S > 0)
        weight_S = np.where(q_S > 0, np.minimum(1.0, weight_S * ratio_S), 1.0)
        accept_S = weight_S
        if k + 1 < gamma:
            spare_SV = weight_S[:, None] * target_SGV[p_rows_S, k + 1] - draft_SGV[q_rows_S, k + 1]
            spare_S = np.maximum(spare_SV, 0.0).sum(axis=1)
            room_S = spare_S + 1.0 - weight_S
            inner_S = np.divide(spare_S, room_S, out=np.ones(num_blocks), where=room_S > 0)
            accept_S = np.where(k + 1 < verify_len_S, inner_S, weight_S)
        taken_S = (k < verify_len_S) & (accept_SG[:, k] < accept_S)
        num_accepted_S = np.where(taken_S, k + 1, num_accepted_S)
        best_weight_S = np.where(taken_S, weight_S, best_weight_S)
    p_SV = target_SGV[p_rows_S, num_accepted_S]
    if gamma == 0:
        return num_accepted_S, draw(p_SV, pick_S)
    q_SV = draft_SGV[q_rows_S, np.minimum(num_accepted_S, gamma - 1)]
    left_SV = np.maximum(best_weight_S[:, None] * p_SV - q_SV, 0.0)
    use_left_S = (num_accepted_S < verify_len_S) & (left_SV.sum(axis=1) > 0)
    return num_accepted_S, draw(np.where(use_left_S[:, None], left_SV, p_SV), pick_S)
