"""The sections that name a file: hardware, model, workload and engine, by name, by path or written out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sim.faults import InputFault, did_you_mean
from sim.files import is_log_name
from sim.scenario.catalogue import NOUNS, Folders, default_folders, find
from sim.scenario.check import check
from sim.scenario.classes import class_trees, whole_only, without_traffic
from sim.scenario.overrides import apply_overrides
from sim.scenario.presets import engine_preset, preset_names
from sim.scenario.quantities import got
from sim.scenario.rules import Report, file_rules
from sim.scenario.schema import SECTION_KINDS
from sim.scenario.tree import Faults, KeyPath, Place, Tree, leaves, spell
from sim.scenario.yaml_core import read_file

_LINES_SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
TRACE_SUFFIXES = (".csv", ".csv.gz", ".parquet", ".json.gz", *_LINES_SUFFIXES)
_TRACES = ("arrivals", "lengths")
"""The sections of a workload whose `path` is a trace."""
_PRESETS = {engine_preset(name).engine for name in preset_names()}
_SECTIONS = {kind: section for section, kind in SECTION_KINDS.items()}
_MOST_BASES = 8  # that lie under one another
_PATH_SUFFIXES = (".yaml", ".yml", ".json", *TRACE_SUFFIXES)


@dataclass(frozen=True)
class Part:
    """One such section, resolved."""

    value: dict[str, Any]
    """In base units; paths of traces are absolute."""
    source: str
    """`hardware profile a100-80gb-sxm`, or the place where it is written out."""
    patched: Mapping[KeyPath, str] = field(default_factory=dict)
    """Paths that the scenario sets over the named file, with their places."""
    written: Mapping[KeyPath, str] = field(default_factory=dict)
    """Paths of files as they were written, for results that must not depend on the machine."""


def read_part(section: str, tree: Tree, folders: Folders, faults: Faults) -> Part | None:
    """The section of that name, from what the scenario has for it; None (and faults) if it is unusable."""
    kind = SECTION_KINDS[section]
    value = tree.value
    if isinstance(value, str):
        return _named_part(kind, value, tree.place(), folders, faults)
    if not isinstance(value, dict):
        return None  # the scenario's own table has told that already
    if value.get("base") is None:
        own = Tree({key: inner for key, inner in value.items() if key != "base"}, tree.places)
        checked = _checked(kind, own, faults, (section,))
        return _part(kind, checked, own, str(tree.place()), "unnamed", _elsewhere(own)) if checked else None
    return _patched_part(section, tree, folders, faults)


def read_engine_file(tree: Tree, folders: Folders, faults: Faults) -> Part | None:
    """The engine file that the engine section *tree* of a scenario names; None if none, or a faulty one."""
    at: KeyPath = ("base",) if isinstance(tree.value, dict) else ()
    value = tree.get(at)
    if isinstance(value, str) and value.partition("@")[0] in _PRESETS:
        faults.add(tree.place(at), f"engine {value} is a preset; write engine: {{preset: {value}}}")
    elif isinstance(value, str):
        return _named_part("engines", value, tree.place(at), folders, faults)
    elif value is not None:
        faults.add(tree.place(at), f"engine.base must be a name or a path (got {got(value)})")
    return None


def over_engine_file(tree: Tree, part: Part | None) -> Tree:
    """The scenario's engine section *tree* with the settings of the file that it names under it.

    Those settings' place is the file's name, which is thus their source. What the file says of a number that
    the scenario sets no longer holds.
    """
    value = tree.value if isinstance(tree.value, dict) else {}
    own = {key: inner for key, inner in value.items() if key != "base"}
    places = {**{(key,): tree.place((key,)) for key in own}, **tree.places}
    if part is None:
        return Tree(own, places)
    unused = ("aliases", "description")
    below = {key: inner for key, inner in part.value.items() if key not in unused}
    origins = {key: inner for key, inner in below.pop("provenance", {}).items() if key not in own}
    if origins:
        below["provenance"] = origins
    return Tree(below, {(): Place(part.source)}).merged(Tree(own, places))


def entry(
    kind: str, name: str, folders: Folders | None = None, changes: Sequence[str] = ()
) -> dict[str, Any]:
    """The values, in base units, of the file of *kind* called *name* (hardware, models or workloads).

    *changes* are `key=value`, laid over what the file says. Raises `InputFault` with everything that is
    wrong with it.
    """
    faults = Faults()
    where = default_folders() if folders is None else folders
    place = Place(NOUNS[kind])
    if changes:
        tree = apply_overrides(Tree({"base": name}, {(): place}), changes, faults)
        part = _patched_part(_SECTIONS[kind], tree, where, faults)
    else:
        part = _named_part(kind, name, place, where, faults)
    faults.raise_any()
    return part.value if part else {}


def _patched_part(section: str, tree: Tree, folders: Folders, faults: Faults) -> Part | None:
    """`{base: NAME, key: value, ...}`: the named file with some values replaced."""
    kind, base = SECTION_KINDS[section], tree.value["base"]
    if not isinstance(base, str):
        faults.add(tree.place(("base",)), f"{section}.base must be a name or a path (got {got(base)})")
        return None
    found = _read_named(kind, base, tree.place(("base",)), folders, faults)
    if found is None:
        return None
    below, stem = found
    patch = Tree({key: inner for key, inner in tree.value.items() if key != "base"}, tree.places)
    merged = below.merged(_estimated(patch) if kind == "hardware" else patch)
    checked = _checked(kind, merged, faults, (section,))
    if checked is None:
        return None
    places = {path: tree.place(path) for path, _ in leaves(patch.value) if path}
    own = set(places.values())
    places |= {path: place for path, place in _class_places(merged).items() if place in own}
    patched = {path: str(place) for path, place in places.items()}
    name = below.value.get("name", stem)
    return _part(kind, checked, merged, f"{NOUNS[kind]} {name}", stem, patched)


def _elsewhere(tree: Tree) -> dict[KeyPath, str]:
    """The values that another file lays over the section *tree*, with their places."""
    places = {path: tree.place(path) for path, _ in leaves(tree.value) if path} | _class_places(tree)
    return {path: str(place) for path, place in places.items() if place.file != tree.place().file}


def _class_places(tree: Tree) -> dict[KeyPath, Place]:
    """Where the values of a workload's classes were written: also those that stand around the classes."""
    parts = class_trees(tree) if isinstance(tree.get(("classes",)), dict) else {}
    return {
        ("classes", name, *path): part.place(path)
        for name, part in parts.items()
        for path, _ in leaves(part.value)
        if path
    }


