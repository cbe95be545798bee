"""How a load is said in words, wherever one is: in answers, warnings, pages and errors."""

from __future__ import annotations

from collections.abc import Sequence


def load_name(load: int | None) -> str:
    """Say a load in words; arrivals that are not users have only one, that of the scenario."""
    return "its load" if load is None else users_a_rank([load])


def at_loads(loads: Sequence[int | None]) -> str:
    """Say under which loads, as `at 8, 32 users a rank`; empty where users are not counted."""
    users = [load for load in loads if load is not None]
    return f"at {users_a_rank(users)}" if users else ""


def users_a_rank(users: Sequence[int]) -> str:
    """Say numbers of users a rank."""
    return f"{', '.join(map(str, users))} user{'' if list(users) == [1] else 's'} a rank"
