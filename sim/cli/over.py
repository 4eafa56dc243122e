"""`--over key=a,b,c`: the keys of a sweep and their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sim.faults import InputFault
from sim.scenario.overrides import key_path
from sim.scenario.tree import Faults, Place, spell
from sim.scenario.yaml_core import read_text

_OVER = Place("--over")


def read_over(texts: Sequence[str]) -> dict[str, list[Any]]:
    """The list of values of each key, from texts such as `engine.max_num_seqs=64,128`.

    The values are items of a YAML list, whose brackets may be left out. Raises `InputFault` with a sentence
    for each text that is something else and each key that is there twice.
    """
    over: dict[str, list[Any]] = {}
    faults = Faults()
    for text in texts:
        key, equals, values = text.partition("=")
        name = spell(key_path(key))
        if not equals or not key.strip():
            faults.add(_OVER, f"`{text}` must be key=value,value,..., such as load.rate_per_s=2,4,8")
        elif name in over:
            faults.add(_OVER, f"{name} is swept twice; give all its values in one list")
        else:
            over[name] = _values(name, values, faults)
    faults.raise_any()
    return over


def _values(name: str, text: str, faults: Faults) -> list[Any]:
    try:
        found = read_text(f"[{text}]", _OVER, faults, at=key_path(name)).value
    except InputFault as fault:
        reason = str(fault).removeprefix(f"{_OVER}: ")
        faults.add(_OVER, f"{name}={text}: {reason}")
        return []
    if not isinstance(found, list):  # a bracket of the text's own closed the list
        faults.add(_OVER, f"{name}={text} is no list of values")
        return []
    return found[0] if len(found) == 1 and isinstance(found[0], list) else found
