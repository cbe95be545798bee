"""The order of simultaneous events, and the only place that says it.

At one instant: (1) arrivals and the ends of users' thinking, in the order in which they were
scheduled; (2) the ends of steps and the waking of idle ranks, by rank index. A rank whose step
ends commits it, hands its finished users back (a request submitted without thinking joins a queue
at once), then admits from its queue and starts the next step. So every arrival of an instant is
seen by every step that starts at that instant.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import simpy
from simpy.core import Environment


class Order(IntEnum):
    """Priority classes at one instant; ranks come after `STEP` by their index."""

    ARRIVAL = 1
    STEP = 2


def after(env: Environment, delay_s: float, order: int) -> simpy.Event:
    """Return an event that happens `delay_s` from now, in class `order` of its instant."""
    event = simpy.Event(env)
    event._ok = True
    event._value = None
    schedule: Any = env.schedule
    schedule(event, order, delay_s)
    return event
