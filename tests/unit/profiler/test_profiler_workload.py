"""The grid of cells."""

from __future__ import annotations

import pytest

from specsim.errors import InputError
from specsim.profiler.workload import Case, default_tokens, grid, spread


def test_tokens_are_spread_evenly() -> None:
    assert spread(42, 8) == (6, 6, 5, 5, 5, 5, 5, 5)
    assert sum(spread(1023, 256)) == 1023
    assert spread(4, 4) == (1, 1, 1, 1)
    with pytest.raises(InputError, match="at least its anchor"):
        spread(3, 4)


def test_default_sweep_is_sglangs() -> None:
    assert default_tokens(40) == [1, 2, 4, 8, 16, 24, 32, 40]
    dense = default_tokens(512)
    assert {56, 64, 80, 128, 160, 256, 320, 512} <= set(dense)
    assert dense == sorted(set(dense))


def test_verify_cells_fit_their_requests() -> None:
    cases = grid([1, 4, 32], [1, 4, 8], [128], gamma=7)
    found = {(c.batch_tokens, c.num_requests) for c in cases}
    assert found == {(1, 1), (4, 1), (4, 4), (32, 4), (32, 8)}  # 32 on 1 would be 32 wide


def test_parts_and_modes_multiply() -> None:
    cases = grid(
        [4], [4], [64, 128], parts=("verify", "draft", "sampler"), modes=("graph", "eager"), gamma=5
    )
    assert sum(c.part == "verify" for c in cases) == 4
    assert sum(c.part == "draft" for c in cases) == 4
    assert [c.mode for c in cases if c.part == "sampler"] == ["eager"]
    assert all(c.batch_tokens == 20 for c in cases if c.part == "draft")
    assert len({c.key for c in cases}) == len(cases)


def test_a_backend_for_equal_widths_refuses_ragged_steps() -> None:
    ragged = Case("verify", spread(42, 8), 128)
    assert not ragged.is_uniform
    with pytest.raises(InputError, match="42 tokens cannot be spread evenly over any of"):
        grid([42], [8], [128], uniform_only=True)
    even = grid([48], [8], [128], uniform_only=True)
    assert all(case.is_uniform for case in even)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (([], [1], [1]), "batch tokens must be"),
        (([1], [0], [1]), "requests must be .* at least 1, not"),
        (([1], [1], [-1]), "contexts must be"),
        (([64], [2], [1]), "no cell fits"),
    ],
)
def test_senseless_grids_are_refused(arguments: tuple[list[int], ...], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        grid(*arguments)
