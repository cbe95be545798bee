"""What a run writes down: one row a step, one row a request, in columns; and how much it keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from numpy.typing import NDArray

Columns = dict[str, NDArray[Any]]
"""Columns of equal length by name."""


class Status(IntEnum):
    """Where a request stands: the ledger's `status` column.

    Every submitted request is in exactly one of these at every instant. Waiting counts queues,
    transfers and requests that were preempted; running counts prefill too.
    """

    WAITING = 0
    RUNNING = 1
    FINISHED = 2
    CANCELLED = 3
    TIMED_OUT = 4
    FAILED = 5


Sink = Callable[[Columns], None]
"""Takes rows in their order, some at a time."""

MOST_STEPS = 1 << 20
MOST_REQUESTS = 1 << 19


@dataclass(frozen=True, slots=True)
class Bounded:
    """Keep what a summary needs, in memory that does not grow with simulated time.

    Up to `most_steps` steps and `most_requests` requests are kept as they are. Of longer runs
    neighbouring steps are merged into rows that hold their sums (`metrics.steplog`), and a uniform
    sample of the requests is kept beside counts of all (`metrics.requestlog`).

    Attributes:
        priced: computes columns of single steps that are to be added up when steps are merged:
            what sums do not tell, such as seconds by what they were spent on.
        steps, requests: take every row of a run that is not kept whole; None for nobody.
        most_steps: a power of two.
        most_requests: at least 1.
    """

    priced: Callable[[Columns], Columns] | None = None
    steps: Sink | None = None
    requests: Sink | None = None
    most_steps: int = MOST_STEPS
    most_requests: int = MOST_REQUESTS
