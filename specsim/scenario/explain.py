"""What pydantic found wrong, in the user's words: value, what is legal, nearest right name."""

from __future__ import annotations

import difflib
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError
from pydantic_core import ErrorDetails

from specsim.errors import Problem, nearest
from specsim.scenario.schema import USER_TAG
from specsim.scenario.source import Keys, Source, dotted, show

_ABSENT = object()


class _Place:
    """Where an error's `loc` leads: keys inside the file, and the types passed on the way.

    pydantic puts union tags and class names into `loc`, which stand in no file; they are told
    apart from keys by walking the types along with the data.
    """

    def __init__(self, annotation: Any, data: Any, loc: tuple[str | int, ...]) -> None:
        self.keys: Keys = ()
        self.value = data
        self.holder: type[BaseModel] | None = None
        self.field_owner: type[BaseModel] | None = None
        self.union: tuple[Any, ...] = ()
        self.other_branch = False
        self.annotation = annotation
        rest = list(loc)
        while True:
            self._unwrap(rest)
            if not rest:
                break
            self._step(rest.pop(0))

    def _unwrap(self, rest: list[str | int]) -> None:
        """Go through Annotated, Optional and unions down to a plain type."""
        while True:
            origin = get_origin(self.annotation)
            if origin is Annotated:
                self.annotation = get_args(self.annotation)[0]
            elif origin in (Union, UnionType):
                members = [a for a in get_args(self.annotation) if a is not NoneType]
                if len(members) == 1:
                    self.annotation = members[0]
                    continue
                self.union = tuple(members)
                if not rest:
                    return
                self.annotation = self._branch(members, str(rest.pop(0)))
            else:
                if isinstance(self.annotation, type) and issubclass(self.annotation, BaseModel):
                    self.holder = self.annotation
                return

    def _branch(self, members: list[Any], label: str) -> Any:
        for member in members:
            if label == tag_of(member):
                return member
            if isinstance(member, type) and label == member.__name__:
                # A union of a model and plain values: only the branch of the data's form counts.
                self.other_branch = not isinstance(self.value, dict)
                return member
        self.other_branch = isinstance(self.value, dict)
        return None

    def _step(self, key: str | int) -> None:
        self.keys = (*self.keys, key)
        self.union = ()
        self.field_owner = self.holder
        if self.holder is not None:
            found = self.holder.model_fields.get(str(key))
            self.annotation = found.annotation if found else None
        else:
            inner = [a for a in get_args(self.annotation) if a is not Ellipsis]
            self.annotation = inner[-1] if inner else None
        self.holder = None
        if isinstance(self.value, dict):
            self.value = self.value.get(key, _ABSENT)
        elif isinstance(self.value, list) and isinstance(key, int) and key < len(self.value):
            self.value = self.value[key]
        else:
            self.value = _ABSENT


def tag_of(member: Any) -> str | None:
    """Return the tag of a member of a union over `kind`, if it is one."""
    for extra in get_args(member)[1:] if get_origin(member) is Annotated else ():
        if isinstance(extra, Tag):
            return str(extra.tag)
    return None


def problems(
    error: ValidationError, annotation: Any, source: Source, at: Keys = ()
) -> list[Problem]:
    """Translate everything that pydantic found.

    Args:
        error: what validating `source.data` (or what stands at `at` in it) raised.
        annotation: the model or type it was validated against.
        source: the file, for positions.
        at: where the validated value stands in the file.
    """
    data = source.data
    for key in at:
        data = data[key]
    found: dict[tuple[str, str], Problem] = {}
    union_misses: dict[Keys, _Place] = {}
    for detail in error.errors(include_url=False):
        place = _Place(annotation, data, detail["loc"])
        if place.other_branch:
            union_misses.setdefault(place.keys, place)
            continue
        problem = _problem(detail, place, source, at)
        found.setdefault((problem.path, problem.message), problem)
    said = {problem.path for problem in found.values()}
    for keys, place in union_misses.items():
        # Said by the matching branch already, unless there is none.
        if not any(
            path == dotted(at + keys) or path.startswith(dotted(at + keys) + ".") for path in said
        ):
            message, hint = _literal_message(place)
            problem = Problem(source.where(at + keys), dotted(at + keys), message, hint)
            found[problem.path, message] = problem
    return list(found.values())


