"""Static batching: groups of requests that start and end together."""

from __future__ import annotations

from typing import Any

from sim.scenario.presets.preset import GROUPS, Chapter, Facts, Preset, Rule, Values
from sim.scenario.presets.vllm_v1 import vllm_v1_defaults


def _defaults(hardware: Values, model: Values, engine: Values) -> dict[str, Any]:
    """Groups of max_num_seqs (8), as a plain generate loop serves them; the rest as in vLLM V1.

    There is no token budget: a group's padded prompts are one step.
    """
    defaults = vllm_v1_defaults(hardware, model, {"max_num_seqs": 8, **engine})
    return {**defaults, "max_num_seqs": 8, "batch_wait_s": 1.0, **_LAYOUT, **_LACKS}


_LAYOUT = {"kv_layout": "contiguous", "cudagraph_prefill": False}
_LACKS = {
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

_STEP = Chapter(
    "A group",
    (
        Rule(
            "A group starts when max_num_seqs requests wait, or when the first of fewer has waited "
            "batch_wait_s. It is as large as memory lets it be, with one reservation of max_model_len each.",
            "A plain generate loop has nowhere to put a request that comes later.",
            "test_a_full_group_starts_at_once",
        ),
        Rule(
            "Its first step computes all prompts, each padded to the longest.",
            "The batch is one rectangular array.",
        ),
        Rule(
            "Then every slot decodes until the longest answer ends; those that ended go on as padding.",
            "Nobody can take a slot over, since all are at the same position.",
        ),
    ),
)

STATIC = Preset(
    name="static",
    title="static batching",
    scheduler=GROUPS,
    facts=Facts(
        reserves="max_model_len for every slot of the group",
        head_of_line="everybody waits until the group in progress has ended",
        victim="nobody: a group never needs more than it has",
        mixing="never share a step: a group's prompts are its first step",
    ),
    defaults=_defaults,
    default_words={
        "max_num_batched_tokens": "as in vllm-v1@0.32, and without effect on the schedule: a group's prompts "
        "are one step",
        "max_cudagraph_capture_size": "as in vllm-v1@0.32",
    },
    lacks=_LACKS,
    status="of no engine",
    verification="its timelines are derived by hand (tests/test_static.py)",
    chapters=(_STEP,),
)
