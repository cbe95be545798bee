"""Prompts of three domains for the target to answer, split by prompt and not by row.

Two sources: JSONL files of `{"domain", "source", "prompt"}` rows, and a default corpus that needs
no download: the standard library's own code and docstrings, and generated arithmetic.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specsim.errors import InputError, nearest
from specsim.jsontext import read_json

DOMAINS = ("math", "code", "chat")
# Benchmarks inside the corpora: never trained on, so that they can be measured on.
BENCHMARKS = ("gsm8k/test", "humaneval", "mbpp", "mt_bench", "arena-hard")
HELD_OUT_PERCENT = 10


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request to the target.

    Attributes:
        domain: one of `DOMAINS`.
        source: where the text comes from.
        user: the user's turn.
        reply: a start of the answer that the target continues; empty for none.
    """

    domain: str
    source: str
    user: str
    reply: str = ""

    @property
    def held_out(self) -> bool:
        """Whether this prompt is kept out of training: a benchmark, or 10 % by hash of its text."""
        if self.source.startswith(BENCHMARKS):
            return True
        text = f"{self.user}\n{self.reply}".encode()
        return hashlib.sha256(text).digest()[0] % 100 < HELD_OUT_PERCENT


def make_prompt(domain: str, source: str, text: str) -> Prompt:
    """Shape a corpus row: bare Python becomes the start of a code block to be continued."""
    if domain == "code" and not text.startswith("Write "):
        reply = f"```python\n{text.rstrip()}"
        return Prompt(domain, source, "Complete this Python code.", reply)
    return Prompt(domain, source, text)


def read_corpus(paths: Iterable[Path]) -> list[Prompt]:
    """Read prompts from JSONL files, each distinct prompt once, in file order.

    Args:
        paths: files with one JSON object a line: `domain`, `source`, `prompt`.

    Returns:
        At least one prompt.

    Raises:
        InputError: a file is missing, a line is not such an object, or nothing is left.
    """
    found: dict[tuple[str, str], Prompt] = {}
    paths = list(paths)
    for path in paths:
        if not path.is_file():
            raise InputError(f"corpus file {path} does not exist: give JSONL files with --corpus")
        # Not splitlines(): it also splits at U+2028 and U+0085, which are legal inside JSON texts.
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read: {error}") from error
        for number, line in enumerate(text.split("\n"), start=1):
            if not line.strip():
                continue
            row = _row(line, str(path), number)
            prompt = make_prompt(row["domain"], row["source"], row["prompt"])
            found.setdefault((prompt.user, prompt.reply), prompt)
    if not found:
        raise InputError(f"no prompts in {', '.join(map(str, paths)) or 'an empty list of files'}")
    return list(found.values())


def _row(line: str, path: str, number: int) -> dict[str, str]:
    where = f"{path}:{number}"
    row, problem = read_json(line, where=path, line=number)
    if problem is not None:
        raise InputError(f"{problem}; one object a line is needed")
    if not isinstance(row, dict):
        raise InputError(
            f"{where}: {type(row).__name__}, expected an object with domain and prompt"
        )
    for key in ("domain", "prompt"):
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise InputError(
                f"{where}: `{key}` is {row.get(key)!r}, expected a text that is not empty"
            )
    if row["domain"] not in DOMAINS:
        hint = nearest(row["domain"], DOMAINS)
        raise InputError(
            f"{where}: domain {row['domain']!r} is none of {', '.join(DOMAINS)} {hint}"
        )
    return {"domain": row["domain"], "source": str(row.get("source", "")), "prompt": row["prompt"]}


def default_corpus(rng: np.random.Generator, *, size_per_domain: int = 1000) -> list[Prompt]:
    """Make prompts from what every Python has: its library and its arithmetic.

    Args:
        rng: orders and draws everything.
        size_per_domain: how many prompts a domain at most.

    Returns:
        Prompts of all three domains; "chat" asks about the library's documented modules.
    """
    code: list[Prompt] = []
    chat: list[Prompt] = []
    for name, source in library_sources():
        tree = ast.parse(source)
        lines = source.split("\n")  # ast.get_source_segment would split the file at every call
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) and len(node.body) > 1:
                signature = "\n".join(lines[node.lineno - 1 : node.body[0].end_lineno])
                if len(signature) < 500:
                    code.append(make_prompt("code", f"stdlib/{name}", signature))
        summary = (ast.get_docstring(tree) or "").strip().split("\n")[0]
        if summary:
            ask = f'What can I do with Python\'s "{name}" module ({summary})?'
            chat.append(Prompt("chat", f"stdlib/{name}", ask))
            chat.append(Prompt("chat", f"stdlib/{name}", f'Explain the idea behind "{summary}"'))
    math = [Prompt("math", "arithmetic", text) for text in _arithmetic(rng, size_per_domain)]
    picked = []
    for group in (math, code, chat):
        order = rng.permutation(len(group))[:size_per_domain]
        picked += [group[i] for i in order]
    return picked


def library_sources() -> Iterator[tuple[str, str]]:
    """Yield name and text of the standard library's top-level modules, in order of name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if len(text) < 200_000:
            yield path.stem, text


def _arithmetic(rng: np.random.Generator, size: int) -> list[str]:
    names = ("Ana", "Ben", "Chloe", "Dev", "Emi", "Farid", "Grace", "Hugo")
    things = ("apples", "books", "coins", "tickets", "stamps", "marbles", "pens", "shells")
    out = []
    for _ in range(size):
        who, other = rng.choice(len(names), 2, replace=False)
        thing = things[rng.integers(len(things))]
        a, b, c = (int(n) for n in rng.integers(2, 60, 3))
        forms = (
            f"{names[who]} has {a} {thing} and buys {b} boxes with {c} {thing} each. "
            f"How many {thing} does {names[who]} have now?",
            f"{names[who]} had {a + b + c} {thing}, gave {b} to {names[other]} and lost {c}. "
            f"How many {thing} are left?",
            f"One of the {thing} costs ${c}. {names[who]} buys {a} and {names[other]} buys {b}. "
            "How much do they pay together?",
            f"What is {a} * {b} + {c}? Show the steps.",
        )
        out.append(forms[rng.integers(len(forms))])
    return out


def split(prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Prompt]]:
    """Split prompts into those for training and those held out (by the text of the prompt)."""
    train = [p for p in prompts if not p.held_out]
    return train, [p for p in prompts if p.held_out]


def interleave(
    prompts: Sequence[Prompt], shares: dict[str, float], rng: np.random.Generator
) -> Iterator[Prompt]:
    """Yield prompts for ever: a domain by its share, then the next of its shuffled prompts.

    Args:
        prompts: at least one of every domain with a positive share.
        shares: domain -> weight.
        rng: shuffles and draws.

    Raises:
        InputError: a wanted domain has no prompts.
    """
    groups = {d: [p for p in prompts if p.domain == d] for d, w in shares.items() if w > 0}
    for domain, group in groups.items():
        if not group:
            raise InputError(
                f"the corpus has no {domain} prompts, but its share is {shares[domain]}"
            )
    names = list(groups)
    weight = np.array([shares[d] for d in names])
    queue: dict[str, list[Prompt]] = {d: [] for d in names}
    while True:
        domain = names[rng.choice(len(names), p=weight / weight.sum())]
        if not queue[domain]:
            queue[domain] = [groups[domain][i] for i in rng.permutation(len(groups[domain]))]
        yield queue[domain].pop()
