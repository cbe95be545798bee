"""A YAML file as plain data that remembers where each value stands.

The file is composed by ruamel.yaml's round-trip loader and turned into dictionaries, lists and
scalars here, so that every duplicate key, odd tag and position is seen, and so that aliases cannot
blow a small file up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import MaxDepthExceededError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from specsim.errors import Problem, ScenarioError, nearest

MAX_BYTES = 128 * 1024
MAX_VALUES = 5_000
MAX_DEPTH = 50
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset(
    _TAG + name
    for name in ("map", "seq", "str", "int", "float", "bool", "null", "timestamp", "value", "merge")
)
_BASES = {"0o": 8, "0x": 16, "0b": 2}

Keys = tuple[str | int, ...]
"""Where a value is inside a file: mapping keys and list indices from the top."""


def dotted(keys: Keys) -> str:
    """Write `keys` as users do, such as `policies.greedy.gamma` or `question.concurrency.0`."""
    return ".".join(str(key) for key in keys)


@dataclass(slots=True)
class Source:
    """Plain data of one file plus the overrides laid over it.

    Attributes:
        label: what positions begin with: the file as the user named it, or `--set a.b`.
        data: dictionaries, lists, str, int, float, bool and None.
    """

    label: str
    data: Any = None
    _position: dict[Keys, tuple[int, int]] = field(default_factory=dict)
    _key_position: dict[Keys, tuple[int, int]] = field(default_factory=dict)
    _override: dict[Keys, str] = field(default_factory=dict)

    def where(self, keys: Keys, *, key: bool = False) -> str:
        """Say where a value stands, or the nearest thing around it that does.

        Args:
            keys: the value.
            key: point at the key rather than at its value.
        """
        for length in range(len(keys), -1, -1):
            prefix = keys[:length]
            if prefix in self._override:
                return self._override[prefix]
            found = self._position.get(prefix)
            if key and length == len(keys):
                found = self._key_position.get(prefix, found)
            if found:
                return f"{self.label}:{found[0]}:{found[1]}"
        return self.label

    def override(self, text: str) -> None:
        """Lay `a.b=value` over the data; the value is YAML.

        Raises:
            ScenarioError: no such form, an unreadable value, or a path through a plain value.
        """
        path, equals, value_text = text.partition("=")
        label = f"--set {path.strip()}"
        keys = tuple(part.strip() for part in path.split("."))
        if _halves(path):
            message = "is not UTF-8 text; say LC_ALL=C.UTF-8, or write names in ASCII"
            raise _error("--set", "", message)
        if not equals or not value_text.strip() or not all(keys):
            raise _error(
                f"--set {text}",
                "",
                "needs the form path=value, such as --set policies.greedy.gamma=5",
            )
        value = parse(value_text, label=label).data
        parent, walked = self.data, []
        for part in keys[:-1]:
            step = _index(parent, part)
            walked.append(step)
            if isinstance(parent, dict) and step not in parent:
                parent[step] = {}
                self._override[tuple(walked)] = label
            parent = self._child(parent, step, label, path)
        last = _index(parent, keys[-1])
        if isinstance(parent, dict):
            parent[last] = value
        else:
            self._child(parent, last, label, path)
            parent[last] = value
        whole: Keys = (*walked, last)
        for positions in (self._position, self._key_position, self._override):
            for known in [k for k in positions if k[: len(whole)] == whole]:
                del positions[known]
        self._override[whole] = label

    @staticmethod
    def _child(parent: Any, step: str | int, label: str, path: str) -> Any:
        if isinstance(parent, dict):
            return parent[step]
        if isinstance(parent, list):
            if isinstance(step, int) and step < len(parent):
                return parent[step]
            message = f'"{step}" is no index of a list of {len(parent)}'
        else:
            message = f'"{step}" would lie inside {show(parent)}, which holds no keys'
        raise _error(label, path, message, "set the whole value instead, such as a.b={kind: fixed}")


def _index(parent: Any, part: str) -> str | int:
    return int(part) if isinstance(parent, list) and part.isdecimal() else part


def show(value: Any) -> str:
    """Write a value as it would stand in YAML, shortened."""
    if value is None:
        return "empty (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value != value:
        return ".nan"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return ".inf" if value > 0 else "-.inf"
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= 60 else f'"{value[:57]}..."'
    if isinstance(value, dict):
        return "a mapping of " + ", ".join(map(str, list(value)[:6])) if value else "{}"
    if isinstance(value, list):
        return f"a list of {len(value)}" if len(value) > 6 else f"[{', '.join(map(show, value))}]"
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read(path: Path) -> Source:
    """Read a YAML file.

    Raises:
        ScenarioError: it cannot be read, is too large, or is no YAML; all problems at once.
    """
    label = str(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        there = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        raise _error(label, "", "no such file", nearest(path.name, there)) from error
    except IsADirectoryError as error:
        raise _error(label, "", "is a folder; a YAML file is needed") from error
    except OSError as error:
        raise _error(label, "", f"cannot be read: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise _error(label, "", f"is larger than {MAX_BYTES} bytes, too large for a scenario")
    if raw.startswith(b"version https://git-lfs"):
        raise _error(label, "", "is a Git LFS pointer, not the file itself", "run `git lfs pull`")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        column = error.start - (raw.rfind(b"\n", 0, error.start) + 1) + 1
        raise _error(f"{label}:{line}:{column}", "", "is not UTF-8 text") from error
    return parse(text, label=label)


def parse(text: str, *, label: str) -> Source:
    """Turn YAML text into a `Source`; `label` stands for the file in positions.

    Raises:
        ScenarioError: it is no YAML, or holds duplicate keys, foreign tags or too much.
    """
    if re.search(r"^%", text, re.MULTILINE):
        raise _error(label, "", "YAML directives (lines that begin with %) are not supported")
    loader = YAML(typ="rt", pure=True)
    loader.composer.warn_double_anchors = False
    # The bound on nesting, so that no file exhausts Python's stack.
    loader.max_depth = MAX_DEPTH
    try:
        node = loader.compose(text)
    except MaxDepthExceededError as error:
        message = f"is nested more than {MAX_DEPTH} deep"
        mark = error.problem_mark
        raise _error(f"{label}:{mark.line + 1}:{mark.column + 1}", "", message) from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"{label}:{mark.line + 1}:{mark.column + 1}" if mark else label
        said = ", ".join(str(part) for part in (error.context, error.problem) if part)
        raise _error(at, "", f"is not YAML: {said}", _yaml_hint(said)) from error
    except ReaderError as error:
        before = text[: error.position]
        at = f"{label}:{before.count(chr(10)) + 1}:{error.position - before.rfind(chr(10))}"
        raise _error(at, "", f"holds the unprintable character {_code(error.character)}") from error
    except (YAMLError, RecursionError, ValueError) as error:
        raise _error(label, "", f"is not YAML: {type(error).__name__}: {error}") from error
    if node is None:
        raise _error(label, "", "is empty")
    builder = _Builder(label)
    source = builder.build(node)
    if builder.problems:
        # What an alias repeats is one mistake.
        raise ScenarioError(list({(p.where, p.message): p for p in builder.problems}.values()))
    return source


class _Builder:
    """Walks the composed nodes once, keeping positions and problems."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.problems: list[Problem] = []
        self.source = Source(label)
        self._num_values = 0
        self._open: set[int] = set()

    def build(self, node: Node) -> Source:
        try:
            self.source.data = self._value(node, ())
        except _TooMuchError:
            self.problems = [
                Problem(
                    self.label,
                    "",
                    f"holds more than {MAX_VALUES} values once its aliases are followed",
                )
            ]
        return self.source

    def _at(self, node: Node) -> str:
        return f"{self.label}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"

    def _problem(self, node: Node, keys: Keys, message: str, hint: str = "") -> None:
        self.problems.append(Problem(self._at(node), dotted(keys), message, hint))

    def _value(self, node: Node, keys: Keys) -> Any:
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            raise _TooMuchError
        # An alias has no position of its own: what it stands for says where the value is.
        self.source._position[keys] = (node.start_mark.line + 1, node.start_mark.column + 1)
        if str(node.tag) not in _PLAIN_TAGS:
            self._problem(node, keys, f'the tag "{node.tag}" is not supported', "leave it out")
            return None
        if isinstance(node, ScalarNode):
            return self._scalar(node, keys)
        if id(node) in self._open:
            self._problem(node, keys, f"the anchor &{node.anchor} holds itself")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, MappingNode):
                return self._mapping(node, keys)
            return [self._value(child, (*keys, i)) for i, child in enumerate(node.value)]
        finally:
            self._open.remove(id(node))

    def _mapping(self, node: MappingNode, keys: Keys) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        first: dict[str, str] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                self._problem(key_node, keys, "a key must be a plain word, not a list or a mapping")
                continue
            if key_node.tag == _TAG + "merge":
                self._merge(value_node, keys, merged)
                continue
            key = str(key_node.value)
            if _halves(key):
                self._problem(key_node, keys, f"a key holds {_HALF}")
                continue
            if key in own:
                self._problem(
                    key_node, (*keys, key), f'the key "{key}" stands twice, first at {first[key]}'
                )
                continue
            first[key] = f"{key_node.start_mark.line + 1}:{key_node.start_mark.column + 1}"
            mark = key_node.start_mark
            own[key] = self._value(value_node, (*keys, key))
            self.source._key_position[(*keys, key)] = (mark.line + 1, mark.column + 1)
            if own[key] is None and value_node.value == "":
                # Nothing stands there, and the parser says it stands on the next line.
                self.source._position[(*keys, key)] = (mark.line + 1, mark.column + 1)
        return own | {key: value for key, value in merged.items() if key not in own}

    def _merge(self, node: Node, keys: Keys, into: dict[str, Any]) -> None:
        """Take in `<<: *base`; keys of the mapping itself and of earlier bases win."""
        bases = node.value if isinstance(node, SequenceNode) else [node]
        for base in bases:
            if not isinstance(base, MappingNode):
                self._problem(base, (*keys, "<<"), "only a mapping can be merged")
                continue
            if id(base) in self._open:
                self._problem(base, keys, f"the anchor &{base.anchor} holds itself")
                continue
            kept = dict(self.source._position)
            found = self._value(base, keys)
            self.source._position |= kept
            for key, value in (found or {}).items():
                into.setdefault(key, value)

    def _scalar(self, node: ScalarNode, keys: Keys) -> str | int | float | bool | None:
        kind, text = str(node.tag).removeprefix(_TAG), str(node.value)
        if node.style == ">":
            text = text.replace("\a", "")  # where the loader notes that a folded line went on
        try:
            if kind == "int":
                return _int(text)
            if kind == "float":
                return _float(text)
        except ValueError:
            self._problem(node, keys, f"{show(text)} is not a number that can be read")
            return None
        if kind == "bool":
            return text.lower() == "true"
        if _halves(text):
            self._problem(node, keys, f"holds {_HALF}")
            return None
        # Dates stay text: no field of a scenario is one.
        return None if kind == "null" else text


_HALF = "half a character (a lone surrogate), which no text can"


def _halves(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


class _TooMuchError(Exception):
    pass


def _int(text: str) -> int:
    digits = text.replace("_", "").lower()
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    return (
        sign * int(digits, _BASES.get(digits[:2], 10))
        if digits[:2] in _BASES
        else sign * int(digits)
    )


def _float(text: str) -> float:
    plain = text.replace("_", "").lower()
    if plain.lstrip("+-") in (".nan", ".inf"):
        plain = plain.replace(".", "", 1)
    return float(plain)


def _code(character: str | int) -> str:
    return f"U+{character if isinstance(character, int) else ord(character):04X}"


def _yaml_hint(said: str) -> str:
    if "\\t" in said:
        return "YAML is indented with spaces, never with tabs"
    if "mapping values are not allowed" in said:
        return "put text that holds a colon in quotes"
    if "undefined alias" in said:
        return "define it first with &, or put text that begins with * in quotes"
    return ""


def _error(where: str, path: str, message: str, hint: str = "") -> ScenarioError:
    return ScenarioError([Problem(where, path, message, hint)])
