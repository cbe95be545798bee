"""Empirical and joint lengths, and the streams that they come from."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from specsim.rng import stream
from specsim.workload.feed import independent_lengths, joint_lengths, with_lengths
from specsim.workload.joint import CorrelatedPairsConfig, TracePairsConfig
from specsim.workload.lengths import EmpiricalLengthConfig, FixedLengthConfig, LognormalLengthConfig

REAL = Path(__file__).parents[4] / "shared" / "data" / "workloads"


def located(group: str, name: str) -> Path:
    return Path(name)


def test_empirical_lengths_come_as_often_as_they_should() -> None:
    config = EmpiricalLengthConfig(kind="empirical", tokens=(5, 9, 2), weights=(1, 0, 3))
    law = config.build(located)
    drawn = law.sample(stream(1, "x"), 40_000)
    assert set(drawn.tolist()) == {5, 2}
    assert (drawn == 2).mean() == pytest.approx(0.75, abs=0.01)
    assert law.longest == 5


def test_empirical_lengths_of_a_column(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n7,1\n8,1\n")
    config = EmpiricalLengthConfig(kind="empirical", file=str(path), column="a")
    assert set(config.build(located).sample(stream(1, "x"), 100).tolist()) == {7, 8}


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"tokens": (1,), "file": "x"},
        {"file": "x"},
        {"tokens": (0,)},
        {"tokens": (1, 2), "weights": (1,)},
        {"tokens": (1, 2), "weights": (0, 0)},
        {"tokens": (1, 2), "weights": (-1, 2)},
    ],
)
def test_empirical_lengths_that_make_no_sense(wrong) -> None:
    with pytest.raises(ValidationError):
        EmpiricalLengthConfig(kind="empirical", **wrong)


def test_correlated_pairs_keep_their_margins_and_correlate() -> None:
    prompt = LognormalLengthConfig(kind="lognormal", mean=1000, cv=1.0)
    output = LognormalLengthConfig(kind="lognormal", mean=200, cv=0.5)
    law = CorrelatedPairsConfig(kind="correlated", prompt=prompt, output=output, correlation=-0.6)
    p_N, o_N = law.sample(stream(3, "x"), 200_000)
    assert p_N.mean() == pytest.approx(1000, rel=0.02)
    assert o_N.mean() == pytest.approx(200, rel=0.02)
    assert o_N.std() / o_N.mean() == pytest.approx(0.5, rel=0.03)
    assert np.corrcoef(np.log(p_N), np.log(o_N))[0, 1] == pytest.approx(-0.6, abs=0.02)


def test_pairs_of_a_file_stay_together(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,10\n2,20\n3,30\n")
    config = TracePairsConfig(kind="pairs", file=str(path), prompt_column="a", output_column="b")
    law = config.build(located)
    p_N, o_N = law.sample(stream(1, "x"), 1000)
    assert (o_N == 10 * p_N).all()
    assert set(p_N.tolist()) == {1, 2, 3}
    assert law.longest_output == 30
    with pytest.raises(ValidationError):
        TracePairsConfig(kind="pairs", file="x")
    with pytest.raises(ValidationError):
        TracePairsConfig(kind="pairs")


@pytest.mark.skipif(not REAL.is_dir(), reason="no ../shared/data/workloads here")
def test_pairs_of_a_real_summary_file() -> None:
    config = TracePairsConfig(
        kind="pairs",
        file=str(REAL / "vidur_arxiv_summarization_lengths.csv"),
        prompt_column="num_prefill_tokens",
        output_column="num_decode_tokens",
    )
    p_N, o_N = config.build(located).sample(stream(1, "x"), 50_000)
    assert 1000 < p_N.mean() < 5000
    assert 50 < o_N.mean() < 500


def test_request_i_has_the_same_lengths_whatever_brings_it() -> None:
    """Common random numbers: the feed draws from the streams that the engine draws from."""
    prompt = LognormalLengthConfig(kind="lognormal", mean=100, cv=1.0)
    output = LognormalLengthConfig(kind="lognormal", mean=50, cv=1.0)
    pairs = list(islice(independent_lengths(prompt, output, seed=7), 5000))
    rng = stream(7, "request/prompt")
    engine = np.concatenate([prompt.sample(rng, 4096), prompt.sample(rng, 4096)])
    assert [p for p, _ in pairs] == engine[:5000].tolist()
    fixed = FixedLengthConfig(kind="fixed", tokens=3)
    arrivals = list(with_lengths([1.0, 2.5], independent_lengths(fixed, fixed, seed=1)))
    assert [(a.at_s, a.prompt_tokens, a.output_tokens) for a in arrivals] == [
        (1, 3, 3),
        (2.5, 3, 3),
    ]


def test_joint_lengths_are_reproducible() -> None:
    law = CorrelatedPairsConfig(
        kind="correlated",
        prompt=LognormalLengthConfig(kind="lognormal", mean=100, cv=1.0),
        output=LognormalLengthConfig(kind="lognormal", mean=100, cv=1.0),
        correlation=0.5,
    )
    one, two, other = (list(islice(joint_lengths(law, seed=s), 5000)) for s in (1, 1, 2))
    assert one == two != other
