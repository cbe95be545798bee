from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.errors import ScenarioError
from specsim.scenario.source import MAX_VALUES, Source, parse, show


def data(text: str) -> Any:
    return parse(text, label="f.yaml").data


def failure(text: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        parse(text, label="f.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("+12", 12),
        ("-7", -7),
        ("200_000", 200_000),
        ("0123", 123),
        ("0x1F", 31),
        ("-0o17", -15),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("-.5", -0.5),
        ("1_000.5", 1000.5),
        ("-.inf", float("-inf")),
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("on", "on"),
        ("~", None),
        ("", None),
        ("2026-01-01", "2026-01-01"),
        ("1:30", "1:30"),
        ("'3'", "3"),
        ("[1, {a: 2}]", [1, {"a": 2}]),
    ],
)
def test_scalars_as_yaml_1_2_reads_them(text: str, value: object) -> None:
    found = data(f"x: {text}\n")["x"]
    assert found == value
    assert type(found) is type(value)


def test_nan_is_read_and_left_to_the_schema() -> None:
    found = data("x: .nan")["x"]
    assert found != found


def test_keys_are_text_whatever_they_look_like() -> None:
    assert data("80: a\ntrue: b\n") == {"80": "a", "true": "b"}


def test_positions_of_values_keys_and_of_what_is_missing() -> None:
    source = parse("a:\n  b: [1, 2]\n  c:\nd: 3\n", label="f.yaml")
    assert source.where(("a", "b", 1)) == "f.yaml:2:10"
    assert source.where(("a", "b")) == "f.yaml:2:6"
    assert source.where(("a", "b"), key=True) == "f.yaml:2:3"
    assert source.where(("a", "c")) == "f.yaml:3:3"
    assert source.where(("a", "gone", "deeper")) == "f.yaml:2:3"
    assert source.where(("gone",)) == "f.yaml:1:1"


def test_aliases_and_merges() -> None:
    text = "x: &x {a: 1, b: 2}\ny: *x\nz: {<<: *x, b: 3}\nw:\n  <<: [{a: 8}, *x]\n"
    assert data(text) == {
        "x": {"a": 1, "b": 2},
        "y": {"a": 1, "b": 2},
        "z": {"b": 3, "a": 1},
        "w": {"a": 8, "b": 2},
    }


def test_a_merged_value_is_reported_where_it_was_written() -> None:
    source = parse("x: &x\n  a: 1\nz:\n  <<: *x\n  b: 3\n", label="f.yaml")
    assert source.where(("z", "a")) == "f.yaml:2:6"
    assert source.where(("z", "b")) == "f.yaml:5:6"
    assert source.where(("z",)) == "f.yaml:4:3"


def test_all_duplicate_keys_are_found_at_once() -> None:
    text = failure("a: 1\na: 2\nb:\n  c: 1\n  c: 2\n")
    assert 'f.yaml:2:1: a: the key "a" stands twice, first at 1:1' in text
    assert 'f.yaml:5:3: b.c: the key "c" stands twice, first at 4:3' in text


def test_a_mistake_behind_an_alias_is_said_once() -> None:
    assert len(failure("a: &a {c: 1, c: 2}\nb: *a\nd: *a\n").splitlines()) == 1


def test_wide_files_are_refused_and_the_limit_itself_is_not() -> None:
    fits = MAX_VALUES - 1 - 1
    assert len(data("[" + "1," * fits + "1]")) == fits + 1
    assert "values once its aliases" in failure("[" + "1," * (fits + 1) + "1]")


def test_an_alias_bomb_is_refused_quickly() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join(['*' + before] * 10)}]")
    assert "once its aliases are followed" in failure("\n".join(lines))


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_gives_data_or_a_scenario_error(text: str) -> None:
    said = []
    try:
        parse(text, label="f.yaml")
    except ScenarioError as error:
        said = [str(problem) for problem in error.problems]
    assert all(line.startswith("f.yaml") for line in said)


@settings(deadline=None)
@given(
    st.recursive(
        st.one_of(st.integers(), st.booleans(), st.none(), st.text("abc: #'\"\n", max_size=8)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(st.text("abc", max_size=3), inner)
        ),
        max_leaves=12,
    )
)
def test_json_is_read_as_what_it_says(value: object) -> None:
    import json

    assert data(json.dumps({"x": value}))["x"] == value


# Overrides


def overridden(text: str, *overrides: str) -> Source:
    source = parse(text, label="f.yaml")
    for override in overrides:
        source.override(override)
    return source


def test_an_override_changes_one_value_and_its_position() -> None:
    source = overridden("a:\n  b: 1\n  c: 2\n", "a.b=[x, {y: 3}]")
    assert source.data == {"a": {"b": ["x", {"y": 3}], "c": 2}}
    assert source.where(("a", "b", 1, "y")) == "--set a.b"
    assert source.where(("a", "b"), key=True) == "--set a.b"
    assert source.where(("a", "c")) == "f.yaml:3:6"


def test_overrides_make_what_is_missing_and_reach_into_lists() -> None:
    source = overridden("a: [1, 2]\n", "b.c.d=x", "a.1=7")
    assert source.data == {"a": [1, 7], "b": {"c": {"d": "x"}}}
    assert source.where(("b", "c")) == "--set b.c.d"
    assert source.where(("a", 0)) == "f.yaml:1:5"


def test_the_last_override_wins() -> None:
    assert overridden("a: 1\n", "a=2", "a=3").data == {"a": 3}


def test_an_override_of_an_aliased_value_leaves_the_other_alone() -> None:
    assert overridden("a: &a {x: 1}\nb: *a\n", "b.x=2").data == {"a": {"x": 1}, "b": {"x": 2}}


def test_values_of_overrides_may_hold_equals_signs_and_quotes() -> None:
    assert overridden("a: 1\n", "a='b=c: d'").data == {"a": "b=c: d"}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("a.b.c=1", '"c" would lie inside 1'),
        ("l.5=1", '"5" is no index of a list of 2'),
        ("l.x=1", '"x" is no index'),
        ("a..b=1", "needs the form"),
        ("a.b={", "is not YAML"),
        ("a.b={c: 1, c: 2}", "stands twice"),
    ],
)
def test_overrides_that_cannot_be_done(override: str, words: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        overridden("a: {b: 1}\nl: [1, 2]\n", override)
    assert words in str(caught.value)
    assert str(caught.value).startswith("--set ")


def test_show_is_short_and_reads_like_yaml() -> None:
    assert show(True) == "true"
    assert show(None) == "empty (null)"
    assert show(float("nan")) == ".nan"
    assert show(float("-inf")) == "-.inf"
    assert show({}) == "{}"
    assert show(["a", 1]) == '["a", 1]'
    assert show(list(range(50))) == "a list of 50"
    assert len(show("x" * 1000)) < 70
    assert len(show(10**100)) < 70
