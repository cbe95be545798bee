"""What the engine cannot do, said before a run begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specsim.engine.prefill import DisaggregatedPrefill, MixedPrefill
from specsim.errors import InputError

if TYPE_CHECKING:
    from specsim.engine.run import RunInput


def refuse(given: RunInput) -> None:
    """Refuse what the engine cannot do, rather than do something else.

    Raises:
        InputError: parts of the input do not go together.
    """
    gamma = given.blocks.gamma
    kv, prefill = given.kv, given.prefill
    if isinstance(prefill, MixedPrefill) and prefill.tokens_per_step < 1 + gamma:
        raise InputError(
            f"cluster.prefill.tokens_per_step: {prefill.tokens_per_step} does not hold one "
            f"request's step of {1 + gamma} tokens (gamma {gamma})"
        )
    if kv is not None and kv.admission == "optimistic":
        if kv.preemption == "recompute" and prefill is None:
            raise InputError(
                "cluster.kv.preemption: recompute would be free, since prefill takes no time "
                "here; give cluster.prefill, or use swap or worst_case admission"
            )
        if kv.preemption == "swap" and given.router == "central_queue":
            raise InputError(
                "cluster.kv.preemption: swap keeps a request's KV on its rank, but with the "
                "central_queue router another may take it; use recompute or another router"
            )
    if kv is not None and kv.prefix_reuse and isinstance(prefill, DisaggregatedPrefill):
        raise InputError(
            "cluster.kv.prefix_reuse: the caches of disaggregated prefill ranks are not modelled; "
            "use mixed prefill, or leave it out"
        )
    seen: set[int] = set()
    for death in given.deaths:
        if not 0 <= death.rank < given.ranks or death.rank in seen:
            raise InputError(
                f"cluster.deaths: rank {death.rank} is not one of 0..{given.ranks - 1}, or dies "
                "twice"
            )
        if death.back_s is not None and death.back_s <= death.at_s:
            raise InputError(
                f"cluster.deaths: rank {death.rank} comes back at {death.back_s:g} s, before it "
                f"dies at {death.at_s:g} s"
            )
        seen.add(death.rank)
