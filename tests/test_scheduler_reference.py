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
        assert scheduler.caching.blocks.evicted_blocks == engine.pool.evicted
        assert scheduler.caching.cached_tokens == engine.hit_tokens
    return Counter(engine.events, evicted=engine.pool.evicted)


def compared(seeds: range, by_priority: bool, caching: bool, asynchronous: bool) -> Counter[str]:
    """What happened in the random cases of *seeds*, all of which agree."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        case = random_case(
            random.Random(seed), by_priority=by_priority, caching=caching, asynchronous=asynchronous
        )
        try:
            seen += compare(case)
        except AssertionError as error:
            error.add_note(f"case {seed}: {case}")
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
    names = must_happen(by_priority, caching, asynchronous)
    assert [name for name in names if not seen[name]] == []


@pytest.mark.slow
@pytest.mark.parametrize(("by_priority", "caching", "asynchronous"), KINDS)
def test_every_step_of_many_more(by_priority: bool, caching: bool, asynchronous: bool) -> None:
    """Another 5000 of each kind."""
    compared(range(100, 5100), by_priority, caching, asynchronous)


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
