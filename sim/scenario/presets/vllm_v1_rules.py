"""What vLLM V1's scheduler does, in plain words, for those who know the engine."""

from __future__ import annotations

from sim.scenario.presets.preset import Chapter, Rule

_RUNNING = Chapter(
    "A step, first: the requests that run",
    (
        Rule(
            "A step has a budget of max_num_batched_tokens tokens. The list of running requests is gone "
            "through in order of admission until the budget is used up; whoever comes later gets nothing.",
            "One budget bounds the time of a step, whatever it is made of.",
            "test_s15_a_budget_below_the_decode_set_serves_the_list_from_the_front",
        ),
        Rule(
            "A request asks for all its tokens that are not computed: what is left of its prompt, or the one "
            "token that it sampled last. It gets them up to what is left of the budget.",
            "So decodes and prompts in chunks need no different treatment.",
            "test_s2_decodes_come_first_and_prefill_takes_the_rest_of_the_budget",
        ),
        Rule(
            "With a long_prefill_token_threshold, nobody gets more than that in a step, unless there is only "
            "one request, running or waiting, when the step begins. Adaptive, the threshold is at least "
            "max_num_batched_tokens over the number of requests that run or wait.",
            "A long prompt would else take the whole budget from others, and there must be others for that.",
            "test_s3_the_threshold_caps_each_long_prefill",
        ),
        Rule(
            "The tokens need ceil(tokens / block_size) blocks in all, the request's own counted. Those that "
            "it lacks are taken from the front of the free list.",
            "The last token of an answer is never computed, so a request ends with "
            "ceil((prompt + answer - 1) / block_size) blocks.",
            "test_s1_a_block_is_taken_when_the_token_that_needs_it_is_computed",
        ),
        Rule(
            "While there are too few free blocks, a victim is preempted: under fcfs the last of the list, "
            "under priority the one with the largest priority, among equals the last to arrive. If the "
            "victim is the request itself, it gets nothing.",
            "The last admitted has the least to lose and would be the last to be served anyway.",
            "test_s5_the_last_admitted_is_preempted_and_recomputed",
        ),
        Rule(
            "A victim that was given tokens in this very step (possible under priority alone) loses them, "
            "and the budget gets them back.",
            "It cannot be computed without its blocks.",
            "test_s11_by_priority_it_is_the_least_urgent_though_it_has_had_its_turn",
        ),
        Rule(
            "A victim gives back all its blocks and keeps the tokens that it has sampled. It goes to the "
            "front of the queue; under priority to its place by priority and arrival, without advantage.",
            "Recomputing is cheaper than moving blocks out; what is still cached is not even recomputed.",
            "test_s6_a_sequence_can_be_its_own_victim",
        ),
    ),
)

_WAITING = Chapter(
    "A step, second: the queue",
    (
        Rule(
            "If anybody was preempted in this step, nobody is admitted.",
            "Blocks are short: a newcomer would be the next victim.",
            "test_s5_the_last_admitted_is_preempted_and_recomputed",
        ),
        Rule(
            "Else the head of the queue is looked at while budget is left and fewer than max_num_seqs run. "
            "What does not fit stops the scan: nobody passes the head.",
            "Passing would starve long prompts.",
            "test_s14_nobody_passes_the_head_of_the_queue",
        ),
        Rule(
            "The blocks of its prompt that are cached are found first; it asks for the rest of its tokens, "
            "prompt and sampled ones alike, up to threshold and budget.",
            "",
            "test_s8_prefixes_are_found_in_whole_blocks_and_never_a_whole_prompt",
        ),
        Rule(
            "With scheduler_reserve_full_isl, all its tokens must find blocks now, though only the chunk's "
            "are taken: ceil(tokens / block_size), less those that are cached and held by others. Without "
            "it, the chunk's are enough.",
            "A prompt whose later chunks find no blocks is preempted over and over (B-08 in "
            "docs/engine-claims.md). Nothing is reserved for the answer.",
            "test_s7_the_gate_admits_only_what_fits_whole",
        ),
        Rule(
            "A watermark, int(watermark * blocks), must stay free beyond that while others run. The engine's "
            "own null block counts among the blocks.",
            "Those that run will need blocks in the next steps.",
            "test_a_watermark_stays_free_of_new_sequences_while_others_run",
        ),
        Rule(
            "Cached blocks that nobody holds count as free and leave the free list when they are hit; they "
            "are taken before new ones.",
            "So a hit is never evicted by its own request.",
            "test_s8_equal_prompts_share_in_the_step_that_computes_them",
        ),
        Rule(
            "Waiting requests never preempt, however urgent they are.",
            "Preemption answers to a shortage of blocks among those that run, not to a full batch.",
            "test_s12_nobody_is_preempted_for_a_slot",
        ),
        Rule(
            "Under priority the queue is in order of priority (smaller first), then of arrival.",
            "",
            "test_s12_the_queue_itself_is_in_order_of_priority",
        ),
    ),
)

