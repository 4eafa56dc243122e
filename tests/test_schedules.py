"""Hand-derived schedules of vLLM V1, step by step, and what each rule of the scheduler is for.

Block size 16 unless said; ``free`` counts usable blocks (the engine's null block excluded); requests
that arrive "at step k" are queued before schedule k; a prompt of P tokens that answers with M tokens
peaks at ceil((P + M - 1) / 16) blocks, since the last token's KV is never written.
"""

from __future__ import annotations

from typing import Any

import pytest

from sim.validation.conformance import drive


def steps(
    requests: dict[str, tuple[int, int, int]],
    count: int,
    *,
    blocks: int = 100,
    block_size: int = 16,
    budget: int = 256,
    seqs: int = 16,
    threshold: int = 0,
    gate: bool = True,
    aborts: dict[int, list[str]] | None = None,
    cache: bool = False,
    shared: dict[str, int] | None = None,
    priorities: dict[str, int] | None = None,
    asynchronous: bool = False,
    watermark: float = 0.0,
) -> list[dict[str, Any]]:
    """The first *count* steps with *requests* {name: (arrival step, prompt, answer)}.

    *shared* says how many of a prompt's first tokens are common to all; *priorities* stand for the policy.
    """
    case = {
        "config": {
            "usable_blocks": blocks,
            "block_size": block_size,
            "max_num_batched_tokens": budget,
            "max_num_seqs": seqs,
            "scheduler_reserve_full_isl": gate,
            "enable_prefix_caching": cache,
            "long_prefill_token_threshold": threshold,
            "policy": "priority" if priorities else "fcfs",
            "async_scheduling": asynchronous,
            "watermark": watermark,
        },
        "requests": [
            {
                "id": name,
                "arrival_step": at,
                "order": order,
                "prompt_tokens": prompt,
                "max_tokens": answer,
                "priority": (priorities or {}).get(name, 0),
                "prefix_group": 0,
                "prefix_tokens": (shared or {}).get(name, 0),
            }
            for order, (name, (at, prompt, answer)) in enumerate(requests.items())
        ],
        "aborts": {str(step): names for step, names in (aborts or {}).items()},
    }
    return list(drive(case, count))


def tokens(rows: list[dict[str, Any]]) -> list[dict[str, int]]:
    return [row["tokens"] for row in rows]


