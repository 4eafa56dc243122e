"""A workload's traffic classes, each laid over what the workload says of its traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.scenario.class_keys import OF_THE_WHOLE
from sim.scenario.schema import GROUPS
from sim.scenario.tree import Tree

Values = Mapping[str, Any]


def class_trees(tree: Tree) -> dict[str, Tree]:
    """Of each class of the workload *tree*, by name, the whole: what it says over what is said around it.

    Classes that are no mapping are left out (the workload's own table has told that).
    """
    own = tree.get(("classes",))
    traffic = {name: inner for name, inner in tree.value.items() if _of_traffic(name)}
    places = {path: place for path, place in tree.places.items() if path and path[0] in traffic}
    classes = own if isinstance(own, dict) else {}
    return {
        name: Tree(traffic, {(): tree.place(("classes", name)), **places}).merged(tree.at(("classes", name)))
        for name, inner in classes.items()
        if isinstance(inner, dict)
    }


def without_traffic(tree: Tree) -> Tree:
    """The workload *tree* without what its classes have taken over."""
    return Tree({name: inner for name, inner in tree.value.items() if not _of_traffic(name)}, tree.places)


def _of_traffic(name: str) -> bool:
    return name in GROUPS["workloads"].inside and name not in OF_THE_WHOLE


def whole_only(value: Values) -> dict[str, Any]:
    """Of a workload's checked *value* what is no traffic: defaults of keys that its classes have."""
    return {name: inner for name, inner in value.items() if name in OF_THE_WHOLE}
