"""The table file and its readings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specsim.cost.table import check_table, curve, load_table, parse_table, save_table
from specsim.errors import ScenarioError


def content(**changes: Any) -> dict[str, Any]:
    data: dict[str, Any] = {
        "format": "specsim.steps/1",
        "name": "toy",
        "provenance": {
            "status": "synthetic",
            "source": "made for a test",
            "date": "2026-11-29",
            "licence": "Apache-2.0",
        },
        "verify": {"batch_tokens": [1, 4, 8], "seconds": [0.010, 0.016, 0.020]},
    }
    data.update(changes)
    return {key: value for key, value in data.items() if value is not None}


def problems(data: Any) -> list[str]:
    text = data if isinstance(data, str) else json.dumps(data)
    with pytest.raises(ScenarioError) as caught:
        parse_table(text, where="t.json")
    return [str(problem) for problem in caught.value.problems]


def test_readings_between_probes() -> None:
    table = parse_table(json.dumps(content()), where="t.json")
    floor = table.dense("floor", 8)
    linear = table.dense("linear", 8)
    ceil = table.dense("ceil", 8)
    np.testing.assert_allclose(floor[:9] * 1e3, [0, 10, 10, 10, 16, 16, 16, 16, 20])
    np.testing.assert_allclose(linear[:9] * 1e3, [0, 10, 12, 14, 16, 17, 18, 19, 20])
    np.testing.assert_allclose(ceil[:9] * 1e3, [0, 10, 16, 16, 16, 20, 20, 20, 20])


@pytest.mark.parametrize("read", ["floor", "linear", "ceil"])
def test_below_the_first_probe_the_first_probe_counts(read: str) -> None:
    found = curve([4, 8], [0.016, 0.020]).dense(read, 4)  # type: ignore[arg-type]
    np.testing.assert_allclose(found * 1e3, [0, 16, 16, 16, 16])


@pytest.mark.parametrize("read", ["floor", "linear", "ceil"])
def test_past_the_last_probe_every_reading_is_linear(read: str) -> None:
    table = parse_table(json.dumps(content()), where="t.json")
    found = table.dense(read, 12)  # type: ignore[arg-type]
    np.testing.assert_allclose(found[8:] * 1e3, [20, 21, 22, 23, 24])
    assert table.last_tokens == 8


def test_the_tail_slope_ignores_noise_between_close_probes() -> None:
    noisy = curve([1, 99, 100], [0.010, 0.0199, 0.0250])
    assert noisy.tail_slope() == pytest.approx((0.0250 - 0.010) / 99)
    falling = curve([1, 100], [0.020, 0.010])
    assert falling.tail_slope() == 0.0


def test_the_two_sides_of_the_graph_limit_are_never_blended() -> None:
    data = content(
        graph_limit_tokens=10, past_limit={"batch_tokens": [16, 32], "seconds": [0.1, 0.2]}
    )
    table = parse_table(json.dumps(data), where="t.json")
    for read in ("floor", "linear", "ceil"):
        dense = table.dense(read, 40)  # type: ignore[arg-type]
        assert dense[10] < 0.03, read
        np.testing.assert_allclose(dense[11:17], 0.1, err_msg=read)
        assert dense[24] == pytest.approx(0.15), read
        assert dense[40] == pytest.approx(0.25), read
    assert table.last_tokens == 32
    np.testing.assert_array_equal(table.dense("ceil", 10), table.dense("ceil", 40)[:11])


def test_running_max_of_non_monotone_medians() -> None:
    bumpy = curve([1, 2, 3, 4], [0.010, 0.014, 0.012, 0.015])
    np.testing.assert_allclose(bumpy.dense("ceil", 4, running_max=True)[1:] * 1e3, [10, 14, 14, 15])
    np.testing.assert_allclose(bumpy.dense("ceil", 4)[1:] * 1e3, [10, 14, 12, 15])


def test_save_and_load_are_inverse(tmp_path: Path) -> None:
    data = content(
        graph_limit_tokens=8,
        past_limit={"batch_tokens": [16, 32], "seconds": [0.1, 0.2]},
        draft={"num_requests": [1, 2], "seconds": [0.001, 0.0015]},
        attention={
            "num_requests": [1, 2],
            "context_tokens": [1024, 4096],
            "seconds": [[0.1, 0.2], [0.3, 0.4]],
        },
        includes=["host"],
    )
    table = parse_table(json.dumps(data), where="t.json")
    path = tmp_path / "deep" / "t.json"
    save_table(table, path)
    assert load_table(path).to_json() == table.to_json()
    assert '"batch_tokens": [1, 4, 8]' in path.read_text()
    assert not list(path.parent.glob("*.partial"))


def test_a_bad_table_is_not_written(tmp_path: Path) -> None:
    table = parse_table(json.dumps(content()), where="t.json")
    bad = type(table)(table.name, table.provenance, curve([2, 1], [0.1, 0.1]))
    path = tmp_path / "t.json"
    with pytest.raises(ScenarioError, match=r"verify.batch_tokens\[1\]"):
        save_table(bad, path)
    assert not path.exists()
    assert check_table(table).name == "toy"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"verify": {"batch_tokens": [4, 4], "seconds": [1, 1]}}, "4 does not rise above 4"),
        ({"verify": {"batch_tokens": [1, 2], "seconds": [1, 0]}}, "must be above 0.0, not 0"),
        ({"verify": {"batch_tokens": [1, 2], "seconds": [1, -2]}}, "must be above 0.0, not -2"),
        ({"verify": {"batch_tokens": [1, 2], "seconds": [1, 1e-300]}}, "a nanosecond, not 1e-300"),
        ({"verify": {"batch_tokens": [1, 2], "seconds": [1, 1e308]}}, "must be at most 1000000.0"),
        ({"verify": {"batch_tokens": [1, 2**70], "seconds": [1, 2]}}, "must be at most 1000000000"),
        ({"verify": {"batch_tokens": [0, 2], "seconds": [1, 2]}}, "must be at least 1, not 0"),
        ({"verify": {"batch_tokens": [1, 2], "seconds": [1]}}, "has 1 entries for 2 probes"),
        ({"verify": {"batch_tokens": [], "seconds": []}}, "must not be empty"),
        ({"verify": {"batch_tokens": [1.5], "seconds": [1]}}, "must be a whole number, not 1.5"),
        ({"verify": {"batch_tokens": ["1"], "seconds": [1]}}, 'must be a whole number, not "1"'),
        ({"verify": None}, "verify: is missing"),
        ({"graph_limit_tokens": 8}, "is given without past_limit"),
        (
            {"graph_limit_tokens": 4, "past_limit": {"batch_tokens": [9], "seconds": [1]}},
            "8 lies past graph_limit_tokens 4",
        ),
        (
            {"graph_limit_tokens": 9, "past_limit": {"batch_tokens": [9], "seconds": [1]}},
            "9 lies within graph_limit_tokens 9",
        ),
        ({"verfy": 1}, 'did you mean "verify"?'),
        ({"includes": ["drafts"]}, "must be 'draft', 'attention' or 'host', not \"drafts\""),
        (
            {"includes": ["draft"], "draft": {"num_requests": [1], "seconds": [1]}},
            "charged twice",
        ),
        (
            {
                "attention": {
                    "num_requests": [1, 2],
                    "context_tokens": [1],
                    "seconds": [[0.1]],
                }
            },
            "attention.seconds[0]: has 1 entries for 2 probes",
        ),
        ({"format": "specsim.steps/2"}, "must be 'specsim.steps/1'"),
    ],
)
def test_each_kind_of_fault_is_named(change: dict[str, Any], expected: str) -> None:
    found = problems(content(**change))
    assert any(expected in line for line in found), found


def test_a_non_finite_number_is_named() -> None:
    text = json.dumps(content()).replace("0.016", "NaN").replace("0.02]", "Infinity]")
    found = problems(text)
    assert sum("must be a finite number" in line for line in found) == 2, found


def test_all_problems_at_once_with_their_places() -> None:
    text = '{\n "format": "specsim.steps/1",\n "name": "x",\n "verify": {"batch_tokens": [3, 2],\n'
    text += '  "seconds": [1, 2]},\n "provenance": {"status": "guess", "source": "s",\n'
    text += '  "date": "yesterday", "licence": "MIT"}\n}'
    found = problems(text)
    assert any(line.startswith("t.json:6:") and "provenance.status" in line for line in found)
    assert any("provenance.date" in line and '"yesterday"' in line for line in found)
    fixed = text.replace("guess", "measured").replace("yesterday", "2026-01-01")
    (only,) = problems(fixed)
    assert only.startswith("t.json:4:")
    assert "verify.batch_tokens[1]" in only


def test_a_duplicate_key_is_named() -> None:
    text = json.dumps(content())[:-1] + ', "name": "again"}'
    assert any('key "name" is given twice' in line for line in problems(text))


def test_not_a_table(tmp_path: Path) -> None:
    assert "t.json:1:2: not JSON" in problems("{")[0]
    assert "must be an object" in problems([1, 2])[0]
    assert "Git LFS pointer" in problems("version https://git-lfs.github.com/spec/v1\noid x\n")[0]
    with pytest.raises(ScenarioError, match="cannot be read"):
        load_table(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "is nested too deep"),
        ('{"format": ' + "9" * 5000 + "}", "holds too long a number"),
        ('{"x": ' + '{"a": ' * 300 + "1" + "}" * 301, "is not a key of a step table"),
    ],
)
def test_text_that_no_table_is_made_of_is_one_sentence(text, said) -> None:
    with pytest.raises(ScenarioError, match=said):
        parse_table(text, where="t.json")
