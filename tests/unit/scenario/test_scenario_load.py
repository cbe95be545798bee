from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.errors import InputError, ScenarioError
from specsim.scenario.load import (
    LoadedScenario,
    canonical_json,
    load_scenario,
    scenario_hash,
    schema_json,
)
from specsim.scenario.schema import FrontierQuestion, Scenario, kind_of

ROOT = Path(__file__).parents[3]

TEXT = """\
name: good
question:
  kind: frontier
  concurrency: [1, 4, 8]
  slo_tok_s_user: [80, 120]
  headline_slo: 80
  baseline: base
seed: 1
stop: {kind: requests, num_requests: 10}
cluster: {gpus_per_rank: 1, max_requests_per_rank: 16}
workload:
  arrivals: {kind: closed_loop}
  prompt_tokens: {kind: fixed, tokens: 512}
  output_tokens: {kind: fixed, tokens: 100}
acceptance: {kind: trace, trace: tiny}
cost: {table: small, read: linear}
policies:
  base: {scheduler: {kind: none}, gamma: 0}
  test: {scheduler: {kind: fixed, k: 2}, gamma: 4}
"""


def load(folder: Path, text: str = TEXT, *overrides: str) -> LoadedScenario:
    path = folder / "s.yaml"
    path.write_text(text, encoding="utf-8")
    return load_scenario(path, overrides=overrides)


