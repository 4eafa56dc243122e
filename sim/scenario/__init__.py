"""Values: what a scenario file says."""

from sim.scenario.catalogue import aliases, default_folders, find, names
from sim.scenario.load import load
from sim.scenario.presets import (
    CONTINUOUS,
    GROUPS,
    PREFILL_FIRST,
    Facts,
    Preset,
    engine_preset,
    find_preset,
    preset_defaults,
    preset_names,
    presets_with,
)
from sim.scenario.reference import json_schema, reference_markdown
from sim.scenario.references import entry
from sim.scenario.scenario import Scenario

__all__ = [
    "CONTINUOUS",
    "GROUPS",
    "PREFILL_FIRST",
    "Facts",
    "Preset",
    "Scenario",
    "aliases",
    "default_folders",
    "engine_preset",
    "entry",
    "find",
    "find_preset",
    "json_schema",
    "load",
    "names",
    "preset_defaults",
    "preset_names",
    "presets_with",
    "reference_markdown",
]
