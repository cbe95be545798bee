"""Drafting and verifying many blocks at once: numba kernels, and plain numpy twins of each.

p = target law, q = draft law. Tails are base-V numbers. A kernel and its twin use the same uniforms
in the same way and return the same integers; tests compare them. The kernels know the token rule.

Uniforms are counted, not drawn: number n under a key is output n of SplitMix64 with that seed
(Steele, Lea, Flood 2014). So a number that is not needed costs nothing, and every copy has its own
luck whichever others are still there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from specsim.lossless.rejection import Floats, Ints, draw
from specsim.lossless.worlds import LawTable, Request, World

Flags = NDArray[np.bool_]
Verify = Callable[[Ints, Floats, Floats, Ints, Floats, Floats], tuple[Ints, Ints]]
Keys = NDArray[np.uint64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
S11, S27, S30, S31 = np.uint64(11), np.uint64(27), np.uint64(30), np.uint64(31)
TO_UNIT = 2.0**-53
LEAST_BUCKETS = 64


def uniforms(key: np.uint64, id_S: Keys) -> Floats:
    """Return the uniform in [0, 1) of each copy under a key."""
    with np.errstate(over="ignore"):
        bits = key + id_S * GOLDEN
        bits = (bits ^ (bits >> S30)) * MIX_1
        bits = (bits ^ (bits >> S27)) * MIX_2
    return ((bits ^ (bits >> S31)) >> S11).astype(np.float64) * TO_UNIT


@njit(cache=True, nogil=True, inline="always")
def _uniform(key: Any, copy: Any) -> float:
    bits = key + copy * GOLDEN
    bits = (bits ^ (bits >> S30)) * MIX_1
    bits = (bits ^ (bits >> S27)) * MIX_2
    return float(np.int64((bits ^ (bits >> S31)) >> S11)) * TO_UNIT


@dataclass(frozen=True, slots=True)
class Sums:
    """Laws as running sums to draw from by inversion.

    Attributes:
        sums: running sums over tokens, `[.., V]`.
        last: last token that has mass, `[..]`.
        guide: for each of B equal parts of [0, 1) the first token that its start can give,
            `[.., B]`: where the search begins.
    """

    sums: Floats
    last: Ints
    guide: NDArray[np.int32]

    @classmethod
    def of(cls, law: Floats) -> Sums:
        """Return the running sums of laws `[.., V]`, which need not sum to one."""
        vocabulary = law.shape[-1]
        last: Ints = vocabulary - 1 - np.argmax(law[..., ::-1] > 0, axis=-1)
        sums = np.cumsum(law, axis=-1)
        buckets = max(LEAST_BUCKETS, 1 << (4 * vocabulary - 1).bit_length())
        starts_B = np.arange(buckets) / buckets
        rows = [
            np.minimum(np.searchsorted(row_V, starts_B * row_V[-1], side="right"), at)
            for row_V, at in zip(sums.reshape(-1, vocabulary), last.ravel(), strict=True)
        ]
        guide = np.array(rows, dtype=np.int32).reshape(*law.shape[:-1], buckets)
        return cls(sums, last, guide)


@dataclass(frozen=True, slots=True)
class Tables:
    """One request's laws as arrays over tail codes T, with running sums to draw from.

    Attributes:
        p_TV: target law, as the verifier computes it.
        q_GTV: draft laws, as the verifier computes them.
        drawn_GTV: draft laws that drafts are drawn from.
        next_TV: tail code after one more token.
        class_GTV: number of what a scheduler may see of draft k with token v after tail t.
        classes_G: how many such numbers there are.
        p_sums, drawn_sums, left_sums: running sums of p, of the drawn laws, and of (p - q)+ (of p
            where that is empty).
        tails: tail of each code.
    """

    p_TV: Floats
    q_GTV: Floats
    drawn_GTV: Floats
    next_TV: Ints
    class_GTV: Ints
    classes_G: Ints
    p_sums: Sums
    drawn_sums: Sums
    left_sums: Sums
    tails: list[tuple[int, ...]]

    @property
    def num_views(self) -> int:
        """How many things a scheduler can see of one block."""
        return int(np.prod(self.classes_G, dtype=object))


def tables(world: World, request: Request, *, confidence: bool, sampled: bool) -> Tables:
    """Return a request's tables.

    Args:
        world: where it decodes.
        request: whose laws.
        confidence: whether the scheduler's plans can depend on confidences.
        sampled: whether they can depend on q of the sampled token.
    """
    tails = list(itertools.product(range(world.vocabulary), repeat=world.order))
    code_of = {tail: code for code, tail in enumerate(tails)}

    def rows(table: LawTable) -> Floats:
        return np.array([[float(mass) for mass in table[tail]] for tail in tails])

    tokens = range(world.vocabulary)
    class_GTV = np.zeros((world.gamma, len(tails), world.vocabulary), dtype=np.int64)
    classes_G = np.ones(world.gamma, dtype=np.int64)
    for k in range(world.gamma):
        numbers: dict[tuple[float, ...], int] = {}
        for (code, tail), token in itertools.product(enumerate(tails), tokens):
            seen: tuple[float, ...] = ()
            if confidence:
                key = (*tail, token) if world.post_token else tail
                seen = (float(request.confidence[k][key]),)
            if sampled:
                seen = (*seen, float(request.draft[k][tail][token]))
            class_GTV[k, code, token] = numbers.setdefault(seen, len(numbers))
        classes_G[k] = len(numbers)
    p_TV = rows(request.verifier_target)
    q_GTV = np.array([rows(table) for table in request.verifier_draft])
    drawn_GTV = np.array([rows(table) for table in request.draft])
    left_GTV = np.maximum(p_TV - q_GTV, 0.0)
    left_GTV = np.where((left_GTV.sum(axis=-1) > 0)[..., None], left_GTV, p_TV)
    return Tables(
        p_TV=p_TV,
        q_GTV=q_GTV,
        drawn_GTV=drawn_GTV,
        next_TV=np.array([[code_of[world.tail((*tail, t))] for t in tokens] for tail in tails]),
        class_GTV=class_GTV,
        classes_G=classes_G,
        p_sums=Sums.of(p_TV),
        drawn_sums=Sums.of(drawn_GTV),
        left_sums=Sums.of(left_GTV),
        tails=tails,
    )


@njit(cache=True, nogil=True, inline="always")
def _invert(sums_V: Any, last: int, guide_B: Any, pick: float) -> Any:
    """Return the first token whose running sum is above `pick` of the whole, at most `last`."""
    level = pick * sums_V[len(sums_V) - 1]
    token = guide_B[int(pick * len(guide_B))]
    # In this order the first test nearly always fails, which processors guess right.
    while sums_V[token] <= level and token < last:
        token += 1
    return token


@njit(cache=True, nogil=True)
def _draft(
    id_S: Any,
    live_S: Any,
    tail_S: Any,
    key_G: Any,
    sums_GTV: Any,
    last_GT: Any,
    guide_GTB: Any,
    next_TV: Any,
    class_GTV: Any,
    classes_G: Any,
    draft_SG: Any,
    view_S: Any,
) -> None:
    gamma = draft_SG.shape[1]
    for s in range(len(id_S)):
        view_S[s] = 0
        if not live_S[s]:
            continue
        tail, view = tail_S[s], 0
        for k in range(gamma):
            pick = _uniform(key_G[k], id_S[s])
            token = _invert(sums_GTV[k, tail], last_GT[k, tail], guide_GTB[k, tail], pick)
            draft_SG[s, k] = token
            view = view * classes_G[k] + class_GTV[k, tail, token]
            tail = next_TV[tail, token]
        view_S[s] = view + 1


@njit(cache=True, nogil=True)
def _verify(
    id_S: Any,
    live_S: Any,
    tail_S: Any,
    draft_SG: Any,
    length_U: Any,
    group_S: Any,
    accept_key_G: Any,
    pick_key: Any,
    p_TV: Any,
    q_GTV: Any,
    p_sums_TV: Any,
    p_last_T: Any,
    p_guide_TB: Any,
    left_sums_GTV: Any,
    left_last_GT: Any,
    left_guide_GTB: Any,
    next_TV: Any,
    weight_N: Any,
    count_S: Any,
    accepted_S: Any,
    outcome_S: Any,
    owed_S: Any,
) -> None:
    due = len(weight_N) - 1
    for s in range(len(id_S)):
        accepted_S[s] = 0
        if not live_S[s]:
            continue
        tail, before, k, length = tail_S[s], count_S[s], 0, length_U[group_S[s]]
        at, outcome = before, outcome_S[s]
        while k < length:
            token = draft_SG[s, k]
            unit = _uniform(accept_key_G[k], id_S[s])
            if unit * q_GTV[k, tail, token] >= p_TV[tail, token]:
                break
            outcome += token * weight_N[min(at, due)]
            tail = next_TV[tail, token]
            at += 1
            k += 1
        pick = _uniform(pick_key, id_S[s])
        if k < length:
            last, guide_B = left_last_GT[k, tail], left_guide_GTB[k, tail]
            token = _invert(left_sums_GTV[k, tail], last, guide_B, pick)
        else:
            token = _invert(p_sums_TV[tail], p_last_T[tail], p_guide_TB[tail], pick)
        outcome_S[s] = outcome + token * weight_N[min(at, due)]
        at += 1
        if before < due <= at:
            owed_S[s] -= 1
        tail_S[s] = next_TV[tail, token]
        count_S[s] = at
        accepted_S[s] = k


@dataclass(slots=True)
class Copies:
    """Copies of a world that still owe tokens that are followed.

    Attributes:
        id_S: number of each copy in its chunk, which its uniforms are counted by.
        node_S: what its scheduler has seen (see `montecarlo`).
        outcome_S: code of the followed tokens so far.
        owed_S: requests that still owe some.
    """

    id_S: Keys
    node_S: Ints
    outcome_S: Ints
    owed_S: Ints


@dataclass(slots=True)
class Blocks:
    """One request in every copy, and its present blocks.

    Attributes:
        tables: the request's laws.
        weight_N: what its output tokens 0, 1, .. count in a copy's outcome, and 0 at the end for
            those that are not followed.
        tail_S: tail codes.
        count_S: output tokens so far.
        accepted_S: drafts accepted in the last step.
        draft_SG: the present drafts.
        view_S: what a scheduler can see of them; 0 where the request does not decode.
    """

    tables: Tables
    weight_N: Ints
    tail_S: Ints
    count_S: Ints
    accepted_S: Ints
    draft_SG: Ints
    view_S: Ints

    @classmethod
    def fresh(cls, tables: Tables, weight_N: Ints, start: int, *, size: int) -> Blocks:
        """Return `size` copies that have put out nothing."""
        return cls(
            tables,
            weight_N,
            tail_S=np.full(size, start, dtype=np.int64),
            count_S=np.zeros(size, dtype=np.int64),
            accepted_S=np.zeros(size, dtype=np.int64),
            draft_SG=np.zeros((size, len(tables.classes_G)), dtype=np.int64),
            view_S=np.zeros(size, dtype=np.int64),
        )

    def kept(self, keep: Ints) -> Blocks:
        """Return only some copies; their blocks are spent, so room for new ones is enough."""
        return Blocks(
            self.tables,
            self.weight_N,
            self.tail_S[keep],
            self.count_S[keep],
            self.accepted_S[keep],
            self.draft_SG[: len(keep)],
            self.view_S[: len(keep)],
        )

    def draft(self, id_S: Keys, live_S: Flags, key_G: Keys) -> None:
        """Draw a block for each live copy."""
        t = self.tables
        with np.errstate(over="ignore"):  # uniforms wrap around; only felt where numba is off
            _draft(
                *(id_S, live_S, self.tail_S, key_G),
                *(t.drawn_sums.sums, t.drawn_sums.last, t.drawn_sums.guide),
                *(t.next_TV, t.class_GTV, t.classes_G, self.draft_SG, self.view_S),
            )

    def draft_twin(self, id_S: Keys, live_S: Flags, key_G: Keys) -> None:
        """Do what `draft` does, in plain numpy."""
        t, code_S = self.tables, self.tail_S
        view_S = np.zeros(len(id_S), dtype=np.int64)
        for k, classes in enumerate(t.classes_G):
            token_S = draw(_gather(t.drawn_GTV[k], code_S), uniforms(key_G[k], id_S))
            self.draft_SG[live_S, k] = token_S[live_S]
            view_S = view_S * classes + t.class_GTV[k, code_S, token_S]
            code_S = t.next_TV[code_S, token_S]
        self.view_S = np.where(live_S, view_S + 1, 0)

    def verify(
        self,
        copies: Copies,
        live_S: Flags,
        length_U: Ints,
        group_S: Ints,
        accept_key_G: Keys,
        pick_key: np.uint64,
    ) -> None:
        """Verify the blocks of the live copies by the token rule and commit what it keeps.

        Args:
            copies: all copies; their outcomes grow.
            live_S: where this request decodes.
            length_U: planned length of each group of copies.
            group_S: group of each copy.
            accept_key_G: keys of the uniforms for acceptance.
            pick_key: key of those for the correction or bonus token.
        """
        t = self.tables
        with np.errstate(over="ignore"):
            _verify(
                *(copies.id_S, live_S, self.tail_S, self.draft_SG, length_U, group_S),
                *(accept_key_G, pick_key, t.p_TV, t.q_GTV),
                *(t.p_sums.sums, t.p_sums.last, t.p_sums.guide),
                *(t.left_sums.sums, t.left_sums.last, t.left_sums.guide, t.next_TV),
                *(self.weight_N, self.count_S, self.accepted_S, copies.outcome_S, copies.owed_S),
            )

    def verify_twin(
        self,
        copies: Copies,
        live_S: Flags,
        length_U: Ints,
        group_S: Ints,
        accept_key_G: Keys,
        pick_key: np.uint64,
        *,
        rule: Verify,
    ) -> None:
        """Do what `verify` does in plain numpy, and by any rule."""
        t, gamma = self.tables, self.draft_SG.shape[1]
        here = [self.tail_S]
        for k in range(gamma):
            here.append(t.next_TV[here[k], self.draft_SG[:, k]])
        accepted_S, token_S = rule(
            self.draft_SG,
            np.stack([_gather(t.p_TV, code_S) for code_S in here], axis=1),
            np.stack([_gather(t.q_GTV[k], here[k]) for k in range(gamma)], axis=1),
            length_U[group_S],
            np.stack([uniforms(key, copies.id_S) for key in accept_key_G], axis=1),
            uniforms(pick_key, copies.id_S),
        )
        run_SN = np.concatenate([self.draft_SG, token_S[:, None]], axis=1)
        rows_S, due = np.arange(len(run_SN)), len(self.weight_N) - 1
        run_SN[rows_S, accepted_S] = token_S
        for k in range(gamma + 1):
            # Token k of the run is committed if it is within it.
            weight_S = self.weight_N[np.minimum(self.count_S + k, due)]
            copies.outcome_S += np.where(live_S & (k <= accepted_S), run_SN[:, k] * weight_S, 0)
        kept_S = np.stack(here)[accepted_S, rows_S]
        self.tail_S = np.where(live_S, t.next_TV[kept_S, token_S], self.tail_S)
        before_S, self.accepted_S = self.count_S, np.where(live_S, accepted_S, 0)
        self.count_S = before_S + np.where(live_S, accepted_S + 1, 0)
        copies.owed_S -= (before_S < due) & (self.count_S >= due)


def _gather(table_TV: Floats, code_S: Ints) -> Floats:
    """Return each sample's row; one row for all where laws do not depend on the tail."""
    return table_TV if len(table_TV) == 1 else table_TV[code_S]
