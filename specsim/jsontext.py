"""JSON of any origin to plain data, or the one thing that is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from specsim.errors import InputError, Problem, SpecsimError, in_one_line

_MAX_DIGITS = 40


def read_json(
    text: str, *, where: str, line: int = 0, nan: bool = True
) -> tuple[Any, Problem | None]:
    """Parse JSON.

    Args:
        text: of a file, or of one line of it.
        where: the file.
        line: of the file, from 1; 0 if the text is the whole file.
        nan: whether NaN and Infinity are taken, which other tools write.

    Returns:
        The value and None; or None and what is wrong: no JSON, nested too deep, an integer of more
        than 40 digits, half a character, or a Git LFS pointer.
    """
    place = f"{where}:{line}" if line else where
    if text.startswith("version https://git-lfs"):
        message = "a Git LFS pointer, not the data"
        return None, Problem(where, "", message, "run `git lfs pull`")
    try:
        value = json.loads(text, parse_int=_whole, parse_constant=float if nan else _refuse)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        at = f"{line or error.lineno}:{error.colno}"
        return None, Problem(f"{where}:{at}", "", f"not JSON: {error.msg}")
    except RecursionError:
        return None, Problem(place, "", "not usable as JSON: is nested too deep")
    except UnicodeEncodeError:
        return None, Problem(place, "", "not usable as JSON: a \\u escape is half a character")
    except ValueError as error:
        return None, Problem(place, "", f"not usable as JSON: {error}")
    return value, None


def _whole(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"holds an integer of {len(text)} digits")
    return int(text)


def _refuse(text: str) -> float:
    raise ValueError(f"holds {text}")


@contextmanager
def shaped(where: str, what: str) -> Iterator[None]:
    """Read a foreign file's fields inside: whatever is not where it should be is the file's fault.

    Args:
        where: the file.
        what: what it should be, such as `vllm result`.

    Raises:
        InputError: in place of a missing key, a wrong type, or a value out of range.
    """
    try:
        yield
    except SpecsimError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        raise InputError(
            f"{where}: is no {what} that specsim can read ({in_one_line(error)}); make it again, "
            "or compare it with one that is right"
        ) from error