def failure(folder: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        load(folder, text, *overrides)
    return [str(problem).removeprefix(f"{folder / 's.yaml'}:") for problem in caught.value.problems]


def test_a_scenario_becomes_typed_and_frozen(tmp_path: Path) -> None:
    scenario = load(tmp_path).scenario
    assert isinstance(scenario.question, FrontierQuestion)
    assert scenario.question.concurrency == (1, 4, 8)
    assert scenario.question.slo_tok_s_user == (80.0, 120.0)
    assert list(scenario.policies) == ["base", "test"]
    assert scenario.policies["test"].scheduler.kind == "fixed"
    with pytest.raises(ValueError, match="frozen"):
        scenario.seed = 2


def test_overrides_are_laid_over_the_file(tmp_path: Path) -> None:
    scenario = load(tmp_path, TEXT, "seed=7", "policies.test.scheduler.k=3").scenario
    assert scenario.seed == 7
    assert scenario.policies["test"].scheduler.k == 3  # type: ignore[attr-defined]


def test_problems_come_in_the_order_of_the_file_overrides_last(tmp_path: Path) -> None:
    text = TEXT.replace("tokens: 512", "tokens: 0").replace("name: good", "nmae: good")
    said = failure(tmp_path, text, "seed=-1")
    assert [line.split(": ")[0] for line in said] == ["1:1", "1:1", "13:40", "--set seed"]


def test_a_wrong_override_does_not_hide_what_else_is_wrong(tmp_path: Path) -> None:
    said = failure(tmp_path, TEXT.replace("seed: 1", "seed: x"), "nothing")
    assert len(said) == 2


def test_rules_between_parts_are_seen_past_other_errors(tmp_path: Path) -> None:
    text = TEXT.replace("seed: 1", "seed: x").replace("baseline: base", "baseline: bass")
    text = text.replace("[1, 4, 8]", "[1, 4, 99]").replace("gamma: 0", "gamma: no")
    text = text.replace("k: 2", "k: 9")
    said = "\n".join(failure(tmp_path, text))
    assert "which is no policy" in said
    assert "more users than cluster.max_requests_per_rank" in said
    assert "more than the policy's gamma" in said
    assert "seed: is" in said
    assert "policies.base.gamma: is" in said


def test_a_union_with_plain_values_complains_of_the_form_that_was_meant(tmp_path: Path) -> None:
    for given_text, path, words in (
        ("host: tabel", "cost.host", "legal are table, included, or a mapping of base_ms"),
        ("host: {base_ms: -1, label: assumed, source: x}", "cost.host.base_ms", "at least 0"),
        ("host: {label: assumed, source: x}", "cost.host.base_ms", "is missing"),
        ("host: [1]", "cost.host", "legal are table, included"),
        ("host: {base: 1, base_ms: 1, label: assumed, source: x}", "cost.host.base", "base_ms"),
    ):
        (line,) = failure(tmp_path, TEXT.replace("read: linear", f"read: linear, {given_text}"))
        assert f": {path}: " in line
        assert words in line


def test_a_mapping_of_the_wrong_type_is_named_once(tmp_path: Path) -> None:
    (line,) = failure(tmp_path, TEXT.replace("{kind: fixed, k: 2}", "[fixed]"))
    assert 'is ["fixed"]; a mapping with a kind is needed' in line


def test_blame_gives_a_later_error_its_place(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    with pytest.raises(ScenarioError) as caught, loaded.blame("cost", "table"):
        raise InputError("no such table")
    (problem,) = caught.value.problems
    assert problem.where.endswith("s.yaml:16:15")
    assert problem.path == "cost.table"
    with pytest.raises(ZeroDivisionError), loaded.blame("cost"):
        raise ZeroDivisionError


# Hash


def test_comments_order_and_overrides_do_not_change_the_hash(tmp_path: Path) -> None:
    one = scenario_hash(load(tmp_path).scenario)
    head, policies = TEXT.split("policies:")
    base, test = policies.strip("\n").split("\n")
    turned = f"# a comment\npolicies:\n{test}\n{base}   # another\n{head}"
    assert scenario_hash(load(tmp_path, turned).scenario) == one
    anchors = TEXT.replace("prompt_tokens: {", "prompt_tokens: &p {")
    assert scenario_hash(load(tmp_path, anchors).scenario) == one
    floats = TEXT.replace("[80, 120]", "[80.0, 1.2e2]")
    assert scenario_hash(load(tmp_path, floats).scenario) == one
    defaults = TEXT.replace("gpus_per_rank: 1", "ranks: 1, gpus_per_rank: 1")
    assert scenario_hash(load(tmp_path, defaults).scenario) == one
    other = TEXT.replace("seed: 1", "seed: 2")
    assert scenario_hash(load(tmp_path, other).scenario) != one
    assert scenario_hash(load(tmp_path, other, "seed=1").scenario) == one


def test_the_content_of_profiles_changes_the_hash(tmp_path: Path) -> None:
    scenario = load(tmp_path).scenario
    profile = tmp_path / "p.json"
    profile.write_bytes(b"1")
    one = scenario_hash(scenario, [profile])
    assert one != scenario_hash(scenario)
    profile.write_bytes(b"2")
    assert one != scenario_hash(scenario, [profile])


def test_canonical_json_is_a_scenario_again(tmp_path: Path) -> None:
    scenario = load(tmp_path).scenario
    again = Scenario.model_validate_json(canonical_json(scenario), strict=True)
    assert again == scenario
    assert canonical_json(again) == canonical_json(scenario)


# User's schedulers


def test_a_users_own_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """\
import numpy as np
class Two:
    reads = frozenset()
    lag = 0
    def __init__(self, k=2, lossless=True):
        self.k, self.lossless = k, lossless
    def plan(self, view):
        return np.full(view.num_requests, self.k, dtype=np.int64)
"""
    (tmp_path / "users_rule.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    own = '{kind: "users_rule:Two", params: {k: 1}}'
    loaded = load(tmp_path, TEXT.replace("{kind: fixed, k: 2}", own))
    assert loaded.scenario.policies["test"].scheduler.build().k == 1  # type: ignore[attr-defined]
    liar = '{kind: "users_rule:Two", params: {lossless: false}}'
    (line,) = failure(tmp_path, TEXT.replace("{kind: fixed, k: 2}", liar))
    assert "biases the output" in line
    unsafe = TEXT.replace("{kind: fixed, k: 2}", liar).replace("gamma: 4", "gamma: 4, unsafe: true")
    assert load(tmp_path, unsafe).scenario.policies["test"].unsafe


def test_kind_of_takes_mappings_and_models(tmp_path: Path) -> None:
    assert kind_of({"kind": "fixed"}) == "fixed"
    assert kind_of({"kind": "a.b:C"}) == "module:Class"
    assert kind_of({"kind": 3}) is None
    assert kind_of("fixed") is None
    assert kind_of(load(tmp_path).scenario.stop) == "requests"


# JSON schema


def test_the_committed_json_schema_is_fresh() -> None:
    path = ROOT / "scenarios" / "scenario.schema.json"
    assert path.read_text(encoding="utf-8") == schema_json(), (
        "rewrite it: specsim schema > scenarios/scenario.schema.json"
    )


def test_the_json_schema_knows_every_kind() -> None:
    text = schema_json()
    for kind in ("closed_loop", "poisson", "batch", "lognormal", "async_topk", "trace", "frontier"):
        assert f'"const": "{kind}"' in text


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_scenarios_are_valid_and_named_after_their_file(path: Path) -> None:
    scenario = load_scenario(path).scenario
    assert scenario.name == path.stem
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == "# yaml-language-server: $schema=scenario.schema.json"


# Robustness

_KEYS = [
    ("seed",),
    ("question", "kind"),
    ("question", "concurrency"),
    ("question", "headline_slo"),
    ("cluster",),
    ("workload", "arrivals"),
    ("workload", "output_tokens", "tokens"),
    ("cost", "host"),
    ("acceptance", "tilt"),
    ("policies",),
    ("policies", "test"),
    ("policies", "test", "scheduler", "kind"),
    ("policies", "test", "gamma"),
]
_SCALARS = ["-1", "0", "3", "1.5", ".nan", ".inf", "''", "x", "fixed", "[]", "{}", "[1]", "null"]
_SCALARS += ["{kind: fixed}", "{kind: [1]}", "{a: {b: 1}}", "true", "'1'", "1e400", "[[1, 2], x]"]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(_KEYS), st.sampled_from(_SCALARS)), min_size=1, max_size=4)
)
def test_whatever_is_put_in_it_is_valid_or_a_scenario_error(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[tuple[str, ...], str]]
) -> None:
    folder = tmp_path_factory.mktemp("s")
    overrides = [f"{'.'.join(keys)}={value}" for keys, value in changes]
    problems = []
    try:
        load(folder, TEXT, *overrides)
    except ScenarioError as error:
        problems = list(error.problems)
    assert all(problem.where and problem.message for problem in problems)