def _estimated(patch: Tree) -> Tree:
    """*patch* with an origin for each number it sets: what the profile says of the number no longer holds."""
    own = patch.get(("provenance",)) or {}
    if not isinstance(own, dict):
        return patch
    origins = dict(own)
    for path, value in leaves(patch.value):
        if isinstance(value, int | float | str) and path[0] not in ("provenance", "name", "aliases"):
            origins.setdefault(spell(path), {"kind": "estimated", "source": "set in the scenario"})
    return Tree({**patch.value, "provenance": origins}, patch.places)


def _named_part(kind: str, text: str, place: Place, folders: Folders, faults: Faults) -> Part | None:
    found = _read_named(kind, text, place, folders, faults)
    if found is None:
        return None
    tree, stem = found
    checked = _checked(kind, tree, faults, ())
    return _part(kind, checked, tree, f"{NOUNS[kind]} {checked.get('name', stem)}", stem) if checked else None


def _part(
    kind: str,
    value: dict[str, Any],
    tree: Tree,
    source: str,
    stem: str,
    patched: Mapping[KeyPath, str] | None = None,
) -> Part:
    value = {"name": stem, **value}
    written: dict[KeyPath, str] = {}
    if kind == "workloads":
        written = _made_absolute(value, tree, ())
        for name, class_tree in class_trees(tree).items():
            written |= _made_absolute(value["classes"][name], class_tree, ("classes", name))
    return Part(value, source, patched or {}, written)


def _made_absolute(traffic: dict[str, Any], tree: Tree, at: KeyPath) -> dict[KeyPath, str]:
    """Makes the paths of traces in *traffic* absolute; returns them, by path from *at*, as written."""
    written: dict[KeyPath, str] = {}
    for section in _TRACES:
        if (text := traffic.get(section, {}).get("path")) is not None:
            written[(*at, section, "path")] = text
            traffic[section]["path"] = str(_absolute(text, tree.place((section, "path"))))
    return written


def _checked(kind: str, tree: Tree, faults: Faults, shown: KeyPath) -> dict[str, Any] | None:
    """The values of *tree* by its table and rules; None (and faults) if something does not hold."""
    own = Faults()
    if kind == "workloads" and tree.get(("classes",)) is not None:
        value = _with_classes(tree, own, shown)
    else:
        value = _by_table(kind, tree, own, shown)
    faults.extend(own)
    return None if own else value


def _by_table(kind: str, tree: Tree, faults: Faults, shown: KeyPath) -> dict[str, Any]:
    value = check(kind, tree, faults, shown)
    report = Report(tree, faults, shown)
    file_rules(kind, value, report)
    if kind in ("workloads", "classes"):
        for section in _TRACES:
            _trace_is_there(section, value, report)
    return value


