"""The order of simultaneous events, and the only place that says it.

At one instant: (1) arrivals, the ends of users' thinking and patience, the ends of KV transfers,
and the deaths and returns of ranks, in the order in which they were scheduled; (2) the ends of
prefill steps and the waking of idle prefill ranks, by rank index; (3) the ends of decode steps and
the waking of idle ranks, by rank index (a lockstep group counts as its first rank). A rank whose
step ends commits it, hands its finished users back (a request submitted without thinking joins a
queue at once), then admits from its queue and starts the next step. So every arrival of an instant
is seen by every step that starts at that instant.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import simpy
from simpy.core import Environment


class Order(IntEnum):
    """Priority classes at one instant; ranks come after `PREFILL` or `STEP` by their index."""

    ARRIVAL = 1
    PREFILL = 2
    STEP = 8192


def after(env: Environment, delay_s: float, order: int) -> simpy.Event:
    """Return an event that happens `delay_s` from now, in class `order` of its instant."""
    event = simpy.Event(env)
    event._ok = True
    event._value = None
    schedule: Any = env.schedule
    schedule(event, order, delay_s)
    return event
