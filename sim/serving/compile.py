"""From a hardware profile, a model and engine settings to the step-time arrays of a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sim import hardware
from sim.hardware import AttentionShape, HardwareProfile
from sim.model import ModelSpec
from sim.serving.decode_attention import DecodeAttention, Seconds
from sim.serving.prefill_attention import PrefillAttention
from sim.serving.step_time import StepTime

_HALF_BYTES = 2.0  # activations have 16 bits whatever the weights have
_LOGIT_BYTES = 4.0
_SAMPLER_PASSES = 3  # over the logits: read for the softmax, written, read to sample


def compile_step_time(
    profile: HardwareProfile,
    model: ModelSpec,
    engine: Mapping[str, Any],
    kv_cache_tokens: int,
    most_context_tokens: int = 0,
) -> StepTime:
    """The `StepTime` of *model* on *profile* under *engine*, one GPU group of tensor_parallel_size.

    A step reads *kv_cache_tokens* at most, or, where sequences share blocks, *most_context_tokens*.
    """
    gpus, kv_dtype = engine["tensor_parallel_size"], model.kv_dtype(engine["kv_cache_dtype"])
    shape = AttentionShape.of(model, kv_dtype, gpus)
    return StepTime(
        tokens_s=_token_table(profile, model, engine).tolist(),
        sampled_s=_sample_table(profile, model, engine).tolist(),
        host_step_s=engine["host_step_s"],
        host_sequence_s=engine["host_sequence_s"],
        layers=model.layers,
        attention=DecodeAttention(
            _decode_seconds(profile.decode_attention(kv_dtype), shape, engine["block_size"]),
            engine["max_num_seqs"],
            max(kv_cache_tokens, most_context_tokens),
            2 * engine["max_model_len"],  # in a static group: the longest prompt, then the longest answer
        ),
        prefill=PrefillAttention(profile.prefill_attention(kv_dtype), shape),
        overlapped=engine["async_scheduling"],
        eager_s=model.layers * engine["eager_layer_s"],
        largest_graph=_largest_graph(engine),
        prefill_graphs=engine["cudagraph_prefill"],
    )


def _decode_seconds(kernel: hardware.DecodeAttention, shape: AttentionShape, block_size: int) -> Seconds:
    """Seconds a layer of n sequences, their contexts together being what is read but for the last blocks."""
    if kernel.residual is not None:
        kernel = kernel.where(heads_per_kv_head=float(shape.heads_per_kv_head))

    def seconds(n: np.ndarray, context_tokens: np.ndarray) -> np.ndarray:
        # The last block of a sequence is read whole: on average half a block more than its tokens.
        return kernel.seconds(n, context_tokens + n * (block_size - 1) / 2, shape)

    return seconds


def captured_sizes(largest: int) -> np.ndarray:
    """Batch sizes with a CUDA graph: 1, 2, 4, then every 8 below 256 and every 16 from there.

    Source: vLLM's defaults (`cudagraph_capture_sizes`).
    """
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return np.array([size for size in sizes if size <= largest])


def padded_tokens(most: int, largest: int) -> np.ndarray:
    """Tokens that a step of 0..*most* tokens computes: rounded up to a captured size up to *largest*."""
    tokens = np.arange(most + 1)
    sizes = captured_sizes(largest)
    if not len(sizes):
        return tokens
    captured = tokens[: sizes[-1] + 1]
    return np.concatenate([sizes[np.searchsorted(sizes, captured)] * (captured > 0), tokens[len(captured) :]])


def _largest_graph(engine: Mapping[str, Any]) -> int:
    return engine["max_cudagraph_capture_size"] if engine["cuda_graphs"] else 0


def _token_table(profile: HardwareProfile, model: ModelSpec, engine: Mapping[str, Any]) -> np.ndarray:
    """Seconds of a step's token-wise work for 0..max_num_batched_tokens tokens."""
    gpus = engine["tensor_parallel_size"]
    tokens = padded_tokens(engine["max_num_batched_tokens"], _largest_graph(engine))
    gemm = profile.gemm(model.weight_dtype(engine["weight_dtype"]))
    layer_s = profile.kernels.elementwise.seconds(tokens * float(model.elementwise_bytes_per_token(gpus)))
    for n, k in model.layer_gemms(gpus):
        layer_s = layer_s + gemm.seconds(tokens, n, k)
    if gpus > 1:
        layer_s = layer_s + 2 * profile.all_reduce(gpus).seconds(_HALF_BYTES * tokens * model.hidden_size)
    return model.layers * layer_s * (tokens > 0)


def _sample_table(profile: HardwareProfile, model: ModelSpec, engine: Mapping[str, Any]) -> np.ndarray:
    """Seconds to get 0..max_num_seqs tokens out of a step: LM head, then sampling over fp32 logits."""
    gpus = engine["tensor_parallel_size"]
    sampled = np.arange(min(engine["max_num_seqs"], engine["max_num_batched_tokens"]) + 1)
    n, k = model.lm_head_gemm(gpus)
    logits_bytes = _SAMPLER_PASSES * _LOGIT_BYTES * model.vocab_size
    seconds = profile.gemm(model.activation_dtype).seconds(sampled, n, k)
    return (seconds + profile.kernels.elementwise.seconds(sampled * logits_bytes)) * (sampled > 0)
