"""Files of tensors: read with errors that name the file, written whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from specsim.errors import InputError


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file (memory-mapped where the platform can).

    Raises:
        InputError: it is missing or damaged.
    """
    if not path.is_file():
        raise InputError(f"{path} is missing: download or make it again")
    try:
        tensors: dict[str, Tensor] = load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{path} is not a whole safetensors file: {error}; download or make it again"
        ) from error
    return tensors


def write_tensors(
    tensors: Mapping[str, Tensor], path: Path, *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file under another name and rename it; folders are made.

    Raises:
        InputError: the disk is full or the folder cannot be written.
    """
    scratch = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(
            dict(tensors), str(scratch), metadata=None if metadata is None else dict(metadata)
        )
        scratch.replace(path)
    except (OSError, SafetensorError) as error:  # the library wraps errors of the disk
        scratch.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error}; free some disk space") from error
