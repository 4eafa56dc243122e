"""What an answer rests on, in words: hardware and its provenance, model, engine, traffic, run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sim.planning.wording import joined, number
from sim.workload.classes import shares
from sim.workload.session_shape import session_shape

if TYPE_CHECKING:
    from sim.scenario import Scenario

KINDS = ("measured", "datasheet", "estimated")


def deployment(scenario: Scenario) -> str:
    """Model and GPUs in few words: `llama-3-8b on 1 x a100-80gb-sxm`."""
    return f"{scenario.model['name']} on {_gpu_count(scenario)} x {scenario.hardware['name']}"


CHECKED_ALONE = ("all_reduce_eager", "attention_prefill_fp8_compute")
"""Kernels of a profile that `calibrate check` asks for, and no iteration."""


def assumptions(scenario: Scenario, requests: int) -> dict[str, str]:
    """One short phrase each for hardware, model, engine, workload and run of so many *requests*."""
    return {
        "hardware": _hardware(scenario),
        "model": _model(scenario),
        "engine": _engine(scenario.engine),
        "workload": _workload(scenario.workload, scenario.load),
        "run": _run(scenario.run, requests),
    }


def coefficient_kinds(scenario: Scenario) -> dict[str, list[str]]:
    """The kernels' coefficients that this scenario uses, by where they come from.

    Keys are `measured`, `datasheet` and `estimated`, values names such as `gemm`. Other types' linear layers
    are left out, collectives where each GPU holds a whole model, and `CHECKED_ALONE`.
    """
    provenance = scenario.hardware.get("provenance", {})
    used = dtype(scenario, "weight_dtype")
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for path in sorted(provenance):
        section, _, name = path.partition(".")
        kernel, _, detail = name.partition(".")
        other_type = kernel == "gemm" and detail and detail != used and f"kernels.gemm.{used}" in provenance
        alone = kernel == "all_reduce" and _gpus(scenario) == 1
        if section != "kernels" or other_type or alone or kernel in CHECKED_ALONE:
            continue
        part = f"{kernel} {detail}" if detail and f"kernels.{kernel}" in provenance else kernel or "all"
        kind = found.setdefault(provenance[path]["kind"], [])
        if part not in kind:
            kind.append(part)
    return {kind: names for kind, names in found.items() if names}


def engine_constant_kinds(engine: Mapping[str, Any]) -> dict[str, list[str]]:
    """The settings of the engine file that say where they come from, by kind, `documented` among them."""
    found: dict[str, list[str]] = {}
    for key, origin in (engine.get("provenance") or {}).items():
        found.setdefault(origin["kind"], []).append(key)
    return found


def estimated(scenario: Scenario) -> list[str]:
    """What an answer rests on that is an estimate: kernels' coefficients, and the engine's own numbers."""
    kernels = coefficient_kinds(scenario).get("estimated", [])
    return _spaced([*kernels, *engine_constant_kinds(scenario.engine).get("estimated", [])])


def dtype(scenario: Scenario, key: str) -> str:
    """The type that the engine's *key* (`weight_dtype`, `kv_cache_dtype`) comes to."""
    chosen = scenario.engine.get(key) or "auto"
    return str(scenario.model.get("dtype", "auto")) if chosen == "auto" else str(chosen)


def _gpus(scenario: Scenario) -> int:
    return int(scenario.engine.get("tensor_parallel_size") or 1)


def _hardware(scenario: Scenario) -> str:
    kinds = coefficient_kinds(scenario)
    origins = "; ".join(f"{kind}: {joined(_spaced(names))}" for kind, names in kinds.items())
    gpus = f"{_gpu_count(scenario)} x {scenario.hardware['name']}"
    return gpus + (f" (coefficients {origins})" if origins else "")


def _gpu_count(scenario: Scenario) -> int:
    return _gpus(scenario) * int(scenario.deployment.get("replicas") or 1)


def _spaced(names: list[str]) -> list[str]:
    return [name.replace("_", " ") for name in names]


def _model(scenario: Scenario) -> str:
    weights, cache = dtype(scenario, "weight_dtype"), dtype(scenario, "kv_cache_dtype")
    return f"{scenario.model['name']}, weights {weights}, KV cache {cache}"


def _engine(engine: Mapping[str, Any]) -> str:
    keys = ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "tensor_parallel_size")
    settings = [f"{key}={engine[key]}" for key in keys if engine.get(key) is not None]
    caching = "on" if engine.get("enable_prefix_caching") else "off"
    notes = [f"prefix caching {caching}", *_ways(engine), *_left_out(engine)]
    return ", ".join([f"{_file(engine)}{engine.get('preset', 'no preset')}", *settings, *notes])


