"""Which engine of ours stands for a measured one: one table, by name and first version.

The settings of a row go before those here. A harness that names a length but no spread leaves open whether
requests run in lockstep; `in_lockstep` says what is assumed of this engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sim.validation.points import Point


@dataclass(frozen=True)
class EngineRow:
    """From version *since* on, the engine whose name contains *name* is simulated with *settings*.

    kv_dtype_of: KV type by weight type, where the row says none. reserves_output: admission sets aside the
    answer too. kv_free_fraction: share of what weights leave that becomes KV cache; None: as vLLM.
    """

    name: str
    since: tuple[int, ...]
    settings: Mapping[str, Any]
    kv_dtype_of: Mapping[str, str] = field(default_factory=dict)
    reserves_output: bool = False
    kv_free_fraction: float | None = None
    in_lockstep: bool = False


_V0 = {"preset": "vllm-v0@0.6.6"}
_V1 = {"preset": "vllm-v1@0.32"}
_TRT = {
    **_V1,
    "max_num_seqs": 2048,
    "max_num_batched_tokens": 8192,
    "enable_prefix_caching": False,
}

ENGINES: tuple[EngineRow, ...] = (
    EngineRow("vllm", (0,), _V0),
    EngineRow("vllm", (0, 8), {**_V1, "async_scheduling": False}),
    EngineRow("vllm", (0, 14), _V1),
    EngineRow("sglang", (0,), _V0, in_lockstep=True),
    EngineRow("sglang", (0, 5, 6), _V0),
    EngineRow("lmdeploy", (0,), _V0),
    EngineRow("tensorrt-llm", (0,), _TRT, {"fp8": "fp8"}, reserves_output=True, kv_free_fraction=0.90),
)


def engine_of(point: Point) -> EngineRow | None:
    """The row that stands for the engine of *point*; without a version the newest, None if unknown."""
    fitting = [row for row in ENGINES if row.name in point.engine.casefold()]
    reached = [row for row in fitting if not point.version or row.since <= point.version]
    return max(reached, key=lambda row: row.since, default=None)
