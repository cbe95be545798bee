"""A dense trace laid out for replay: blocks by row, and where a sequence's usable rows end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance.trace import DenseTrace
from specsim.errors import InputError
from specsim.rng import stream


@dataclass(frozen=True, slots=True)
class Blocks:
    """Every block of a trace, cut to `gamma` drafts, with the walk that replay takes.

    A request stands on a row; a step that commits n tokens moves it n rows on. When it passes the
    last whole block of its sequence it goes on at the first row of `next_sequence_S`, which walks
    all sequences of the domain in a fixed random cycle.

    Attributes:
        confidence_NG: conditional confidences, float32 `[N, gamma]`.
        block_NG1: accepted drafts under full verification of gamma, then the confidences' running
            products (survivals), float32 `[N, 1 + gamma]`: a step reads one row a request, at
            random, and finds all of it in one place.
        num_accepted_N: drafts accepted under full verification of gamma, uint8 `[N]`.
        first_row_S: first row of each usable sequence, int64 `[S]`.
        end_row_S: one past its last whole block, int64 `[S]`.
        next_sequence_S: where a request goes on after it, int64 `[S]`.
        sequence_range_D: `[first, end)` of each domain's sequences (they are sorted by domain).
        domain_names: name of each domain.
        draft_prob_NG: q of each proposed token, float32 `[N, gamma]`; None if not recorded.
    """

    gamma: int
    confidence_NG: NDArray[np.float32]
    block_NG1: NDArray[np.float32]
    num_accepted_N: NDArray[np.uint8]
    first_row_S: NDArray[np.int64]
    end_row_S: NDArray[np.int64]
    next_sequence_S: NDArray[np.int64]
    sequence_range_D: tuple[tuple[int, int], ...]
    domain_names: tuple[str, ...]
    draft_prob_NG: NDArray[np.float32] | None = None

    @property
    def survival_NG(self) -> NDArray[np.float32]:
        """Survivals of each block, float32 `[N, gamma]`."""
        return self.block_NG1[:, 1:]

    def sequence(self, domain: int, u: float) -> int:
        """Return the sequence of `domain` at the fraction `u` in [0, 1) of its sequences."""
        first, end = self.sequence_range_D[domain]
        return first + int(u * (end - first))

    def domain_shares(self) -> NDArray[np.float64]:
        """Return each domain's share of the sequences, `[D]`."""
        counts = np.array([end - first for first, end in self.sequence_range_D], dtype=float)
        shares: NDArray[np.float64] = counts / counts.sum()
        return shares


def lay_out(trace: DenseTrace, *, gamma: int, seed: int) -> Blocks:
    """Cut `trace` to `gamma` drafts a block and lay it out for replay.

    Args:
        trace: the trace; blocks cut short by the end of their sequence are left out.
        gamma: the policy's drafts a block, 0..trace.gamma.
        seed: orders the cycle of sequences within each domain.

    Raises:
        InputError: gamma is larger than the trace's, or no sequence holds a whole block.
    """
    if not 0 <= gamma <= trace.gamma:
        raise InputError(
            f"gamma {gamma} is larger than the trace's {trace.gamma}: a trace says nothing about "
            f"drafts it did not record; use gamma 0..{trace.gamma} or a trace with longer blocks"
        )
    start_S, end_S = trace.sequence_offset_S1[:-1], trace.sequence_offset_S1[1:]
    whole_end_S = end_S - max(gamma - 1, 0)
    usable_S = np.flatnonzero(whole_end_S > start_S)
    if len(usable_S) == 0:
        raise InputError(
            f"no sequence of the trace has a whole block of {gamma} drafts; its longest holds "
            f"{int((end_S - start_S).max())} anchors"
        )
    order_S = usable_S[np.argsort(trace.sequence_domain_S[usable_S], kind="stable")]
    domain_S = trace.sequence_domain_S[order_S]
    rng = stream(seed, "acceptance/cycle")
    next_S = np.empty(len(order_S), dtype=np.int64)
    ranges: list[tuple[int, int]] = []
    for domain in range(len(trace.domain_names)):
        mine = np.flatnonzero(domain_S == domain)
        ranges.append((int(mine[0]), int(mine[-1]) + 1) if len(mine) else (0, 0))
        cycle = rng.permutation(mine)
        next_S[cycle] = np.roll(cycle, -1)
    confidence_NG = np.ascontiguousarray(trace.confidence_NG[:, :gamma], dtype=np.float32)
    num_accepted_N = np.minimum(trace.num_accepted_N, gamma).astype(np.uint8)
    block_NG1 = np.empty((trace.num_anchors, 1 + gamma), dtype=np.float32)
    block_NG1[:, 0] = num_accepted_N
    np.cumprod(confidence_NG, axis=1, dtype=np.float32, out=block_NG1[:, 1:])
    return Blocks(
        gamma=gamma,
        confidence_NG=confidence_NG,
        block_NG1=block_NG1,
        num_accepted_N=num_accepted_N,
        first_row_S=start_S[order_S].astype(np.int64),
        end_row_S=whole_end_S[order_S].astype(np.int64),
        next_sequence_S=next_S,
        sequence_range_D=tuple(ranges),
        domain_names=trace.domain_names,
        draft_prob_NG=None
        if trace.draft_prob_NG is None
        else np.ascontiguousarray(trace.draft_prob_NG[:, :gamma], dtype=np.float32),
    )
