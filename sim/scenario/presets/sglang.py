"""SGLang: prompts in chunks before decodes, answers reserved by estimate, retraction."""

from __future__ import annotations

from typing import Any

from sim.scenario.presets.preset import APPROXIMATED, PREFILL_FIRST, Chapter, Facts, Preset, Rule, Values
from sim.scenario.presets.vllm_v1 import FRONT_END

GIB, MIB = 1024**3, 1024**2

_BY_MEMORY = ((20, 2048, 8), (60, 4096, 32), (160, 8192, 256), (1 << 20, 16384, 512))
"""Up to so many GiB: chunked_prefill_size and cuda_graph_max_bs on fewer than four GPUs."""
_GRAPHS_ON_FOUR = {32: 160, 256: 512}
_GRAPH_MIB = 2  # a sequence


def _defaults(hardware: Values, model: Values, engine: Values) -> dict[str, Any]:
    """By the GPU's memory, as the server's arguments are filled. The host's times are estimates."""
    memory_bytes = hardware.get("memory_bytes") or 80 * GIB
    gpus = engine.get("tensor_parallel_size") or 1
    chunk, graphs = next((c, g) for gib, c, g in _BY_MEMORY if memory_bytes < gib * GIB)
    chunk = engine.get("max_num_batched_tokens") or chunk
    graphs = _GRAPHS_ON_FOUR.get(graphs, graphs) if gpus >= 4 else graphs
    reserved = (512 + 1.5 * max(chunk, 2048) + gpus / 8 * 1024 + _GRAPH_MIB * graphs) * MIB
    reserved = max(reserved, 10 * GIB) if memory_bytes > 60 * GIB else reserved
    return {
        "max_num_seqs": min(2048, chunk),
        "max_num_batched_tokens": chunk,
        "gpu_memory_utilization": round(1 - reserved / memory_bytes, 3),
        "free_gpu_memory_fraction": 1.0,
        "activation_bytes": 0,
        "overhead_bytes": 0,
        "block_size": 1,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": engine.get("kv_layout") != "contiguous",
        "async_scheduling": True,
        "kv_layout": "paged",
        "reserve_cudagraph_memory": False,
        "cuda_graphs": True,
        "cudagraph_prefill": False,
        "max_cudagraph_capture_size": graphs,
        "kernel_source": "sglang",
        "host_step_s": 1.35e-3,
        "host_sequence_s": 18e-6,
        "eager_layer_s": 0.0,
        **FRONT_END,
        **_LACKS,
    }


_LACKS = {
    "batch_wait_s": None,
    "scheduling_policy": "fcfs",
    "watermark": 0.0,
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "scheduler_reserve_full_isl": True,
    "max_num_queued_reqs": None,
    "max_num_queued_tokens": None,
}

_PROMPTS = Chapter(
    "A step of prompts",
    (
        Rule(
            "If anybody can be admitted, or a prompt is half computed, the step is prompts alone, up to "
            "max_num_batched_tokens (chunked_prefill_size) tokens; whoever answers stands still. The budget "
            "cuts the last prompt, which goes on first in the next step.",
            "A new request's first token is worth more than a steady pace of the others, it is held.",
            "test_a_cut_prompt_goes_on_first_and_decodes_wait",
        ),
        Rule(
            "A request needs its prompt, its own answer (at most 4096 tokens of it) and one block more, "
            "beside a share of what each running request has still to answer. If that is not free, the scan "
            "stops.",
            "Answers mostly end before their limit.",
            "test_a_request_is_admitted_beside_a_share_of_the_answers_to_come",
        ),
        Rule(
            "Once something was short, nobody is looked at again before somebody has left.",
            "The scan would only find the same.",
            "test_a_full_batch_is_not_looked_at_again_before_somebody_leaves",
        ),
        Rule(
            "The share is 0.7 at first and falls to 0.098 over 600 steps of decodes; an idle engine starts "
            "anew.",
            "If nothing had to be taken back, less caution is needed.",
            "test_the_share_falls_with_every_step_of_decodes",
        ),
    ),
)
_DECODES = Chapter(
    "A step of decodes",
    (
        Rule(
            "Where blocks are short, requests are retracted until the others fit: those with the fewest "
            "tokens answered first, of equal ones the longest prompt. They go to the end of the queue.",
            "They have the least to lose.",
            "test_those_who_have_answered_least_are_retracted",
        ),
        Rule(
            "The share becomes what the others have answered of theirs, with twenty steps ahead.",
            "",
            "test_those_who_have_answered_least_are_retracted",
        ),
    ),
)
_OVERLAP = Chapter(
    "The overlap scheduler",
    (
        Rule(
            "Steps are formed while the one before runs: who comes, leaves or ends is seen one step later.",
            "The host's work hides behind the GPU's.",
            "test_an_asynchronous_engine_keeps_the_slot_of_who_has_ended_one_step",
        ),
    ),
)

SGLANG = Preset(
    name="sglang@0.5",
    title="SGLang 0.5",
    scheduler=PREFILL_FIRST,
    facts=Facts(
        reserves="the prompt, its own whole answer (up to 4096 tokens) when it is admitted, and a share of "
        "it, which falls from 0.7 to 0.098, while it runs",
        head_of_line="admission stops until somebody leaves: nobody passes the head of the queue",
        victim="those with the fewest tokens answered; they give back all, go to the end of the queue and "
        "recompute everything",
        mixing="never share a step: prompts first, in chunks, and answers stand still meanwhile",
    ),
    defaults=_defaults,
    default_words={
        "max_num_batched_tokens": "chunked_prefill_size: 2048 below 20 GiB of GPU memory, 4096 below 60 GiB, "
        "8192 below 160 GiB, else 16384",
        "max_num_seqs": "max_running_requests: 2048",
        "gpu_memory_utilization": "mem_fraction_static: what 512 MiB, 1.5 MiB a token of a chunk, 128 MiB a "
        "GPU of the group and 2 MiB a captured sequence leave, but above 60 GiB at most all but 10 GiB; "
        "weights and KV cache share it, activations have the rest",
        "max_cudagraph_capture_size": "cuda_graph_max_bs: 8, 32, 256 or 512 by the same memories; on four "
        "GPUs and more 160 for 32, 512 for 256",
    },
    lacks=_LACKS,
    status=APPROXIMATED,
    verification="0.5.23's scheduler was read; its schedules are derived by hand from that "
    "(tests/test_estimating.py); the host's times are estimates",
    differences=(
        "prompts go before decodes, in steps of their own",
        "admission reserves a share of the answers to come; who loses blocks has answered least, and goes to "
        "the end of the queue",
        "blocks have one token, so prefixes are found to the token",
        "activations are outside the share of memory that weights and KV cache take",
    ),
    differs_from="vllm-v1@0.32",
    chapters=(_PROMPTS, _DECODES, _OVERLAP),
    limits=(
        "the radix cache is vLLM's over blocks of one token: equal prompts in one step share what the first "
        "computes, and what a retracted request had answered can still be found; queue orders that follow "
        "the cache (lpm, dfs-weight) are not there",
        "a request's limit (max_new_tokens) is taken to be its answer's length",
        "a prompt takes all its blocks when it is admitted, not chunk by chunk",
        "overlap is not left off between two steps of prompts",
        "mixed chunks, priorities, queue limits, data-parallel attention, speculative decoding",
    ),
    null_blocks=0,
    estimates_answers=True,
)