def _with_classes(tree: Tree, faults: Faults, shown: KeyPath) -> dict[str, Any]:
    """A workload whose traffic is all in its classes: each is whole, and the workload has none of its own."""
    value = whole_only(_by_table("workloads", without_traffic(tree), faults, shown))
    classes = {
        name: _by_table("classes", class_tree, faults, (*shown, "classes", name))
        for name, class_tree in class_trees(tree).items()
    }
    return {**value, "classes": classes}


def _trace_is_there(section: str, value: dict[str, Any], report: Report) -> None:
    text = value.get(section, {}).get("path")
    if text is None:
        return
    path = _absolute(text, report.tree.place((section, "path")))
    if not path.is_file():
        report(f"{section}.path", f"must be a file ({text} is not there){_near_file(path)}")


def _read_named(
    kind: str, text: str, place: Place, folders: Folders, faults: Faults, depth: int = 0
) -> tuple[Tree, str] | None:
    """What the file called *text* holds, and its name without the suffix; None (and a fault) if unusable."""
    try:
        path = locate(kind, text, place, folders)
        stem = path.name.removesuffix(".gz").rpartition(".")[0]
        if kind == "workloads" and _is_trace(path):
            return Tree(_of_trace(text, stem), {(): place}), stem
        if kind == "models" and path.suffix == ".json":
            return _read_huggingface(path), stem
        tree = read_file(path, faults)
    except InputFault as fault:
        faults.include(fault, place)
        return None
    if kind == "hardware" and isinstance(tree.value, dict) and tree.value.get("base") is not None:
        return _on_its_base(tree, folders, faults, depth)
    return tree, stem


def _is_trace(path: Path) -> bool:
    """Whether a workload's file is recorded traffic: by its suffix, or a benchmark's result in JSON."""
    name = path.name.lower()
    if name.endswith(TRACE_SUFFIXES) or is_log_name(name):
        return True
    return name.endswith(".json") and b'"input_lens"' in path.read_bytes()


def _of_trace(text: str, stem: str) -> dict[str, Any]:
    """The workload that the trace *text* is: its arrivals, lengths and, of JSON lines, prefixes."""
    trace = {"kind": "trace", "path": text}
    value: dict[str, Any] = {"name": stem, "arrivals": trace, "lengths": dict(trace)}
    return value | ({"prefixes": {"kind": "trace"}} if text.lower().endswith(_LINES_SUFFIXES) else {})


def _on_its_base(tree: Tree, folders: Folders, faults: Faults, depth: int) -> tuple[Tree, str] | None:
    """A profile's file that names another: the other one with what the file says laid over it."""
    base, place = tree.value["base"], tree.place(("base",))
    if not isinstance(base, str) or depth >= _MOST_BASES:
        wanted = "be a name or a path" if not isinstance(base, str) else "not lead back to this file"
        faults.add(place, f"base must {wanted} (got {got(base)})")
        return None
    found = _read_named("hardware", base, place, folders, faults, depth + 1)
    if found is None:
        return None
    own = Tree({key: inner for key, inner in tree.value.items() if key != "base"}, tree.places)
    return found[0].merged(_estimated(own)), found[1]


def _read_huggingface(path: Path) -> Tree:
    """The model that a Hugging Face config.json describes; it is called what its folder is called."""
    from sim.model import from_huggingface

    name = path.resolve().parent.name if path.stem == "config" else path.stem
    try:
        config = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputFault(f"{path.name}: is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise InputFault(f"{path.name}: must be a JSON object, as Hugging Face's config.json is")
    return Tree(from_huggingface(config, name), {(): Place(path.name, None, path.parent)})


def locate(kind: str, text: str, place: Place, folders: Folders) -> Path:
    """The file of *kind* that *text*, at *place*, names. Raises `InputFault` if there is none."""
    if not is_path(text):
        try:
            return find(kind, text, folders)
        except InputFault as fault:
            raise InputFault(f"{place}: {fault}") from fault
    path = _absolute(text, place)
    if not path.is_file():
        raise InputFault(f"{place}: {NOUNS[kind]} {text} is not there{_near_file(path)}")
    return path


def is_path(text: str) -> bool:
    """Whether *text* is the path of a file rather than a name of the catalogue."""
    below = text.startswith(("./", "../", "/", "~/", ".\\", "..\\"))
    return below or text.lower().endswith(_PATH_SUFFIXES) or is_log_name(text)


def _absolute(text: str, place: Place) -> Path:
    return ((place.folder or Path()) / Path(text).expanduser()).absolute()


def _near_file(path: Path) -> str:
    near = did_you_mean(path.name, (other.name for other in path.parent.glob(f"*{path.suffix}")))
    return near if "did you mean" in near else ""
