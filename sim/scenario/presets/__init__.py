"""Engine presets: scheduling semantics by name and version, and the defaults that come with them."""

from __future__ import annotations

from typing import Any

from sim.faults import InputFault, did_you_mean
from sim.scenario.presets.lmdeploy import LMDEPLOY
from sim.scenario.presets.preset import (
    APPROXIMATED,
    CONTINUOUS,
    GROUPS,
    PREFILL_FIRST,
    READ,
    RECORDED,
    Facts,
    Preset,
    Values,
)
from sim.scenario.presets.sglang import SGLANG
from sim.scenario.presets.static import STATIC
from sim.scenario.presets.tensorrt_llm import TENSORRT_LLM
from sim.scenario.presets.vllm_v0 import VLLM_V0
from sim.scenario.presets.vllm_v1 import VLLM_V1_32, VLLM_V1_33

__all__ = [
    "APPROXIMATED",
    "CONTINUOUS",
    "GROUPS",
    "PREFILL_FIRST",
    "READ",
    "RECORDED",
    "Facts",
    "Preset",
    "engine_preset",
    "find_preset",
    "newest",
    "preset_defaults",
    "preset_names",
    "presets_with",
]

_ALL = (STATIC, VLLM_V0, VLLM_V1_32, VLLM_V1_33, SGLANG, TENSORRT_LLM, LMDEPLOY)
_PRESETS = {preset.name: preset for preset in _ALL}


def preset_names() -> tuple[str, ...]:
    """The names of the presets, in order of the alphabet."""
    return tuple(sorted(_PRESETS))


def find_preset(name: str) -> str:
    """The full name of the preset *name*, whose version or patch version may be left out.

    `vllm-v1` is its newest version that is recorded, and `vllm-v1@0.32.1` is `vllm-v1@0.32`: patch versions
    do not change the semantics. Raises `InputFault` with the nearest name.
    """
    engine, _, version = name.partition("@")
    known = [preset for preset in _PRESETS.values() if preset.engine == engine]
    fitting = [preset for preset in known if _fits(version, preset.name.partition("@")[2])]
    if fitting:
        return newest(fitting).name
    if known:
        raise InputFault(f"preset {name} is unknown; did you mean {newest(known).name}?")
    near = did_you_mean(engine, {preset.engine for preset in _PRESETS.values()})
    word = near.removeprefix("; did you mean ").removesuffix("?")
    if word != near and "possible" not in near:
        raise InputFault(f"preset {name} is unknown; did you mean {find_preset(word)}?")
    raise InputFault(f"preset {name} is unknown; possible: {', '.join(preset_names())}")


def engine_preset(name: str) -> Preset:
    """The preset *name*, in full or not (`find_preset`)."""
    return _PRESETS[find_preset(name)]


def preset_defaults(name: str, hardware: Values, model: Values, engine: Values) -> dict[str, Any]:
    """The engine keys that the preset *name* (in full) sets, for this GPU and model.

    *engine* holds what is given already: some defaults follow from it.
    """
    return _PRESETS[name].defaults(hardware, model, engine)


def presets_with(key: str) -> tuple[str, ...]:
    """The presets that have the engine setting *key*."""
    return tuple(name for name in preset_names() if key not in _PRESETS[name].lacks)


def _fits(wanted: str, version: str) -> bool:
    """Whether *version* is what is *wanted*, up to parts that one of the two leaves out."""
    return not wanted or f"{wanted}.".startswith(f"{version}.") or f"{version}.".startswith(f"{wanted}.")


def newest(presets: list[Preset]) -> Preset:
    """Which of several versions stands for them all: the newest that is recorded, if one is."""
    return max(presets, key=lambda preset: (preset.status == RECORDED, preset.version))
