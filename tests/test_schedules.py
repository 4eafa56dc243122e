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
    budget: int = 256,
    seqs: int = 16,
    threshold: int = 0,
    gate: bool = True,
    aborts: dict[int, list[str]] | None = None,
) -> list[dict[str, Any]]:
    """The first *count* steps with *requests* {name: (arrival step, prompt, answer)}."""
    case = {
        "config": {
            "usable_blocks": blocks,
            "block_size": 16,
            "max_num_batched_tokens": budget,
            "max_num_seqs": seqs,
            "scheduler_reserve_full_isl": gate,
            "long_prefill_token_threshold": threshold,
        },
        "requests": [
            {"id": name, "arrival_step": at, "order": order, "prompt_tokens": prompt, "max_tokens": answer}
            for order, (name, (at, prompt, answer)) in enumerate(requests.items())
        ],
        "aborts": {str(step): names for step, names in (aborts or {}).items()},
    }
    return list(drive(case, count))


def tokens(rows: list[dict[str, Any]]) -> list[dict[str, int]]:
    return [row["tokens"] for row in rows]


def finished(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {name: row["step"] for row in rows for name in row["finished"]}


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


def test_s10_an_abort_frees_its_blocks_at_the_end_of_the_step() -> None:
    """A is aborted during step 5: its token is lost, 8 blocks are free after the step, B runs in step 6."""
    rows = steps({"A": (1, 64, 100), "B": (2, 80, 2)}, 7, blocks=8, aborts={5: ["A"]})
    assert rows[4]["tokens"] == {"A": 1}
    assert rows[4]["free_blocks"] == 8
    assert rows[5]["tokens"] == {"B": 80}
    assert finished(rows) == {"B": 7}


def test_s13_an_impossible_request_spins_without_end_in_the_bare_scheduler() -> None:
    """Four blocks hold 64 tokens; the 65th preempts its own sequence, which never fits again."""
    rows = steps({"A": (1, 60, 10)}, 20, blocks=4)
    assert [len(row["tokens"]) for row in rows[:5]] == [1] * 5
    assert rows[5]["preempted"] == ["A"]
    assert tokens(rows)[5:] == [{}] * 15


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
