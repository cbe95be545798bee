"""Sampling settings and the sampler, against laws written down by hand."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from specsim.drafter.drafting import Sampling, sample  # noqa: E402
from specsim.errors import InputError  # noqa: E402

LOGITS = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()


@pytest.mark.parametrize(
    ("sampling", "want"),
    [
        (Sampling(), [0.5, 0.3, 0.15, 0.05]),
        (Sampling(temperature=0.0), [1, 0, 0, 0]),
        (Sampling(top_k=2), [0.625, 0.375, 0, 0]),
        (Sampling(top_p=0.8), [0.625, 0.375, 0, 0]),
        (Sampling(top_p=0.81), [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        (Sampling(top_p=1e-9), [1, 0, 0, 0]),
        (Sampling(temperature=0.5), [0.25 / 0.365, 0.09 / 0.365, 0.0225 / 0.365, 0.0025 / 0.365]),
    ],
    ids=str,
)
def test_laws(sampling: Sampling, want: list[float]) -> None:
    # Shuffled, because a law must not depend on where the tokens stand.
    order = torch.tensor([2, 0, 3, 1])
    got = sampling.law(LOGITS[order])
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float32)[order])


def test_sampler_follows_its_law_and_never_draws_the_impossible() -> None:
    law = torch.tensor([0.0, 0.2, 0.0, 0.7, 0.1, 0.0]).expand(200_000, -1)
    drawn = torch.bincount(sample(law, torch.Generator().manual_seed(0)), minlength=6)
    share = drawn / 200_000
    assert drawn[[0, 2, 5]].tolist() == [0, 0, 0]
    # Five standard errors of the middle token.
    assert share[3] == pytest.approx(0.7, abs=5 * (0.21 / 200_000) ** 0.5)
    assert share[1] == pytest.approx(0.2, abs=5 * (0.16 / 200_000) ** 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -2}, "top_k is -2"),
        ({"top_p": 0.0}, "top_p is 0.0"),
    ],
)
def test_illegal_settings(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Sampling(**options)
