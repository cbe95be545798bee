"""Long runs kept bounded: sums stay exact, samples fair, and what is kept does not grow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specsim.engine.run import ClosedLoop, Poisson, RunInput, Stop, run, simulate
from specsim.metrics import steplog
from specsim.metrics.account import account
from specsim.metrics.catalog import measure, summarise, weighted_percentile
from specsim.metrics.record import Bounded, Columns
from specsim.metrics.requestlog import RequestLog
from specsim.metrics.steplog import StepLog, merged, single
from specsim.schedulers.topk import AsyncTopK
from specsim.study.shares import time_parts, time_shares
from specsim.workload.lengths import UniformLengthConfig
from tests.engine_world import small_input
from tests.unit.engine.test_fused import assert_same, blocks_of, table_cost

MOST = Bounded(most_steps=256, most_requests=300)
SAMPLED = ("ttft", "tpot", "itl", "e2e", "tok_s_user_", "mean_waiting", "requests_finished")


def long_input(load: ClosedLoop | Poisson, *, tokens: int = 40_000, ranks: int = 3) -> RunInput:
    return small_input(
        blocks_of(3, 4),
        scheduler=lambda: AsyncTopK(2),
        cost=table_cost(),
        load=load,
        prompt=UniformLengthConfig(kind="uniform", min=4, max=40),
        output=UniformLengthConfig(kind="uniform", min=2, max=15),
        ranks=ranks,
        capacity=16,
        router="least_loaded",
        seed=5,
        stop=Stop(tokens=tokens),
    )


def summary(given: RunInput) -> dict[str, float | None]:
    out = run(given)
    window = measure(
        steps=out.steps,
        requests=out.requests,
        end_s=out.end_s,
        ranks=given.ranks,
        gpus_per_rank=1,
        cut_warmup=False,
        requests_each=out.requests_each,
    )
    found = summarise(window) | account(out.request_counts, out.steps)
    return found | time_shares(window, given.cost)


@pytest.mark.parametrize("load", [ClosedLoop(20), Poisson(300.0)])
def test_sums_are_exact_and_sampled_figures_near(load: ClosedLoop | Poisson) -> None:
    whole = long_input(load)
    priced = replace(MOST, most_requests=1500, priced=lambda steps: time_parts(steps, whole.cost))
    wanted, found = summary(whole), summary(replace(whole, record=priced))
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        if name.endswith("ci95"):  # cut elsewhere
            continue
        if value is None:
            assert found[name] is None
            continue
        near = (0.3 if "p99" in name else 0.1) if name.startswith(SAMPLED) else 1e-9
        assert found[name] == pytest.approx(value, rel=near, abs=1e-12), name


@pytest.mark.parametrize("load", [ClosedLoop(20), Poisson(300.0)])
def test_the_compiled_loop_keeps_the_same_bytes(load: ClosedLoop | Poisson) -> None:
    given = replace(long_input(load), record=MOST)
    found, wanted = run(given), simulate(given)
    assert_same(found, wanted)
    assert found.steps_each > 4
    assert found.requests_each > 4
    assert (found.steps_each, found.requests_each) == (wanted.steps_each, wanted.requests_each)
    assert found.request_counts == wanted.request_counts


def test_twice_the_time_keeps_no_more() -> None:
    for tokens in (20_000, 40_000, 80_000):
        out = run(replace(long_input(ClosedLoop(20), tokens=tokens), record=MOST))
        assert MOST.most_steps / 4 <= len(out.steps["steps"]) <= MOST.most_steps
        assert MOST.most_requests / 3 <= len(out.requests["request"]) <= MOST.most_requests


def test_nothing_is_lost_on_the_way_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specsim.engine.fused._FLUSH_ROWS", 16)
    monkeypatch.setattr("specsim.engine.ledger._FLUSH_ROWS", 16)
    given = long_input(Poisson(200.0), tokens=60_000)
    wanted = run(given)
    for how in (run, simulate):
        taken: dict[str, list[Columns]] = {"steps": [], "requests": []}
        sinks = {name: parts.append for name, parts in taken.items()}
        out = how(replace(given, record=replace(MOST, **sinks)))
        assert len(taken["requests"]) >= 2
        for name, parts in taken.items():
            for column, values in getattr(wanted, name).items():
                got = np.concatenate([part[column] for part in parts])
                assert got.tobytes() == values.tobytes(), (name, column)
        kept = np.isin(wanted.requests["request"], out.requests["request"])
        for column, values in out.requests.items():
            np.testing.assert_array_equal(values, wanted.requests[column][kept])


def test_a_run_that_fits_is_kept_as_it_is() -> None:
    given = long_input(ClosedLoop(4), tokens=500)
    sinks = {"steps": pytest.fail, "requests": pytest.fail}
    out, wanted = run(replace(given, record=Bounded(**sinks))), run(given)
    assert_same(out, wanted)
    assert (out.steps_each, out.requests_each) == (1, 1)


def _steps(count: int, *, ranks: int = 2) -> Columns:
    log = StepLog()
    rng = np.random.default_rng(1)
    for i in range(count):
        slow = i % ranks == 0
        log.add(
            end_s=i / 10,
            duration_s=0.3 if slow else 0.1,
            rank=i % ranks,
            num_requests=int(rng.integers(0, 4)),
            verified=i,
            accepted=2,
            emitted=3,
            waiting=i,
            kv_tokens=10 * i,
            kv_blocks=i % 7,
        )
    return log.columns()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 64, 65])
def test_merged_rows_by_hand(count: int) -> None:
    steps = _steps(count)
    rows = merged(single(steps), np.random.default_rng(0))
    assert len(rows["steps"]) == -(-count // 2)
    assert rows["steps"].sum() == count
    for name in ("verified", "accepted", "emitted", "num_requests"):
        assert rows[name].sum() == steps[name].sum()
    assert rows["request_s"].sum() == pytest.approx(
        (steps["num_requests"] * steps["duration_s"]).sum()
    )
    assert rows["kv_blocks"].max(initial=0) == steps["kv_blocks"].max(initial=0)
    assert rows["forward_tokens"].max(initial=0) == (steps["num_requests"] + steps["verified"]).max(
        initial=0
    )
    for name in ("end_s", "waiting", "kv_tokens"):
        np.testing.assert_array_equal(rows[name][: count // 2], steps[name][1::2])


def test_gaps_stay_a_fair_sample_where_ranks_take_turns() -> None:
    """Every other step is three times as long: keeping each second one would see one kind alone."""
    steps = _steps(1 << 15)
    rows, rng = single(steps), np.random.default_rng(0)
    for _ in range(4):
        rows = merged(rows, rng)
    weight = steps["num_requests"]
    share = weight[steps["duration_s"] == 0.3].sum() / weight.sum()
    got = rows["num_requests"][rows["gap_s"] == 0.3].sum() / weight.sum()
    assert got == pytest.approx(share, abs=4 * 0.5 / np.sqrt(1 << 11))
    assert weighted_percentile(rows["gap_s"], rows["num_requests"], 99) == 0.3


def test_the_sample_of_requests_does_not_depend_on_the_parts() -> None:
    rows = {
        "request": np.arange(5000),
        "status": np.full(5000, 2),
        "prompt_tokens": np.ones(5000, dtype=np.int64),
    }
    rows |= {name: np.zeros(5000, dtype=np.int64) for name in ("preemptions", "reroutes")}
    rows |= {name: np.zeros(5000, dtype=np.int64) for name in ("prefilled", "cached")}
    kept = []
    for size in (1, 7, 999, 5000):
        log = RequestLog(keep=Bounded(most_requests=100))
        for first in range(0, 5000, size):
            log.add({name: column[first : first + size] for name, column in rows.items()})
        kept.append(log.columns()["request"])
        assert log.counts["FINISHED"] == 5000
        assert 50 < len(kept[-1]) <= 100
        assert log.each == 5000 / len(kept[-1])
    assert all(np.array_equal(kept[0], other) for other in kept)
    # Spread over the whole, no stretch preferred: each tenth has its share.
    tenth_N = np.bincount(kept[0] // 500, minlength=10)
    assert tenth_N.max() <= 18


def test_blocks_of_any_length_are_merged_alike() -> None:
    times, counts = StepLog.block(3000)
    times[:, 0] = np.arange(3000)
    counts[:, steplog._STEP_COUNTS.index("num_requests")] = np.arange(3000) % 5
    found = []
    for size in (1, 17, 3000):
        log = StepLog(keep=MOST)
        for first in range(0, 3000, size):
            log.add_block(times[first : first + size], counts[first : first + size])
        found.append(log.columns())
    for other in found[1:]:
        for name, column in found[0].items():
            np.testing.assert_array_equal(column, other[name])
