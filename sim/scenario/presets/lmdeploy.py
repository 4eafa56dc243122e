"""LMDeploy's TurboMind engine at 0.2: slots that are refilled as answers end, prompts before decodes."""

from __future__ import annotations

from typing import Any

from sim.scenario.presets.preset import APPROXIMATED, PREFILL_FIRST, Chapter, Facts, Preset, Rule, Values
from sim.scenario.presets.vllm_v1 import FRONT_END


def _defaults(hardware: Values, model: Values, engine: Values) -> dict[str, Any]:
    """The same on every GPU. The host's times are estimates."""
    sequences = engine.get("max_num_seqs") or 128
    length = engine.get("max_model_len") or model.get("max_position_embeddings") or 0
    return {
        "max_num_seqs": sequences,
        "max_num_batched_tokens": max(length, 131_072),
        "profiled_tokens": 8192,
        "free_gpu_memory_fraction": 0.8,
        "block_size": 64,
        "kv_layout": "paged",
        "reserve_cudagraph_memory": False,
        "cuda_graphs": False,
        "cudagraph_prefill": False,
        "max_cudagraph_capture_size": sequences,
        "host_step_s": 1.2e-3,
        "host_sequence_s": 3.5e-6,
        "eager_layer_s": 0.0,
        **FRONT_END,
        **_LACKS,
    }


_LACKS = {
    "batch_wait_s": None,
    "gpu_memory_utilization": 1.0,
    "enable_chunked_prefill": False,
    "enable_prefix_caching": False,
    "scheduling_policy": "fcfs",
    "async_scheduling": False,
    "watermark": 0.0,
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "scheduler_reserve_full_isl": True,
    "max_num_queued_reqs": None,
    "max_num_queued_tokens": None,
}

LMDEPLOY = Preset(
    name="lmdeploy@0.2",
    title="LMDeploy TurboMind 0.2",
    scheduler=PREFILL_FIRST,
    facts=Facts(
        reserves="the blocks of the whole prompt; nothing for the answer to come",
        head_of_line="admission stops: nobody passes the head of the queue",
        victim="the last admitted; it gives back all its blocks, goes to the front of the queue and "
        "recomputes everything",
        mixing="never share a step: whole prompts first, and answers stand still meanwhile",
    ),
    defaults=_defaults,
    default_words={
        "max_num_batched_tokens": "max_model_len, at least 131072: all prompts that find a slot are one "
        "step, and their first tokens come together",
        "profiled_tokens": "max_prefill_token_num: 8192 are computed at a time within a step",
        "free_gpu_memory_fraction": "cache_max_entry_count: 0.8",
        "max_cudagraph_capture_size": "max_num_seqs, without effect: there are no graphs",
    },
    lacks=_LACKS,
    status=APPROXIMATED,
    verification="its documentation was read, not its scheduler: vLLM V0's stands for it",
    differences=(
        "all prompts that find a slot are one step",
        "no watermark; blocks have 64 tokens; the KV cache takes 80 % of what weights and activations leave",
        "max_num_seqs (max_batch_size) is 128, and no CUDA graphs are captured",
        "kernels are launched from C++: little host time",
    ),
    differs_from="vllm-v0@0.6.6",
    chapters=(
        Chapter(
            "A step",
            (
                Rule(
                    "As in vllm-v0@0.6.6: a step is whole prompts, if any can be admitted, or all decodes.",
                    "",
                    "test_a_step_with_a_prompt_has_no_decode",
                ),
                Rule(
                    "All prompts that find a slot are one step: their first tokens come together.",
                    "",
                    "test_lmdeploy_tells_of_all_its_prompts_together",
                ),
            ),
        ),
    ),
    limits=("sequences of interactive sessions that stay in the cache, and eviction by their time stamps",),
    null_blocks=0,
)
