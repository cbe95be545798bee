"""Files that users hand in: every fault is an error of the file, with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from specsim.errors import InputError, SpecsimError
from specsim.inputs import Node, csv_rows, json_lines, parse_json, read_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "f:1:2: not JSON"),
        ("[1,\n2,]", "f:2:3: not JSON"),
        ("", "f:1:1: not JSON"),
        ("[" * 100_000, "f: not usable as JSON: is nested too deep"),
        ("9" * 5000, "f: not usable as JSON: holds an integer of 5000 digits"),
        (r'["\ud800"]', "half a character"),
        ("version https://git-lfs.github.com/spec/v1", "f: a Git LFS pointer"),
    ],
)
def test_what_is_no_json_is_named(text: str, expected: str) -> None:
    with pytest.raises(SpecsimError, match=expected):
        parse_json(text, "f")


def test_whole_characters_may_be_escaped() -> None:
    assert parse_json(r'["\ud83d\ude00", "\\ud800"]', "f") == ["\U0001f600", "\\ud800"]


def test_lines_say_which() -> None:
    assert json_lines('\n{"a": 1}\r\n\n[2]', "f") == [("f:2", {"a": 1}), ("f:4", [2])]
    with pytest.raises(SpecsimError) as caught:
        json_lines('{"a": 1}\n{\n\n}', "f")
    assert str(caught.value).splitlines()[0].startswith("f:2:2: not JSON")
    assert str(caught.value).splitlines()[1].startswith("f:4:1: not JSON")
    with pytest.raises(SpecsimError) as caught:
        json_lines("{\n" * 1000, "f")
    assert len(str(caught.value).splitlines()) == 21
    with pytest.raises(SpecsimError, match="f: has no rows"):
        json_lines(" \n", "f")


def test_rows_of_a_csv_have_their_places() -> None:
    columns, rows = csv_rows('a, b\r\n\r\n1,"x\ny"\r\n 2 ,z', "f")
    assert columns == ["a", "b"]
    assert rows == [("f:4", {"a": "1", "b": "x\ny"}), ("f:5", {"a": "2", "b": "z"})]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,c\n1,2", "f:1: c: column is not known; legal: a, b"),
        ("b\n1", "f:1: a: column is missing"),
        ("", "f:1: a: column is missing"),
        ("a,a\n1,2", "f:1: a: column is there twice"),
        ("a,b\n1", "f:2: b: the row has 1 cells for 2 columns"),
        ("a\n1\n2,3", "f:3: the row has 2 cells for 1 columns"),
        ("a\n", "f: has no rows"),
        ("a\n" + "9" * 200_000, "f:2: field larger than"),
    ],
)
def test_faults_of_a_csv_are_named(text: str, expected: str) -> None:
    with pytest.raises(SpecsimError, match=expected):
        csv_rows(text, "f", known=("a", "b"), needed=("a",), blank=False)


def test_texts_are_read_with_or_without_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"\xef\xbb\xbfa,b\n")
    assert read_text(path) == "a,b\n"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecsimError, match="t: cannot be read"):
        read_text(path)
    with pytest.raises(SpecsimError, match="cannot be read"):
        read_text(tmp_path)


def test_a_node_reads_what_is_there_and_says_where() -> None:
    node = Node({"a": [{"n": 3.0, "s": "x", "none": None}]}, "f")
    (one,) = node.get("a").items()
    assert (one.get("n").whole(), one.get("n").number(), one.get("s").text()) == (3, 3.0, "x")
    assert one.maybe("none") is None
    assert one.get("absent").text() == ""
    assert [key for key, _ in one.entries()] == ["n", "s", "none"]
    for read, expected in (
        (lambda: one.get("s").number(), r"f: a\[0\].s: must be a number, not 'x'"),
        (lambda: one.get("absent").number(), r"a\[0\].absent: is missing; a number is needed"),
        (lambda: one.get("n").whole(least=4), "a whole number of at least 4"),
        (lambda: one.get("n").items(), "must be a list, not 3.0"),
        (lambda: one.get("n").text(), "must be a text, not 3.0"),
        (lambda: one.get("n").get("x"), "must be an object, not 3.0"),
    ):
        with pytest.raises(InputError, match=expected):
            read()


@pytest.mark.parametrize("value", [True, "1", float("nan"), float("inf"), 10**400, None, [], 1.5])
def test_what_is_no_whole_number(value: object) -> None:
    with pytest.raises(InputError):
        Node(value, "f").whole()
