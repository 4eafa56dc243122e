"""What was read, with the place where each part of it was written."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sim.faults import InputFault

KeyPath = tuple[str, ...]
"""The keys from the root to a value; an item of a list is `[0]`, `[1]`, ..."""


class Place(NamedTuple):
    """Where a value was written: a file and its line, or words such as `command line`."""

    file: str
    line: int | None = None
    folder: Path | None = None
    """What a relative path written here starts from; None is the working directory."""

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


class Faults:
    """Gathers the faults of one input, so that all of them are told at once."""

    def __init__(self) -> None:
        self._found: list[tuple[Place, str]] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, place: Place, sentence: str) -> None:
        """A fault at *place*; the sentence begins with what is at fault."""
        self._found.append((place, f"{place}: {sentence}"))

    def extend(self, others: Faults) -> None:
        self._found += others._found

    def include(self, fault: InputFault, near: Place) -> None:
        """Adds the sentences of *fault*, which name their own places; they are told where *near* is."""
        self._found += [(near, sentence) for sentence in fault.faults]

    def raise_any(self) -> None:
        """Raises `InputFault` with every sentence, files in the order met, lines from top to bottom."""
        if not self._found:
            return
        files = list(dict.fromkeys(place.file for place, _ in self._found))
        ordered = sorted(self._found, key=lambda fault: (files.index(fault[0].file), fault[0].line or 0))
        raise InputFault(dict.fromkeys(sentence for _, sentence in ordered))


@dataclass(frozen=True)
class Tree:
    """Plain nested values and, by path, the places where they were written. Never changed in place."""

    value: Any
    places: Mapping[KeyPath, Place] = field(default_factory=dict)

    def place(self, path: KeyPath = ()) -> Place:
        """Where *path* was written, or the nearest thing around it."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.places:
                return self.places[path[:end]]
        return Place("input")

    def get(self, path: KeyPath) -> Any:
        """The value at *path*, or None."""
        value = self.value
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def at(self, path: KeyPath) -> Tree:
        """The part of the tree at *path*, as a tree of its own."""
        depth = len(path)
        inner = {
            place_path[depth:]: place
            for place_path, place in self.places.items()
            if place_path[:depth] == path
        }
        return Tree(self.get(path), {(): self.place(path), **inner})

    def replaced(self, path: KeyPath, new: Tree) -> Tree:
        """This tree with *new* in place of whatever was at *path*; mappings on the way are made."""
        depth = len(path)
        kept = {old: place for old, place in self.places.items() if old[:depth] != path}
        made = (path[:end] for end in range(1, depth) if not isinstance(self.get(path[:end]), Mapping))
        moved = {path + inner: place for inner, place in new.places.items()}
        return Tree(_with(self.value, path, new.value), {**kept, **dict.fromkeys(made, new.place()), **moved})

    def merged(self, patch: Tree) -> Tree:
        """This tree with the values of *patch* laid over it, mapping by mapping; null takes a key away.

        A mapping of another `kind` replaces the one below it: its other keys would make no sense there.
        """
        places = {**self.places, **{path: place for path, place in patch.places.items() if path}}
        return Tree(_merge(self.value, patch.value), places)


def _with(value: Any, path: KeyPath, new: Any) -> Any:
    if not path:
        return new
    inner = value if isinstance(value, Mapping) else {}
    return {**inner, path[0]: _with(inner.get(path[0]), path[1:], new)}


def _merge(base: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return patch
    other_kind = isinstance(base, Mapping) and patch.get("kind", base.get("kind")) != base.get("kind")
    result = dict(base) if isinstance(base, Mapping) and not other_kind else {}
    for key, value in patch.items():
        result[key] = _merge(result.get(key), value)
    return {key: value for key, value in result.items() if value is not None}


def spell(path: KeyPath) -> str:
    """`engine.max_num_seqs`, `lengths.prompt.weights[1]`."""
    return ".".join(path).replace(".[", "[")


def leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Every value that is no mapping, with its path; a list counts as one value."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    else:
        yield path, value


def from_python(value: Any, place: Place) -> Tree:
    """A tree of *value* (mappings, sequences, numbers, text, paths), copied, all of it at *place*.

    Raises `InputFault` where something else or a number that is not finite is in it.
    """
    faults = Faults()
    tree = Tree(_plain(value, (), place, faults), {(): place})
    faults.raise_any()
    return tree


def _plain(value: Any, path: KeyPath, place: Place, faults: Faults) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, (*path, str(key)), place, faults) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, (*path, f"[{i}]"), place, faults) for i, inner in enumerate(value)]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) and math.isfinite(value):
        return float(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    wanted = "finite" if isinstance(value, numbers.Real) else "a mapping, list, number, text or bool"
    faults.add(place, f"{spell(path) or 'the value'} must be {wanted} (got {value!r:.40})")
    return None
