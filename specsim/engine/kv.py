"""KV memory of one rank, in blocks: who may come in, who must go, what prompts share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from specsim.engine.request import Request
from specsim.engine.step import Slot
from specsim.errors import InputError

IntArray = NDArray[np.int64]
_CONTEXT, _PRIVATE, _SHARED = int(Slot.CONTEXT), int(Slot.PRIVATE), int(Slot.SHARED)


@dataclass(frozen=True, slots=True)
class KvSpec:
    """The KV memory of every rank.

    Attributes:
        blocks: blocks of one rank.
        block_tokens: tokens of a block.
        admission: `worst_case` sets aside what a request can need at most before it comes in;
            `optimistic` what it needs now, and puts others back when memory runs out.
        preemption: `recompute` drops the KV of a request that is put back, which is prefilled
            again; `swap` moves it to host memory and back.
        swap_s_per_token: seconds a KV token that a swap adds to the next step, each way.
        watermark: share of the blocks that an optimistic admission leaves free.
        prefix_reuse: whether prompts with equal leading blocks share them.
        spiral_after: preemptions of one rank since its last finished request that end the run
            as a spiral.
    """

    blocks: int
    block_tokens: int = 16
    admission: Literal["worst_case", "optimistic"] = "worst_case"
    preemption: Literal["recompute", "swap"] = "recompute"
    swap_s_per_token: float = 0.0
    watermark: float = 0.01
    prefix_reuse: bool = False
    spiral_after: int = 1000


@njit(cache=True, nogil=True)
def missing_blocks(slots: Any, num_requests: int, ahead: int, block_tokens: int) -> int:
    """Return the blocks that the batch lacks to write `ahead` more tokens of each request."""
    missing = 0
    for r in range(num_requests):
        needed = (slots[_CONTEXT, r] + ahead + block_tokens - 1) // block_tokens
        lacking = needed - slots[_SHARED, r] - slots[_PRIVATE, r]
        if lacking > 0:
            missing += lacking
    return missing


@njit(cache=True, nogil=True)
def grow(slots: Any, num_requests: int, ahead: int, block_tokens: int) -> None:
    """Give every request of the batch the blocks that it lacks, in place."""
    for r in range(num_requests):
        needed = (slots[_CONTEXT, r] + ahead + block_tokens - 1) // block_tokens
        lacking = needed - slots[_SHARED, r] - slots[_PRIVATE, r]
        if lacking > 0:
            slots[_PRIVATE, r] += lacking


def lacking_twin(slots: IntArray, num_requests: int, ahead: int, block_tokens: int) -> IntArray:
    """Return what `missing_blocks` sums up and `grow` gives, `[R]`, in plain numpy."""
    batch = slots[:, :num_requests]
    needed_R = -(-(batch[Slot.CONTEXT] + ahead) // block_tokens)
    lacking_R: IntArray = np.maximum(needed_R - batch[Slot.SHARED] - batch[Slot.PRIVATE], 0)
    return lacking_R


class PrefixCache:
    """Blocks found again by what they hold; those that nobody holds go, least recent first.

    Attributes:
        blocks: KV blocks in the cache.
        evictable: those of them that no request holds.
    """

    def __init__(self) -> None:
        self.blocks = 0
        self.evictable = 0
        self._entries: dict[Hashable, list[int]] = {}  # key -> [holders, KV blocks]
        self._unheld: OrderedDict[Hashable, None] = OrderedDict()

    def match(self, keys: Sequence[Hashable]) -> tuple[Hashable, ...]:
        """Return the leading keys that are here."""
        found = 0
        for key in keys:
            if key not in self._entries:
                break
            found += 1
        return tuple(keys[:found])

    def unheld(self, keys: Sequence[Hashable]) -> int:
        """Return the KV blocks among `keys` that nobody holds."""
        return sum(self._entries[key][1] for key in keys if key in self._unheld)

    def hold(self, keys: Sequence[Hashable]) -> None:
        """Hold blocks that are here."""
        for key in keys:
            entry = self._entries[key]
            if entry[0] == 0:
                del self._unheld[key]
                self.evictable -= entry[1]
            entry[0] += 1

    def insert(self, key: Hashable, kv_blocks: int) -> bool:
        """Put in a block that its maker holds; False if its like is here already."""
        if key in self._entries:
            return False
        self._entries[key] = [1, kv_blocks]
        self.blocks += kv_blocks
        return True

    def release(self, keys: Sequence[Hashable]) -> None:
        """Let go of blocks; of those that nobody holds, the tail of a prompt goes first."""
        for key in reversed(keys):
            entry = self._entries[key]
            entry[0] -= 1
            if entry[0] == 0:
                self._unheld[key] = None
                self.evictable += entry[1]

    def evict(self, kv_blocks: int) -> None:
        """Make at least that many blocks free."""
        while kv_blocks > 0:
            key, _ = self._unheld.popitem(last=False)
            size = self._entries.pop(key)[1]
            self.blocks -= size
            self.evictable -= size
            kv_blocks -= size


class KvPool:
    """The blocks of one rank: held by one request alone, in the prefix cache, or free.

    Args:
        spec: how large, and how it is shared out.
        gamma: drafts a request: a step writes up to `1 + gamma` tokens of it.
    """

    def __init__(self, spec: KvSpec, *, gamma: int) -> None:
        self.spec = spec
        self.ahead = 1 + gamma
        self.private = 0
        self._watermark = int(spec.watermark * spec.blocks)
        self._cache = PrefixCache() if spec.prefix_reuse else None

    @property
    def used(self) -> int:
        """Blocks that are not free; those of the cache that nobody holds are among them."""
        return self.private + (self._cache.blocks if self._cache is not None else 0)

    @property
    def available(self) -> int:
        """Blocks that are free or can be made so."""
        evictable = self._cache.evictable if self._cache is not None else 0
        return self.spec.blocks - self.used + evictable

    def fits_alone(self, request: Request) -> bool:
        """Say whether an empty rank could serve it to its end."""
        return self._worst(request) <= self.spec.blocks

    def admit(self, request: Request, *, alone: bool) -> bool:
        """Take the blocks that `request` needs to come in, or none; shared ones where possible.

        Args:
            request: gets its blocks, and `to_prefill` less what the cache holds of it.
            alone: nobody else is on this rank, so that no watermark is kept.
        """
        spec, cache = self.spec, self._cache
        worst = spec.admission == "worst_case"
        needed = self._worst(request) if worst else self._now(request)
        matched: tuple[Hashable, ...] = ()
        unit, available = 1, self.available
        if cache is not None:
            keys, unit = self._keys(request)
            # The last prompt token is always computed: it gives the first output token.
            most = (request.prompt_tokens - 1) // (unit * spec.block_tokens)
            matched = cache.match(keys[:most])
            available -= cache.unheld(matched)
        shared = len(matched) * unit
        spare = 0 if worst or alone else self._watermark
        if needed - shared + spare > available:
            return False
        if cache is not None:
            cache.hold(matched)
        self._take(needed - shared)
        request.kv_private, request.kv_shared, request.kv_keys = needed - shared, shared, matched
        if matched and request.to_prefill and not request.swapped:
            spared = shared * spec.block_tokens
            request.to_prefill -= spared
            request.cached += spared
        return True

    def publish(self, request: Request) -> None:
        """Let others find the prompt's whole blocks, now that they have been computed."""
        if self._cache is None:
            return
        keys, unit = self._keys(request)
        self._insert(request, keys[len(request.kv_keys) :], unit)

    def grown(self, slots: IntArray, num_requests: int) -> bool:
        """Give the batch what the next step may write; False, and nothing, if it is not there."""
        missing = missing_blocks(slots, num_requests, self.ahead, self.spec.block_tokens)
        if missing > self.available:
            return False
        if missing:
            self._take(missing)
            grow(slots, num_requests, self.ahead, self.spec.block_tokens)
        return True

    def release(self, request: Request, column: IntArray | None, *, finished: bool = False) -> None:
        """Give back all that `request` holds; a finished turn leaves its context to the next."""
        if column is not None:
            request.kv_private = int(column[_PRIVATE])
        arrival = request.arrival
        more_turns = arrival is not None and bool(arrival.then) and not arrival.blocks
        if finished and more_turns and self._cache is not None and column is not None:
            whole = int(column[_CONTEXT]) // self.spec.block_tokens
            keys = [(request.session, i) for i in range(len(request.kv_keys), whole)]
            self._insert(request, keys, 1)
        self.private -= request.kv_private
        if self._cache is not None:
            self._cache.release(request.kv_keys)
        request.kv_private, request.kv_shared, request.kv_keys = 0, 0, ()

    def _take(self, blocks: int) -> None:
        free = self.spec.blocks - self.used
        if self._cache is not None and blocks > free:
            self._cache.evict(blocks - free)
        self.private += blocks

    def _insert(self, request: Request, keys: Sequence[Hashable], unit: int) -> None:
        assert self._cache is not None
        made = tuple(key for key in keys if self._cache.insert(key, unit))
        moved = len(made) * unit
        self.private -= moved
        request.kv_private -= moved
        request.kv_shared += moved
        request.kv_keys += made

    def _worst(self, request: Request) -> int:
        longest = request.prompt_tokens + request.output_tokens - 1 + self.ahead - 1
        return -(-longest // self.spec.block_tokens)

    def _now(self, request: Request) -> int:
        emitted = 0 if request.saved is None else int(request.saved[Slot.EMITTED])
        tokens = request.prompt_tokens + emitted + self.ahead
        # Near its end a request can need no more than its worst case, which fits alone.
        return min(-(-tokens // self.spec.block_tokens), self._worst(request))

    def _keys(self, request: Request) -> tuple[Sequence[Hashable], int]:
        """Return the keys of the prompt's whole blocks and the KV blocks of each."""
        arrival, size = request.arrival, self.spec.block_tokens
        if arrival is None:
            return (), 1
        if arrival.blocks and arrival.block_tokens:
            if arrival.block_tokens % size:
                raise InputError(
                    f"cluster.kv.block_tokens: {size} does not divide the workload's prefix "
                    f"blocks of {arrival.block_tokens} tokens; use a size that does"
                )
            whole = request.prompt_tokens // arrival.block_tokens
            return arrival.blocks[:whole], arrival.block_tokens // size
        return [(request.session, i) for i in range(arrival.context_tokens // size)], 1
