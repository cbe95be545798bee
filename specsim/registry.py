"""How components are named in files: a frozen config beside each component, found by its `kind`."""

from __future__ import annotations

import importlib
import re
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator
from pydantic_core import PydanticCustomError

from specsim.errors import InputError, in_one_line, nearest


class Config(BaseModel):
    """Base of everything a scenario can say: frozen, strict about keys, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _integers_fit(cls, value: Any) -> Any:
        if _too_large(value):
            raise PydanticCustomError("integer_bits", "an integer of at most 63 bits is needed")
        return value


def _too_large(value: Any) -> bool:
    """Say whether an integer is there that arrays and kernels cannot hold."""
    if isinstance(value, int):
        return abs(value) >= 2**63
    return isinstance(value, tuple | list) and any(map(_too_large, value))


_USER_KIND = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")


def is_user_kind(kind: str) -> bool:
    """Say whether `kind` has the form `my_module:MyClass` of a component in the user's own file."""
    return bool(_USER_KIND.match(kind))


def load_user_class(kind: str) -> type[Any]:
    """Import the class named by `my_module:MyClass` from the Python path.

    Raises:
        InputError: the module or the class is not there, or the name is not of that form.
    """
    if not is_user_kind(kind):
        raise InputError(f'"{kind}" is not of the form my_module:MyClass')
    module_name, _, class_name = kind.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(
            f'cannot import module "{module_name}" of "{kind}": {error}; run from the folder that '
            "holds it, or add that folder to PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:
        raise InputError(
            f'module "{module_name}" of "{kind}" fails when it is imported: {in_one_line(error)}'
        ) from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        classes = [name for name, value in vars(module).items() if isinstance(value, type)]
        close = nearest(class_name, classes)
        raise InputError(
            f'module "{module_name}" has no class "{class_name}"{"; " + close if close else ""}'
        )
    return found
