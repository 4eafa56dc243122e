"""The points of a sweep: every combination of the keys' values, checked before the first of them runs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from sim.faults import InputFault
from sim.scenario.overrides import key_path
from sim.scenario.schema import SCENARIO_KEYS, SECTION_KINDS
from sim.scenario.tree import Place, from_python, spell
from sim.version import __version__
from sim.workload.classes import classes_of

if TYPE_CHECKING:
    from sim.scenario import Scenario

MOST_POINTS = 100_000
SEED = "run.seed"
_SWEEP = Place("sweep")


@dataclass(frozen=True)
class Point:
    """One run of a sweep: *values* of the swept keys in base units, and the run's seed.

    *summary* is that of `kneesim run --json` without the scenario and the simulator's speed; *fault* says
    in its place why the point cannot run. *changes* make the point's scenario of the sweep's; *key* tells
    points apart, and is empty where the values do not go together.
    """

    values: dict[str, Any]
    seed: int
    changes: dict[str, Any]
    scenario_sha256: str | None = None
    key: str = ""
    summary: dict[str, Any] | None = None
    fault: str | None = None

    @property
    def label(self) -> str:
        """`load.rate_per_s=4, seed 2`."""
        return ", ".join(
            [*(f"{key}={word_of(value)}" for key, value in self.values.items()), f"seed {self.seed}"]
        )

    def as_dict(self) -> dict[str, Any]:
        start = {"values": self.values, "seed": self.seed, "scenario_sha256": self.scenario_sha256}
        return {**start, "fault": self.fault, **(self.summary or {})}


@dataclass(frozen=True)
class _Cell:
    """One combination: which value of each key, what that resolves to, and the runs or the faults."""

    chosen: dict[str, int]
    changes: dict[str, Any]
    resolved: dict[str, Any]
    runs: tuple[tuple[int, str, str], ...] = ()
    """Seed, sha256 of the scenario and key of each run."""
    faults: tuple[str, ...] = ()


def grid(
    scenario: Scenario, over: Mapping[str, Sequence[Any]], seeds: int
) -> tuple[dict[str, list[Any]], list[Point]]:
    """The values of each key in base units, and all points: the last key turns fastest, then the seed.

    Raises `InputFault` with a sentence for each key that is unknown, each empty list and each value that
    no combination accepts. Points whose values only do not go together have a fault.
    """
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise InputFault(f"seeds must be a whole number >= 1 (got {seeds!r})")
    lists = _lists(over)
    if SEED in lists and seeds > 1:
        raise InputFault(f"{SEED} is swept already; leave out seeds, or the key")
    count = prod(map(len, lists.values())) * seeds
    if count > MOST_POINTS:
        raise InputFault(f"a sweep may have {MOST_POINTS:,} points (these lists make {count:,})")
    cells = _cells(scenario, lists, seeds)
    _refuse_hopeless(lists, cells)
    shown = {
        key: [_shown(key, i, values, cells) for i in range(len(values))] for key, values in lists.items()
    }
    own = range(scenario.run["seed"], scenario.run["seed"] + seeds)
    return shown, [point for cell in cells for point in _points(cell, shown, own)]


def fingerprint(scenario: Scenario) -> str:
    """Of all that a run of *scenario* depends on: its values, the traces it names, and this version."""
    traffic = classes_of(scenario.workload).values()
    paths = [own.get(part, {}).get("path") for own in traffic for part in ("arrivals", "lengths")]
    parts = [__version__, scenario.sha256, *(_file_sha256(path) for path in paths if path)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _file_sha256(path: str) -> str:
    try:
        state = os.stat(path)
        return _content_sha256(path, state.st_mtime_ns, state.st_size)
    except OSError:
        return ""  # the run itself will say so


@lru_cache(maxsize=64)  # every point of a sweep asks for the same few traces
def _content_sha256(path: str, modified_ns: int, size_bytes: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _lists(over: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """The keys as they are spelled, each with its values as plain ones; `InputFault` on what is no grid."""
    lists: dict[str, list[Any]] = {}
    faults: list[str] = []
    for written, values in over.items():
        path = key_path(written)
        key = spell(path)
        if not all(path):
            faults.append(f"sweep: `{written}` must be a key, such as engine.max_num_seqs")
        elif key in lists:
            faults.append(f"sweep: {key} is swept twice; give all its values in one list")
        elif isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
            faults.append(f"sweep: {key} must have a list of values (got {values!r:.40})")
        else:
            try:
                lists[key] = from_python({key: list(values)}, _SWEEP).value[key]
            except InputFault as fault:
                faults += fault.faults
                continue
            if not lists[key]:
                faults.append(f"sweep: {key} must have at least one value (got an empty list)")
    faults += _rivals(lists)
    if faults:
        raise InputFault(faults)
    return lists


def _rivals(lists: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each two of the keys of which a scenario may hold only one."""
    groups = {key.path: key.one_of for key in SCENARIO_KEYS if key.one_of}
    first: dict[str, str] = {}
    for key in lists:
        if key in groups and first.setdefault(groups[key], key) != key:
            yield f"sweep: {key} excludes {first[groups[key]]}; sweep one of them"


