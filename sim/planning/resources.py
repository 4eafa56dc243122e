"""A scenario with more or less of one resource: what elasticities and error bars are differences of.

Speeds (`compute`, `memory_bandwidth`, `link`, `host`, `front_end`) share out every second of an iteration
between them: F of linear layers and prefill attention is compute; B of linear layers, of decode attention
(its time a sequence included) and of elementwise work is memory bandwidth; collectives are the link; the
engine's own work and every kernel's overhead, its launch, are the host. All of them twice as fast is a system
twice as fast, which is why their elasticities sum to one. Kernel classes (`gemm`, ...) cut the same seconds
the other way, by operation. Sizes are `kv_blocks`, `max_num_seqs` and `max_num_batched_tokens`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.hardware import MemoryLedger
    from sim.scenario import Scenario

SPEEDS = ("compute", "memory_bandwidth", "link", "host", "front_end")
SIZES = ("kv_blocks", "max_num_seqs", "max_num_batched_tokens")
CLASSES = ("gemm", "attention_prefill", "attention_decode", "all_reduce", "elementwise")
# Of each class of kernels: which resource a coefficient belongs to, and whether it is a speed or a time.
_COEFFICIENTS: Mapping[str, Mapping[str, tuple[str, int]]] = {
    "gemm": {
        "flops_per_s": ("compute", 1),
        "bytes_per_s": ("memory_bandwidth", 1),
        "overhead_s": ("host", -1),
    },
    "attention_prefill": {
        "flops_per_s": ("compute", 1),
        "head_token_s": ("compute", -1),
        "overhead_s": ("host", -1),
    },
    "attention_decode": {
        "bytes_per_s": ("memory_bandwidth", 1),
        "head_sequence_s": ("memory_bandwidth", -1),
        "overhead_s": ("host", -1),
    },
    "all_reduce": {"bytes_per_s": ("link", 1), "latency_s": ("link", -1)},
    "elementwise": {"bytes_per_s": ("memory_bandwidth", 1), "overhead_s": ("host", -1)},
}
_ENGINE_TIMES = {
    "host": ("host_step_s", "host_sequence_s"),
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
    for name in _ENGINE_TIMES.get(resource, ()):
        changes[f"engine.{name}"] = engine[name] / factor
    if resource == "kv_blocks":
        changes["engine.num_gpu_blocks_override"] = int(ledger.num_gpu_blocks * factor)
    elif resource in SIZES:
        changes[f"engine.{resource}"] = max(1, int(engine[resource] * factor))
        if resource == "max_num_batched_tokens":
            changes["engine.max_num_seqs"] = min(engine["max_num_seqs"], changes[f"engine.{resource}"])
    elif resource != "front_end":
        changes["hardware"] = _faster(scenario.hardware, resource, factor)
    changes = {path: value for path, value in changes.items() if value is not None}
    return scenario.replace(changes, source=f"{resource} x {factor:g}")


def _faster(hardware: Mapping[str, Any], resource: str, factor: float) -> dict[str, Any]:
    """A profile with one speed, or one class of kernels, *factor* times as fast."""
    changed = copy.deepcopy(dict(hardware))

    def scale(coefficients: dict[str, Any], kind: str) -> None:
        for name, (owner, direction) in _COEFFICIENTS[kind].items():
            if resource in (owner, kind) and name in coefficients:
                coefficients[name] *= factor**direction

    for name, section in changed["kernels"].items():
        kind = name.removesuffix("_fp8")
        nested = kind in ("gemm", "all_reduce")
        for coefficients in section.values() if nested else (section,):
            scale(coefficients, kind)
    return changed


def can_matter(scenario: Scenario, resource: str, summary: Mapping[str, Any]) -> bool:
    """Whether a tenth less of *resource* could change the run of *summary* at all."""
    if resource in ("link", "all_reduce"):
        return int(scenario.engine["tensor_parallel_size"]) > 1
    if resource == "kv_blocks":
        return float(summary["kv_cache"]["usage_max"]) > 0.85
    if resource == "max_num_seqs":
        return float(summary["concurrency_max"]) > 0.85 * scenario.engine["max_num_seqs"]
    return True
