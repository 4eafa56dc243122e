"""A resolved scenario: every value in base units, and where each came from."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sim.faults import InputFault
from sim.hardware.sources import as_measured_with
from sim.scenario.catalogue import Folders
from sim.scenario.check import check
from sim.scenario.overrides import key_path, lay_over
from sim.scenario.presets import find_preset, preset_defaults
from sim.scenario.references import Part, over_engine_file, read_engine_file, read_part
from sim.scenario.rules import Report, scenario_rules
from sim.scenario.schema import ENGINE_SETTINGS, SECTION_KINDS
from sim.scenario.tree import Faults, KeyPath, Place, Tree, from_python, leaves, spell

SECTIONS = (
    "hardware",
    "model",
    "engine",
    "admission",
    "deployment",
    "workload",
    "load",
    "slo",
    "run",
    "cost",
)


@dataclass(frozen=True)
class Draft:
    """What a scenario was made from, kept so that a changed one can be made without reading files again."""

    name: str
    tree: Tree
    folders: Folders
    parts: Mapping[str, Part] = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """What is simulated. Sections are plain nested dicts in base units (bytes, seconds, tokens, per second).

    Treat them as read-only; `replace` makes a changed scenario.
    """

    name: str
    hardware: dict[str, Any]
    model: dict[str, Any]
    engine: dict[str, Any]
    """Every setting; None where the memory ledger or nothing decides. With an engine file also its name, and
    the provenance of its numbers."""
    admission: dict[str, Any]
    deployment: dict[str, Any]
    workload: dict[str, Any]
    load: dict[str, Any]
    """Either rate_per_s, or mode (with trace also time_scale), or concurrency (and perhaps think)."""
    slo: dict[str, float]
    run: dict[str, Any]
    """requests or duration_s (neither: the whole trace); seed; warmup, a share or {seconds: ...}."""
    cost: dict[str, Any]
    """gpu_hour_usd, if the price is known."""
    sources: dict[str, str]
    """By dotted path: `chat.yaml:7`, `command line`, `engine vllm-0.12`, `preset vllm-v1@0.32`, `model
    llama-3-8b`, `default`; a path covers everything below it that is not there itself."""
    draft: Draft = field(repr=False, compare=False)

    def replace(self, changes: Mapping[str, Any], source: str = "override") -> Scenario:
        """This scenario with values, as Python has them, replaced at dotted paths, and checked again.

        Files are read only for a change of hardware, model or workload. Raises `InputFault`, whose
        sentences call the place *source*.
        """
        place, tree = Place(source), self.draft.tree
        for path, value in changes.items():
            tree = lay_over(tree, key_path(path), from_python(value, place))
        changed = {key_path(path)[:2] for path in changes}
        kept = [section for section in self.draft.parts if not _renames(section, changed)]
        parts = {section: self.draft.parts[section] for section in kept}
        return resolve(Draft(self.draft.name, tree, self.draft.folders, parts), Faults())

    @property
    def has_queue_limit(self) -> bool:
        """Whether somebody may be refused, or leave the queue unserved, because too many are there."""
        limits = (
            *map(self.admission.get, ("max_queued_requests", "max_queued_tokens", "queue_deadline_s")),
            *map(self.engine.get, ("max_num_queued_reqs", "max_num_queued_tokens")),
        )
        return any(limit is not None for limit in limits)

    def resolved(self) -> dict[str, Any]:
        """The name, the sections and the sources: JSON-able, and a source that `load` takes.

        Paths of traces are as they were written.
        """
        return {"name": self.name, **self._portable(), "sources": dict(self.sources)}

    @cached_property
    def sha256(self) -> str:
        """Of the resolved sections (not the name nor the sources), as JSON with sorted keys, in hex."""
        text = json.dumps(self._portable(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def _portable(self) -> dict[str, Any]:
        sections = {section: copy.deepcopy(getattr(self, section)) for section in SECTIONS}
        for path, text in self.draft.parts["workload"].written.items():
            inside = sections["workload"]
            for key in path[:-1]:
                inside = inside[key]
            inside[path[-1]] = text
        return sections


def resolve(draft: Draft, faults: Faults) -> Scenario:
    """The scenario of *draft*, whose parts are taken as they are. Raises `InputFault` with all *faults*."""
    tree = draft.tree
    if isinstance(text := tree.get(("load",)), str):
        tree = tree.replaced(("load",), Tree({"mode": text}, {(): tree.place(("load",))}))
    tree, engine_file = _with_engine_file(tree, draft, of_engine := Faults())
    faults.extend(of_engine)
    known = check("scenarios", tree, faults)
    parts = {section: part for section in SECTION_KINDS if (part := _part(section, draft, faults))}
    if engine_file:
        parts["engine"] = engine_file
    own = {name: known.get(name, {}) for name in SECTIONS if name not in SECTION_KINDS}
    named = {section: parts[section].value if section in parts else {} for section in SECTION_KINDS}
    sections: dict[str, Any] = {**own, **named}
    sources = {
        spell(path): _source(tree, path)
        for name in SECTIONS
        if name not in SECTION_KINDS
        for path, _ in leaves({name: sections[name]})
        if len(path) > 1 and path[:2] != ("engine", "provenance")
    }
    if not of_engine:
        _fill_engine(tree, sections, parts, sources, faults)
        if parts.get("hardware"):
            measured_with = sections["engine"].get("kernel_source")
            sections["hardware"] = as_measured_with(sections["hardware"], measured_with)
    _fill_load_and_run(tree, sections, sources)
    _fill_cost(sections, parts, sources)
    scenario_rules(sections, Report(tree, faults))
    faults.raise_any()
    sources.update(_part_sources(parts))
    kept = Draft(draft.name, draft.tree, draft.folders, parts)
    return Scenario(known.get("name", draft.name), **sections, sources=sources, draft=kept)


def _part(section: str, draft: Draft, faults: Faults) -> Part | None:
    if section in draft.parts:
        return draft.parts[section]
    return read_part(section, draft.tree.at((section,)), draft.folders, faults)


def _with_engine_file(tree: Tree, draft: Draft, faults: Faults) -> tuple[Tree, Part | None]:
    """*tree* with the settings of the engine file that it names under its own, and that file."""
    own = tree.at(("engine",))
    if not isinstance(own.value, dict | str):
        return tree, None
    part = draft.parts.get("engine") or read_engine_file(own, draft.folders, faults)
    return tree.replaced(("engine",), over_engine_file(own, part)), part


def _renames(section: str, changed: set[KeyPath]) -> bool:
    """Whether changes at these paths may make *section* name another file, or patch it."""
    if section == "engine":  # the scenario's own settings lie over the file
        return bool({("engine",), ("engine", "base")} & changed)
    return section in {path[0] for path in changed}


def _source(tree: Tree, path: tuple[str, ...]) -> str:
    written = path[:2]
    return "default" if tree.get(written) is None else str(tree.place(written))


def _fill_engine(
    tree: Tree, sections: dict[str, Any], parts: Mapping[str, Part], sources: dict[str, str], faults: Faults
) -> None:
    """Fills what the scenario leaves open: from the model, then from the preset; the rest is None."""
    given = sections["engine"]
    try:
        preset = find_preset(given.get("preset", ""))
    except InputFault as fault:
        if "preset" in given:
            faults.add(tree.place(("engine", "preset")), f"engine.{fault}")
        return
    engine = {**given, "preset": preset}
    if "max_model_len" not in engine and "model" in parts:
        engine["max_model_len"] = parts["model"].value["max_position_embeddings"]
        sources["engine.max_model_len"] = parts["model"].source
    defaults = preset_defaults(preset, sections["hardware"], sections["model"], engine)
    for key, value in defaults.items():
        if key not in engine:
            engine[key] = value
            sources[f"engine.{key}"] = f"preset {preset}"
    named = {name: engine[name] for name in ("name", "provenance") if name in engine}
    sections["engine"] = {**{name: engine.get(name) for name in ENGINE_SETTINGS}, **named}
    for name in ENGINE_SETTINGS:
        sources.setdefault(f"engine.{name}", "default")


def _fill_load_and_run(tree: Tree, sections: dict[str, Any], sources: dict[str, str]) -> None:
    load, run = sections["load"], sections["run"]
    if load.get("mode") == "trace":
        if "time_scale" not in load:
            load["time_scale"] = 1.0
            sources["load.time_scale"] = "default"
        if tree.get(("run", "requests")) is None:
            run.pop("requests", None)
            sources.pop("run.requests", None)


def _fill_cost(sections: dict[str, Any], parts: Mapping[str, Part], sources: dict[str, str]) -> None:
    price = sections["hardware"].get("price", {}).get("usd_per_gpu_hour")
    if "gpu_hour_usd" not in sections["cost"] and price is not None:
        sections["cost"]["gpu_hour_usd"] = price
        sources["cost.gpu_hour_usd"] = parts["hardware"].source


def _part_sources(parts: Mapping[str, Part]) -> dict[str, str]:
    result: dict[str, str] = {}
    for section, part in parts.items():
        result[section] = part.source
        result.update({spell((section, *path)): place for path, place in part.patched.items()})
    return result
