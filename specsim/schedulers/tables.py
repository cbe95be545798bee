"""A draft length looked up by the batch size."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from specsim.registry import Config
from specsim.schedulers.base import BatchView, IntArray, Reads

Range = tuple[
    Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)], Annotated[int, Field(ge=0, le=64)]
]


@dataclass(frozen=True, slots=True)
class BatchTable:
    """One length for all, by R: each range of batch sizes has its own, gaps keep the one before.

    Lossless: the length depends on R alone. Proven by enumeration
    (`tests/lossless/test_policies.py`).
    """

    ranges: tuple[tuple[int, int, int], ...]
    reads: frozenset[Reads] = frozenset()
    lag: int = 0
    lossless: bool = True

    def plan(self, view: BatchView) -> IntArray:
        """Return the table's length for every request."""
        k = 0
        for first, _, length in self.ranges:
            if first > view.num_requests:
                break
            k = length
        return np.full(view.num_requests, min(k, view.gamma), dtype=np.int64)


class BatchTableConfig(Config):
    """vLLM's dynamic speculation: a draft length for each range of batch sizes.

    The first range starts at 1; between ranges and past the last one, the range before counts.
    Ranges by context length (vLLM's five-item form) are not modelled. Source: vLLM, dynamic
    speculative decoding configuration.
    """

    kind: Literal["batch_table"]
    ranges: tuple[Range, ...] = Field(
        min_length=1, max_length=1000, description="[first R, last R, drafts], in rising order."
    )

    @model_validator(mode="after")
    def _in_order(self) -> BatchTableConfig:
        if self.ranges[0][0] != 1:
            raise PydanticCustomError(
                "cross_field",
                "begins at {first} requests; the first range must start at 1",
                {"at": "ranges", "first": self.ranges[0][0]},
            )
        for first, last, _ in self.ranges:
            if last < first:
                raise PydanticCustomError(
                    "cross_field",
                    "holds [{first}, {last}, ..], which ends before it begins",
                    {"at": "ranges", "first": first, "last": last},
                )
        for (_, last, _), (after, _, _) in pairwise(self.ranges):
            if after <= last:
                raise PydanticCustomError(
                    "cross_field",
                    "overlap: one ends at {last} requests, the next starts at {after}",
                    {"at": "ranges", "last": last, "after": after},
                )
        return self

    def build(self) -> BatchTable:
        """Make the scheduler."""
        return BatchTable(self.ranges)
