"""vLLM's V0 engine without chunked prefill: steps of whole prompts go before steps of decodes."""

from __future__ import annotations

from typing import Any

from sim.scenario.presets.preset import PREFILL_FIRST, READ, Chapter, Facts, Preset, Rule, Values
from sim.scenario.presets.vllm_v1 import FRONT_END


def _defaults(hardware: Values, model: Values, engine: Values) -> dict[str, Any]:
    """The same on every GPU. A step of the host is estimated: 5 to 13 ms were reported of V0."""
    sequences = engine.get("max_num_seqs") or 256
    length = engine.get("max_model_len") or model.get("max_position_embeddings") or 0
    return {
        "max_num_seqs": sequences,
        "max_num_batched_tokens": max(length, 2048),
        "profiled_tokens": engine.get("max_num_batched_tokens") or _profiled_tokens(length),
        "reserve_cudagraph_memory": False,
        "free_gpu_memory_fraction": 1.0,
        "gpu_memory_utilization": 0.90,
        "block_size": 16,
        "watermark": 0.01,
        "kv_layout": "paged",
        "cuda_graphs": True,
        "cudagraph_prefill": False,
        "kernel_source": "vllm",
        "max_cudagraph_capture_size": sequences,
        "host_step_s": 5e-3,
        "host_sequence_s": 4.4e-6,
        "eager_layer_s": 0.0,
        **FRONT_END,
        **_LACKS,
    }


def _profiled_tokens(length: int) -> int:
    return max(length, 2048) if length <= _LONGEST_WHOLE else 2048


_LONGEST_WHOLE = 32768
"""Above this max_model_len the engine itself turns chunked prefill on, with a budget of 2048 tokens."""

_LACKS = {
    "enable_chunked_prefill": False,
    "batch_wait_s": None,
    "enable_prefix_caching": False,
    "scheduling_policy": "fcfs",
    "async_scheduling": False,
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
            "The queue comes first. From its head, whole prompts are taken while they fit together in "
            "max_num_batched_tokens, there are fewer than max_num_seqs running, and the blocks do.",
            "A prompt that waits costs a user more than a decode that waits, it was thought; see B-12 in "
            "docs/engine-claims.md for what that costs.",
            "test_whole_prompts_are_taken_while_they_fit_in_the_budget",
        ),
        Rule(
            "Blocks: the prompt's own, and a watermark of 1 % of all that stays free. If even an empty "
            "engine could not spare them, the request is dropped; if they are not free now, admission "
            "stops there.",
            "The watermark is for the answers of those that run: admitting into the last block would "
            "preempt at the next step.",
            "test_the_block_check_says_never_ok_or_later",
        ),
        Rule(
            "If anybody was admitted, the step is these prompts alone. Every running answer stands still.",
            "One kernel did prompts and another did decodes; a step was one or the other.",
            "test_a_step_with_a_prompt_has_no_decode",
        ),
        Rule(
            "Otherwise everybody running decodes one token, in order of admission. Each in its turn must "
            "find one free block, whether or not it takes one in this step; while there is none, the last "
            "admitted is preempted, and at last itself.",
            "The check is for the worst case, a token that opens a block.",
            "test_whoever_finds_no_free_block_preempts_the_last_admitted",
        ),
        Rule(
            "A preempted request gives back all its blocks and goes to the front of the queue. When it is "
            "admitted again, it computes its prompt and its answer so far, whole, in a step of prompts.",
            "Recompute is cheaper than moving the blocks out, and the request keeps its turn.",
            "test_a_preempted_answer_is_recomputed_whole_from_the_front_of_the_queue",
        ),
        Rule(
            "Aborts are applied when the step ends, before its outputs; then those with their last token "
            "leave.",
            "",
            "test_an_abort_in_a_step_of_prompts_takes_no_token_from_a_decode",
        ),
    ),
)

VLLM_V0 = Preset(
    name="vllm-v0@0.6.6",
    title="vLLM V0, 0.6.6",
    scheduler=PREFILL_FIRST,
    facts=Facts(
        reserves="the blocks of the whole prompt (after a preemption also of the answer so far) and a "
        "watermark of 1 % of all blocks; nothing for the answer to come",
        head_of_line="admission stops; only a request that an empty engine could not hold is dropped",
        victim="the last admitted; it gives back all its blocks, goes to the front of the queue and "
        "recomputes everything",
        mixing="never share a step: whole prompts first, and answers stand still meanwhile",
    ),
    defaults=_defaults,
    default_words={
        "max_num_batched_tokens": "max_model_len, at least 2048: a prompt is one step",
        "max_cudagraph_capture_size": "max_num_seqs",
        "host_step_s": "5 ms, the low end of what was reported of V0",
    },
    lacks=_LACKS,
    status=READ,
    verification="0.6.6's scheduler was read, its schedules are derived by hand "
    "(tests/test_prefill_first.py); the host's times are estimates",
    differences=(
        "prompts are not chunked and go before decodes, in steps of their own",
        "a watermark of 1 % of the blocks, and all blocks are usable",
        "a decode must find a free block even if it takes none",
        "max_num_batched_tokens is max_model_len; gpu_memory_utilization is 0.90",
        "no asynchronous scheduling: the host's time adds to the GPU's",
    ),
    differs_from="vllm-v1@0.32",
    chapters=(_STEP,),
    limits=(
        "chunked prefill, which the engine itself turns on where max_model_len is above 32,768 (its smaller "
        "peak of activations is in the memory ledger)",
        "its prefix caching (off by default), priorities, and scheduler_delay_factor (0 by default)",
        "swapping, which only several answers to one prompt used: each answer is a request of its own here",
        "a request that fits in the pool, but not beside the watermark, is refused on arrival: the engine "
        "would serve it unless it is preempted",
    ),
    null_blocks=0,
)
