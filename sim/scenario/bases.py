"""A scenario on another one: `base: chat.yaml`, and below it what is different."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.faults import InputFault
from sim.scenario.catalogue import Folders
from sim.scenario.overrides import named_as_mapping, without_rivals
from sim.scenario.quantities import got
from sim.scenario.references import locate
from sim.scenario.schema import NAMING
from sim.scenario.tree import Faults, KeyPath, Tree, leaves
from sim.scenario.yaml_core import read_file

BASE: KeyPath = ("base",)


def on_its_base(tree: Tree, folders: Folders, faults: Faults, above: tuple[Path, ...] = ()) -> Tree:
    """What the scenario *tree* says, laid over the one that its `base` names, and that one's own base.

    *above* are the files that led here. Each value keeps the place where it was written. Raises
    `InputFault`, with what is in *faults*, where the base cannot be read: nothing else could be judged.
    """
    base, place = tree.get(BASE), tree.place(BASE)
    if base is None:
        return tree
    try:
        if not isinstance(base, str):
            raise InputFault(f"{place}: base must be a scenario's name or path (got {got(base)})")
        path = locate("scenarios", base, place, folders)
        if path.resolve() in above:
            raise InputFault(f"{place}: base must not lead back to this file (got {base})")
        below = on_its_base(read_file(path, faults), folders, faults, (*above, path.resolve()))
    except InputFault as fault:
        faults.include(fault, place)
        faults.raise_any()
        raise
    return laid_over(below, tree)


def laid_over(below: Tree, own: Tree) -> Tree:
    """*below* with the values of the scenario *own* over it, mapping by mapping; null takes a key away.

    A section that names a file anew replaces all of that section, a mapping of another `kind` all of that
    mapping, and a key those that it excludes. The name of *below* is not handed on.
    """
    fresh = [name for name in NAMING if isinstance(value := own.get((name,)), dict) and "base" in value]
    for section in ("name", *fresh):
        below = below.replaced((section,), Tree(None))
    for path, value in leaves({key: inner for key, inner in own.value.items() if key != "base"}):
        below = named_as_mapping(below, path)
        if value is not None:
            for end in range(1, len(path) + 1):
                below = without_rivals(below, path[:end])
    merged = below.merged(own.replaced(BASE, Tree(None)))
    return Tree(merged.value, {**merged.places, **_shared(below, own), (): own.place()})


def _shared(below: Tree, own: Tree) -> dict[KeyPath, Any]:
    """The places of the mappings that hold values of both: where *below* wrote them."""
    return {
        path: place
        for path, place in below.places.items()
        if path in own.places and _goes_on(below.get(path), own.get(path))
    }


def _goes_on(below: Any, own: Any) -> bool:
    if not isinstance(below, Mapping) or not isinstance(own, Mapping):
        return False
    return own.get("kind", below.get("kind")) == below.get("kind")
