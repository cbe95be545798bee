"""Arrays out of an npz file that anybody may have made: no pickle, and nothing allocated unchecked.

A zip's directory and an array's header both say how large a thing will be. They must agree with
each other, and with what a file of this size can plausibly hold, before any memory is taken.
"""

from __future__ import annotations

import lzma
import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from specsim.errors import InputError

_LFS = b"version https://git-lfs"
_FREE_BYTES = 256 << 20
_MOST_RATIO = 100
_PIECE = 1 << 20
_LIMIT_TEXT = f"an npz may unpack to {_FREE_BYTES >> 20} MiB, or to {_MOST_RATIO} times its size"
_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    MemoryError,
    OverflowError,
    SyntaxError,
    tokenize.TokenError,
    TypeError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    RuntimeError,  # encrypted, or (a kind of it) packed in a way that zipfile does not know
)
"""All that numpy, zipfile and the decompressors raise on damaged bytes."""


def read_npz(
    path: Path, *, required: Iterable[str], optional: Iterable[str] = (), what: str
) -> dict[str, NDArray[Any]]:
    """Read named arrays of an npz file.

    Args:
        path: the file.
        required: arrays that must be there.
        optional: arrays that are read if they are there; all others are left alone.
        what: what the file should be, such as `trace`.

    Raises:
        InputError: the file is missing, damaged, a Git LFS pointer, no npz, lacks an array, holds
            objects, or claims to unpack to far more than its size.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_LFS)) == _LFS:
                raise InputError(f"{path}: a Git LFS pointer, not the data; run `git lfs pull`")
            size = file.seek(0, 2)
            with zipfile.ZipFile(file) as archive:
                return _read(archive, size, path, tuple(required), tuple(optional), what)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such {what} file") from error
    except InputError:
        raise
    except _UNREADABLE as error:
        raise InputError(
            f"{path}: cannot be read as an npz {what}: {error or type(error).__name__}; it is "
            "damaged or something else: fetch or make it again"
        ) from error


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays to a compressed npz, whole or not at all.

    Raises:
        InputError: the disk is full or the folder cannot be written.
    """
    temporary = path.with_name(path.name + ".tmp.npz")
    try:
        np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(
            f"cannot write {path}: {error.strerror or error}; free some disk space or choose "
            "another place"
        ) from error


def _read(
    archive: zipfile.ZipFile,
    size: int,
    path: Path,
    required: tuple[str, ...],
    optional: tuple[str, ...],
    what: str,
) -> dict[str, NDArray[Any]]:
    there = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    missing = [name for name in required if name not in there]
    if missing:
        raise InputError(
            f"{path}: not a specsim {what}: {', '.join(missing)} missing; it holds "
            f"{', '.join(list(there)[:20]) or 'nothing'}"
        )
    wanted = [name for name in (*required, *optional) if name in there]
    total = sum(there[name].file_size for name in wanted)
    if total > max(_FREE_BYTES, _MOST_RATIO * size):
        raise InputError(
            f"{path}: claims to unpack to {total} bytes from {size}; {_LIMIT_TEXT}. If it is "
            "what you mean, write it again uncompressed"
        )
    return {name: _array(archive, there[name], path) for name in wanted}


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> NDArray[Any]:
    with archive.open(info) as member:
        version = npy.read_magic(member)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{info.filename}: array format {version} is not supported")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(member)
        if dtype.hasobject:
            raise ValueError(f"{info.filename}: holds Python objects; pickles are never read")
        nbytes = math.prod(shape) * dtype.itemsize
        left = info.file_size - member.tell()
        if min(shape, default=0) < 0 or nbytes != left:
            raise InputError(
                f"{path}: {info.filename} says that it holds {list(shape)} of {dtype}, which is "
                f"{nbytes} bytes, but {left} follow; the file is damaged or made up"
            )
        content = bytearray(nbytes)
        at = 0
        # To the end and past it, which checks the checksum.
        while part := member.read(_PIECE):
            content[at : at + len(part)] = part
            at += len(part)
        if at != nbytes:
            raise EOFError(f"{info.filename} ends early")
    found: NDArray[Any] = np.frombuffer(content, dtype=dtype)
    return found.reshape(shape, order="F" if fortran else "C")
