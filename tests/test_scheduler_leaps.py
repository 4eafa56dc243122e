"""Leaping over iterations that repeat is only a way to count: the scheduler's state is what steps make it.

Random cases (see `reference_cases`), each step by step and in leaps of any length that `schedule` allows, cut
short at random, at aborts, and where somebody arrives who might join.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from reference_cases import Case, Sent, random_case, reference, scheduler_of, sequences_of
from reference_engine import Settings

from sim.serving.scheduler import Scheduler
from sim.serving.sequence import DECODE, Sequence


@dataclass
class Told:
    """What a scheduler told of its steps, and its state after each step at which it was asked."""

    steps: dict[int, dict[str, Any]] = field(default_factory=dict)
    held_by: dict[int, int] = field(default_factory=dict)
    states: dict[int, dict[str, Any]] = field(default_factory=dict)
    finished: list[tuple[int, int]] = field(default_factory=list)  # step and sequence, in order
    preempted: list[tuple[int, int]] = field(default_factory=list)
    end: tuple[int, ...] = ()
    leaps: int = 0  # of two or more steps


def state(scheduler: Scheduler, sequences: list[Sequence]) -> dict[str, Any]:
    """All that somebody could ask for between two steps."""
    computed = [s.origin + scheduler.iteration if s.state == DECODE else s.computed for s in sequences]
    return {
        "free": scheduler.free_blocks,
        "in use": scheduler.blocks_in_use,
        "running": [s.index for s in scheduler.running],
        "waiting": scheduler.num_waiting,
        "preemptions": scheduler.preemptions,
        "discarded": scheduler.discarded_tokens,
        "hits": scheduler.caching.cached_tokens if scheduler.caching else 0,
        "states": [s.state for s in sequences],
        "computed": computed,
    }


def formed(scheduler: Scheduler, repetition: int) -> dict[str, Any]:
    """What there is to say of the batch in its *repetition*, counted from 0."""
    return {
        "decoding": scheduler.decoding,
        "context": scheduler.context_tokens + repetition * scheduler.decoding,
        "chunks": [(s.index, new, cached) for s, new, cached in scheduler.chunks],
    }


def drive(case: Case, steps: int, leap: Any) -> Told:
    """*steps* steps in leaps that *leap* draws; arrivals that cannot join do not end one."""
    scheduler, sequences, told = scheduler_of(case.settings), sequences_of(case), Told()
    step = 0

    def arrive(step: int) -> list[bool]:
        return [scheduler.add(sequences[i]) for i in case.arriving(step)]

    def abort(step: int) -> list[int]:
        for i in case.aborted(step):
            scheduler.abort(sequences[i])
        return case.aborted(step)

    arrive(1)
    while step < steps:
        promised = scheduler.schedule(max_leap=leap())
        told.preempted += [(step + 1, s.index) for s in scheduler.preempted]
        most = min(max(promised, 1), leap(), steps - step)
        may_join: list[bool] = []
        for done in range(1, most + 1):
            if not may_join:  # until somebody comes, the queue's head waits for the same reason
                told.held_by[step + done] = scheduler.held_by
            told.steps[step + done] = formed(scheduler, done - 1)
            gone, may_join = abort(step + done), [*may_join, *arrive(step + done + 1)]
            if gone or any(may_join):
                break
        step += done
        told.leaps += done > 1
        told.finished += [(step, s.index) for s in scheduler.finish(done)]
        told.states[step] = state(scheduler, sequences)
    if scheduler.caching is not None:
        scheduler.caching.blocks.settle(scheduler.free_blocks)
        blocks = scheduler.caching.blocks
        told.end = (blocks.evicted_blocks, blocks.blank_blocks, blocks.cached_blocks)
    return told


def agree(case: Case, rng: random.Random, seen: Counter[str]) -> None:
    rows, engine = reference(case, 200)
    steps = len(rows)
    single = drive(case, steps, lambda: 1)
    draws = (
        lambda: 1 << 30,
        lambda: 3,
        lambda: rng.choice([1, 2, 5, 1 << 30]),
    )
    for leap in draws:
        told = drive(case, steps, leap)
        assert told.finished == single.finished
        assert told.preempted == single.preempted
        for name in ("steps", "held_by", "states"):
            found, expected = getattr(told, name), getattr(single, name)
            assert {step: found[step] for step in found if found[step] != expected[step]} == {}, name
        assert told.end == single.end
        seen["leaps"] += told.leaps
    seen.update(engine.events)
    seen["evicted"] += engine.pool.evicted


def agreed(seeds: range, by_priority: bool, caching: bool, asynchronous: bool) -> Counter[str]:
    """What happened in the random cases of *seeds*, in all of which leaps and steps agree."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        rng = random.Random(seed)
        case = random_case(rng, by_priority=by_priority, caching=caching, asynchronous=asynchronous)
        try:
            agree(case, rng, seen)
        except AssertionError as error:
            error.add_note(f"case {seed}: {case}")
            raise
    return seen


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("caching", [False, True], ids=["plain", "cache"])
@pytest.mark.parametrize("by_priority", [False, True], ids=["fcfs", "priority"])
def test_leaps_leave_what_steps_leave(by_priority: bool, caching: bool, asynchronous: bool) -> None:
    """Who ends and who is preempted when, batches, blocks, queue, hits and evictions: all as in steps."""
    seen = agreed(range(60), by_priority, caching, asynchronous)
    names = ["leaps", "preempted", "aborted waiting", "aborted running"]
    names += ["hit of blocks in use", "hit of free blocks", "evicted"] if caching else []
    assert [name for name in names if seen[name] < 5] == []


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("caching", [False, True], ids=["plain", "cache"])
@pytest.mark.parametrize("by_priority", [False, True], ids=["fcfs", "priority"])
def test_leaps_leave_what_steps_leave_in_many_more(
    by_priority: bool, caching: bool, asynchronous: bool
) -> None:
    """Another 2000 of each kind."""
    agreed(range(60, 2060), by_priority, caching, asynchronous)


def test_who_comes_while_a_slot_is_about_to_be_free_ends_the_leap() -> None:
    """Two slots, asynchronous: A's last token is in flight in step 3, and C comes to be in step 4."""
    settings = Settings(3, 2, 2, 1000, asynchronous=True)
    requests = [Sent("A", 1, 1, 2), Sent("B", 2, 1, 3), Sent("C", 4, 1, 1)]
    agree(Case(settings, requests), random.Random(1), Counter())


def test_who_waits_for_what_another_answers_with_is_looked_at_in_every_step() -> None:
    """B does not fit until A has answered with enough of B's prompt; B itself will answer something else."""
    settings = Settings(8, 8, 8, 1000, caching=True, watermark=1)
    requests = [Sent("A", 1, 41, 8, 0, (), 1), Sent("B", 1, 49, 1, 0, ((1, 49),))]
    agree(Case(settings, requests), random.Random(1), Counter())
