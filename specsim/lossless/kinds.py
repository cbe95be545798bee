"""Makes schedulers from what the command line names: a kind, or a class of the user's own."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError

from specsim.errors import InputError, nearest
from specsim.registry import is_user_kind
from specsim.schedulers import CONFIGS, UserConfig
from specsim.schedulers.base import SchedulerFactory

STAND_INS: dict[str, dict[str, Any]] = {
    "fixed": {"k": 2},
    "threshold": {"threshold": 0.5},
    "batch_table": {"ranges": ((1, 1, 2), (2, 64, 1))},
    "tetris": {"k": 1, "score": "confidence"},
    "calibrated": {"inner": {"kind": "async_topk", "lag": 1}},
    "gated": {"inner": {"kind": "async_topk", "lag": 1}},
}
"""Values for parameters that have no default, where the lab is asked about the kind as such."""

VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("none", {}),
    ("fixed", {"k": 2}),
    ("threshold", {"threshold": 0.5}),
    ("threshold", {"threshold": 0.4, "on": "cumulative"}),
    ("greedy", {}),
    ("patience", {"patience": 1, "lag": 1}),
    ("patience", {"patience": 1, "lag": 0}),
    ("async_topk", {"lag": 1}),
    ("async_topk", {"lag": 2}),
    ("stale", {"lag": 1}),
    ("global", {}),
    ("tetris", {"k": 1, "score": "confidence"}),
    ("tetris", {"k": 1, "score": "sampled"}),
)
"""What `specsim lossless all` tries on the battery, beside every other kind with its defaults."""


def _config_classes() -> dict[str, Any]:
    return {config.model_fields["kind"].annotation.__args__[0]: config for config in CONFIGS}  # type: ignore[union-attr]


def _value(text: str) -> Any:
    """Read a number, a truth value or a word."""
    try:
        return TypeAdapter(int | float | bool).validate_python(text)
    except ValidationError:
        return text


def parse_settings(settings: tuple[str, ...]) -> dict[str, Any]:
    """Return `lag=1` pairs as a dictionary.

    Raises:
        InputError: a pair without an equals sign, or a name given twice.
    """
    parsed: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise InputError(f'--set "{setting}" is not of the form name=value')
        if name in parsed:
            raise InputError(f'--set names "{name}" twice')
        parsed[name] = _value(value)
    return parsed


def factory_of(what: str, settings: tuple[str, ...] = ()) -> SchedulerFactory:
    """Return a factory for a kind or `my_module:MyScheduler`.

    Raises:
        InputError: no such kind or class, or parameters that it does not take.
    """
    values = parse_settings(settings)
    if is_user_kind(what):
        config: Any = UserConfig(kind=what, params=values)
    else:
        classes = _config_classes()
        if what not in classes:
            raise InputError(
                f'there is no scheduler or group "{what}"; {nearest(what, [*classes, "all"])} '
                f"legal are all, appendix-a and the other groups, {', '.join(classes)}, and "
                "my_module:MyScheduler"
            )
        try:
            config = classes[what](kind=what, **{**STAND_INS.get(what, {}), **values})
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or what
            legal = ", ".join(name for name in classes[what].model_fields if name != "kind")
            raise InputError(
                f"{what}: {place}: {first['msg']} (parameters: {legal or 'none'})"
            ) from error
    config.build()
    built: SchedulerFactory = config.build
    return built


def shipped() -> list[tuple[str, SchedulerFactory]]:
    """Return every shipped scheduler, in the forms that matter for losslessness."""
    made = []
    listed = [kind for kind, _ in VARIANTS]
    others: list[tuple[str, dict[str, Any]]] = [
        (kind, {}) for kind in _config_classes() if kind not in listed
    ]
    for kind, values in (*VARIANTS, *others):
        settings = tuple(f"{name}={value}" for name, value in values.items())
        factory = factory_of(kind, settings)
        # The lab shows no scheduler what will be accepted, so an oracle cannot be run in it.
        if "oracle" not in factory().reads:
            made.append((" ".join((kind, *settings)), factory))
    return made
