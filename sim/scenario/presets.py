"""Engine presets: scheduling semantics by name and version, and the defaults that come with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from sim.faults import InputFault, did_you_mean

GIB = 1024**3
Values = Mapping[str, Any]


def preset_names() -> tuple[str, ...]:
    """The names of the presets, in order of the alphabet."""
    return tuple(sorted(_PRESETS))


def find_preset(name: str) -> str:
    """The full name of the preset *name*, whose version or patch version may be left out.

    `vllm-v1` is the newest version, and `vllm-v1@0.32.1` is `vllm-v1@0.32`: patch versions do not change
    the semantics. Raises `InputFault` with the nearest name.
    """
    engine, _, version = name.partition("@")
    minor = re.sub(r"^([0-9]+\.[0-9]+)\.[0-9]+$", r"\1", version)
    same_engine = [known for known in preset_names() if known.partition("@")[0] == engine]
    fitting = [known for known in same_engine if not version or known == f"{engine}@{minor}"]
    if fitting:
        return fitting[-1]
    near = f"; did you mean {same_engine[-1]}?" if same_engine else did_you_mean(name, preset_names())
    raise InputFault(f"preset {name} is unknown{near}")


def preset_defaults(name: str, hardware: Values, model: Values, engine: Values) -> dict[str, Any]:
    """The engine keys that the preset *name* (in full) sets, for this GPU and model.

    *engine* holds what is given already: some defaults follow from it.
    """
    return _PRESETS[name](hardware, model, engine)


def _vllm_v1(hardware: Values, model: Values, engine: Values) -> dict[str, Any]:
    """vLLM's V1 engine behind its OpenAI-compatible server (EngineArgs and its usage context defaults).

    The host's times are a published fit for vLLM on H100; those of the front end are estimates (7 to 12 ms
    a request are seen with recent versions).
    """
    budget, sequences = _vllm_limits(hardware)
    length = engine.get("max_model_len") or model.get("max_position_embeddings") or budget
    sequences = engine.get("max_num_seqs") or min(sequences, engine.get("max_num_batched_tokens") or budget)
    budget = engine.get("max_num_batched_tokens") or min(budget, sequences * length)
    largest = 1024 if _is_called(hardware, "b200", "b300") else 512
    return {
        "max_num_seqs": sequences,
        "max_num_batched_tokens": budget,
        "gpu_memory_utilization": 0.92,
        "block_size": 16,
        "enable_prefix_caching": True,
        "scheduling_policy": "fcfs",
        "async_scheduling": True,
        "watermark": 0.0,
        "long_prefill_token_threshold": 0,
        "scheduler_reserve_full_isl": True,
        "kv_layout": "paged",
        "cuda_graphs": True,
        "max_cudagraph_capture_size": min(2 * sequences, largest, budget),
        "host_step_s": 126e-6,
        "host_sequence_s": 4.4e-6,
        "front_end_latency_s": 0.010,
        "front_end_service_s": 0.001,
        "front_end_prompt_token_s": 1e-6,
    }


def _vllm_limits(hardware: Values) -> tuple[int, int]:
    """Default (max_num_batched_tokens, max_num_seqs) of the server on this GPU."""
    memory_bytes = hardware.get("memory_bytes", 0)
    small = memory_bytes < 70 * GIB or _is_called(hardware, "a100", "gb10")
    if small:
        return 2048, 256
    return (16384, 1024) if memory_bytes >= 160 * GIB else (8192, 1024)


def _is_called(hardware: Values, *words: str) -> bool:
    called = " ".join((str(hardware.get("name", "")), *hardware.get("aliases", ()))).lower()
    return any(word in called for word in words)


def _static(hardware: Values, model: Values, engine: Values) -> dict[str, Any]:
    """Groups of max_num_seqs (8), as a plain generate loop serves them; the rest as in vLLM V1.

    There is no token budget: a group's padded prompts are one step.
    """
    given = {"max_num_seqs": 8, **engine}
    defaults = _vllm_v1(hardware, model, given)
    own = {"max_num_seqs": 8, "batch_wait_s": 1.0, "kv_layout": "contiguous"}
    return {**defaults, **own, "enable_prefix_caching": False, "async_scheduling": False}


_PRESETS: dict[str, Callable[[Values, Values, Values], dict[str, Any]]] = {
    "static": _static,
    "vllm-v1@0.32": _vllm_v1,
}
