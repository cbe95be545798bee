"""Where profiles and scenarios are: beside the scenario file, in ./profiles, or shipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import specsim
from specsim.errors import InputError, nearest

_LFS = b"version https://git-lfs"
_SUFFIX = {"steps": ".json", "traces": ".npz", "workloads": ""}
_NOUN = {"steps": "step-cost table", "traces": "trace", "workloads": "workload trace"}
_YAML = (".yaml", ".yml")


def shipped(folder: str) -> Path:
    """Return the folder of shipped `profiles` or `scenarios`.

    In a checkout it stands at the top of the repository, in an installed package inside it.
    """
    package = Path(specsim.__file__).parent
    installed = package / "_data" / folder
    return installed if installed.is_dir() else package.parent / folder


@dataclass(frozen=True, slots=True)
class Locator:
    """Finds the profiles that one scenario names.

    Attributes:
        beside: the folder of the scenario file.
    """

    beside: Path

    def __call__(self, group: str, name: str) -> Path:
        """Find a profile.

        Args:
            group: what kind it is: `steps`, `traces`, or another folder under profiles/.
            name: a path (beside the scenario, from here, or absolute), or a name such as
                `vllm/v4_flash_tp4_b300`; the suffix may be left out.

        Raises:
            InputError: there is none, or more than one.
        """
        suffix = _SUFFIX.get(group, ".json")
        noun = _NOUN.get(group, f"profile in {group}")
        places = list(dict.fromkeys((self.beside, Path(), *self._folders(group))))
        for folder in places:
            for candidate in (folder / name, folder / (name + suffix)):
                if _is_file(candidate):
                    return _no_pointer(candidate)
        known = dict(self._known(group, suffix))
        # A bare name may leave out the engine's folder where only one table is called so.
        ends = sorted(n for n in known if n.rsplit("/", 1)[-1] == name)
        if len(ends) == 1:
            return _no_pointer(known[ends[0]])
        if len(ends) > 1:
            raise InputError(f'"{name}" names more than one {noun}: {", ".join(ends)}')
        close = nearest(name, known) or nearest(
            name.rsplit("/", 1)[-1], {n.rsplit("/", 1)[-1] for n in known}
        )
        listed = "" if close else f"; there are {_some(sorted(known))}"
        looked = ", ".join(str(folder) for folder in places)
        raise InputError(
            f'no {noun} "{name}"{"; " + close if close else ""}{listed} (`specsim list profiles` '
            f"names all; looked in {looked})"
        )

    def names(self, group: str) -> list[tuple[str, Path]]:
        """Return name and file of every profile of a group that can be found by name."""
        return sorted(dict(self._known(group, _SUFFIX.get(group, ".json"))).items())

    def _folders(self, group: str) -> list[Path]:
        folders = [self.beside / "profiles" / group, Path("profiles") / group]
        folders.append(shipped("profiles") / group)
        return [f for i, f in enumerate(folders) if f.resolve() not in _resolved(folders[:i])]

    def _known(self, group: str, suffix: str) -> Iterator[tuple[str, Path]]:
        # Nearer folders come last here, so that a dictionary of these keeps them.
        for folder in reversed(self._folders(group)):
            for path in sorted(folder.rglob(f"*{suffix}")) if folder.is_dir() else ():
                yield path.relative_to(folder).with_suffix("").as_posix(), path


def locator(beside: Path) -> Locator:
    """Return what finds the profiles of a scenario whose file lies in `beside`."""
    return Locator(beside)


def find_scenario(name: str) -> Path:
    """Return the file of a scenario: a path, or a name in ./scenarios or among the shipped ones.

    Raises:
        InputError: there is none; names the nearest.
    """
    given = Path(name)
    if _is_file(given):
        return given
    known = dict(scenario_names())
    if name in known:
        return known[name]
    if not _too_long(given) and given.is_dir():
        raise InputError(f"{name}: is a folder; a scenario file or name is needed")
    there = list(known)
    if given.suffix in _YAML or len(given.parts) > 1:
        folder = given.parent
        there = [
            str(folder / p.name) if folder != Path() else p.name
            for p in (sorted(folder.iterdir()) if folder.is_dir() else ())
            if p.suffix in _YAML
        ] + there
    close = nearest(name, there) or nearest(given.stem, known)
    raise InputError(
        f"{name}: no such scenario file{'; ' + close if close else ''}; shipped scenarios: "
        f"{', '.join(sorted(known)) or 'none'}"
    )


def scenario_names() -> list[tuple[str, Path]]:
    """Return name and file of every scenario in ./scenarios and among the shipped ones."""
    found: dict[str, Path] = {}
    for folder in (shipped("scenarios"), Path("scenarios")):
        for path in sorted(folder.glob("*.y*ml")) if folder.is_dir() else ():
            found[path.stem] = path
    return sorted(found.items())


def _some(names: list[str]) -> str:
    return (", ".join(names[:6]) or "none") + (", .." if len(names) > 6 else "")


def _too_long(path: Path) -> bool:
    return any(len(os.fsencode(part)) > 255 for part in path.parts)


def _is_file(path: Path) -> bool:
    # Asking the system about a name that is too long for it raises instead of saying no.
    return not _too_long(path) and path.is_file()


def _resolved(folders: list[Path]) -> set[Path]:
    return {folder.resolve() for folder in folders}


def _no_pointer(path: Path) -> Path:
    """Return `path` unless it is a Git LFS pointer instead of the data.

    Raises:
        InputError: it is one, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(len(_LFS))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if head == _LFS:
        raise InputError(f"{path}: a Git LFS pointer, not the data; run `git lfs pull`")
    return path
