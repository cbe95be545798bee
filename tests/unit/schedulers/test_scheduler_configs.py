"""The published schema and the configs that read scenarios say the same: defaults and bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from specsim.lossless.kinds import STAND_INS
from specsim.schedulers import CONFIGS
from specsim.schedulers.feedback import StepSlot
from specsim.schedulers.oracle import OptimalConfig, OracleConfig
from specsim.schedulers.tables import BatchTableConfig
from tests.scheduler_views import make_view

SCHEMA = json.loads(
    (Path(__file__).parents[3] / "scenarios" / "scenario.schema.json").read_text(encoding="utf-8")
)
BY_NAME: dict[str, Any] = {config.__name__: config for config in CONFIGS}
PUBLISHED = {name: SCHEMA["$defs"][name]["properties"] for name in BY_NAME}
REQUIRED = {
    name: {
        field: value
        for field, value in STAND_INS.get(fields["kind"]["const"], {}).items()
        if "default" not in fields[field]
    }
    for name, fields in PUBLISHED.items()
}
SMALL = 1e-9


def made(name: str, **values: Any) -> Any:
    return BY_NAME[name](kind=PUBLISHED[name]["kind"]["const"], **{**REQUIRED[name], **values})


def bounds() -> list[tuple[str, str, Any, Any]]:
    """(config, field, legal, illegal) at every end of every range of the published schema."""
    found = []
    for name, fields in PUBLISHED.items():
        for field, said in fields.items():
            step = 1 if said.get("type") == "integer" else SMALL
            for word, way in (("minimum", -1), ("maximum", 1)):
                if word in said:
                    found.append((name, field, said[word], said[word] + way * step))
                if (open_end := "exclusive" + word.title()) in said:
                    found.append((name, field, said[open_end] - way * step, said[open_end]))
    return found


def test_every_shipped_kind_is_published() -> None:
    kinds = [fields["kind"]["const"] for fields in PUBLISHED.values()]
    assert len(set(kinds)) == len(kinds) == len(CONFIGS)
    assert len(bounds()) > 60


@pytest.mark.parametrize("name", BY_NAME)
def test_what_is_left_out_is_what_the_schema_says(name: str) -> None:
    filled = made(name).model_dump(mode="json")
    for field, said in PUBLISHED[name].items():
        if "default" in said:
            assert filled[field] == said["default"], field
        elif field != "kind":
            assert field in SCHEMA["$defs"][name]["required"]
            assert field in REQUIRED[name]


@pytest.mark.parametrize(("name", "field", "legal", "illegal"), bounds())
def test_the_ends_of_a_range_are_legal_and_what_lies_beyond_is_not(
    name: str, field: str, legal: Any, illegal: Any
) -> None:
    assert getattr(made(name, **{field: legal}), field) == legal
    with pytest.raises(ValidationError, match=rf"{field}\n"):
        made(name, **{field: illegal})


LISTS = [
    (name, field, said)
    for name, fields in PUBLISHED.items()
    for field, said in fields.items()
    if said.get("items", {}).get("type") in ("integer", "number")
]


@pytest.mark.parametrize(("name", "field", "said"), LISTS)
def test_lists_are_as_long_as_the_schema_says(name: str, field: str, said: Any) -> None:
    if most := said.get("maxItems"):
        assert len(getattr(made(name, **{field: tuple(range(1, most + 1))}), field)) == most
        with pytest.raises(ValidationError, match=f"at most {most} items"):
            made(name, **{field: tuple(range(1, most + 2))})
    if said.get("minItems"):
        with pytest.raises(ValidationError, match="at least 1 item"):
            made(name, **{field: ()})
    else:
        assert getattr(made(name, **{field: ()}), field) == ()
    one = 0.5 if said["items"]["type"] == "number" else 1
    assert getattr(made(name, **{field: (one,)}), field) == (one,)
    for wrong in ((0,), (one, one), (2 * one, one)):
        with pytest.raises(ValidationError, match="rising"):
            made(name, **{field: wrong})


@pytest.mark.parametrize("name", BY_NAME)
def test_a_scheduler_says_of_itself_what_can_be(name: str) -> None:
    scheduler = made(name).build()
    assert scheduler.lag == getattr(made(name), "lag", scheduler.lag)
    assert (scheduler.lag > 0) == ("lagged" in scheduler.reads)
    if "lag" in PUBLISHED[name] and PUBLISHED[name]["lag"]["minimum"] == 0:
        assert not made(name, lag=0).build().lossless
        assert made(name, lag=1).build().lossless
    bound = BY_NAME[name] in (OptimalConfig, OracleConfig)
    assert getattr(scheduler, "bound", False) == bound


@pytest.mark.parametrize("name", [name for name in BY_NAME if name != "OracleConfig"])
@pytest.mark.parametrize("ones", [False, True])
def test_an_empty_batch_has_an_empty_plan_and_a_sure_one_on_a_flat_table_is_whole(
    name: str, ones: bool
) -> None:
    scheduler = made(name).build()
    none = make_view(np.zeros((0, 2)), base=5, sampled_RG=np.zeros((0, 2)))
    plan_R = scheduler.plan(none)
    assert plan_R.shape == (0,)
    assert plan_R.dtype == np.int64
    plan_R = scheduler.plan(make_view(np.full((3, 2), float(ones)), sampled_RG=np.ones((3, 2))))
    assert plan_R.shape == (3,)
    assert plan_R.dtype == np.int64
    greedy = (
        "NoneConfig FixedConfig BatchTableConfig GoodputConfig AdaptiveStepsConfig BanditConfig"
    )
    if ones and name not in (*greedy.split(), "TetrisConfig"):
        assert plan_R.tolist() == [2, 2, 2]


def test_ranges_of_a_batch_table_may_touch_and_be_of_one_size() -> None:
    def build(*ranges: tuple[int, int, int]) -> Any:
        return BatchTableConfig(kind="batch_table", ranges=ranges).build()

    table = build((1, 1, 64), (2, 2, 0), (3, 9, 1))
    assert [len(table.ranges), table.ranges[0][2]] == [3, 64]
    for wrong in ((1, 1, 65), (1, 0, 1), (0, 1, 1)):
        with pytest.raises(ValidationError):
            build(wrong)
    with pytest.raises(ValidationError, match="one ends at 2 requests, the next starts at 2"):
        build((1, 2, 1), (2, 3, 1))


def test_a_range_of_adaptive_steps_starts_somewhere() -> None:
    assert StepSlot(from_requests=1, steps=(0,)).steps == (0,)
    for wrong in ({"from_requests": 0, "steps": (1,)}, {"from_requests": 1, "steps": ()}):
        with pytest.raises(ValidationError):
            StepSlot(**wrong)
