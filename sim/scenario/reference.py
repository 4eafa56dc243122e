"""The tables of keys, told to editors (a JSON schema) and to people (a reference page)."""

from __future__ import annotations

from typing import Any

from sim.scenario.class_keys import OWN_KEYS
from sim.scenario.keys import KINDS, Group, Key
from sim.scenario.quantities import NUMBER, UNITS
from sim.scenario.schema import GROUPS, PLACEHOLDERS, SECTION_KINDS, TABLES

_TITLES = {
    "scenarios": "Scenario",
    "hardware": "Hardware profile",
    "models": "Model",
    "workloads": "Workload",
    "classes": "Traffic class",
    "engines": "Engine file",
}
_INTRODUCTION = """\
# Keys of the input files

Written by `sim.scenario.reference_markdown` from the tables in `sim/scenario/schema.py`, which also check
the files. What the command line sets goes before the scenario, that before the engine file, that before the
engine's preset, that before the defaults.

Files are YAML by the 1.2 core rules: `1e9` and `8e-3` are numbers; `on`, `no`, `12:30`, `017` and `1_000`
are text; a key written twice is a fault. A quantity may carry a unit:

| dimension | units |
|---|---|
"""


def json_schema(kind: str = "scenarios") -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of one *kind* of file of `TABLES`.

    It is for editors: what a JSON schema cannot say, or only at length, `load` checks alone.
    """
    sections = {section: _mapping(GROUPS[of], patch=True) for section, of in SECTION_KINDS.items()}
    sections["workload"] = _with_class_keys(sections["workload"])
    sections["engine"] = _mapping(Group(inside=GROUPS["scenarios"].inside["engine"].inside), patch=True)
    schema = _mapping(GROUPS[kind])
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Kneesim {_TITLES[kind].lower()}",
    }
    if kind != "scenarios":
        return {**head, **(_with_class_keys(schema) if kind == "workloads" else schema)}
    for section in sections:
        entry = schema["properties"][section]
        entry["anyOf"] = [{"type": "string"}, {"$ref": f"#/$defs/{section}"}]
    load = schema["properties"]["load"]
    schema["properties"]["load"] = {"anyOf": [load, {"enum": ["trace", "burst"]}]}
    schema["anyOf"] = [{"required": schema.pop("required")}, {"required": ["base"]}]
    return {**head, **schema, "$defs": sections}


def _with_class_keys(workload: dict[str, Any]) -> dict[str, Any]:
    """The schema of a *workload* with that of its classes."""
    one = _mapping(GROUPS["classes"], patch=True)
    del one["properties"]["base"]
    classes = workload["properties"]["classes"]
    inside = {"patternProperties": dict.fromkeys(classes["patternProperties"], one)}
    return {**workload, "properties": {**workload["properties"], "classes": {**classes, **inside}}}


def _mapping(group: Group, patch: bool = False) -> dict[str, Any]:
    """The schema of a mapping; as a *patch* of a named file nothing in it is needed."""
    result: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    for name, inner in group.inside.items():
        schema = _entry(inner, patch)
        if name in PLACEHOLDERS:
            result.setdefault("patternProperties", {})[f"^(?:{PLACEHOLDERS[name].pattern})$"] = schema
        else:
            result["properties"][name] = schema
    needed = [
        inner.key
        for inner in group.inside.values()
        if inner.key and inner.key.required and inner.key.when is None
    ]
    if needed and not patch:
        always = [key.parts[-1] for key in needed if not key.unless]
        either = [{"anyOf": [{"required": [key.parts[-1]]}, {"required": [key.unless]}]}
                  for key in needed if key.unless]  # fmt: skip
        result |= {name: those for name, those in (("required", always), ("allOf", either)) if those}
    if patch and group.key is None:
        result["properties"]["base"] = {"type": "string", "description": "Name or path of what this patches."}
    return result


def _entry(group: Group, patch: bool) -> dict[str, Any]:
    described = {"description": group.key.meaning} if group.key else {}
    if group.inside:
        return {**described, **_mapping(group, patch)}
    assert group.key is not None, "a key without keys inside has a row"
    return {**described, **_value(group.key)}


def _value(key: Key) -> dict[str, Any]:
    one = _one_value(key)
    schema = {"type": "array", "items": one, "minItems": 1} if key.many else one
    if key.default is not None:
        schema = {**schema, "default": key.default}
    return schema


def _one_value(key: Key) -> dict[str, Any]:
    kind = KINDS[key.kind]
    if key.choices:
        return {"enum": list(key.choices)}
    if kind.json_type == "reference":
        return {"type": ["string", "object"]}
    if kind.json_type == "warmup":
        return {"type": ["number", "string", "object"]}
    if kind.json_type == "array":
        return {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
    if kind.json_type not in ("number", "integer"):
        return {"type": kind.json_type}
    bounds = {"exclusiveMinimum": key.above, "minimum": key.minimum, "maximum": key.maximum,
              "exclusiveMaximum": key.below}  # fmt: skip
    number = {"type": kind.json_type, **{word: limit for word, limit in bounds.items() if limit is not None}}
    units = "|".join(UNITS[kind.dimension])
    return {"anyOf": [number, {"type": "string", "pattern": rf"^\s*{NUMBER}\s*(?:{units})\s*$"}]}


def reference_markdown() -> str:
    """The reference page of all keys (docs/scenario.md)."""
    lines = [_INTRODUCTION.rstrip("\n")]
    lines += [
        f"| {dimension} | {' '.join(f'`{unit}`' for unit in units)} |" for dimension, units in UNITS.items()
    ]
    lines += [
        "",
        "`k` is 1000 and `Ki` 1024; a bare `K` is refused, since programs differ on it. GB and GiB differ.",
    ]
    for kind, keys in TABLES.items():
        lines += ["", f"## {_TITLES[kind]}", "", "| key | value | default | meaning |", "|---|---|---|---|"]
        own = OWN_KEYS if kind == "classes" else keys
        lines += [_row(key) for key in own]
        if own is not keys:
            lines += ["", f"And of the workload's own keys: {_sections(keys[len(own) :])}."]
    return "\n".join(lines) + "\n"


def _sections(keys: tuple[Key, ...]) -> str:
    """The first parts of the keys' paths, each once."""
    return ", ".join(f"`{name}`" for name in dict.fromkeys(key.parts[0] for key in keys))


def _row(key: Key) -> str:
    value = f"a list, each item {key.requirement}" if key.many else key.requirement
    if key.when:
        value += f"; with {key.when[0]} {' or '.join(key.when[1])}"
    default = key.otherwise or ("**needed**" if key.required else "")
    if not default and key.default not in (None, {}):
        default = f"`{str(key.default).lower() if isinstance(key.default, bool) else key.default}`"
    cells = (f"`{key.path}`", value, default, key.meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
