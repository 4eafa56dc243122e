"""Batches at which the hardware changes its manner: properties of model, GPU and mean context alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sim.model import WEIGHT_DTYPE_BYTES

if TYPE_CHECKING:
    from sim.hardware import HardwareProfile
    from sim.model import ModelSpec
    from sim.scenario import Scenario

SLOWER = 1.1


def roofline_knees(scenario: Scenario) -> dict[str, Any]:
    """The roofline knees and the cache knee of *scenario*, each None with a `_reason` beside it if absent.

    linear_batch: tokens at which the linear layers' flops take as long as their bytes. ten_percent_batch:
    decodes, all at the workload's mean context, whose step is a tenth slower than that of one.
    kv_equals_weights_batch: decodes whose KV cache has as many bytes as the weights that a step reads; past
    it decoding never becomes compute-bound. cache_knee_batch: decodes at the mean context that fill the
    cache.
    """
    from sim.hardware import HardwareProfile
    from sim.model import ModelSpec
    from sim.simulation import ledger_of
    from sim.workload import mean_context_tokens

    profile, model = HardwareProfile.from_mapping(scenario.hardware), ModelSpec.from_mapping(scenario.model)
    ledger, context = ledger_of(scenario), mean_context_tokens(scenario.workload)
    cache = float(ledger.mean_concurrency or 0.0)
    room = min(cache, float(scenario.engine["max_num_seqs"]))
    full = "the cache is full" if cache <= scenario.engine["max_num_seqs"] else "max_num_seqs is reached"
    tokens = scenario.engine["max_num_batched_tokens"]
    linear, why = _linear_batch(profile, model, scenario), "linear layers never become compute-bound here"
    if linear is not None and linear > tokens:
        linear, why = None, f"an iteration has at most {tokens} tokens; {linear:.0f} would be needed"
    slower = _slower_batch(profile, model, scenario, ledger.kv_cache_tokens, context, int(room))
    equal = _weights_read_bytes(model, scenario) / (ledger.kv_bytes_per_token * context)
    beyond = f"{full} first, at {room:.0f} sequences"
    knees = _entry("linear_batch", linear, why)
    knees |= _entry("ten_percent_batch", slower, beyond)
    knees |= _entry("kv_equals_weights_batch", equal if equal <= room else None, beyond)
    return {"roofline_knees": knees, "cache_knee_batch": cache}


def _entry(name: str, batch: float | None, why_absent: str) -> dict[str, Any]:
    return {name: batch} if batch is not None else {name: None, f"{name}_reason": why_absent}


def _linear_batch(profile: HardwareProfile, model: ModelSpec, scenario: Scenario) -> float | None:
    """m of 2 N K m / F = (weight bytes + m x activation bytes) / B, over a layer's linear layers."""
    gemm = profile.gemm(model.weight_dtype(scenario.engine["weight_dtype"]))
    shapes = model.layer_gemms(scenario.engine["tensor_parallel_size"])
    weights = sum(n * k for n, k in shapes)
    moved = sum(k * gemm.activation_bytes + n * 2.0 for n, k in shapes)
    rise_s = 2.0 * weights / gemm.roofline.flops_per_s - moved / gemm.roofline.bytes_per_s
    return weights * gemm.weight_bytes / gemm.roofline.bytes_per_s / rise_s if rise_s > 0 else None


def _slower_batch(
    profile: HardwareProfile,
    model: ModelSpec,
    scenario: Scenario,
    kv_cache_tokens: int,
    context: float,
    most: int,
) -> float | None:
    """The first batch whose step takes `SLOWER` times that of one sequence."""
    from sim.serving.compile import compile_step_time

    step_time = compile_step_time(profile, model, scenario.engine, kv_cache_tokens)
    batch = np.arange(1, max(1, most) + 1)
    step_s = step_time.elapsed_s(batch, (batch * context).astype(np.int64), np.ones_like(batch))
    slow = np.flatnonzero(step_s >= SLOWER * step_s[0])
    return float(batch[slow[0]]) if len(slow) else None


def _weights_read_bytes(model: ModelSpec, scenario: Scenario) -> float:
    """Of one decode step on a GPU: the layers' linear weights and the LM head; of the embedding just rows."""
    gpus = scenario.engine["tensor_parallel_size"]
    layers = model.layers * sum(n * k for n, k in model.layer_gemms(gpus))
    n, k = model.lm_head_gemm(gpus)
    width = WEIGHT_DTYPE_BYTES[model.weight_dtype(scenario.engine["weight_dtype"])]
    return layers * width + n * k * WEIGHT_DTYPE_BYTES[model.activation_dtype]