def _problem(detail: ErrorDetails, place: _Place, source: Source, at: Keys) -> Problem:
    kind, context = detail["type"], detail.get("ctx", {})
    keys, hint = at + place.keys, ""
    where = source.where(keys)
    if kind == "missing":
        message = f"is missing{_described(place)}"
        where = source.where(keys[:-1], key=True)
    elif kind == "extra_forbidden":
        legal = list(place.field_owner.model_fields) if place.field_owner else []
        message = f"unknown key; legal here are {', '.join(legal) or 'none'}"
        hint = nearest(str(keys[-1]), legal)
        where = source.where(keys, key=True)
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        keys, message, hint = _kind_message(place, keys)
        where = source.where(keys)
    elif kind == "cross_field":
        keys = (*keys, str(context["at"]))
        message, hint = detail["msg"], str(context.get("hint", ""))
        where = source.where(keys)
    elif kind == "plain_name" and keys and keys[-1] == "[key]":
        keys = keys[:-1]
        message, where = f"is no good name: {detail['msg']}", source.where(keys, key=True)
    elif kind == "increasing":
        message = detail["msg"]
    elif kind == "literal_error":
        message, hint = _literal_message(place)
    else:
        needed, hint = _needed(kind, context, place, detail["msg"])
        message = f"is {show(place.value)}; {needed}"
    return Problem(where, dotted(keys), message, hint)


def _described(place: _Place) -> str:
    owner, name = place.field_owner, str(place.keys[-1])
    description = owner.model_fields[name].description if owner else None
    if not description:
        return ""
    # An abbreviation such as GPUs or KV stays as it is.
    first = description[:1] if description[1:2].isupper() else description[:1].lower()
    return f": {first}{description[1:].rstrip('.')}"


def _kind_message(place: _Place, keys: Keys) -> tuple[Keys, str, str]:
    legal = [tag for member in place.union if (tag := tag_of(member))]
    listed = ", ".join(legal)
    if not isinstance(place.value, dict):
        close = difflib.get_close_matches(str(place.value), legal, n=1) or legal
        example = f"{{kind: {close[0]}}}"
        return (
            keys,
            f"is {show(place.value)}; a mapping with a kind is needed, the kind one of {listed}",
            f"such as {example}",
        )
    kind = place.value.get("kind", _ABSENT)
    if kind is _ABSENT:
        return (*keys, "kind"), f"is missing; legal are {listed}", ""
    plain = [tag for tag in legal if tag != USER_TAG]
    hint = nearest(kind, plain) if isinstance(kind, str) else ""
    return (*keys, "kind"), f"is {show(kind)}; legal are {listed}", hint


def _literal_message(place: _Place) -> tuple[str, str]:
    """Say which plain values are legal, and which mapping, if the union has one."""
    legal: list[Any] = []
    models: list[type[BaseModel]] = []
    members = list(place.union) or [place.annotation]
    for member in members:
        plain = get_args(member)[0] if get_origin(member) is Annotated else member
        if get_origin(plain) is Literal:
            legal += get_args(plain)
        elif isinstance(plain, type) and issubclass(plain, BaseModel):
            models.append(plain)
    options = ", ".join(map(str, legal))
    for model in models:
        options += f", or a mapping of {', '.join(model.model_fields)}"
    hint = nearest(place.value, map(str, legal)) if isinstance(place.value, str) else ""
    return f"is {show(place.value)}; legal are {options}", hint


def _needed(kind: str, context: dict[str, Any], place: _Place, said: str) -> tuple[str, str]:
    """Say what kind of value is legal, and what to do."""
    number_in_quotes = isinstance(place.value, str) and _is_number(place.value)
    unquote = "leave out the quotes" if number_in_quotes else ""
    plain = {
        "int_type": ("a whole number is needed", unquote),
        "int_from_float": ("a whole number is needed", unquote),
        "int_parsing_size": ("a smaller number is needed", ""),
        "float_type": ("a number is needed", unquote),
        "bool_type": ("true or false is needed", ""),
        "string_type": ("text is needed", "put it in quotes"),
        "model_type": ("a mapping (key: value) is needed", ""),
        "model_attributes_type": ("a mapping (key: value) is needed", ""),
        "dict_type": ("a mapping (key: value) is needed", ""),
        "tuple_type": ("a list is needed", f"such as [{_listed(place.value)}]"),
        "list_type": ("a list is needed", f"such as [{_listed(place.value)}]"),
        "finite_number": ("a finite number is needed", ""),
        "plain_name": (said, ""),
    }
    if kind in plain:
        return plain[kind]
    bounds = {
        "greater_than": ("gt", "must be greater than"),
        "greater_than_equal": ("ge", "must be at least"),
        "less_than": ("lt", "must be less than"),
        "less_than_equal": ("le", "must be at most"),
    }
    if kind in bounds:
        name, text = bounds[kind]
        limit = context[name]
        return f"{text} {limit:g}" if isinstance(limit, float) else f"{text} {limit}", ""
    sizes = {
        "too_short": ("at least", "min_length", "entry", "entries"),
        "too_long": ("at most", "max_length", "entry", "entries"),
        "string_too_short": ("at least", "min_length", "character", "characters"),
        "string_too_long": ("at most", "max_length", "character", "characters"),
    }
    if kind in sizes:
        side, name, one, many = sizes[kind]
        count = context[name]
        return f"{side} {count} {one if count == 1 else many} must be there", ""
    return said.removeprefix("Value error, "), ""


def _listed(value: Any) -> str:
    return show(value) if isinstance(value, (int, float)) else "1, 2"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
