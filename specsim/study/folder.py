"""Folders that appear whole or not at all, whoever is killed when.

What is written lies hidden beside its place (`.<name>.<host>.<pid>.<id>.<state>`) until it is
whole: `partial` while it is written, `whole` when it is, and `old` is the one before it. Between
the two renames that exchange them there is an instant without the folder; whoever finds it missing
puts back what a killed process of this machine had not: the new one, or else the old one.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from specsim.errors import InputError

PARTIAL, WHOLE, OLD = "partial", "whole", "old"


def write_folder(directory: Path, fill: Callable[[Path], None], *, what: str) -> None:
    """Write a folder, replacing one of the same name; of several at once the last one's stays.

    Args:
        directory: its final path.
        fill: writes everything into the folder it is given.
        what: what it holds, for the error.

    Raises:
        InputError: the place cannot be written.
    """
    partial = _beside(directory, PARTIAL)
    whole = partial.with_suffix(f".{WHOLE}")
    try:
        partial.mkdir(parents=True)
        fill(partial)
        partial.rename(whole)
        _swap(whole, directory)
    except OSError as error:
        _remove(partial, whole)
        raise InputError(
            f"{directory}: the {what} cannot be written: {error.strerror or error}; choose another "
            "place with --out"
        ) from error
    except BaseException:
        _remove(partial, whole)
        raise


@contextmanager
def scratch(directory: Path) -> Iterator[Path]:
    """Name a hidden folder beside `directory` for what is on its way there; removed afterwards.

    Nobody has made it yet. What a killed process leaves of it goes when `directory` is written.
    """
    folder = _beside(directory, PARTIAL)
    try:
        yield folder
    finally:
        _remove(folder)


def require_writable(folder: Path) -> None:
    """Make the folder of run directories, before there is anything to lose.

    Raises:
        InputError: it cannot be made, or nothing can be written in it.
    """
    probe = _beside(folder / "probe", PARTIAL)
    try:
        probe.mkdir(parents=True)
        probe.rmdir()
    except OSError as error:
        raise InputError(
            f"{folder}: runs cannot be written there: {error.strerror or error}; choose another "
            "place with --out"
        ) from error


def recover(directory: Path) -> None:
    """Put a folder back that a process was killed over while it exchanged it; else do nothing."""
    if directory.exists():
        return
    for state in (WHOLE, OLD):
        for path in _orphans(directory, state):
            try:
                path.rename(directory)
            except OSError:
                continue  # another process was first, or the place is read-only
            return


def _beside(directory: Path, state: str) -> Path:
    """Name a hidden folder beside `directory` that nobody else uses, and that tells its owner."""
    owner = f"{os.uname().nodename}.{os.getpid()}"
    return directory.with_name(f".{directory.name}.{owner}.{uuid.uuid4().hex[:8]}.{state}")


def _swap(whole: Path, directory: Path) -> None:
    """Put `whole` in the place of `directory`, whoever else does so at the same time.

    A reader sees the old one or the new one, or for an instant none; never a part of one.
    """
    replaced = []
    while True:
        try:
            whole.rename(directory)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        old = _beside(directory, OLD)
        try:
            directory.rename(old)
        except FileNotFoundError:
            continue  # another process has just moved it away
        replaced.append(old)
    _remove(*replaced)
    for state in (PARTIAL, WHOLE, OLD):
        _remove(*_orphans(directory, state))


def _orphans(directory: Path, state: str) -> list[Path]:
    """Return what killed processes of this machine left beside `directory`, newest first."""
    found = []
    for path in directory.parent.glob(f".{directory.name}.{os.uname().nodename}.*.*.{state}"):
        pid = path.name.split(".")[-3]
        if pid.isdecimal() and not _alive(int(pid)):
            found.append(path)
    return sorted(found, key=_changed_ns, reverse=True)


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _remove(*paths: Path) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
