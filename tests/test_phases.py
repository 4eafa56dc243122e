"""Phases: every request's life, cut where the records say that something happened to it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from cases import random_case, sent
from runs import every_story, story
from support import NO_FRONT_END, EvenSteps, base
from test_closed_loop import random_loop
from test_static import random_static

from sim.results.phases import PHASES, phases_of
from sim.simulation import Run, simulate

FOLLOWS = {
    "front end": {"queue", "prefill"},  # in the step that forms as it comes: no time in the queue
    "queue": {"prefill"},
    "prefill": {"decode", "preempted"},
    "decode": {"preempted"},
    "preempted": {"recompute"},
    "recompute": {"decode", "preempted"},
}


def lives(run: Run) -> dict[int, list[tuple[str, float, float]]]:
    """(phase, start, end) of each request, in s."""
    phases = phases_of(run)
    found: dict[int, list[tuple[str, float, float]]] = {}
    columns = (phases.request, phases.phase, phases.start_s, phases.end_s)
    for request, phase, start_s, end_s in zip(*(c.tolist() for c in columns), strict=True):
        found.setdefault(request, []).append((PHASES[phase], start_s, end_s))
    return found


def assert_whole(run: Run) -> None:
    """From the send to the end of each request, without a break, in an order that a life can have."""
    found = lives(run)
    finish_s = run.recorder.column("finish_s").tolist()
    for request, arrival_s in enumerate(run.requests.arrival_s.tolist()):
        life = found.pop(request, [])
        ends_s = [arrival_s, *(end_s for _, _, end_s in life)]
        assert [start_s for _, start_s, _ in life] == ends_s[:-1]
        assert ends_s[-1] == finish_s[request]
        assert all(start_s < end_s for _, start_s, end_s in life)
        assert all(after in FOLLOWS[before] for (before, *_), (after, *_) in pairwise(life))
    assert not found


@every_story
def test_phases_are_a_whole_life(name: str) -> None:
    """Under shortage of blocks, crowds and impatience: nothing is missing, empty, or out of order."""
    assert_whole(story(name)[0].run)


@pytest.mark.parametrize("ticks", [True, False], ids=["ties", "no ties"])
@pytest.mark.parametrize("rules", [random_static, random_loop], ids=["static", "users"])
def test_phases_of_random_engines_are_whole_lives(rules: Any, ticks: bool) -> None:
    """In static groups and with users, too, where everything happens at the same instants and where not."""
    for seed in range(40):
        assert_whole(random_case(seed, ticks, rules).run())


def test_a_preempted_life_by_hand() -> None:
    """Two prompts of 16 in three blocks of 16: both decode into a block of their own, and there is one.

    The second comes back when the first has ended, with all that it had: 17 tokens, in one iteration.
    """
    scenario = base().replace(
        {**NO_FRONT_END, "engine.num_gpu_blocks_override": 4, "engine.max_model_len": 48}
    )
    run = simulate(scenario, requests=sent((0.0, 16, 4), (0.0, 16, 4)), step_time=EvenSteps(1.0))
    assert lives(run) == {
        0: [("prefill", 0, 1), ("decode", 1, 4)],
        1: [("prefill", 0, 1), ("preempted", 1, 4), ("recompute", 4, 5), ("decode", 5, 7)],
    }
    phases = phases_of(run)
    assert np.flatnonzero(phases.waiting).tolist() == [3]
    assert np.flatnonzero(phases.running).tolist() == [0, 1, 2, 4, 5]
