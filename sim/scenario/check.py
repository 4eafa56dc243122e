"""What was read against a table of keys: values in base units, defaults, faults."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from sim.faults import did_you_mean
from sim.scenario.keys import Group, Key
from sim.scenario.quantities import RefusedError, got
from sim.scenario.schema import GROUPS, PLACEHOLDERS, TABLES
from sim.scenario.tree import Faults, KeyPath, Tree, spell


def check(kind: str, tree: Tree, faults: Faults, shown: KeyPath = ()) -> dict[str, Any]:
    """The resolved values of *tree* by the table of *kind* (`scenarios`, `hardware`, `models`, `workloads`).

    Null counts as not written. *shown* goes before the paths in sentences. What is at fault is absent
    from the result, and so are keys without a default that are not written.
    """
    return _Check(kind, tree, faults, shown).mapping(tree.value, GROUPS[kind], ())


class _Check:
    def __init__(self, kind: str, tree: Tree, faults: Faults, shown: KeyPath) -> None:
        self.kind = kind
        self.tree = tree
        self.faults = faults
        self.shown = shown

    def mapping(self, value: Any, group: Group, path: KeyPath) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.fault(path, f"must be a mapping of keys to values (got {got(value)})")
            return {}
        result: dict[str, Any] = {}
        strange = [name for name in value if group.find(name, PLACEHOLDERS) is None]
        told = {did_you_mean(name, group.inside) for name in strange}
        for name, inner in group.inside.items():
            if name in PLACEHOLDERS:
                self.placeholders(value, name, inner, path, result)
            elif value.get(name) is not None or f"; did you mean {name}?" not in told:
                self.entry(value, name, inner, path, result)
        for name in strange:
            self.fault((*path, name), _unknown(self.kind, group, path, name, bool(self.shown)))
        self.exclusive(value, group, path)
        return result

    def placeholders(
        self, value: dict[str, Any], part: str, inner: Group, path: KeyPath, result: dict[str, Any]
    ) -> None:
        for name in value:
            if PLACEHOLDERS[part].matches(name):
                self.entry(value, name, inner, path, result)

    def entry(
        self, value: dict[str, Any], name: str, inner: Group, path: KeyPath, result: dict[str, Any]
    ) -> None:
        """One key of a mapping: its value, or its default, or a fault, into *result*."""
        here = (*path, name)
        written = value.get(name)
        fits = self.fits(inner.key)
        if written is None:
            if fits is not False:
                self.absent(value, inner, here, result, certain=fits is True)
        elif fits is False and inner.key:
            self.fault(here, self.misplaced(inner.key))
        elif inner.inside:
            result[name] = self.mapping(written, inner, here)
        elif inner.key:
            self.leaf(written, inner.key, here, result)

    def leaf(self, written: Any, key: Key, path: KeyPath, result: dict[str, Any]) -> None:
        if not key.many:
            self.value(written, key, path, result)
        elif isinstance(written, list) and written:
            items: dict[str, Any] = {}
            for i, item in enumerate(written):
                self.value(item, key, (*path, f"[{i}]"), items)
            if len(items) == len(written):
                result[path[-1]] = list(items.values())
        else:
            self.fault(path, f"must be a list, each item {key.requirement} (got {got(written)})")

    def value(self, written: Any, key: Key, path: KeyPath, result: dict[str, Any]) -> None:
        try:
            result[path[-1]] = key.read(written)
        except RefusedError as refused:
            hint = f"; {refused.hint}" if refused.hint else ""
            self.fault(path, f"must be {refused.requirement} (got {got(written)}){hint}")

    def absent(
        self, value: dict[str, Any], inner: Group, path: KeyPath, result: dict[str, Any], certain: bool
    ) -> None:
        key = inner.key
        if key is None:
            return
        if key.default == {}:
            result[path[-1]] = self.mapping({}, inner, path)
        elif key.default is not None and not self.replaced(value, key):
            result[path[-1]] = copy.copy(key.default)
        elif key.required and certain and value.get(key.unless) is None:
            self.fault(path, f"is missing: {_first_sentence(key.meaning)}")

    def replaced(self, value: dict[str, Any], key: Key) -> bool:
        """Whether another key of the same group is written, so that the default does not hold."""
        rivals = (other for other in TABLES[self.kind] if other.one_of == key.one_of and other is not key)
        return bool(key.one_of) and any(value.get(rival.parts[-1]) is not None for rival in rivals)

    def exclusive(self, value: dict[str, Any], group: Group, path: KeyPath) -> None:
        """A fault for each pair of keys that exclude one another."""
        written: dict[str, str] = {}
        for name, inner in group.inside.items():
            if inner.key is None or not inner.key.one_of or value.get(name) is None:
                continue
            first = written.setdefault(inner.key.one_of, name)
            if first != name:
                self.fault((*path, name), f"excludes {first}; write one of them")

    def fits(self, key: Key | None) -> bool | None:
        """Whether *key* belongs to what is written; None where the deciding key is at fault or absent."""
        if key is None or key.when is None:
            return True
        decider, decided = self.decided(key.when[0])
        return decided in key.when[1] if decided in decider.choices else None

    def decided(self, path: str) -> tuple[Key, Any]:
        """The key at *path*, on which others depend, and its value."""
        decider = next(other for other in TABLES[self.kind] if other.path == path)
        written = self.tree.get(decider.parts)
        return decider, decider.default if written is None else written

    def misplaced(self, key: Key) -> str:
        path = key.when[0] if key.when else ""
        _, decided = self.decided(path)
        same = [
            other.parts[-1]
            for other in TABLES[self.kind]
            if other.when
            and other.when[0] == path
            and decided in other.when[1]
            and other.parts[:-1] == key.parts[:-1]
        ]
        possible = f"; possible: {', '.join(same)}" if same else ""
        return f"does not go with {spell((*self.shown, path))} {decided}{possible}"

    def fault(self, path: KeyPath, sentence: str) -> None:
        name = spell((*self.shown, *path))
        self.faults.add(self.tree.place(path), f"{name} {sentence}" if name else sentence)


def _first_sentence(text: str) -> str:
    first = text.partition(". ")[0].rstrip(".")
    return first[0].lower() + first[1:]


def _unknown(kind: str, group: Group, path: KeyPath, name: str, in_scenario: bool) -> str:
    """The sentence on a key that is not in the table: a sibling's name, or where the key belongs."""
    siblings = [
        known
        for part, inner in group.inside.items()
        for known in (PLACEHOLDERS[part].examples if part in PLACEHOLDERS else (part,))
    ]
    if not path and in_scenario:
        siblings.append("base")
    elsewhere = list(_elsewhere(kind, name))
    near = did_you_mean(name, siblings)
    if name.partition(":")[2]:
        return f"is unknown; write a space after the colon: `{name.replace(':', ': ', 1)}`"
    if "." in name and any(key.path == ".".join((*path, name)) for key in TABLES[kind]):
        return f"is unknown; write {name.replace('.', ': {')}: ...{'}' * name.count('.')}"
    if elsewhere:
        return f"is unknown; did you mean {' or '.join(elsewhere)}?"
    if "did you mean" in near:
        return f"is unknown{near}"
    return f"is unknown{_near_elsewhere(kind, name) or near}"


def _elsewhere(kind: str, name: str) -> Iterator[str]:
    """The paths of the keys called *name* in the table of *kind*, if they are few."""
    paths = [key.path for key in TABLES[kind] if key.parts[-1] == name and "<" not in key.path]
    if kind == "scenarios" and not paths and _is_limit(name):
        paths = [f"slo.{name}"]
    return iter(paths if len(paths) <= 2 else ())


def _is_limit(name: str) -> bool:
    return PLACEHOLDERS["<limit>"].matches(name)


def _near_elsewhere(kind: str, name: str) -> str:
    """`; did you mean ...?` with the whole path of the key whose own name is nearest to *name*."""
    by_name = {key.parts[-1]: key.path for key in TABLES[kind] if "<" not in key.path}
    near = did_you_mean(name, by_name)
    word = near.removeprefix("; did you mean ").removesuffix("?")
    return f"; did you mean {by_name[word]}?" if word in by_name else ""
