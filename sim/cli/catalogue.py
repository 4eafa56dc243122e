"""What `list` and `show` print."""

from __future__ import annotations

from sim.faults import InputFault, did_you_mean

KINDS = ("hardware", "models", "workloads", "engines", "scenarios")


def names_of(kind: str) -> list[str]:
    """The names of *kind*, sorted; `InputFault` if there is no such kind."""
    if _plural(kind) == "engines":
        from sim.scenario import preset_names

        return list(preset_names())
    from sim.scenario import names

    return list(names(_plural(kind)))


def text_of(kind: str, name: str) -> str:
    """The YAML file behind *name*, or an engine preset's keys with their defaults."""
    if _plural(kind) == "engines":
        return _engine_text(name)
    from sim.scenario import find

    return find(_plural(kind), name).read_text(encoding="utf-8")


def _engine_text(name: str) -> str:
    """The preset's full name, then each engine key with its default and its meaning."""
    from sim.scenario import find_preset
    from sim.scenario.schema import SCENARIO_KEYS

    keys = [key for key in SCENARIO_KEYS if key.path.startswith("engine.")]
    lines = [f"{key.path}  [{_default(key.default, key.otherwise)}]\n    {key.meaning}" for key in keys]
    return "\n".join([find_preset(name), *lines])


def _default(default: object, otherwise: str) -> str:
    return otherwise or ("-" if default in (None, {}) else str(default))


def _plural(kind: str) -> str:
    plural = f"{kind}s" if f"{kind}s" in KINDS else kind
    if plural not in KINDS:
        raise InputFault(f"kind {kind} is unknown{did_you_mean(kind, KINDS)}")
    return plural
