"""The engine's cost object: terms, layouts and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from specsim.cost.model import CostConfig, StepCost, TermInput, make_cost
from specsim.cost.table import StepTable, parse_table, save_table
from specsim.errors import InputError

GIVEN = {"base_ms": 2.0, "per_request_us": 100.0, "label": "assumed", "source": "a test"}


def table(**parts: Any) -> StepTable:
    data: dict[str, Any] = {
        "format": "specsim.steps/1",
        "name": "toy",
        "provenance": {
            "status": "measured",
            "source": "made for a test",
            "date": "2026-11-29",
            "licence": "Apache-2.0",
        },
        "verify": {"batch_tokens": [1, 8], "seconds": [0.010, 0.024]},
    }
    data.update(parts)
    return parse_table(json.dumps(data), where="t.json")


def cost(given: StepTable, *, override: Any = None, **config: Any) -> StepCost:
    made = CostConfig(table="toy", read=config.pop("read", "linear"), **config)
    return make_cost(made, given, max_requests=8, max_tokens=16, draft=override)


ALL = {"attention": GIVEN, "draft": GIVEN, "host": GIVEN}
ATTENTION = {
    "num_requests": [1, 3],
    "context_tokens": [1000, 3000],
    "seconds": [[0.001, 0.003], [0.002, 0.006]],
}


@pytest.mark.parametrize("term", ["attention", "draft", "host"])
def test_a_missing_term_is_an_error_never_zero(term: str) -> None:
    given = {name: value for name, value in ALL.items() if name != term}
    with pytest.raises(InputError, match=f"neither has nor includes the {term} time"):
        cost(table(), **given)


def test_labelled_inputs_are_charged_once_each() -> None:
    found = cost(table(), **ALL)
    assert found.fixed_s(4, 4000) == pytest.approx(3 * (2e-3 + 4 * 100e-6))
    assert found.sources["host"] == "assumed: a test"


def test_included_terms_cost_nothing_more() -> None:
    found = cost(table(includes=["attention", "draft", "host"]))
    assert found.fixed_s(8, 10_000) == 0.0
    assert found.sources["draft"] == "measured: in the verify curve of table toy"


def test_included_is_refused_where_the_table_does_not_say_so() -> None:
    with pytest.raises(InputError, match="does not say that draft is inside"):
        cost(table(), attention=GIVEN, draft="included", host=GIVEN)
    with pytest.raises(InputError, match="has no host curve"):
        cost(table(), attention=GIVEN, draft=GIVEN, host="table")
    with pytest.raises(InputError, match="already includes host"):
        cost(table(includes=["host"]), **ALL)


def test_curves_of_the_table_are_read_as_the_scenario_says() -> None:
    given = table(draft={"num_requests": [1, 4], "seconds": [0.001, 0.004]})
    rest = {"attention": {**GIVEN, "base_ms": 0, "per_request_us": 0}, "host": "included"}
    given = table(draft={"num_requests": [1, 4], "seconds": [0.001, 0.004]}, includes=["host"])
    assert cost(given, **rest).fixed_s(2, 0) == pytest.approx(0.002)
    assert cost(given, read="ceil", **rest).fixed_s(2, 0) == pytest.approx(0.004)
    assert cost(given, read="floor", **rest).fixed_s(2, 0) == pytest.approx(0.001)


def test_attention_grows_with_requests_and_with_their_context() -> None:
    found = cost(table(attention=ATTENTION, includes=["draft", "host"]))
    assert found.fixed_s(1, 1000) == pytest.approx(0.001)
    assert found.fixed_s(2, 4000) == pytest.approx(0.003)  # mean context 2000
    assert found.fixed_s(3, 9000) == pytest.approx(0.006)
    assert found.fixed_s(3, 15_000) == pytest.approx(0.009)  # past the last: linear
    assert found.fixed_s(1, 0) == pytest.approx(0.0005)
    assert found.fixed_s(0, 0) == 0.0


def test_attention_with_three_contexts_uses_the_right_segment() -> None:
    bent = {
        "num_requests": [1],
        "context_tokens": [100, 200, 400],
        "seconds": [[0.001], [0.002], [0.008]],
    }
    found = cost(table(attention=bent, includes=["draft", "host"]))
    assert [found.fixed_s(1, kv) for kv in (150, 200, 300, 500)] == pytest.approx(
        [0.0015, 0.002, 0.005, 0.011]
    )


def test_attention_given_by_hand_counts_kv_tokens() -> None:
    hand = {**GIVEN, "base_ms": 1.0, "per_request_us": 0.0, "per_kv_token_ns": 10.0}
    found = cost(table(includes=["draft", "host"]), attention=hand)
    assert found.fixed_s(4, 20_000) == pytest.approx(1e-3 + 20_000 * 10e-9)
    with pytest.raises(InputError, match="of attention only"):
        cost(table(includes=["draft", "attention"]), host=hand)


def test_a_policy_may_draft_differently_or_not_at_all() -> None:
    given = table(draft={"num_requests": [1, 8], "seconds": [0.001, 0.008]}, includes=["attention"])
    host = {**GIVEN, "base_ms": 0.5, "per_request_us": 0.0}
    assert cost(given, host=host).fixed_s(8, 0) == pytest.approx(0.0085)
    assert cost(given, host=host, override="none").fixed_s(8, 0) == pytest.approx(0.0005)
    other = TermInput(base_ms=3.0, label="fitted", source="another drafter")
    assert cost(given, host=host, override=other).fixed_s(8, 0) == pytest.approx(0.0035)


def test_a_step_of_prefill_alone_has_host_but_no_draft() -> None:
    found = cost(table(), **ALL)
    assert found.fixed_s(0, 0) == pytest.approx(2e-3)


def test_layouts() -> None:
    plan_R = np.array([5, 0, 2])
    ragged = cost(table(includes=["attention", "draft", "host"]))
    padded = cost(table(includes=["attention", "draft", "host"]), layout="padded")
    assert ragged.charged_tokens(plan_R) == 10
    assert padded.charged_tokens(plan_R) == 18
    assert ragged.charged_tokens(plan_R[:0]) == padded.charged_tokens(plan_R[:0]) == 0


def test_verify_is_dense_read_only_and_says_where_it_extrapolates() -> None:
    found = cost(table(includes=["attention", "draft", "host"]))
    assert len(found.verify_s_B) == 17
    assert found.extrapolated_from == 8
    assert found.verify_s_B[16] == pytest.approx(0.024 + 8 * 0.002)
    with pytest.raises(ValueError, match="read-only"):
        found.verify_s_B[3] = 1.0


def test_config_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="read"):
        CostConfig.model_validate({"table": "t", "read": "nearest"})
    with pytest.raises(ValidationError, match="label"):
        CostConfig.model_validate({"table": "t", "read": "ceil", "host": {"base_ms": 1}})
    with pytest.raises(ValidationError):
        CostConfig.model_validate({"table": "t", "read": "ceil", "host": {**GIVEN, "base_ms": -1}})


def test_build_loads_what_locate_finds(tmp_path: Path) -> None:
    save_table(table(includes=["attention", "draft", "host"]), tmp_path / "toy.json")
    asked: list[tuple[str, str]] = []

    def locate(kind: str, name: str) -> Path:
        asked.append((kind, name))
        return tmp_path / f"{name}.json"

    config = CostConfig(table="toy", read="ceil")
    found = config.build(locate=locate, max_requests=2, max_tokens=8)
    assert asked == [("steps", "toy")]
    assert found.verify_s_B[2] == pytest.approx(0.024)
    assert found.max_requests == 2


def test_a_term_given_by_hand_can_be_a_curve_over_requests() -> None:
    term = TermInput(
        base_ms=1.0, at_requests=(1, 3), ms=(2.0, 4.0), label="fitted", source="two points"
    )
    np.testing.assert_allclose(term.seconds(4), [3e-3, 3e-3, 4e-3, 5e-3, 6e-3])
    for changed, message in (
        ({"at_requests": [1, 3], "ms": [2.0]}, "has 1 values for 2 at_requests"),
        ({"at_requests": [3, 1], "ms": [2.0, 1.0]}, "strictly increasing"),
    ):
        with pytest.raises(InputError, match=message):
            cost(table(), **{**ALL, "host": {**GIVEN, **changed}})
