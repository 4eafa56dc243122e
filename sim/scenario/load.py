"""From what a user names or writes to a resolved `Scenario`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sim.faults import InputFault
from sim.scenario.bases import on_its_base
from sim.scenario.catalogue import Folders, default_folders, find
from sim.scenario.overrides import apply_overrides
from sim.scenario.references import is_path
from sim.scenario.scenario import Draft, Scenario, resolve
from sim.scenario.tree import Faults, Place, Tree, from_python
from sim.scenario.yaml_core import read_file


def load(
    source: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), folders: Folders | None = None
) -> Scenario:
    """The scenario that *source* is: a path, a name of the catalogue, or the mapping itself.

    *overrides* are `key=value`, whose values are YAML. They go before the scenario, which goes before the
    engine's preset, which goes before the defaults. *folders* says where names are looked up (default:
    what comes with Kneesim). A relative path in a file starts from the file's folder, any other from the
    working directory. Raises `InputFault` with all faults, each with its place.
    """
    where = default_folders() if folders is None else folders
    faults = Faults()
    name, tree = _read(source, where, faults)
    tree = apply_overrides(tree, overrides, faults)
    return resolve(Draft(name, tree, where), faults)


def _read(source: str | Path | Mapping[str, Any], folders: Folders, faults: Faults) -> tuple[str, Tree]:
    if isinstance(source, Mapping):
        return "scenario", on_its_base(from_python(source, Place("scenario")), folders, faults)
    path = Path(source)
    if isinstance(source, str) and not is_path(source) and not path.is_file():
        path = find("scenarios", source, folders)
    if not path.is_file():
        raise InputFault(f"{path} is {'a folder' if path.is_dir() else 'not there'}; name a scenario file")
    return path.stem, on_its_base(read_file(path, faults), folders, faults, (path.resolve(),))
