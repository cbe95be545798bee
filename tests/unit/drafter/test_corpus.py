"""Prompts: split by prompt, benchmarks held out, bad files named by line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from specsim.drafter import corpus
from specsim.errors import InputError

CORPORA = Path(__file__).parents[3] / ".." / "shared" / "data" / "corpora"


def _write(path: Path, rows: list[object]) -> Path:
    text = "\n".join(r if isinstance(r, str) else json.dumps(r, ensure_ascii=False) for r in rows)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def test_unusual_line_breaks_inside_a_text_do_not_end_its_line(tmp_path: Path) -> None:
    row = {"domain": "math", "source": "s", "prompt": "one\u2028two\u0085three"}
    (prompt,) = corpus.read_corpus([_write(tmp_path / "a.jsonl", [row])])
    assert prompt.user == "one\u2028two\u0085three"


def test_a_prompt_with_many_answers_counts_once_and_is_on_one_side_only(tmp_path: Path) -> None:
    rows = [{"domain": "chat", "source": "s", "prompt": f"p{i % 50}"} for i in range(200)]
    prompts = corpus.read_corpus([_write(tmp_path / "a.jsonl", rows)])
    train, held = corpus.split(prompts)
    assert len(prompts) == 50
    assert not {p.user for p in train} & {p.user for p in held}
    assert held
    assert len(train) > 3 * len(held)


def test_benchmarks_are_held_out_whatever_their_hash() -> None:
    for source in ("gsm8k/test", "humaneval", "mbpp", "mt_bench/math", "arena-hard-v0.1"):
        assert all(corpus.Prompt("math", source, f"q{i}").held_out for i in range(40))
    assert not all(corpus.Prompt("math", "gsm8k/train", f"q{i}").held_out for i in range(40))


def test_bare_code_becomes_the_start_of_a_reply() -> None:
    prompt = corpus.make_prompt("code", "s", "def f(x):\n    ...\n")
    assert prompt.reply == "```python\ndef f(x):\n    ..."
    assert corpus.make_prompt("code", "s", "Write a function").reply == ""


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{oops", r"a.jsonl:2:2: not JSON"),
        ([1], r"a.jsonl:2: list, expected an object"),
        ({"domain": "maths", "prompt": "x"}, r"'maths' is none of math, code, chat.*\"math\""),
        ({"domain": "math", "prompt": " "}, r"a.jsonl:2: `prompt` is ' '"),
    ],
)
def test_bad_rows_name_file_and_line(tmp_path: Path, row: object, message: str) -> None:
    good = {"domain": "math", "source": "s", "prompt": "fine"}
    with pytest.raises(InputError, match=message):
        corpus.read_corpus([_write(tmp_path / "a.jsonl", [good, row])])


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        corpus.read_corpus([tmp_path / "none.jsonl"])
    with pytest.raises(InputError, match="no prompts"):
        corpus.read_corpus([_write(tmp_path / "a.jsonl", [""])])


def test_interleave_keeps_shares_and_uses_every_prompt_before_any_twice() -> None:
    prompts = [corpus.Prompt(d, "s", f"{d}{i}") for d in corpus.DOMAINS for i in range(30)]
    stream = corpus.interleave(prompts, {"math": 0.75, "code": 0.25}, np.random.default_rng(0))
    drawn = [next(stream) for _ in range(400)]
    assert {p.domain for p in drawn} == {"math", "code"}
    assert sum(p.domain == "math" for p in drawn) == pytest.approx(300, abs=45)
    first = [p.user for p in drawn if p.domain == "code"][:30]
    assert len(set(first)) == 30
    with pytest.raises(InputError, match="no chat prompts"):
        next(corpus.interleave(prompts[:60], {"chat": 1.0}, np.random.default_rng(0)))


def test_default_corpus_needs_nothing_and_has_all_domains() -> None:
    prompts = corpus.default_corpus(np.random.default_rng(0), size_per_domain=60)
    assert {d: sum(p.domain == d for p in prompts) for d in corpus.DOMAINS} == {
        "math": 60,
        "code": 60,
        "chat": 60,
    }
    again = corpus.default_corpus(np.random.default_rng(0), size_per_domain=60)
    assert prompts == again
    assert all("def " in p.reply for p in prompts if p.domain == "code")


def test_shipped_corpora_read_and_split() -> None:
    if not CORPORA.is_dir():
        pytest.skip(f"{CORPORA} is not here")
    prompts = corpus.read_corpus(CORPORA / f"{d}.jsonl" for d in corpus.DOMAINS)
    train, held = corpus.split(prompts)
    assert len(prompts) == 9792 + 4317 + 1086
    assert not any(p.source.startswith(("gsm8k/test", "humaneval", "mbpp")) for p in train)
    assert {p.domain for p in held} == set(corpus.DOMAINS)