_END = Chapter(
    "The end of a step",
    (
        Rule(
            "Aborts come first: the blocks are free, and the token of the step in progress is lost.",
            "The client has gone.",
            "test_s10_an_abort_frees_its_blocks_at_the_end_of_the_step",
        ),
        Rule(
            "Every request whose known tokens are all computed now has one more. With its last one, it "
            "leaves: slot and blocks are free for the next schedule.",
            "",
            "test_s4_a_slot_is_free_when_its_sequence_has_ended",
        ),
    ),
)

_ASYNCHRONOUS = Chapter(
    "Asynchronous scheduling",
    (
        Rule(
            "A step is formed while the one before it runs, so without its outputs. A request that decodes "
            "asks for one token all the same.",
            "The host's work hides behind the GPU's: an iteration takes the longer of the two, not the sum.",
        ),
        Rule(
            "A request whose last token is in flight is known to end and gets nothing, but keeps slot and "
            "blocks through that schedule. Its place is free one step later than without.",
            "Its output is not there yet.",
            "test_s4_an_asynchronous_engine_sees_it_one_step_later",
        ),
        Rule(
            "A victim with a token in flight still gets that token, and may even end with it while it waits.",
            "The GPU works in order: the step in flight reads the blocks before anybody writes to them.",
        ),
        Rule(
            "An abort is applied after the schedule that is formed at the time, and overtakes the token in "
            "flight: both are lost.",
            "",
            "test_s10_in_an_asynchronous_engine_an_abort_overtakes_the_token_in_flight",
        ),
        Rule(
            "Whoever arrives while a step runs joins the step after the next.",
            "The next one is formed already.",
        ),
        Rule(
            "A block that a decode fills can be found one step later.",
            "Its last token is in flight.",
            "test_what_a_sequence_answered_is_found_while_its_last_token_is_in_flight",
        ),
    ),
)

_PREFIX_CACHE = Chapter(
    "The prefix cache",
    (
        Rule(
            "A block is found by its own tokens and all tokens before it. Only full blocks are.",
            "Keys and values depend on everything before them.",
            "test_s8_prefixes_are_found_in_whole_blocks_and_never_a_whole_prompt",
        ),
        Rule(
            "A look-up stops at the first block that is not there, and at all tokens but one, rounded down "
            "to blocks: a prompt that is cached to its end recomputes its last block.",
            "The last token must be computed to sample the next.",
            "test_the_last_token_is_always_computed",
        ),
        Rule(
            "A look-up that admits nobody leaves no trace.",
            "The head of the queue is looked up in every step.",
            "test_a_look_leaves_no_trace",
        ),
        Rule(
            "A full block can be found from the schedule of the step that computes it on: two equal prompts "
            "admitted in one step share all but the last block.",
            "The step computes them in order.",
            "test_equal_prompts_in_one_step_share_all_but_the_last_block",
        ),
        Rule(
            "A request's blocks are given back from its tail to its head. A block that others hold stays. "
            "One that was never full goes to the front of the free list, a full one to its end.",
            "Blocks are taken from the front: first those that nobody can find, then those given back "
            "longest ago, of one request its tail before its head.",
            "test_s9_blank_blocks_go_first_then_the_tail_of_what_was_used_longest_ago",
        ),
        Rule(
            "A free block keeps its content until it is taken. Free and cached is free: the gauge of KV "
            "usage falls to zero after the last request, and the cache is alive.",
            "",
            "test_who_used_it_last_keeps_it_longest",
        ),
        Rule(
            "Equal blocks computed twice stay two; the older is found.",
            "Block tables never change.",
            "test_the_older_of_two_copies_is_found",
        ),
        Rule(
            "What a victim is given in the step that takes it away again stays findable.",
            "Blocks are named when they are given out, before they are computed.",
        ),
    ),
)

CHAPTERS = (_RUNNING, _WAITING, _END, _ASYNCHRONOUS, _PREFIX_CACHE)
SELF_PREEMPTION = {
    "0.32": Chapter(
        "This version",
        (
            Rule(
                "A request that preempts itself ends the step for all running requests behind it.",
                "Under fcfs it is the last anyway; under priority, others lose a step.",
                "test_a_request_that_preempts_itself_ends_the_step_in_one_version_only",
            ),
        ),
    ),
    "0.33": Chapter(
        "This version",
        (
            Rule(
                "A request that preempts itself gets nothing; the running requests behind it are served.",
                "",
                "test_a_request_that_preempts_itself_ends_the_step_in_one_version_only",
            ),
        ),
    ),
}
