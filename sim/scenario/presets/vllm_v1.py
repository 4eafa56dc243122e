"""vLLM's V1 engine: one token budget a step, decodes first, chunked prefill, recompute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sim.scenario.presets.preset import CONTINUOUS, RECORDED, Facts, Preset, Values
from sim.scenario.presets.vllm_v1_rules import CHAPTERS, SELF_PREEMPTION

GIB = 1024**3

BUDGET_WORDS = (
    "16384 from 160 GiB of GPU memory on, 8192 from 70 GiB on (A100 and GB10: 2048), else 2048; at most "
    "max_num_seqs * max_model_len"
)
SEQUENCES_WORDS = (
    "1024 from 70 GiB of GPU memory on (A100 and GB10: 256), else 256; at most max_num_batched_tokens"
)
CAPTURE_WORDS = "2 * max_num_seqs; at most 512 (1024 on B200 and B300) and max_num_batched_tokens"


def vllm_v1_defaults(hardware: Values, model: Values, engine: Values) -> dict[str, Any]:
    """vLLM's V1 engine behind its OpenAI-compatible server (EngineArgs and its usage context defaults).

    The host's times are a published fit for vLLM on H100; those of the front end are estimates (7 to 12 ms
    a request are seen with recent versions).
    """
    budget, sequences = _limits(hardware)
    length = engine.get("max_model_len") or model.get("max_position_embeddings") or budget
    sequences = engine.get("max_num_seqs") or min(sequences, engine.get("max_num_batched_tokens") or budget)
    budget = engine.get("max_num_batched_tokens") or min(budget, sequences * length)
    largest = 1024 if _is_called(hardware, "b200", "b300") else 512
    return {
        "max_num_seqs": sequences,
        "max_num_batched_tokens": budget,
        "free_gpu_memory_fraction": 1.0,
        "gpu_memory_utilization": 0.92,
        "reserve_cudagraph_memory": True,
        "block_size": 16,
        "enable_prefix_caching": engine.get("kv_layout") != "contiguous",
        "scheduling_policy": "fcfs",
        "async_scheduling": True,
        "watermark": 0.0,
        "long_prefill_token_threshold": 0,
        "long_prefill_token_threshold_adaptive": False,
        "enable_chunked_prefill": True,
        "scheduler_reserve_full_isl": True,
        "kv_layout": "paged",
        "cuda_graphs": True,
        "cudagraph_prefill": True,
        "kernel_source": "vllm",
        "max_cudagraph_capture_size": min(2 * sequences, largest, budget),
        "host_step_s": 126e-6,
        "host_sequence_s": 4.4e-6,
        "eager_layer_s": 0.0,
        **FRONT_END,
    }


FRONT_END = {
    "front_end_latency_s": 0.010,
    "front_end_service_s": 0.001,
    "front_end_prompt_token_s": 1e-6,
}


def _limits(hardware: Values) -> tuple[int, int]:
    """Default (max_num_batched_tokens, max_num_seqs) of the server on this GPU."""
    memory_bytes = hardware.get("memory_bytes", 0)
    small = memory_bytes < 70 * GIB or _is_called(hardware, "a100", "gb10")
    if small:
        return 2048, 256
    return (16384, 1024) if memory_bytes >= 160 * GIB else (8192, 1024)


def _is_called(hardware: Values, *words: str) -> bool:
    called = " ".join((str(hardware.get("name", "")), *hardware.get("aliases", ()))).lower()
    return any(word in called for word in words)


_FACTS = Facts(
    reserves="the blocks of all tokens that the request has (its prompt, and after a preemption its answer "
    "so far), less what is cached; nothing for the answer to come",
    head_of_line="admission stops: nobody passes the head of the queue",
    victim="fcfs: the last admitted; priority: the least urgent, among equals the last to arrive. It gives "
    "back all its blocks, goes to the front of the queue (priority: to its place by priority and arrival) "
    "and recomputes what is not cached any more",
    mixing="share a step: decodes first, prompts in chunks of what they leave of the token budget",
)
_WORDS = {
    "max_num_batched_tokens": BUDGET_WORDS,
    "max_num_seqs": SEQUENCES_WORDS,
    "max_cudagraph_capture_size": CAPTURE_WORDS,
}
_LIMITS = (
    "max_num_active_seqs (an admission limit below max_num_seqs) and prefill_schedule_interval (prefill "
    "only every few steps, for data-parallel engines) are left at their defaults, without effect",
    "requests end at their output length only: no stop strings, whose extra token in flight would be lost",
    "queue limits count a request from when the engine's queue gets it, not from its first byte",
    "LoRA, speculative decoding, encoder inputs, KV connectors and sliding windows",
)

VLLM_V1_32 = Preset(
    name="vllm-v1@0.32",
    title="vLLM V1, 0.32",
    scheduler=CONTINUOUS,
    facts=_FACTS,
    defaults=vllm_v1_defaults,
    default_words=_WORDS,
    lacks={"batch_wait_s": None},
    status=RECORDED,
    verification="the schedules of vLLM 0.32.0's own scheduler over random cases are repeated step by step, "
    "with both policies, prefix caching and asynchronous scheduling off and on (docs/engines.md); queue "
    "limits and the adaptive threshold are read, not recorded",
    chapters=(*CHAPTERS, SELF_PREEMPTION["0.32"]),
    limits=_LIMITS,
)
VLLM_V1_33 = replace(
    VLLM_V1_32,
    name="vllm-v1@0.33",
    title="vLLM V1, 0.33",
    verification="the schedules of vLLM 0.33.0's own scheduler over the same cases are repeated step by step "
    "(docs/engines.md): under fcfs they are those of 0.32.0, under priority some differ; queue limits and "
    "the adaptive threshold are read, not recorded",
    differences=(
        "under priority, a request that preempts itself no longer ends the step: the running requests "
        "behind it get their tokens",
        "no other difference in what is simulated was found: both have the queue limits "
        "(max_num_queued_reqs, max_num_queued_tokens: 503), the adaptive threshold "
        "(long_prefill_token_threshold_adaptive), the watermark, the whole-prompt gate, and unhashed blocks "
        "first in the free list; and the defaults are the same",
        "prefix matches finer than a block and a prefill interval, which it offers, are not simulated; both "
        "are off by default",
    ),
    differs_from="vllm-v1@0.32",
    chapters=(*CHAPTERS, SELF_PREEMPTION["0.33"]),
    self_preemption_ends_step=False,
)
