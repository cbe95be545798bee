"""What a view hands on when some of its scores are replaced."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from specsim.schedulers.base import BatchView, History

SCORES = ("confidence_RG", "survival_RG", "lagged_survival_RG")


@pytest.mark.parametrize(
    "names", [n for size in range(4) for n in itertools.combinations(SCORES, size)]
)
def test_only_what_is_given_is_replaced(names: tuple[str, ...]) -> None:
    old = {name: np.full((2, 3), 0.1 * n) for n, name in enumerate(SCORES, start=1)}
    new = {name: np.full((2, 3), 0.5 + 0.1 * n) for n, name in enumerate(SCORES)}
    ids, table = np.array([4, 9]), np.arange(10.0)
    history = History(*(np.full(2, n) for n in range(3)))
    sampled, accepted = np.full((2, 3), 0.9), np.array([1, 2])
    view = BatchView(
        step=5,
        gamma=3,
        request_id_R=ids,
        base_tokens=2,
        verify_s_B=table,
        fixed_s=0.5,
        history=history,
        sampled_RG=sampled,
        num_accepted_R=accepted,
        **old,
    )
    made = view.replaced(**{name: new[name] for name in names})
    for name in SCORES:
        assert getattr(made, name) is (new if name in names else old)[name]
        assert getattr(view, name) is old[name]
    assert (made.step, made.gamma, made.base_tokens, made.fixed_s) == (5, 3, 2, 0.5)
    assert made.request_id_R is ids
    assert made.verify_s_B is table
    assert made.history is history
    assert made.sampled_RG is sampled
    assert made.num_accepted_R is accepted