def _file(engine: Mapping[str, Any]) -> str:
    """The engine file's name, and where its numbers come from."""
    if "name" not in engine:
        return ""
    kinds = engine_constant_kinds(engine)
    told = (kind for kind in ("measured", "estimated") if kind in kinds)
    origins = "; ".join(f"{kind}: {joined(_spaced(kinds[kind]))}" for kind in told)
    return f"{engine['name']} ({origins}): " if origins else f"{engine['name']}: "


def _ways(engine: Mapping[str, Any]) -> list[str]:
    """How steps and queue are run where it is not one step after the other, first come first served."""
    ways = ["scheduling by priority"] if engine.get("scheduling_policy") == "priority" else []
    return [*ways, *(["asynchronous scheduling"] if engine.get("async_scheduling") else [])]


def _left_out(engine: Mapping[str, Any]) -> list[str]:
    """What the memory ledger's estimate does not hold: the prompts of a whole static group at once."""
    if not str(engine.get("preset", "")).startswith("static") or engine.get("activation_bytes") is not None:
        return []
    return [
        "activations estimated for max_num_batched_tokens a step, not for a whole group's prompts, which "
        "need more: set engine.activation_bytes"
    ]


def _workload(workload: Mapping[str, Any], load: Mapping[str, Any]) -> str:
    name = workload.get("name")
    parts = shares(workload)
    told = [
        f"{_who(own, f'class {label}, {100 * parts.get(label, 0):.3g} % of the rate')}: {_traffic(own, load)}"
        for label, own in (workload.get("classes") or {}).items()
    ]
    return f"{f'{name}, ' if name else ''}{'; '.join(told) or _traffic(workload, load)}"


def _who(traffic: Mapping[str, Any], at_a_rate: str) -> str:
    """A class at a rate, or the users that it has."""
    users = traffic.get("concurrency")
    return at_a_rate if users is None else f"{at_a_rate.partition(',')[0]}, {users:,} users"


def _traffic(traffic: Mapping[str, Any], load: Mapping[str, Any]) -> str:
    arrivals = traffic.get("arrivals", {}).get("kind", "poisson")
    if "rate_per_s" in load and arrivals == "trace":
        arrivals = "the trace's own, scaled"
    arrivals = "upon answers" if traffic.get("concurrency") is not None else arrivals
    lengths = traffic.get("lengths", {})
    shape = lengths.get("kind", "unknown")
    if shape == "fixed":
        shape = f"{lengths['prompt_tokens']} prompt and {lengths['output_tokens']} output tokens"
    return f"arrivals {arrivals}{_tenants(traffic)}, lengths {shape}{_shared(traffic)}"


def _tenants(traffic: Mapping[str, Any]) -> str:
    tenants = traffic.get("tenants") or 1
    return f" of {tenants:,} tenants" if tenants > 1 else ""


def _shared(workload: Mapping[str, Any]) -> str:
    """What requests have to do with each other: sessions, beginnings, answers, priorities."""
    sessions, prefixes = workload.get("sessions"), workload.get("prefixes") or {}
    heads = {"groups": f"{prefixes.get('groups', 0):,} shared heads", "trace": "beginnings as in the trace"}
    parts = [
        _sessions(workload) if sessions else "",
        heads.get(prefixes.get("kind", "none"), ""),
        f"{workload['answers']} answers to a prompt" if (workload.get("answers") or 1) > 1 else "",
        f"{len(workload['priorities']['weights'])} priorities" if workload.get("priorities") else "",
    ]
    return "".join(f", {part}" for part in parts if part)


def _sessions(workload: Mapping[str, Any]) -> str:
    """Turns, and what they wait for."""
    shape = session_shape(workload)
    calls = f" with {number(shape.calls.mean)} calls of tools each" if shape.calls.mean else ""
    return f"sessions of {number(shape.turns.mean)} turns{calls}{' upon answers' if shape.waits else ''}"


def _run(run: Mapping[str, Any], requests: int) -> str:
    size = f"{number(run['duration_s'])} s" if run.get("duration_s") else f"{requests:,} requests"
    warmup = run.get("warmup", 0)
    left_out = f"{number(warmup['seconds'])} s" if isinstance(warmup, Mapping) else f"{100 * warmup:g} %"
    return f"{size} or more at each load, seed {run.get('seed')}, first {left_out} left out"
