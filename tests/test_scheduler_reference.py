"""The scheduler, which counts, does in every step what an engine does that walks its lists.

Random cases: both policies, prefix cache, asynchronous scheduling, watermark, threshold, gate, small budgets
and pools, aborts in any state, streams that requests share in part, answer with or go on from.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import pytest
from reference_cases import Case, Sent, ours, random_case, reference, scheduler_of
from reference_engine import Settings

KINDS = [
    pytest.param(by_priority, caching, asynchronous, id="-".join(words))
    for by_priority in (False, True)
    for caching in (False, True)
    for asynchronous in (False, True)
    for words in [
        ("priority" if by_priority else "fcfs", *("cache",) * caching, *("async",) * asynchronous),
    ]
]
RECORDINGS = sorted((Path(__file__).parent / "data").glob("vllm*.jsonl.gz"))


def compare(case: Case, most_steps: int = 150) -> Counter[str]:
    """Assert that both do the same in every step and at the end; returns what happened."""
    rows, engine = reference(case, most_steps)
    scheduler = scheduler_of(case.settings)
    for expected, got in zip(rows, ours(case, scheduler), strict=False):
        assert got == expected
    assert scheduler.num_waiting == len(engine.waiting)
    assert [s.index for s in scheduler.running] == [r.order for r in engine.running]
    assert scheduler.preemptions == engine.events.get("preempted", 0)
    if scheduler.caching is not None:
        scheduler.caching.blocks.settle(scheduler.free_blocks)
        assert scheduler.caching.blocks.evicted_blocks <= engine.pool.evicted  # what could be looked for
        assert scheduler.caching.cached_tokens == engine.hit_tokens
    return Counter(engine.events, evicted=engine.pool.evicted)


def compared(
    seeds: range, by_priority: bool, caching: bool, asynchronous: bool, size: int = 1
) -> Counter[str]:
    """What happened in the random cases of *seeds*, all of which agree."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        kind = {"by_priority": by_priority, "caching": caching, "asynchronous": asynchronous}
        case = random_case(random.Random(seed), size, **kind)
        try:
            seen += compare(case, 150 * size)
        except AssertionError as error:
            error.add_note(f"case {seed}, size {size}: {case}")
            raise
    return seen


def must_happen(by_priority: bool, caching: bool, asynchronous: bool) -> Iterator[str]:
    yield from ("preempted", "preempted itself", "aborted waiting", "aborted running", "head does not fit")
    if by_priority:
        yield "rolled back"
    if caching:
        yield from ("hit of blocks in use", "hit of free blocks", "resumed with a hit", "evicted")
    if asynchronous:
        yield from ("skipped, last token in flight", "preempted with its last token in flight")
        yield "finished while preempted"


@pytest.mark.parametrize(("by_priority", "caching", "asynchronous"), KINDS)
def test_every_step_is_the_walking_engines(by_priority: bool, caching: bool, asynchronous: bool) -> None:
    """Tokens of each request, preemptions, finishes, free blocks, cached tokens; then hits and evictions.

    Each rule was at work in some of the cases: an agreement about nothing proves nothing.
    """
    seen = compared(range(100), by_priority, caching, asynchronous)
    seen += compared(range(2), by_priority, caching, asynchronous, size=4)
    names = must_happen(by_priority, caching, asynchronous)
    assert [name for name in names if not seen[name]] == []


@pytest.mark.slow
@pytest.mark.parametrize(("by_priority", "caching", "asynchronous"), KINDS)
def test_every_step_of_many_more(by_priority: bool, caching: bool, asynchronous: bool) -> None:
    """Another 5000 of each kind, and 300 large ones."""
    compared(range(100, 5100), by_priority, caching, asynchronous)
    compared(range(2, 302), by_priority, caching, asynchronous, size=4)


# -- rare enough to be told ------------------------------------------------------------------------


def test_what_a_sequence_answered_is_found_while_its_last_token_is_in_flight() -> None:
    """A answers with a stream: token 1 in step 1, 2 and 3 in the next; B's three tokens are of that stream.

    Asynchronous, one token a step: in step 4 A's last token is in flight, but the block of its first two is
    known. B finds it there, and computes one token.
    """
    settings = Settings(3, 2, 8, 1, caching=True, asynchronous=True)
    case = Case(settings, [Sent("A", 1, 1, 3, tail=1, shared=()), Sent("B", 1, 3, 1, tail=1, shared=())])
    compare(case)
    rows, _ = reference(case, 9)
    assert (rows[3]["tokens"], rows[3]["cached_tokens"]) == ({"B": 1}, {"B": 2})


def test_of_two_copies_of_one_step_the_one_that_runs_ahead_is_older() -> None:
    """A answers with what B has in its prompt; both fill their first block in step 4, A first.

    A is gone then, so the copy that C would find is free, and C does not fit beside B's two blocks: it would
    if B's copy, which is in use, were the older.
    """
    settings = Settings(12, 4, 8, 2, caching=True)
    requests = [Sent("A", 1, 1, 4, 0, ((1, 1),), 1), Sent("B", 1, 4, 2, 0, ((1, 4),))]
    case = Case(settings, [*requests, Sent("C", 1, 41, 1, 0, ((1, 41),))])
    compare(case)
    assert reference(case, 9)[0][4]["tokens"] == {"B": 1}