def _cells(scenario: Scenario, lists: Mapping[str, list[Any]], seeds: int) -> list[_Cell]:
    variants = Variants(scenario)
    cells = []
    for chosen in product(*(range(len(values)) for values in lists.values())):
        indices = dict(zip(lists, chosen, strict=True))
        changes = {key: lists[key][i] for key, i in indices.items()}
        # What a key holds must not be overwritten by the key around it.
        changes = {key: changes[key] for key in sorted(changes, key=lambda key: len(key_path(key)))}
        try:
            found = variants.at(changes)
        except InputFault as fault:
            cells.append(_Cell(indices, changes, {}, faults=fault.faults))
            continue
        values = found.resolved()
        resolved = {key: _resolved(values, key, written) for key, written in changes.items()}
        cells.append(_Cell(indices, changes, resolved, _runs(found, seeds)))
    return cells


def _runs(scenario: Scenario, seeds: int) -> tuple[tuple[int, str, str], ...]:
    own = scenario.run["seed"]
    seeded = [replace(scenario, run={**scenario.run, "seed": seed}) for seed in range(own, own + seeds)]
    return tuple((one.run["seed"], one.sha256, fingerprint(one)) for one in seeded)


class Variants:
    """Changed scenarios of one; the files that changes name are read once for all of them."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self._bases: dict[str, Scenario | None] = {}

    def at(self, changes: Mapping[str, Any]) -> Scenario:
        """The scenario with *changes*. Raises `InputFault`."""
        naming = {key: value for key, value in changes.items() if key_path(key)[0] in SECTION_KINDS}
        base = self._base(naming) if naming else self.scenario
        if base is None:
            return self.scenario.replace(changes, source=str(_SWEEP))
        rest = {key: value for key, value in changes.items() if key not in naming}
        return base.replace(rest, source=str(_SWEEP)) if rest else base

    def _base(self, naming: Mapping[str, Any]) -> Scenario | None:
        """The scenario with its files changed; None where that holds together only with other changes."""
        spelled = json.dumps(naming)
        if spelled not in self._bases:
            try:
                self._bases[spelled] = self.scenario.replace(naming, source=str(_SWEEP))
            except InputFault:
                self._bases[spelled] = None
        return self._bases[spelled]


def _refuse_hopeless(lists: Mapping[str, list[Any]], cells: Sequence[_Cell]) -> None:
    """`InputFault` for the values that no combination accepts."""
    hopeful = {(key, i) for cell in cells if not cell.faults for key, i in cell.chosen.items()}
    if len(hopeful) < sum(map(len, lists.values())):
        hopeless = [cell for cell in cells if not hopeful.issuperset(cell.chosen.items())]
        raise InputFault(dict.fromkeys(sentence for cell in hopeless for sentence in cell.faults))


def _resolved(scenario: Mapping[str, Any], key: str, written: Any) -> Any:
    """The value in base units where the resolved scenario has a single one, else as it was written."""
    value: Any = scenario
    for part in key_path(key):
        value = value.get(part) if isinstance(value, Mapping) else None
    return written if written is None or value is None or isinstance(value, Mapping | list) else value


def _shown(key: str, index: int, values: Sequence[Any], cells: Sequence[_Cell]) -> Any:
    """How the value is shown everywhere: as the first combination that accepts it resolves it."""
    found = (cell.resolved[key] for cell in cells if not cell.faults and cell.chosen[key] == index)
    return next(found, values[index])


def _points(cell: _Cell, shown: Mapping[str, list[Any]], seeds: Iterable[int]) -> Iterator[Point]:
    values = {key: shown[key][i] for key, i in cell.chosen.items()}
    if cell.faults:
        for seed in seeds:
            own = cell.changes.get(SEED, seed)
            yield Point(values, own, cell.changes, fault="; ".join(cell.faults))
    for seed, sha256, key in cell.runs:
        yield Point(values, seed, {**cell.changes, SEED: seed}, sha256, key)


def word_of(value: Any) -> str:
    """A key's value in words; None leaves the key to its default."""
    if value is None:
        return "default"
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return value if isinstance(value, str) else json.dumps(value)
