"""Values: what a scenario file says."""

from sim.scenario.catalogue import aliases, default_folders, find, names
from sim.scenario.load import load
from sim.scenario.presets import find_preset, preset_defaults, preset_names
from sim.scenario.reference import json_schema, reference_markdown
from sim.scenario.references import entry
from sim.scenario.scenario import Scenario

__all__ = [
    "Scenario",
    "aliases",
    "default_folders",
    "entry",
    "find",
    "find_preset",
    "json_schema",
    "load",
    "names",
    "preset_defaults",
    "preset_names",
    "reference_markdown",
]
