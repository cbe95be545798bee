"""Workloads from scenario text to arrivals: which lengths, which load, which mistakes."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from specsim.engine.run import Batch, ClosedLoop, Feed, Poisson, run
from specsim.errors import ScenarioError
from specsim.scenario.build import build_arm, run_input
from specsim.scenario.load import LoadedScenario, load_scenario

HEAD = """
name: w
question: {{kind: point{users}}}
seed: 1
stop: {stop}
cluster: {{gpus_per_rank: 1, ranks: 2, max_requests_per_rank: 64}}
workload:
  arrivals: {arrivals}
{lengths}
acceptance:
  {{kind: parametric, calibration: domains, mix: {{chat: 1}}, sequences: 20, anchors: 200}}
cost:
  table: aiconfigurator/h100_llama31-8b_tp1_bf16
  read: linear
  draft: {{base_ms: 0.6, per_request_us: 2, label: assumed, source: guess}}
  host: {{base_ms: 0.5, per_request_us: 5, label: assumed, source: guess}}
policies:
  fixed_2: {{scheduler: {{kind: fixed, k: 2}}, gamma: 4}}
"""
FIXED = "  prompt_tokens: {kind: fixed, tokens: 30}\n  output_tokens: {kind: fixed, tokens: 9}"
PAIRS = (
    "  lengths: {kind: correlated, correlation: 0.9, prompt: {kind: lognormal, mean: 200, cv: 1}, "
    "output: {kind: lognormal, mean: 40, cv: 1, min: 2}}"
)
MOONCAKE = "".join(
    f'{{"timestamp": {at}, "input_length": {10 + at}, "output_length": 7, "hash_ids": [0]}}\n'
    for at in (0, 40, 90, 500)
)


def load(tmp_path: Path, arrivals: str, lengths: str, *, stop: str = "", users: str = ""):
    stop = stop or "{kind: requests, num_requests: 30}"
    path = tmp_path / "w.yaml"
    path.write_text(HEAD.format(arrivals=arrivals, lengths=lengths, stop=stop, users=users))
    (tmp_path / "t.jsonl").write_text(MOONCAKE)
    return load_scenario(path)


def given(loaded: LoadedScenario, concurrency: int | None = None):
    arm = build_arm(loaded.scenario, "fixed_2", folder=loaded.path.parent)
    return arm, run_input(loaded.scenario, arm, concurrency=concurrency)


@pytest.mark.parametrize(
    "arrivals",
    [
        "{kind: renewal, rate_per_s: 20, family: weibull, cv: 2}",
        "{kind: on_off, on_per_s: 50, mean_on_s: 1, mean_off_s: 1}",
        "{kind: diurnal, mean_per_s: 20, amplitude: 0.5, period_s: 60}",
        "{kind: ramp, from_per_s: 1, to_per_s: 30, over_s: 5}",
        "{kind: sessions, sessions_per_s: 10, mean_turns: 3, mean_think_s: 0.5, "
        "max_context_tokens: 4000}",
    ],
)
@pytest.mark.parametrize("lengths", [FIXED, PAIRS], ids=["fixed", "pairs"])
def test_every_open_kind_runs(tmp_path: Path, arrivals: str, lengths: str) -> None:
    _, found = given(load(tmp_path, arrivals, lengths))
    assert isinstance(found.load, Feed)
    out = run(found)
    assert int((~np.isnan(out.requests["finish_s"])).sum()) == 30
    again = run(found)
    assert np.array_equal(out.requests["finish_s"], again.requests["finish_s"], equal_nan=True)
    if lengths is FIXED and "sessions" not in arrivals:
        assert set(out.requests["output_tokens"].tolist()) == {9}


def test_joint_lengths_reach_users_streams_and_batches(tmp_path: Path) -> None:
    seen = []
    for arrivals, users, kind in (
        ("{kind: closed_loop}", ", concurrency: 4", ClosedLoop),
        ("{kind: poisson, rate_per_s: 30}", "", Poisson),
        ("{kind: batch, num_requests: 30}", "", Batch),
        ("{kind: renewal, rate_per_s: 30, family: gamma, cv: 1}", "", Feed),
    ):
        _, found = given(load(tmp_path, arrivals, PAIRS, users=users), 4 if users else None)
        assert isinstance(found.load, kind)
        out = run(found)
        seen.append(out.requests["prompt_tokens"][:20].tolist())
    assert seen[0] == seen[1] == seen[2] == seen[3]  # request i is the same, whoever brings it
    logs = np.log(out.requests["prompt_tokens"]), np.log(out.requests["output_tokens"])
    assert np.corrcoef(*logs)[0, 1] > 0.6


def test_a_replay_serves_every_row_and_reports_the_file(tmp_path: Path) -> None:
    arrivals = "{kind: replay, format: mooncake, file: t.jsonl, rate_scale: 2}"
    arm, found = given(load(tmp_path, arrivals, "", stop="{kind: all_done}"))
    out = run(found)
    assert out.ended == "all done"
    np.testing.assert_allclose(out.requests["arrival_s"], [0, 0.02, 0.045, 0.25])
    assert out.requests["prompt_tokens"].tolist() == [10, 50, 100, 510]
    assert out.requests["emitted"].tolist() == [6] * 4  # the first token is the prefill's
    assert arm.workload.report is not None
    assert arm.workload.report.kept == 4
    assert any(path.name == "t.jsonl" for path in arm.profiles)  # another file, another hash


def test_follow_ups_come_after_their_answers(tmp_path: Path) -> None:
    arrivals = (
        "{kind: sessions, sessions_per_s: 5, mean_turns: 4, mean_think_s: 0.2, "
        "max_context_tokens: 100000}"
    )
    stop = "{kind: requests, num_requests: 200}"
    loaded = load(tmp_path, arrivals, FIXED, stop=stop)
    out = run(given(loaded)[1])
    prompt = out.requests["prompt_tokens"]
    assert set(np.unique((prompt - 30) % 39).tolist()) == {0}  # 30, then 39 more each turn
    assert (prompt > 30).sum() > 20
    firsts = list(
        islice(build_arm(loaded.scenario, "fixed_2", folder=tmp_path).workload.feed(1), 3)
    )
    assert [a.session for a in firsts] == [0, 1, 2]


@pytest.mark.parametrize(
    ("arrivals", "lengths", "said"),
    [
        ("{kind: poisson, rate_per_s: 1}", "", "workload.prompt_tokens: is missing"),
        (
            "{kind: poisson, rate_per_s: 1}",
            "  prompt_tokens: {kind: fixed, tokens: 3}",
            "workload.output_tokens: is missing",
        ),
        ("{kind: poisson, rate_per_s: 1}", FIXED + "\n" + PAIRS, "workload.lengths: is given"),
        (
            "{kind: replay, format: mooncake, file: t.jsonl}",
            FIXED,
            "workload.prompt_tokens: is given, but the requests",
        ),
        (
            "{kind: replay, format: moncake, file: t.jsonl}",
            "",
            "workload.arrivals.format",
        ),
        ("{kind: renewal, rate_per_s: 1, family: gamma, cv: 50}", FIXED, "workload.arrivals.cv"),
    ],
)
def test_mistakes_are_located(tmp_path: Path, arrivals: str, lengths: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, arrivals, lengths)
    assert said in str(caught.value)
    assert "w.yaml:" in str(caught.value)


def test_endless_arrivals_are_never_all_done(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="never end"):
        load(
            tmp_path,
            "{kind: ramp, from_per_s: 1, to_per_s: 2, over_s: 9}",
            FIXED,
            stop="{kind: all_done}",
        )


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    loaded = load(tmp_path, "{kind: replay, format: mooncake, file: no.jsonl}", "")
    with pytest.raises(ValueError, match=r'no workload trace "no\.jsonl"'):
        given(loaded)


def test_adaptive_steps_are_refused_in_lockstep(tmp_path: Path) -> None:
    """SGLang refuses them under attention data parallelism: tiers would not be synchronised."""
    path = tmp_path / "w.yaml"
    text = HEAD.format(
        arrivals="{kind: poisson, rate_per_s: 1}",
        lengths=FIXED,
        stop="{kind: requests, num_requests: 3}",
        users="",
    ).replace("{kind: fixed, k: 2}", "{kind: adaptive_steps}")
    path.write_text(text)
    assert load_scenario(path).scenario.cluster.lockstep is None
    path.write_text(text.replace("ranks: 2,", "ranks: 2, lockstep: {},"))
    with pytest.raises(ScenarioError, match="attention data parallelism"):
        load_scenario(path)
