"""Which engine of ours stands for a measured one: one table, by name; versions are those of engine files.

The settings of a row go before those here, these before the engine file's. A harness that names a length
but no spread leaves open whether requests run in lockstep; `lockstep_until` says what is assumed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sim.scenario import names
from sim.validation.points import Point


@dataclass(frozen=True)
class Family:
    """An engine whose name contains *word*; its files are `FILES-VERSION`, without them it is *otherwise*.

    kv_dtype_of: KV type by weight type, where the row says none. fraction_key: the setting that a stated
    share of memory for the KV cache is. lockstep_until: before this version equal requests run in lockstep,
    () never.
    """

    word: str
    files: str
    otherwise: Mapping[str, Any]
    kv_dtype_of: Mapping[str, str] = field(default_factory=dict)
    fraction_key: str = "gpu_memory_utilization"
    lockstep_until: tuple[int, ...] = ()
    whole_prompts: bool = False
    """Whether a step takes prompts whole, so that whoever serves longer ones has raised the budget."""

    def in_lockstep(self, point: Point) -> bool:
        """Whether equal requests of a closed loop stay together; a new prompt then waits for all others."""
        return bool(point.version) and point.version < self.lockstep_until


FAMILIES: tuple[Family, ...] = (
    Family("vllm", "vllm", {"preset": "vllm-v1@0.32"}),
    Family("sglang", "sglang", {"preset": "sglang@0.5"}, lockstep_until=(0, 5, 6)),
    Family("lmdeploy", "lmdeploy", {"preset": "lmdeploy@0.2"}),
    Family(
        "tensorrt-llm",
        "tensorrt-llm",
        {"preset": "tensorrt-llm@1.0"},
        {"fp8": "fp8"},
        "free_gpu_memory_fraction",
        whole_prompts=True,
    ),
)


_OF_THEIR_TIME = {
    ("vllm", "mlpv41"): "0.5",
    ("vllm", "lpc"): "0.5",
    ("vllm", "den"): "0.10",
    ("vllm", "aic"): "0.12",
    ("sglang", "lpc"): "0.3",
    ("tensorrt-llm", "mlpv41"): "0.11",
    ("tensorrt-llm", "aic"): "1.0",
}
"""By engine and set of rows, the version of the set's time (or of its other rows) where a row names none."""


def family_of(point: Point) -> Family | None:
    """The family of *point*'s engine; None where nothing simulates it."""
    return next((family for family in FAMILIES if family.word in point.engine.casefold()), None)


def settings_of(family: Family, point: Point) -> dict[str, Any]:
    """The `engine` section that stands for *point*'s engine: a file's name, or settings."""
    version = point.engine_version or _OF_THEIR_TIME.get((family.word, point.set), "")
    name = engine_file(family.files, version)
    return dict(family.otherwise) if name is None else {"base": name}


@cache
def engine_file(family: str, version: str) -> str | None:
    """The newest engine file of *family* that is not newer than *version*, else the oldest.

    A release candidate has its own file or its release's. Without a version the newest; None if the family
    has no file.
    """
    found = {name: _version(name) for name in names("engines") if name.startswith(f"{family}-")}
    if not found:
        return None
    wanted = _version(version)
    reached = {name: known for name, known in found.items() if not wanted[0] or known[0] <= wanted[0]}
    chosen = reached or {name: known for name, known in found.items() if known[0] == min(found.values())[0]}
    newest = max(known[0] for known in chosen.values())
    same = [name for name, known in chosen.items() if known[0] == newest]
    return max(same, key=lambda name: (found[name][1] == wanted[1], found[name][1] == ""))


def _version(text: str) -> tuple[tuple[int, ...], str]:
    """Three numbers of a version, and the candidate (`rc3`) that it is; () where there is none."""
    found = re.search(r"(\d+(?:\.\d+)*)(rc\d+)?", text)
    if found is None:
        return (), ""
    numbers = tuple(int(part) for part in found[1].split("."))
    return (*numbers, 0, 0)[:3], found[2] or ""
