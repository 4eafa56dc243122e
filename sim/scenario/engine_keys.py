"""The keys of an engine file: the scenario's engine section, and where its numbers come from."""

from __future__ import annotations

from dataclasses import replace

from sim.scenario.keys import Key

_AT = "engine.provenance"
ENGINE_ORIGIN_KEYS = (
    Key("engine.name", "text", "What the engine is called in results: of an engine file.",
        otherwise="the engine file's name"),
    Key(_AT, "mapping", "Where the engine's numbers come from."),
    Key(f"{_AT}.<key>", "mapping", "Of this number."),
    Key(f"{_AT}.<key>.kind", "choice", "How it was got.", choices=("measured", "documented", "estimated"),
        required=True),
    Key(f"{_AT}.<key>.source", "text", "From what.", required=True),
    Key(f"{_AT}.<key>.points", "count", "How many measurements.", minimum=0),
    Key(f"{_AT}.<key>.interval", "number", "Its 90 % interval, two numbers in the number's own unit.",
        many=True, one_of="spread"),
    Key(f"{_AT}.<key>.relative_sd", "number", "Its standard deviation, as a share of it.", minimum=0,
        one_of="spread"),
)  # fmt: skip
"""Beside the settings; they make a resolved scenario complete."""

_NO_SETTINGS = ("name", "provenance")


def engine_settings(scenario_keys: tuple[Key, ...]) -> tuple[str, ...]:
    """The names of the engine's settings."""
    paths = (key.parts for key in scenario_keys)
    return tuple(p[1] for p in paths if len(p) == 2 and p[0] == "engine" and p[1] not in _NO_SETTINGS)


def engine_file_keys(scenario_keys: tuple[Key, ...]) -> tuple[Key, ...]:
    """The table of an engine file: the engine's keys, none of which has a default: the scenario has those."""
    inside = (key for key in scenario_keys if key.path.startswith("engine."))
    return (
        Key("aliases", "text", "Other names.", many=True),
        Key("description", "text", "What it is, in a line."),
        *(replace(key, path=key.path.removeprefix("engine."), default=None) for key in inside),
    )
