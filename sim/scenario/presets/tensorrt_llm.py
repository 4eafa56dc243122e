"""TensorRT-LLM: prompts and decodes in one step, and nobody admitted whose whole answer might not fit."""

from __future__ import annotations

from typing import Any

from sim.scenario.presets.preset import APPROXIMATED, CONTINUOUS, Chapter, Facts, Preset, Rule, Values
from sim.scenario.presets.vllm_v1 import FRONT_END


def _defaults(hardware: Values, model: Values, engine: Values) -> dict[str, Any]:
    """The same on every GPU. The host's times are estimates for the PyTorch backend."""
    sequences = engine.get("max_num_seqs") or min(2048, engine.get("max_num_batched_tokens") or 8192)
    return {
        "max_num_seqs": sequences,
        "max_num_batched_tokens": 8192,
        "free_gpu_memory_fraction": 0.9,
        "block_size": 32,
        "enable_prefix_caching": engine.get("kv_layout") != "contiguous",
        "enable_chunked_prefill": False,
        "async_scheduling": True,
        "kv_layout": "paged",
        "reserve_cudagraph_memory": True,
        "cuda_graphs": True,
        "cudagraph_prefill": False,
        "max_cudagraph_capture_size": sequences,
        "kernel_source": "trtllm",
        "host_step_s": 0.35e-3,
        "host_sequence_s": 7e-6,
        "eager_layer_s": 0.0,
        **FRONT_END,
        **_LACKS,
    }


_LACKS = {
    "gpu_memory_utilization": 1.0,
    "batch_wait_s": None,
    "scheduling_policy": "fcfs",
    "watermark": 0.0,
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "scheduler_reserve_full_isl": True,
    "max_num_queued_reqs": None,
    "max_num_queued_tokens": None,
}

_STEP = Chapter(
    "A step",
    (
        Rule(
            "Everybody who runs decodes one token. Then the head of the queue is looked at, while fewer than "
            "max_num_seqs run and max_num_batched_tokens allows.",
            "One budget bounds the time of a step.",
            "test_a_prompt_waits_for_a_step_that_has_room_for_all_of_it",
        ),
        Rule(
            "A request is admitted if ceil((prompt + answer) / block_size) blocks are promised to nobody. "
            "Nobody passes a head that does not fit.",
            "So nobody ever has to be preempted (guaranteed no evict); what is promised to short answers, or "
            "to long limits, stands empty.",
            "test_whole_answers_are_promised_and_nobody_is_preempted",
        ),
        Rule(
            "Without enable_chunked_prefill a prompt is computed in one step: it waits for one that has room "
            "for all of it, and one longer than max_num_batched_tokens is refused.",
            "",
            "test_a_prompt_waits_for_a_step_that_has_room_for_all_of_it",
        ),
        Rule(
            "Steps are formed while the one before runs, as in vllm-v1@0.32.",
            "The host's work hides behind the GPU's.",
        ),
    ),
)

TENSORRT_LLM = Preset(
    name="tensorrt-llm@1.0",
    title="TensorRT-LLM 1.0",
    scheduler=CONTINUOUS,
    facts=Facts(
        reserves="the blocks of prompt and whole answer, as long as the request's limit permits: here its "
        "own length, or what admission.reserve says",
        head_of_line="admission stops: nobody passes the head of the queue",
        victim="nobody: blocks never run short",
        mixing="share a step: decodes first, then whole prompts (or chunks) while the token budget lasts",
    ),
    defaults=_defaults,
    default_words={"max_cudagraph_capture_size": "max_num_seqs"},
    lacks=_LACKS,
    status=APPROXIMATED,
    verification="its capacity scheduler (guaranteed no evict) and its defaults were read, and are obeyed by "
    "vLLM's frame; its schedules were not recorded",
    differences=(
        "admission sets the whole answer aside, and nobody is preempted",
        "prompts are not chunked unless enable_chunked_prefill says so",
        "the KV cache takes 90 % of the memory that is left beside weights and activations",
        "max_num_batched_tokens is 8192 and max_num_seqs 2048 on every GPU; blocks have 32 tokens",
    ),
    differs_from="vllm-v1@0.32",
    chapters=(_STEP,),
    limits=(
        "the other policies (max utilization, static batch), and batch_wait_timeout",
        "chunks are not rounded to chunk_unit_size",
        "a request is not held back to reuse what another is computing in this step, and blocks are reused "
        "whole only",
        "a request's limit (max_tokens) is taken to be its answer's length: larger limits admit fewer; say "
        "so with admission.reserve and admission.max_output_tokens",
        "speculative decoding and attention data parallelism",
    ),
    null_blocks=0,
    reserves_answer=True,
)
