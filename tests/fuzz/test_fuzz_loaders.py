"""Every loader on mutated files: it may say what is wrong, and may not fall over.

A seeded minute in all. `scripts/fuzz.py` does the same for hours, led by coverage.
"""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz_targets import SPLIT, TARGETS, Target, fault_of

ODD_TEXT = (
    b"", b"\0", b"\xff\xfe", b"nan", b"-inf", b"1e999", b"-1", b"0", b"9" * 30, b"9" * 400, b"0x10",
    b"null", b"true", b"{}", b"[]", b"[" * 200, b"{" * 60, b'"', b"'", b",", b":", b"\n", b"\t",
    b"%", b"&a", b"*a", b"!!python/object:os.system", b"\\ud800", b"../../etc/passwd", b"{0: 1}",
    b"()", b"\xe2\x80\xa8", b"version https://git-lfs", b"<script>", b"a: b: c", b"1_0", b"1.",
    b".5", SPLIT,
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**25, 10**400, 0.5, -0.5, 1e308, float("nan"),
    float("inf"), "", "x", "\ud800", "0", "NaN", [], {}, [[]], [None], {"a": 1}, [0] * 5, "a" * 300,
)  # fmt: skip


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> bytes:
    """Change bytes: put something odd in, take a piece out, repeat one, or stop early."""
    at = draw(st.integers(0, len(data)))
    end = draw(st.integers(at, min(len(data), at + 40)))
    match draw(st.integers(0, 4)):
        case 0:
            return data[:at] + draw(st.sampled_from(ODD_TEXT)) + data[at:]
        case 1:
            return data[:at] + draw(st.sampled_from(ODD_TEXT)) + data[end:]
        case 2:
            return data[:at] + data[end:]
        case 3:
            return data[:at] + data[at:end] * draw(st.integers(2, 5)) + data[end:]
        case _:
            return data[:at] + draw(st.binary(max_size=6)) + data[end:]


@st.composite
def bent(draw: st.DrawFn, value: Any) -> Any:
    """Change one place of plain data: another value, one key less, or one thing twice."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, inner in list(items):
            places.append((node, key))
            if isinstance(inner, dict | list):
                walk(inner)

    if isinstance(value, dict | list):
        walk(value)
    if not places:
        return draw(st.sampled_from(ODD_VALUES))
    node, key = draw(st.sampled_from(range(len(places))).map(lambda n: places[n]))
    match draw(st.integers(0, 3)):
        case 0 if isinstance(node, dict):
            del node[key]
        case 1 if isinstance(node, dict):
            node[str(draw(st.sampled_from(ODD_VALUES)))] = node.pop(key)
        case 2 if isinstance(node, list):
            node.insert(key, copy.deepcopy(node[key]))
        case _:
            node[key] = draw(st.sampled_from(ODD_VALUES))
    return value


@st.composite
def mutated(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """Take a seed and change it once to three times, by structure where it has one."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 3))):
        head, body = (b"", data) if data[:1] in (b"{", b"[") else (data[:1], data[1:])
        parts = body.split(SPLIT)
        which = draw(st.integers(0, len(parts) - 1))
        try:
            plain = json.loads(parts[which])
        except (ValueError, RecursionError):
            data = draw(cut(data))
            continue
        if draw(st.integers(0, 3)) == 0:
            data = draw(cut(data))
            continue
        parts[which] = json.dumps(draw(bent(plain))).encode()
        data = head + SPLIT.join(parts)
    return data


EXAMPLES = {"steps": 60, "scenario": 60, "study": 40, "drafter": 80}


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
def test_mutated_files_are_refused_in_words(target: Target) -> None:
    seeds = [seed for seed in target.seeds() if len(seed) < 20_000]

    with tempfile.TemporaryDirectory() as name:

        @settings(
            max_examples=EXAMPLES.get(target.name, 150),
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(mutated(seeds))
        def run(data: bytes) -> None:
            error = fault_of(target, data, Path(name))
            if error is not None:
                raise AssertionError(f"{type(error).__name__}: {error}") from error

        run()


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
def test_seeds_are_no_faults(target: Target, tmp_path: Path) -> None:
    for seed in target.seeds():
        assert fault_of(target, seed, tmp_path) is None


def test_a_fault_would_be_found(tmp_path: Path) -> None:
    broken = Target("broken", lambda data, folder: json.loads(data)["a"], lambda: [b'{"a": 1}'])
    assert fault_of(broken, b"{}", tmp_path) is not None
    assert fault_of(broken, b'{"a": 1}', tmp_path) is None
