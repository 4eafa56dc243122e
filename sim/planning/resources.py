"""A scenario with more or less of one resource: what elasticities and error bars are differences of.

Speeds (`compute`, `memory_bandwidth`, `link`, `host`, `front_end`) share out every second of an iteration
between them: kernels as `sim.hardware.efficiency` says, with the engine's own work the host's. All of them
twice as fast is a system twice as fast, which is why their elasticities sum to one. Kernel classes (`gemm`,
...) cut the same seconds the other way, by operation. Sizes are `kv_blocks`, `max_num_seqs` and
`max_num_batched_tokens`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sim.hardware.efficiency import faster

if TYPE_CHECKING:
    from sim.hardware import MemoryLedger
    from sim.scenario import Scenario

SPEEDS = ("compute", "memory_bandwidth", "link", "host", "front_end")
SIZES = ("kv_blocks", "max_num_seqs", "max_num_batched_tokens")
ENGINE_TIMES = {
    "host": ("host_step_s", "host_sequence_s", "eager_layer_s"),
    "front_end": ("front_end_latency_s", "front_end_service_s", "front_end_prompt_token_s"),
}


def scaled(scenario: Scenario, resource: str, factor: float, ledger: MemoryLedger) -> Scenario:
    """*scenario* with *factor* times as much of *resource*, the KV blocks of *ledger* kept otherwise.

    Raises `InputFault` where the engine would not start so.
    """
    engine = scenario.engine
    changes: dict[str, Any] = {
        "engine.num_gpu_blocks_override": ledger.num_gpu_blocks,
        "engine.max_cudagraph_capture_size": engine["max_cudagraph_capture_size"],
        **{f"engine.{name}": engine[name] for name in ("max_num_seqs", "max_num_batched_tokens")},
    }
    for name in ENGINE_TIMES.get(resource, ()):
        changes[f"engine.{name}"] = engine[name] / factor
    if resource == "kv_blocks":
        changes["engine.num_gpu_blocks_override"] = int(ledger.num_gpu_blocks * factor)
    elif resource in SIZES:
        changes[f"engine.{resource}"] = max(1, int(engine[resource] * factor))
        if resource == "max_num_batched_tokens":
            changes["engine.max_num_seqs"] = min(engine["max_num_seqs"], changes[f"engine.{resource}"])
    elif resource != "front_end":
        kernels = faster(scenario.hardware["kernels"], resource, factor)
        changes["hardware"] = {**scenario.hardware, "kernels": kernels}
    changes = {path: value for path, value in changes.items() if value is not None}
    return scenario.replace(changes, source=f"{resource} x {factor:g}")


def can_matter(scenario: Scenario, resource: str, summary: Mapping[str, Any]) -> bool:
    """Whether a tenth less of *resource* could change the run of *summary* at all."""
    if resource in ("link", "all_reduce"):
        return int(scenario.engine["tensor_parallel_size"]) > 1
    if resource == "kv_blocks":
        return float(summary["kv_cache"]["usage_max"]) > 0.85
    if resource == "max_num_seqs":
        return float(summary["concurrency_max"]) > 0.85 * scenario.engine["max_num_seqs"]
    return True
