"""Where the files that have a name lie, in a checkout and in an installed package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sim.faults import InputFault, did_you_mean
from sim.scenario.tree import Faults
from sim.scenario.yaml_core import read_file

Folders = Mapping[str, Path]
"""By kind (hardware, models, workloads, engines, scenarios): the folder of its `NAME.yaml` files."""

NOUNS = {
    "hardware": "hardware profile",
    "models": "model",
    "workloads": "workload",
    "engines": "engine",
    "scenarios": "scenario",
}


def default_folders() -> Folders:
    """The folders that come with Kneesim: inside the package if it was installed, else beside it."""
    package = Path(__file__).resolve().parents[1]
    root = package / "_data" if (package / "_data").is_dir() else package.parent
    return {
        "hardware": root / "hardware_profiles",
        "models": package / "model" / "catalogue",
        "workloads": root / "workloads",
        "engines": package / "scenario" / "engines",
        "scenarios": root / "scenarios",
    }


def names(kind: str, folders: Folders | None = None) -> tuple[str, ...]:
    """The names of *kind*, in order of the alphabet; a file in a folder has the folder in its name.

    Raises `InputFault` for an unknown kind.
    """
    return tuple(sorted(_files(kind, folders)))


def find(kind: str, name: str, folders: Folders | None = None) -> Path:
    """The file of *kind* that is called *name*, or has it among its aliases; case does not matter.

    Raises `InputFault` with the nearest name if there is none.
    """
    files = _files(kind, folders)
    wanted = name.casefold()
    for known, path in files.items():
        if known.casefold() == wanted:
            return path
    for path in files.values():
        if wanted in (alias.casefold() for alias in _aliases(path, wanted)):
            return path
    near = did_you_mean(name, files)
    if "did you mean" not in near:
        aliases = [alias for path in files.values() for alias in _aliases(path)]
        by_alias = did_you_mean(name, aliases)
        near = by_alias if "did you mean" in by_alias else near
    raise InputFault(_folder_fault(kind, name, folders) or f"{NOUNS[kind]} {name} is unknown{near}")


def _folder_fault(kind: str, name: str, folders: Folders | None) -> str:
    """That *name* is a folder, of the catalogue or where one works, with the files in it; else nothing."""
    folder = folder_of(kind, name, folders)
    if folder is None:
        return ""
    files = [os.path.relpath(path) for path in files_in(folder)]
    inside = f", such as {files[0]}" if files else ""
    return f"{NOUNS[kind]} {name} is a folder; name a file{inside}"


def folder_of(kind: str, name: str, folders: Folders | None = None) -> Path | None:
    """The folder *name*, where one works or in the catalogue of *kind*; None if there is none."""
    where = (default_folders() if folders is None else folders).get(kind)
    places = (Path(name), *([where / name] if where else [])) if name.strip() else ()
    return next((path for path in places if path.is_dir()), None)


def files_in(folder: Path) -> list[Path]:
    """The YAML files in *folder*, in order of the alphabet."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".yml"))


def aliases(kind: str, name: str, folders: Folders | None = None) -> tuple[str, ...]:
    """The other names of the file of *kind* that is called *name*."""
    return _aliases(find(kind, name, folders))


def _files(kind: str, folders: Folders | None) -> dict[str, Path]:
    """The files of *kind* by name."""
    where = default_folders() if folders is None else folders
    if kind not in NOUNS:
        raise InputFault(f"kind {kind} is unknown{did_you_mean(kind, NOUNS)}")
    found = sorted(where[kind].rglob("*.yaml")) if kind in where else []
    return {path.relative_to(where[kind]).with_suffix("").as_posix(): path for path in found}


def _aliases(path: Path, holding: str = "") -> tuple[str, ...]:
    """The aliases in the file *path*; none, unread, if its text does not hold *holding* (folded)."""
    try:
        if holding and holding not in path.read_text(encoding="utf-8-sig").casefold():
            return ()
        found = read_file(path, Faults()).value.get("aliases")
    except (InputFault, OSError, ValueError):
        return ()  # a broken file must not stand in the way of the others; naming it tells its faults
    return tuple(str(alias) for alias in found) if isinstance(found, list) else ()