def finished(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {name: row["step"] for row in rows for name in row["finished"]}


def cached(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {name: tokens for row in rows for name, tokens in row["cached_tokens"].items()}


def scheduled(rows: list[dict[str, Any]]) -> int:
    return sum(sum(row["tokens"].values()) for row in rows)


def test_s1_a_block_is_taken_when_the_token_that_needs_it_is_computed() -> None:
    """P=32 fills two blocks in step 1; token 33 is computed in step 2 and opens the third.

    Three tokens come out of steps 1 to 3; all blocks are free after step 3.
    """
    rows = steps({"A": (1, 32, 3)}, 4, blocks=10)
    assert [row["free_blocks"] for row in rows] == [8, 7, 10, 10]
    assert tokens(rows) == [{"A": 32}, {"A": 1}, {"A": 1}, {}]
    assert finished(rows) == {"A": 3}


@pytest.mark.parametrize(
    ("prompt", "answer", "peak"), [(33, 3, 3), (32, 1, 2), (32, 2, 3), (16, 17, 2), (16, 18, 3)]
)
def test_s1_the_peak_is_all_tokens_but_the_last(prompt: int, answer: int, peak: int) -> None:
    """ceil((P + M - 1) / 16) blocks are enough to finish, and one less is not."""
    assert peak == -(-(prompt + answer - 1) // 16)
    assert finished(steps({"A": (1, prompt, answer)}, answer, blocks=peak)) == {"A": answer}
    assert finished(steps({"A": (1, prompt, answer)}, answer + 5, blocks=peak - 1)) == {}


def test_s2_decodes_come_first_and_prefill_takes_the_rest_of_the_budget() -> None:
    """Budget 64: A decodes 1 token in each of steps 2-4, so B's 150 tokens go 63 + 63 + 24."""
    rows = steps({"A": (1, 10, 20), "B": (2, 150, 2)}, 6, budget=64)
    assert tokens(rows)[1:5] == [{"A": 1, "B": 63}, {"A": 1, "B": 63}, {"A": 1, "B": 24}, {"A": 1, "B": 1}]
    assert finished(rows) == {"B": 5}


def test_s3_the_threshold_caps_each_long_prefill() -> None:
    """Two prompts of 80, budget 100, threshold 32: (32,32), (32,32), (16,16), 36 tokens wasted twice."""
    rows = steps({"A": (1, 80, 3), "B": (1, 80, 3)}, 3, budget=100, threshold=32)
    assert [list(row.values()) for row in tokens(rows)] == [[32, 32], [32, 32], [16, 16]]


def test_s3_without_a_threshold_the_first_prompt_takes_what_it_can() -> None:
    """The same prompts without a threshold: (80, 20), then A decodes while B computes its other 60."""
    rows = steps({"A": (1, 80, 3), "B": (1, 80, 3)}, 2, budget=100)
    assert [list(row.values()) for row in tokens(rows)] == [[80, 20], [1, 60]]


def test_s3_a_lone_request_is_not_capped() -> None:
    """With nobody else running or waiting there is nobody to protect: 80 tokens at once."""
    assert tokens(steps({"A": (1, 80, 3)}, 1, budget=100, threshold=32)) == [{"A": 80}]


S4 = {"A": (1, 4, 2), "B": (1, 4, 5), "C": (1, 4, 1)}


def test_s4_a_slot_is_free_when_its_sequence_has_ended() -> None:
    """Two slots: A has its second token out of step 2, so C runs in step 3, and B to its fifth in step 5."""
    rows = steps(S4, 6, seqs=2)
    assert tokens(rows) == [{"A": 4, "B": 4}, {"A": 1, "B": 1}, {"B": 1, "C": 4}, {"B": 1}, {"B": 1}, {}]
    assert finished(rows) == {"A": 2, "B": 5, "C": 3}


def test_s4_an_asynchronous_engine_sees_it_one_step_later() -> None:
    """Step 3 is formed while A's last token is in flight: nothing of A is in it, but its slot is taken.

    So C waits for step 4. Outputs are applied after the next schedule: by this clock each ends one step after
    the one that made its last token.
    """
    rows = steps(S4, 7, seqs=2, asynchronous=True)
    assert tokens(rows) == [{"A": 4, "B": 4}, {"A": 1, "B": 1}, {"B": 1}, {"B": 1, "C": 4}, {"B": 1}, {}, {}]
    assert finished(rows) == {"A": 3, "B": 6, "C": 5}


def test_s5_the_last_admitted_is_preempted_and_recomputed() -> None:
    """Ten blocks, A and B 64 + 64: both hold 80 tokens after step 17, and step 18 needs two more blocks.

    B, the tail, gives up its 5 and needs ceil(81/16) = 6 to return: it waits for A (ends at 64), then
    prefills 81 tokens in step 65 and ends at step 111. 127 + 127 + 80 recomputed = 334 tokens.
    """
    rows = steps({"A": (1, 64, 64), "B": (1, 64, 64)}, 112, blocks=10)
    assert [row["free_blocks"] for row in rows[:2]] == [2, 0]
    assert rows[17]["preempted"] == ["B"]
    assert rows[17]["tokens"] == {"A": 1}
    assert rows[17]["free_blocks"] == 4
    assert [row["step"] for row in rows if row["preempted"]] == [18]
    assert rows[64]["tokens"] == {"B": 81}
    assert finished(rows) == {"A": 64, "B": 111}
    assert scheduled(rows) == 334


def test_s5_what_is_left_of_its_blocks_in_the_prefix_cache_is_not_recomputed() -> None:
    """The same steps with the cache on, but B recomputes 49 of its 81 tokens when it is back in step 65.

    B gives back five full blocks in step 18, tail first. A takes one of them at once, since nothing else is
    free, and two more in steps 34 and 50: blocks 5, 4 and 3. Two blocks, 32 tokens, are left of B.
    """
    plain = steps({"A": (1, 64, 64), "B": (1, 64, 64)}, 112, blocks=10)
    rows = steps({"A": (1, 64, 64), "B": (1, 64, 64)}, 112, blocks=10, cache=True)
    assert rows[64]["tokens"] == {"B": 49}
    assert plain[64]["tokens"] == {"B": 81}
    assert [row for row in rows if row["step"] != 65] == [row for row in plain if row["step"] != 65]
    assert scheduled(rows) == 334 - 32


def test_s6_a_sequence_can_be_its_own_victim() -> None:
    """Eight blocks: in step 2 B needs a fifth block, none is free, and B is the tail: it preempts itself."""
    rows = steps({"A": (1, 60, 10), "B": (1, 64, 3)}, 12, blocks=8)
    assert rows[1]["preempted"] == ["B"]
    assert rows[1]["free_blocks"] == 4
    assert rows[1]["tokens"] == {"A": 1}
    assert rows[10]["tokens"] == {"B": 65}
    assert finished(rows) == {"A": 10, "B": 12}


def test_s7_the_gate_admits_only_what_fits_whole() -> None:
    """B's 112 tokens need 7 blocks beside A's 4 or more of 10: it waits for A and is never preempted."""
    rows = steps({"A": (1, 64, 40), "B": (3, 112, 2)}, 46, blocks=10, budget=32)
    assert sum(len(row["preempted"]) for row in rows) == 0
    assert [row["tokens"]["B"] for row in rows[41:45]] == [32, 32, 32, 16]
    assert finished(rows)["B"] == 46


def test_s7_without_the_gate_it_is_admitted_and_preempted_again_and_again() -> None:
    """Gate off: B runs 31 + 31 tokens in steps 3 and 4, loses them in step 5, and so on 14 times.

    Its first token still comes in step 45: all of that compute was waste.
    """
    rows = steps({"A": (1, 64, 40), "B": (3, 112, 2)}, 46, blocks=10, budget=32, gate=False)
    assert [row["tokens"].get("B") for row in rows[2:4]] == [31, 31]
    assert [row["step"] for row in rows if row["preempted"]][:2] == [5, 8]
    assert sum(len(row["preempted"]) for row in rows) == 14
    assert finished(rows)["B"] == 46


def test_s7_without_the_gate_the_prefix_cache_saves_most_of_the_waste() -> None:
    """The same with the cache on: two preemptions instead of 14, first token in step 43, not 45.

    B has 62 tokens after step 4, three full blocks of its four. Step 5 needs two blocks more, one is free: it
    loses them, finds 48 tokens again in step 6 and goes on to 79, in five blocks. None is left for step 7;
    from then on four full blocks and two new ones are one more than the five beside A's. A takes a blank one
    and B's fourth as it grows, and ends in step 41. B finds three: 64 of its 112 tokens, 32 + 32, are left.
    """
    rows = steps({"A": (1, 64, 40), "B": (3, 112, 2)}, 46, blocks=10, budget=32, gate=False, cache=True)
    assert [row["tokens"].get("B") for row in rows[2:8]] == [31, 31, None, 31, None, None]
    assert [row["tokens"].get("B") for row in rows[40:44]] == [None, 32, 32, 1]
    assert [row["step"] for row in rows if row["preempted"]] == [5, 7]
    assert finished(rows) == {"A": 41, "B": 44}


def test_s8_prefixes_are_found_in_whole_blocks_and_never_a_whole_prompt() -> None:
    """A's 64 tokens are in the cache after step 1, in four blocks.

    B, the same prompt: at most 63 tokens may be found, so three blocks, 48 tokens, and 16 are computed.
    C, one token more: all four blocks, and that token is computed. D shares 50: three blocks, 48 tokens.
    """
    requests = {"A": (1, 64, 1), "B": (2, 64, 1), "C": (3, 65, 1), "D": (4, 70, 1)}
    rows = steps(requests, 4, cache=True, shared={"A": 64, "B": 64, "C": 64, "D": 50})
    assert cached(rows) == {"B": 48, "C": 64, "D": 48}
    assert tokens(rows) == [{"A": 64}, {"B": 16}, {"C": 1}, {"D": 22}]


def test_s8_equal_prompts_share_in_the_step_that_computes_them() -> None:
    """Blocks can be found as soon as they are scheduled: 64 + 16 tokens, five blocks in all, not eight."""
    rows = steps({"A": (1, 64, 2), "B": (1, 64, 2)}, 1, blocks=10, cache=True, shared={"A": 64, "B": 64})
    assert tokens(rows) == [{"A": 64, "B": 16}]
    assert cached(rows) == {"B": 48}
    assert rows[0]["free_blocks"] == 5


def test_s9_blank_blocks_go_first_then_the_tail_of_what_was_used_longest_ago() -> None:
    """Six blocks of four. A's ten tokens take blocks 1 to 3; 1 and 2 are full. Then 3 4 5 6 2 1 are free.

    B's 17 tokens take five, 3 4 5 6 2, and so A's second. C shares A's first eight tokens: it finds four.
    """
    requests = {"A": (1, 10, 1), "B": (2, 17, 1), "C": (3, 9, 1)}
    rows = steps(requests, 3, blocks=6, block_size=4, cache=True, shared={"A": 8, "C": 8})
    assert cached(rows) == {"C": 4}
    assert tokens(rows) == [{"A": 10}, {"B": 17}, {"C": 5}]
    undisturbed = steps(
        {"A": (1, 10, 1), "C": (3, 9, 1)}, 3, block_size=4, cache=True, shared={"A": 8, "C": 8}
    )
    assert cached(undisturbed) == {"C": 8}


def test_s10_an_abort_frees_its_blocks_at_the_end_of_the_step() -> None:
    """A is aborted during step 5: its token is lost, 8 blocks are free after the step, B runs in step 6."""
    rows = steps({"A": (1, 64, 100), "B": (2, 80, 2)}, 7, blocks=8, aborts={5: ["A"]})
    assert rows[4]["tokens"] == {"A": 1}
    assert rows[4]["free_blocks"] == 8
    assert rows[5]["tokens"] == {"B": 80}
    assert finished(rows) == {"B": 7}


def test_s10_in_an_asynchronous_engine_an_abort_overtakes_the_token_in_flight() -> None:
    """A's last token is made in step 2, and seen after schedule 3: aborted in step 3, it never ends.

    Its slot and its block are free after step 3, as they would have been.
    """
    rows = steps(S4, 7, seqs=2, asynchronous=True, aborts={3: ["A"]})
    kept = steps(S4, 7, seqs=2, asynchronous=True)
    assert finished(rows) == {"B": 6, "C": 5}
    assert [row["free_blocks"] for row in rows] == [row["free_blocks"] for row in kept]


def test_s11_first_come_first_served_the_last_admitted_is_the_victim() -> None:
    """Eight blocks. A (64 + 40) has five from step 2 on, B (48 + 40, from step 2) has three: none is free.

    In step 3 B needs a fourth. It is the last admitted: it preempts itself, and three blocks are free.
    """
    rows = steps({"A": (1, 64, 40), "B": (2, 48, 40)}, 3, blocks=8)
    assert rows[1]["free_blocks"] == 0
    assert (rows[2]["tokens"], rows[2]["preempted"], rows[2]["free_blocks"]) == ({"A": 1}, ["B"], 3)


def test_s11_by_priority_it_is_the_least_urgent_though_it_has_had_its_turn() -> None:
    """The same, A of priority 5 and B of 0: A, scheduled in this step already, is rolled back for B.

    A's five blocks are free, and B takes its fourth: four are left.
    """
    rows = steps({"A": (1, 64, 40), "B": (2, 48, 40)}, 3, blocks=8, priorities={"A": 5, "B": 0})
    assert rows[1]["free_blocks"] == 0
    assert (rows[2]["tokens"], rows[2]["preempted"], rows[2]["free_blocks"]) == ({"B": 1}, ["A"], 4)


def test_s12_nobody_is_preempted_for_a_slot() -> None:
    """Two slots, A and B of priority 5 with four tokens each; H, of priority 0, comes in step 2.

    It runs in step 5, when they have ended; only a lack of blocks preempts.
    """
    requests = {"A": (1, 16, 4), "B": (1, 16, 4), "H": (2, 16, 1)}
    rows = steps(requests, 5, seqs=2, priorities={"A": 5, "B": 5, "H": 0})
    assert finished(rows) == {"A": 4, "B": 4, "H": 5}
    assert tokens(rows)[4] == {"H": 16}
    assert not any(row["preempted"] for row in rows)


def test_s12_the_queue_itself_is_in_order_of_priority() -> None:
    """One slot, A in it until step 2; L (1) came before H (0) and is served after it."""
    requests = {"A": (1, 16, 2), "L": (1, 16, 1), "H": (2, 16, 1)}
    assert finished(steps(requests, 4, seqs=1, priorities={"A": 0, "L": 1, "H": 0})) == {
        "A": 2,
        "H": 3,
        "L": 4,
    }
    assert finished(steps(requests, 4, seqs=1)) == {"A": 2, "L": 3, "H": 4}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("priorities", [None, {"A": 1}])
@pytest.mark.parametrize("cache", [False, True])
def test_s13_an_impossible_request_spins_without_end_in_the_bare_scheduler(
    cache: bool, priorities: dict[str, int] | None, asynchronous: bool
) -> None:
    """Four blocks hold 64 tokens; the 65th preempts its own sequence, which never fits again.

    Its own blocks in the cache are no help: the four that it finds and one more are five.
    """
    rows = steps(
        {"A": (1, 60, 10)}, 20, blocks=4, cache=cache, priorities=priorities, asynchronous=asynchronous
    )
    assert [len(row["tokens"]) for row in rows[:5]] == [1] * 5
    assert rows[5]["preempted"] == ["A"]
    assert tokens(rows)[5:] == [{}] * 15
    assert [row["free_blocks"] for row in rows[5:]] == [4] * 15


def test_s14_nobody_passes_the_head_of_the_queue() -> None:
    """C would fit from step 2 on, but B is ahead and does not: both run when A has gone, at step 21."""
    rows = steps({"A": (1, 64, 20), "B": (2, 112, 1), "C": (2, 8, 1)}, 21, blocks=10)
    assert finished(rows) == {"A": 20, "B": 21, "C": 21}
    assert tokens(rows)[20] == {"B": 112, "C": 8}


def test_s15_a_budget_below_the_decode_set_serves_the_list_from_the_front() -> None:
    """Budget 4, four sequences 4 + 4: D starts when A has gone; ends at 4, 6, 7 and 9."""
    rows = steps(dict.fromkeys("ABCD", (1, 4, 4)), 9, budget=4, seqs=4)
    assert tokens(rows) == [
        {"A": 4},
        {"A": 1, "B": 3},
        {"A": 1, "B": 1, "C": 2},
        {"A": 1, "B": 1, "C": 2},
        {"B": 1, "C": 1, "D": 2},
        {"B": 1, "C": 1, "D": 2},
        {"C": 1, "D": 1},
        {"D": 1},
        {"D": 1},
    ]
    assert finished(rows) == {"A": 4, "B": 6, "C": 7, "D": 9}


def test_a_watermark_stays_free_of_new_sequences_while_others_run() -> None:
    """Ten blocks and the engine's own: a fifth of 11 is 2. A has 4 from step 1 on and 5 until it ends.

    B's 64 tokens would leave 10 - 4 - 4 = 2 blocks in step 1, which is enough; C's 16 would leave one. C
    runs when A and B have gone. Alone, a sequence may have all ten.
    """
    requests = {"A": (1, 64, 2), "B": (1, 64, 2), "C": (1, 16, 1)}
    rows = steps(requests, 3, blocks=10, watermark=0.2)
    assert tokens(rows) == [{"A": 64, "B": 64}, {"A": 1, "B": 1}, {"C": 16}]
    assert tokens(steps(requests, 1, blocks=10)) == [{"A": 64, "B": 64, "C": 16}]
    assert tokens(steps({"A": (1, 160, 1)}, 1, blocks=10, watermark=0.2)) == [{"A": 160}]
