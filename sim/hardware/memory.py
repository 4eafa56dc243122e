"""The memory ledger of one GPU: what weights, activations and overhead leave for the KV cache.

The engine's own rules: it may use gpu_memory_utilization x the memory the driver reports; a profile run at
max_num_batched_tokens tells it what activations need; what is left becomes blocks of block_size tokens.
Activations and overhead are estimates here; engine.activation_bytes and engine.overhead_bytes override them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sim.hardware.profile import HardwareProfile
from sim.model import ModelSpec

_GIB = 2**30
_MIB = 2**20

# Start-up logs of vLLM 0.11 on H100 with 1024 sequences (Llama-3.1-8B 4.76 GiB, Qwen3-0.6B 5.56, Qwen3-32B
# 5.64 on one GPU and on two, Llama-3.3-70B on two 4.84) all give 38.3 to 38.6 bytes a logit once the hidden
# states are taken off: 16-bit and fp32 logits, their sort with indices, softmax and cumulative sum. Builds
# with another sampler need less.
_SAMPLER_BYTES_PER_LOGIT = 38.4
_HALF_BYTES = 2

# Logs of vLLM 0.7 and later say 0.04 to 0.27 GiB outside the allocator on one GPU, 0.55 to 0.74 on two, 0.95
# on four; before that the CUDA context was in it, and 0.35 were said of one.
_NON_TORCH_BYTES = 256 * _MIB
_NCCL_BYTES_PER_DOUBLING = 0.35 * _GIB
# Logs say 0.23 to 0.52 GiB for models of 32 to 36 layers with all 51 sizes up to 512 captured.
_GRAPH_BYTES_PER_LAYER = 12.5 * _MIB
_LARGEST_CAPTURE = 512

_POOL_KEYS = ("kv_cache_memory_bytes", "num_gpu_blocks_override")


@dataclass(frozen=True)
class MemoryLedger:
    """Per GPU. `num_gpu_blocks` is the engine's printed number, its null block included.

    `kv_cache_tokens` is num_gpu_blocks x block_size; requests can hold one block less. `max_concurrency` is
    kv_cache_tokens / max_model_len, not rounded; `mean_concurrency` the same at the mean context (plus half a
    block, which a sequence's last block leaves empty on average), None when no context was given.
    `reason` says what does not fit, and is None when `fits`.
    """

    gpu_memory_bytes: int
    weights_bytes: int
    activation_bytes: int
    overhead_bytes: int
    fragmentation_bytes: int
    kv_cache_bytes: int
    kv_bytes_per_token: int
    block_size: int
    num_gpu_blocks: int
    kv_cache_tokens: int
    max_model_len: int
    max_concurrency: float
    mean_concurrency: float | None
    fits: bool
    reason: str | None

    def as_dict(self) -> dict[str, Any]:
        """The ledger as JSON-able values, in the order above."""
        return asdict(self)


def memory_ledger(
    profile: HardwareProfile,
    model: ModelSpec,
    engine: Mapping[str, Any],
    mean_context_tokens: float | None = None,
) -> MemoryLedger:
    """The ledger of *model* on one GPU of *profile* under an engine's settings (a scenario's `engine`).

    kv_cache_memory_bytes sets the pool and num_gpu_blocks_override the blocks, as in the engine; both ignore
    gpu_memory_utilization and free_gpu_memory_fraction. Raises InputFault for a dtype or a split that the
    model does not have.
    """
    held = _held_bytes(model, engine)
    budget = int(engine["gpu_memory_utilization"] * profile.memory_bytes)
    token_bytes = model.kv_bytes_per_token(engine["kv_cache_dtype"], engine["tensor_parallel_size"])
    block_size = engine["block_size"]
    share = engine.get("free_gpu_memory_fraction") or 1.0
    pool = _given(engine, "kv_cache_memory_bytes", int(share * max(0, budget - sum(held.values()))))
    lost = int(pool * (engine.get("kv_fragmentation") or 0.0))
    pool -= lost
    blocks = _given(engine, "num_gpu_blocks_override", pool // (block_size * token_bytes))
    if engine.get("num_gpu_blocks_override") is not None:
        pool = blocks * block_size * token_bytes
    tokens = blocks * block_size
    mean = None if mean_context_tokens is None else tokens / (mean_context_tokens + block_size / 2)
    ledger = MemoryLedger(
        gpu_memory_bytes=int(profile.memory_bytes),
        **held,
        fragmentation_bytes=lost,
        kv_cache_bytes=pool,
        kv_bytes_per_token=token_bytes,
        block_size=block_size,
        num_gpu_blocks=blocks,
        kv_cache_tokens=tokens,
        max_model_len=engine["max_model_len"],
        max_concurrency=tokens / engine["max_model_len"],
        mean_concurrency=mean,
        fits=True,
        reason=None,
    )
    reason = _misfit(ledger, engine, budget)
    return ledger if reason is None else replace(ledger, fits=False, reason=reason)


def activation_bytes(model: ModelSpec, engine: Mapping[str, Any]) -> int:
    """Peak of the engine's profile run on each GPU (an estimate): the larger of its two phases.

    The MLP of a full batch: residual, normed and incoming hidden states, gate and up, their product:
    `2 x tokens x (3 hidden + 3 intermediate / tp)`, which gives the 2.99 GiB that a log says for Llama-3.1-8B
    at 29,000 tokens (vllm#10517). The sampler on max_num_seqs rows of the whole vocabulary, which is gathered
    on every GPU: `38.4 bytes x rows x vocabulary`, beside the batch's hidden states. The batch has
    profiled_tokens, which may be fewer than the budget of a step.
    """
    tokens = _given(engine, "profiled_tokens", engine["max_num_batched_tokens"])
    rows = min(engine["max_num_seqs"], tokens)
    inner = model.layer_gemms(engine["tensor_parallel_size"])[3][1]
    mlp = _HALF_BYTES * tokens * 3 * (model.hidden_size + inner)
    sampler = _SAMPLER_BYTES_PER_LOGIT * rows * model.vocab_size + _HALF_BYTES * tokens * model.hidden_size
    return math.ceil(max(mlp, sampler))


def overhead_bytes(model: ModelSpec, engine: Mapping[str, Any]) -> int:
    """What each GPU holds outside weights, activations and KV cache (an estimate).

    What the allocator does not see (non_torch_bytes), NCCL's buffers with more than one GPU (vllm#2031 shows
    what leaving them out does), and the CUDA graphs' pool where the engine takes it off the KV cache
    (reserve_cudagraph_memory: vLLM since 0.21).
    """
    held = _given(engine, "non_torch_bytes", _NON_TORCH_BYTES)
    held += math.ceil(_NCCL_BYTES_PER_DOUBLING * math.log2(engine["tensor_parallel_size"]))
    if engine.get("cuda_graphs", True) and engine.get("reserve_cudagraph_memory", True):
        default = min(2 * engine["max_num_seqs"], _LARGEST_CAPTURE)
        capture = _given(engine, "max_cudagraph_capture_size", default)
        held += math.ceil(_GRAPH_BYTES_PER_LAYER * model.layers * min(1.0, capture / _LARGEST_CAPTURE))
    return held


def _held_bytes(model: ModelSpec, engine: Mapping[str, Any]) -> dict[str, int]:
    weights = model.weight_bytes(engine["weight_dtype"], engine["tensor_parallel_size"])
    return {
        "weights_bytes": weights + model.kv_scale_bytes(engine["kv_cache_dtype"]),
        "activation_bytes": _given(engine, "activation_bytes", activation_bytes(model, engine)),
        "overhead_bytes": _given(engine, "overhead_bytes", overhead_bytes(model, engine)),
    }


def _given(engine: Mapping[str, Any], key: str, otherwise: int) -> int:
    value = engine.get(key)
    return otherwise if value is None else int(value)


def _misfit(ledger: MemoryLedger, engine: Mapping[str, Any], budget: int) -> str | None:
    """The sentence that says what does not fit, or None."""
    held = ledger.weights_bytes + ledger.activation_bytes + ledger.overhead_bytes
    parts = (
        f"weights {_gib(ledger.weights_bytes)}, activations {_gib(ledger.activation_bytes)} "
        f"and overhead {_gib(ledger.overhead_bytes)}"
    )
    pool_is_given = any(engine.get(key) is not None for key in _POOL_KEYS)
    if pool_is_given and held + ledger.kv_cache_bytes > ledger.gpu_memory_bytes:
        over = held + ledger.kv_cache_bytes - ledger.gpu_memory_bytes
        return (
            f"{parts} and the KV cache of {_gib(ledger.kv_cache_bytes)} exceed the GPU's "
            f"{_gib(ledger.gpu_memory_bytes)} by {_gib(over)}: ask for a smaller KV cache"
        )
    if not pool_is_given and held >= budget:
        return (
            f"{parts} leave nothing for the KV cache: {_gib(held - budget)} are missing beyond the "
            f"{_gib(budget)} that gpu_memory_utilization {engine['gpu_memory_utilization']:g} gives; "
            "raise it or tensor_parallel_size, quantise the weights, or take a larger GPU"
        )
    return _too_long(ledger)


def _too_long(ledger: MemoryLedger) -> str | None:
    """The engine refuses to start when the pool cannot hold one request of max_model_len."""
    needed_blocks = math.ceil(ledger.max_model_len / ledger.block_size)
    if needed_blocks <= ledger.num_gpu_blocks:
        return None
    block_bytes = ledger.block_size * ledger.kv_bytes_per_token
    way_out = (
        f"lower max_model_len to at most {ledger.kv_cache_tokens}, or make room for the KV cache"
        if ledger.num_gpu_blocks
        else "make room for the KV cache"
    )
    return (
        f"one request of max_model_len {ledger.max_model_len} needs {_gib(needed_blocks * block_bytes)} "
        f"of KV cache, {_gib(ledger.kv_cache_bytes)} are there: {way_out}"
    )


def _gib(count: int) -> str:
    return f"{count / _GIB:.2f} GiB"
