"""What `list engines` and `show engine` print: engine files, and presets in plain words and as documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap
from typing import Any

from sim.faults import InputFault, did_you_mean
from sim.scenario import Preset, engine_preset, entry, find, find_preset, names, preset_names, presets_with
from sim.scenario.schema import ENGINE_SETTINGS, SCENARIO_KEYS, Key

WIDTH = 100


def engine_names() -> list[str]:
    """The engine files and the presets, in order of the alphabet."""
    return sorted((*names("engines"), *preset_names()))


def engine_lines() -> list[str]:
    """Each name, and in a line what it is: a file's description, how far a preset is verified."""
    from sim.report.text import aligned

    return aligned([(name, _line(name)) for name in engine_names()])


def is_file(name: str) -> bool:
    """Whether *name* is an engine file's rather than a preset's; `InputFault` if it is neither's."""
    try:
        find("engines", name)
    except InputFault:
        try:
            find_preset(name)
        except InputFault as fault:
            near = did_you_mean(name, engine_names())
            raise InputFault(f"engine {name} is unknown{near}") from fault
        return False
    return True


def _line(name: str) -> str:
    if is_file(name):
        try:
            values = entry("engines", name)
        except InputFault:
            return "cannot be used as it is written"
        kinds = sorted({origin["kind"] for origin in values.get("provenance", {}).values()})
        told = f"; its numbers {' and '.join(kinds)}" if kinds else ""
        about = values.get("description", "settings")
        return f"{about}; preset {values.get('preset', 'as by default')}{told}"
    preset = engine_preset(name)
    return f"preset: {preset.title} ({preset.status}): {_in_a_line(preset)}"


def _in_a_line(preset: Preset) -> str:
    return f"prefill and decode {preset.facts.mixing.partition(':')[0]}"


def engine_text(name: str) -> str:
    """The preset *name* for a person."""
    preset = engine_preset(name)
    parts = [
        preset.name,
        f"{preset.title}: {preset.status}",
        *_items([preset.verification]),
        *_section("what it does", (f"{key}: {value}" for key, value in preset.facts.as_dict().items())),
        *_section(f"differences from {preset.differs_from}", preset.differences),
        *_section("settings that it does not have", _lacking(preset)),
        *_section("not simulated", preset.limits),
        *_section("defaults that follow the GPU", _by_gpu_words(preset)),
        "",
        "settings and their defaults:",
        *_settings(preset),
    ]
    return "\n".join(parts)


def engine_document(name: str) -> dict[str, Any]:
    """The preset *name* for a program."""
    preset = engine_preset(name)
    return {
        "name": preset.name,
        "title": preset.title,
        "status": preset.status,
        "verification": preset.verification,
        "facts": preset.facts.as_dict(),
        "differs_from": preset.differs_from or None,
        "differences": list(preset.differences),
        "settings": {key.parts[1]: _default(preset, key) for key in _keys(preset)},
        "settings_by_gpu": defaults_by_gpu(preset),
        "settings_lacking": {
            key: {"holds": holds, "presets_with": list(presets_with(key))}
            for key, holds in preset.lacks.items()
        },
        "not_simulated": list(preset.limits),
        "rules": {
            chapter.title: [{"says": r.says, "why": r.why, "test": r.test} for r in chapter.rules]
            for chapter in preset.chapters
        },
    }


def defaults_by_gpu(preset: Preset) -> dict[str, dict[str, Any]]:
    """What the defaults that follow from others come to on each GPU of the catalogue, for a long context."""
    by_gpu = {}
    for gpu in names("hardware"):
        defaults = preset.defaults(entry("hardware", gpu), {"max_position_embeddings": 131_072}, {})
        by_gpu[gpu] = {key: defaults[key] for key in preset.default_words if key in defaults}
    return by_gpu


def _by_gpu_words(preset: Preset) -> Iterator[str]:
    alike: dict[str, list[str]] = {}
    for gpu, values in defaults_by_gpu(preset).items():
        alike.setdefault(", ".join(f"{key} {value:g}" for key, value in values.items()), []).append(gpu)
    if len(alike) > 1:
        yield from (f"{', '.join(gpus)}: {words}" for words, gpus in alike.items())


def _lacking(preset: Preset) -> Iterator[str]:
    for key, holds in preset.lacks.items():
        instead = "" if holds is None else f" ({str(holds).lower() if isinstance(holds, bool) else holds})"
        yield f"engine.{key}{instead}: of {', '.join(presets_with(key))}"


def _keys(preset: Preset) -> list[Key]:
    paths = {f"engine.{name}" for name in ENGINE_SETTINGS if name != "preset" and name not in preset.lacks}
    return [key for key in SCENARIO_KEYS if key.path in paths]


def _settings(preset: Preset) -> Iterator[str]:
    for key in _keys(preset):
        default = _default(preset, key)
        words = str(default).lower() if isinstance(default, bool) else default
        yield f"engine.{key.parts[1]}  [{'-' if words is None else words}]"
        yield from _items([key.meaning])


def _default(preset: Preset, key: Key) -> Any:
    """A constant, or the rule in words; None where nothing holds unless it is set."""
    name = key.parts[1]
    value = preset.defaults({}, {}, {}).get(name, key.default)
    return preset.default_words.get(name, key.otherwise or None if value is None else value)


def _section(title: str, items: Iterable[str]) -> list[str]:
    lines = _items(items)
    return ["", f"{title}:", *lines] if lines else []


def _items(items: Iterable[str]) -> list[str]:
    return [
        line
        for item in items
        for line in wrap(item, WIDTH, initial_indent="    ", subsequent_indent="      ")
    ]