def test_who_is_behind_has_told_what_it_had_before_the_step_only() -> None:
    """A computes on what B answers with, B being behind it: preempted in that step, B's new block is lost.

    Asynchronous: B has 12 tokens, of which 11 are known, when it is preempted in step 4. It comes back in
    step 6, finds no more than three blocks and, A's token being out, none beyond what is left of them.
    """
    settings = Settings(6, 3, 8, 1000, by_priority=True, caching=True, asynchronous=True)
    case = Case(settings, [Sent("A", 1, 4, 4, 0, ((0, 4),)), Sent("B", 2, 11, 3, 0, (), 0)])
    compare(case)
    assert reference(case, 9)[0][5]["tokens"] == {"B": 4}


def test_what_a_rolled_back_sequence_was_to_compute_is_found_all_the_same() -> None:
    """Seven blocks of four; A computes 26 tokens as ten, six, six, and B, more urgent, comes in step 2.

    In step 3 A takes the last blocks for 22 tokens, five full ones and one more, and B needs a second one: A
    loses them, and B has the one that is not full. Of 20 tokens in the cache A has computed only 16.
    """
    settings = Settings(7, 4, 8, 10, threshold=6, gate=False, by_priority=True, caching=True)
    case = Case(settings, [Sent("A", 1, 26, 1, priority=1), Sent("B", 2, 4, 2)])
    compare(case)
    rows, engine = reference(case, 9)
    assert [row["tokens"] for row in rows[:4]] == [{"A": 10}, {"A": 6, "B": 4}, {"B": 1}, {"A": 6}]
    assert engine.events["rolled back"] == 1


def test_the_budget_of_a_rolled_back_sequence_goes_to_those_behind() -> None:
    """Nine blocks of four, budget 10, chunks of six. In step 4 A is to have its last four tokens and a block.

    B, more urgent, needs one, and there is none: A is rolled back. C, behind B, then has six of nine tokens
    that are left beside B's; five would be left if A's four were lost.
    """
    settings = Settings(9, 4, 8, 10, threshold=6, gate=False, by_priority=True)
    case = Case(settings, [Sent("A", 1, 26, 1, 9), Sent("B", 2, 3, 4, 0), Sent("C", 3, 20, 1, 5)])
    compare(case)
    rows, _ = reference(case, 9)
    assert [row["tokens"] for row in rows[2:4]] == [{"A": 6, "B": 1, "C": 3}, {"B": 1, "C": 6}]
    assert rows[3]["preempted"] == ["A"]


# -- the reference itself --------------------------------------------------------------------------


class Recorded(Sent):
    """A recorded request: its group's tokens, its own, and an answer of one token, again and again."""

    def token(self, number: int) -> Hashable:
        ((group, common),) = self.shared or ((0, 0),)
        if number < common:
            return group, number
        return (self.name, number) if number < self.prompt else "answer"


def recorded(line: str) -> tuple[Case, list[dict[str, Any]]]:
    """A line of a recording as a case, and its rows."""
    case = json.loads(line)
    config = case["config"]
    blocks = config["usable_blocks"]
    settings = Settings(
        blocks,
        config["block_size"],
        config["max_num_seqs"],
        config["max_num_batched_tokens"],
        config["long_prefill_token_threshold"],
        config["scheduler_reserve_full_isl"],
        by_priority=config["policy"] == "priority",
        caching=config["enable_prefix_caching"],
        asynchronous=config.get("async_scheduling", False),
        watermark=int(config.get("watermark", 0) * (blocks + 1)),
    )
    requests = [
        Recorded(
            r["id"],
            r["arrival_step"],
            r["prompt_tokens"],
            r["max_tokens"],
            r["priority"],
            ((r["prefix_group"], min(r["prefix_tokens"], r["prompt_tokens"])),),
        )
        for r in sorted(case["requests"], key=lambda r: (r["arrival_step"], r["order"]))
    ]
    aborts = {int(step): names for step, names in case["aborts"].items()}
    rows = []
    for step, tokens, preempted, finished, free_blocks, cached in case["trace"]:
        finished = sorted(name for name in finished if name not in aborts.get(step, ()))
        values = (step, dict(sorted(tokens.items())), sorted(preempted), finished, free_blocks, cached)
        names = ("step", "tokens", "preempted", "finished", "free_blocks", "cached_tokens")
        rows.append(dict(zip(names, values, strict=True)))
    return Case(settings, requests, aborts), rows


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_the_walking_engine_does_what_was_recorded(path: Path) -> None:
    """Or it would be a reference for nothing. One in two of the recorded cases; the small ones."""
    with gzip.open(path, "rt", encoding="utf-8") as recording:
        lines = [line for number, line in enumerate(recording) if number % 2 == 0]
    compared = 0
    for line in lines:
        case, rows = recorded(line)
        if len(case.requests) > 20:
            continue
        got, _ = reference(case, len(rows))
        assert got == rows[: len(got)]
        assert all(not row["tokens"] for row in rows[len(got) :])
        compared += 1
    assert compared > 9
