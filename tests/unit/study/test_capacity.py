"""Capacity: what brute force finds, in a quarter of its runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from specsim.errors import InputError
from specsim.metrics.record import Status
from specsim.scenario.load import load_scenario
from specsim.study.capacity import _evidence_of, _LoadTask, capacity, point_at, search
from specsim.study.executor import Place
from specsim.study.slo import (
    MLPERF,
    Evidence,
    Judgement,
    MetricTerm,
    ShareTerm,
    binomial_interval,
    evidence,
    judge,
    parse_slo,
)
from tests.study_world import write_scenario


def at_law(true: float, power: float) -> tuple[list[float], object]:
    tried: list[float] = []

    def at(load: float) -> tuple[Judgement, Sequence[float]]:
        tried.append(load)
        margin = 1 - (load / true) ** power
        return Judgement(margin >= 0, True, margin, ""), [margin]

    return tried, at


@pytest.mark.parametrize("true", [1.0, 3.7, 42.2, 511.4, 999.0, 1e6])
@pytest.mark.parametrize("power", [0.3, 1.0, 6.0])
@pytest.mark.parametrize("whole", [True, False])
def test_search_finds_the_edge(true: float, power: float, whole: bool) -> None:
    tried, at = at_law(true, power)
    found = search(at, low=1, high=1000, whole=whole)  # type: ignore[arg-type]
    assert found.evaluations == len(tried) <= 22
    assert len(set(tried)) == len(tried)  # no load twice
    if true >= 1000:
        assert found.load == 1000
        assert found.fails_at is None
    elif whole:
        assert found.load is not None
        assert found.fails_at is not None
        assert found.load <= true < found.fails_at
        assert found.fails_at - found.load == 1 or found.fails_at / found.load <= 1.01
    else:
        assert found.load == pytest.approx(true, rel=0.011)


def test_nothing_holds() -> None:
    _, at = at_law(0.5, 1.0)
    found = search(at, low=1, high=100, whole=True)  # type: ignore[arg-type]
    assert found.load is None
    assert found.evaluations == 1


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenario(tmp_path_factory.mktemp("capacity"), requests=150)


@pytest.mark.parametrize("slo", ["tok_s_user>=280", "tpot_p90<=4.2ms"])
def test_within_a_hundredth_of_brute_force_in_a_quarter_of_its_runs(
    scenario: Path, slo: str
) -> None:
    found = capacity(
        str(scenario), [slo], policies=["topk"], low=1, high=64, replications=2, place=Place(1)
    )["policies"]["topk"]
    loaded = load_scenario(scenario).scenario
    terms = parse_slo([slo])
    holding, runs = [], 0
    for load in range(1, 65):
        tasks = [
            _LoadTask(point_at(loaded, "topk", scenario.parent, load, seed=1 + n), terms)
            for n in range(2)
        ]
        runs += len(tasks)
        if judge(terms, [_evidence_of(task) for task in tasks]).holds:
            holding.append(load)
    # The largest load up to which everything holds is what "capacity" means.
    edge = next((n for n in range(1, 65) if n not in holding), 65) - 1
    assert 1 < edge < 64, "the SLO decides nothing here"
    assert abs(found["capacity"] - edge) <= max(0.01 * edge, 0)
    assert found["runs"] * 4 <= runs
    assert found["ci95"][0] < found["fails_at"] + 1
    assert found["ci95"][1] > found["capacity"] - 1


def test_a_rate_is_found_too(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, question="{kind: point}", requests=200)
    text = path.read_text().replace("kind: closed_loop", "kind: poisson, rate_per_s: 20")
    path.write_text(text)
    found = capacity(
        str(path), ["tpot_p50<=4ms"], policies=["fixed"], replications=1, place=Place(1)
    )["policies"]["fixed"]
    assert 20 < found["capacity"] < 2000
    assert found["fails_at"] / found["capacity"] <= 1.0101


def test_mistakes_say_what_is_legal(scenario: Path) -> None:
    for texts, message in (
        ([], "no SLO given"),
        (["tok_s_usr>=8"], 'did you mean "tok_s_user"'),
        (["tpot_p99<=x"], "is no SLO"),
        (["tpot_p99<=-5ms"], "above 0"),
        (["goodput(ttfs<=1s)>=95%"], "ttft, tpot, e2e"),
        (["goodput(ttft<=1s)>=195%"], "share"),
        (["mlperf:lama2-70b"], "llama2-70b"),
    ):
        with pytest.raises(InputError, match=message):
            parse_slo(texts)
    with pytest.raises(InputError, match="max_requests_per_rank = 64"):
        capacity(str(scenario), ["tok_s_user>=1"], high=100, place=Place(1))
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="is no load"):
            capacity(str(scenario), ["tok_s_user>=1"], low=wrong, place=Place(1))
        with pytest.raises(InputError, match="is no load"):
            capacity(str(scenario), ["tok_s_user>=1"], high=wrong, place=Place(1))
    with pytest.raises(InputError, match='did you mean "topk"'):
        capacity(str(scenario), ["tok_s_user>=1"], policies=["topp"], place=Place(1))


def test_terms_are_read() -> None:
    slo = parse_slo(["tok_s_user>=80", "tpot_p99<=50ms", "goodput(ttft<=0.5,tpot<=15ms)>=95%"])
    assert slo.terms == (
        MetricTerm("tok_s_user", at_least=True, limit=80.0),
        ShareTerm((("tpot", 0.05),), 0.99),
        ShareTerm((("ttft", 0.5), ("tpot", 0.015)), 0.95),
    )
    assert len(MLPERF) == 11
    assert parse_slo(["mlperf:deepseek-r1-interactive"]).terms == (
        ShareTerm((("ttft", 1.5),), 0.99),
        ShareTerm((("tpot", 0.015),), 0.99),
    )


def test_goodput_counts_requests_that_meet_all_limits() -> None:
    requests = {
        "arrival_s": np.array([0.0, 0.0, 0.0, 0.0, 5.0]),
        "first_token_s": np.array([0.1, 0.9, 0.1, 0.1, np.nan]),
        "finish_s": np.array([1.1, 1.9, 9.1, 0.1, np.nan]),
        "output_tokens": np.array([11, 11, 11, 1, 11]),
        "status": np.array([Status.FINISHED] * 4 + [Status.RUNNING]),
    }
    slo = parse_slo(["goodput(ttft<=0.5s,tpot<=0.2s)>=50%"])
    found = evidence(slo, {}, requests, from_s=0.0)
    assert found.met == (
        2,
    )  # the second waits too long, the third is too slow, the last unfinished
    assert found.counted == (4,)
    assert judge(slo, [found]).holds
    # Nobody was served within the limit who was not served at all.
    for status, counted in ((Status.TIMED_OUT, 5), (Status.FAILED, 5), (Status.CANCELLED, 4)):
        requests["status"][4] = status
        found = evidence(slo, {}, requests, from_s=0.0)
        assert (found.met, found.counted) == ((2,), (counted,))
        assert judge(slo, [found]).holds == (counted == 4)
    assert evidence(slo, {}, requests, from_s=6.0).counted == (0,)


def test_the_binomial_rule() -> None:
    slo = parse_slo(["tpot_p99<=1s"])

    def verdict(met: int, counted: int) -> Judgement:
        value = 0.9 if met / counted >= 0.99 else 1.1
        return judge(slo, [Evidence((value,), (met,), (counted,))])

    assert verdict(100, 100).holds
    assert not verdict(100, 100).settled  # 100 good ones do not prove 99 %
    assert verdict(1000, 1000).settled
    assert not verdict(970, 1000).holds
    assert verdict(970, 1000).settled
    low, high = binomial_interval(990, 1000)
    assert low == pytest.approx(0.98169, abs=2e-5)  # published tables of the exact interval
    assert high == pytest.approx(0.99519, abs=2e-5)
    assert binomial_interval(0, 0) == (0.0, 1.0)


def test_no_finished_request_holds_nothing() -> None:
    slo = parse_slo(["tok_s_user>=1"])
    found = judge(slo, [Evidence((math.nan,), (0,), (0,))])
    assert not found.holds
    assert not found.settled
