"""`key=value`: values laid over what a file says."""

from __future__ import annotations

from collections.abc import Sequence

from sim.faults import InputFault
from sim.scenario.schema import NAMING, SCENARIO_KEYS
from sim.scenario.tree import Faults, KeyPath, Place, Tree, spell
from sim.scenario.yaml_core import read_text

COMMAND_LINE = Place("command line")


def apply_overrides(tree: Tree, overrides: Sequence[str], faults: Faults) -> Tree:
    """*tree* with each `key=value` laid over it, the later over the earlier; the value is YAML."""
    given: dict[str, KeyPath] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        path = key_path(key)
        if not equals or not all(path):
            faults.add(COMMAND_LINE, f"`{override}` must be key=value, such as engine.max_num_seqs=128")
            continue
        if text.strip() and (rival := given.setdefault(_group(path), path)) != path:
            faults.add(
                COMMAND_LINE, f"{spell(path)} and {spell(rival)} exclude one another; write one of them"
            )
        try:
            tree = lay_over(tree, path, _value(text, path, faults))
        except InputFault as fault:
            faults.include(fault, COMMAND_LINE)
    return tree


def _group(path: KeyPath) -> str:
    """What only one key may be given of: the group of the one at *path*, or that key alone."""
    own = next((key for key in SCENARIO_KEYS if key.parts == path and key.one_of), None)
    return own.one_of if own else spell(path)


def key_path(text: str) -> KeyPath:
    """The path that *text* spells. Limits are the only keys with a point within (`slo.ttft_p99.9_s`)."""
    section, point, limit = text.partition(".")
    parts = [section, limit] if section.strip() == "slo" and point else text.split(".")
    return tuple(part.strip() for part in parts)


def _value(text: str, path: KeyPath, faults: Faults) -> Tree:
    try:
        return read_text(text, COMMAND_LINE, faults, at=path)
    except InputFault as fault:
        reason = str(fault).removeprefix(f"{COMMAND_LINE}: ")
        raise InputFault(f"{COMMAND_LINE}: {spell(path)}={text}: {reason}") from fault


def lay_over(tree: Tree, path: KeyPath, new: Tree) -> Tree:
    """*tree* with *new* as the whole subtree at *path*.

    A name on the way becomes a mapping (`hardware: NAME` turns into `{base: NAME, ...}`, `load: trace`
    into `{mode: trace, ...}`), and a key takes the place of those that it excludes.
    """
    tree = named_as_mapping(tree, path)
    if new.value is not None:
        tree = without_rivals(tree, path)
    return tree.replaced(path, new)


def named_as_mapping(tree: Tree, path: KeyPath) -> Tree:
    """*tree* with the section of *path* as a mapping, if it is a name and *path* leads further into it."""
    section, text = path[:1], tree.get(path[:1])
    if len(path) == 1 or not isinstance(text, str):
        return tree
    short_for = "mode" if section == ("load",) else "base" if section[0] in NAMING else None
    if short_for is None:
        return tree
    return tree.replaced(section, Tree({short_for: text}, {(): tree.place(section)}))


def without_rivals(tree: Tree, path: KeyPath) -> Tree:
    """*tree* without the keys that the one at *path* excludes."""
    for rival in _rivals(path):
        if tree.get(rival) is not None:
            tree = tree.replaced(rival, Tree(None))
    return tree


def _rivals(path: KeyPath) -> list[KeyPath]:
    """The keys that the one at *path* excludes, and those that only make sense with them."""
    own = next((key for key in SCENARIO_KEYS if key.parts == path and key.one_of), None)
    if own is None:
        return []
    excluded = [key for key in SCENARIO_KEYS if key.one_of == own.one_of and key is not own]
    paths = [key.path for key in excluded]
    dependent = [key for key in SCENARIO_KEYS if key.needs in paths or (key.when and key.when[0] in paths)]
    return [key.parts for key in (*excluded, *dependent)]
