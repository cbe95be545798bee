"""Places of a module worth changing, and the changes; used by `scripts/mutate.py`.

Left alone: imports, `if TYPE_CHECKING`, annotations, decorators, `strict=` of a zip (lengths agree
by construction), strings, and the numbers inside the texts of errors (those are tested by their
words). Everything else counts, constants of modules and defaults of arguments included.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

COMPARE = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
BINARY = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
NAMES = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "minimum": "maximum",
    "maximum": "minimum",
    "argmax": "argmin",
    "floor": "ceil",
    "ceil": "floor",
    "cumsum": "cumprod",
    "cumprod": "cumsum",
}


@dataclass(frozen=True)
class Mutant:
    """One change of one module.

    Attributes:
        index: which place of `places`.
        line: first line of the changed expression.
        lines: lines of the statement around it that run when it does.
        where: the function or class around it.
        text: the change in words.
        nth: which of the equal changes in `where`, from 0; with the above it names the mutant.
        imported: whether the line runs when the module is imported.
    """

    index: int
    line: int
    lines: range
    where: str
    text: str
    nth: int
    imported: bool


def _skipped(tree: ast.Module) -> set[int]:
    skipped: set[int] = set()

    def leave(node: ast.AST) -> None:
        skipped.update(id(inner) for inner in ast.walk(node))

    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if (part := getattr(node, name, None)) is not None:
                leave(part)
        for decorator in getattr(node, "decorator_list", []):
            leave(decorator)
        if isinstance(node, ast.keyword) and node.arg == "strict":
            leave(node)
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
            leave(node)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            leave(node)
    return skipped


def places(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield (node, kind of change) for every place worth changing."""
    skipped = _skipped(tree)
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARE:
            yield node, "compare"
        elif isinstance(node, ast.BinOp) and type(node.op) in BINARY:
            yield node, "binary"
        elif isinstance(node, ast.BoolOp):
            yield node, "boolean"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
            yield node, "unary"
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            yield node, "constant"
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            yield node, "condition"
        elif isinstance(node, ast.Name | ast.Attribute):
            if isinstance(node.ctx, ast.Load) and _called(node) in NAMES:
                yield node, "name"
        elif isinstance(node, ast.AugAssign) and type(node.op) in BINARY:
            yield node, "augmented"
        elif isinstance(node, ast.Break | ast.Continue):
            yield node, "jump"


def _called(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def change(tree: ast.Module, index: int) -> ast.Module:
    """Return a copy of the module with one place changed."""
    made = copy.deepcopy(tree)
    node, kind = list(places(made))[index]
    if kind != "jump":
        _alter(node, kind)
        return ast.fix_missing_locations(made)
    for parent in ast.walk(made):
        for _, value in ast.iter_fields(parent):
            if isinstance(value, list) and node in value:
                value[value.index(node)] = ast.copy_location(_other_jump(node), node)
    return ast.fix_missing_locations(made)


def _in_words(node: ast.AST, kind: str) -> str:
    """Return a place's change in words."""
    before = ast.unparse(node).splitlines()[0]
    if kind == "jump":
        return f"{before} -> {ast.unparse(_other_jump(node))}"
    made = copy.deepcopy(node)
    _alter(made, kind)
    return f"{before} -> {ast.unparse(made).splitlines()[0]}"


def _other_jump(node: ast.AST) -> ast.stmt:
    return ast.Continue() if isinstance(node, ast.Break) else ast.Break()


def _alter(node: ast.AST, kind: str) -> None:
    """Change a node in place."""
    if kind == "compare":
        node.ops[0] = COMPARE[type(node.ops[0])]()
    elif kind in ("binary", "augmented"):
        node.op = BINARY[type(node.op)]()
    elif kind == "boolean":
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif kind == "unary":
        if isinstance(node.op, ast.USub):
            node.op = ast.UAdd()
        else:
            node.operand = ast.UnaryOp(type(node.op)(), node.operand)
    elif kind == "constant":
        value = node.value
        node.value = (not value) if isinstance(value, bool) else value + 1
    elif kind == "condition":
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif kind == "name":
        if isinstance(node, ast.Attribute):
            node.attr = NAMES[node.attr]
        else:
            node.id = NAMES[node.id]
    else:
        raise ValueError(kind)


def mutants(tree: ast.Module) -> list[Mutant]:
    """Return every mutant of a module."""
    around: dict[int, tuple[str, range, bool]] = {}

    def note(node: ast.AST, where: str, lines: range, *, imported: bool) -> None:
        if isinstance(node, ast.stmt):
            last = node.end_lineno or node.lineno
            body = getattr(node, "body", None)
            if isinstance(body, list) and body:
                last = max(node.lineno, body[0].lineno - 1)
            lines = range(node.lineno, last + 1)
        around[id(node)] = (where, lines, imported)
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            for child in ast.iter_child_nodes(node):
                note(child, where, lines, imported=imported)
            return
        inner = f"{where}.{node.name}".lstrip(".")
        late = isinstance(node, ast.FunctionDef)
        for child in ast.iter_child_nodes(node):
            within = isinstance(child, ast.stmt)
            note(child, inner, lines, imported=imported and not (late and within))

    note(tree, "", range(0), imported=True)
    made: list[Mutant] = []
    seen: Counter[tuple[str, str]] = Counter()
    for index, (node, kind) in enumerate(places(tree)):
        where, lines, imported = around[id(node)]
        text = _in_words(node, kind)
        made.append(
            Mutant(index, node.lineno, lines, where, text, seen[where, text], imported=imported)
        )
        seen[where, text] += 1
    return made
