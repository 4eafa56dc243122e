"""Requests by hand and at random: what the tests of static groups, admission and closed loops share.

Random ones go to small engines, each in leaps and step by step. Instants may be set on one coarse clock,
on which iterations end, too: then everything is a tie.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from support import NO_FRONT_END, EvenSteps, answer, base

from sim.results import Result
from sim.scenario import Scenario
from sim.simulation import Run, simulate
from sim.simulation.recorder import STATUS
from sim.workload import Requests

TICK_S = 2.0**-6


def sent(*requests: tuple[float, ...]) -> Requests:
    """Requests (arrival, prompt, answer[, patience])."""
    at_s, prompts, answers = (np.array([r[i] for r in requests]) for i in range(3))
    patience_s = np.array([r[3] if len(r) > 3 else np.inf for r in requests])
    return Requests(at_s.astype(float), prompts.astype(int), answers.astype(int), patience_s)


def in_seconds(max_leap: int | None) -> Callable[..., Run]:
    """Runs a scenario with requests (see `sent`) in iterations of one second; all is conserved."""

    def run(scenario: Scenario, *requests: tuple[float, ...]) -> Run:
        done = simulate(scenario, max_leap, requests=sent(*requests), step_time=EvenSteps(1.0))
        checks = Result(done).summary()["checks"]
        assert checks["blocks_conserved"]
        assert checks["tokens_conserved"]
        return done

    return run


def admitting(blocks: int = 1000, seqs: int = 16, **admission: Any) -> Scenario:
    """A pool of *blocks* of 16 tokens, with these rules of admission."""
    return base().replace(
        {
            **NO_FRONT_END,
            "engine.max_num_seqs": seqs,
            "engine.num_gpu_blocks_override": blocks + 1,
            "engine.max_model_len": min(blocks * 16, 4096),
            **{f"admission.{key}": value for key, value in admission.items()},
        }
    )


@cache
def long_tailed() -> Scenario:
    """Lognormal lengths, at a load at which reservations of a whole context make requests wait."""
    return base().replace(
        {
            "workload": {"lengths": {"kind": "lognormal", "prompt_mean": 600, "output_mean": 200, "cv": 1}},
            "engine.max_model_len": 8192,
            "engine.num_gpu_blocks_override": 10_241,
            "load.rate_per_s": 10.0,
            "run.requests": 1500,
        }
    )


@dataclass(frozen=True)
class Case:
    """A small engine and what is sent to it; with *ticks* every iteration takes `TICK_S`."""

    scenario: Scenario
    requests: Requests
    ticks: bool

    def run(self, max_leap: int | None = None) -> Run:
        step_time = EvenSteps(TICK_S) if self.ticks else None
        return simulate(self.scenario, max_leap, requests=self.requests, step_time=step_time)


def random_case(
    seed: int, ticks: bool, rules: Callable[[random.Random, Callable[[float], float]], dict[str, Any]]
) -> Case:
    """Up to 40 requests, a third impatient, on a pool of 320 to 1920 tokens.

    *rules* makes the scenario's other keys from random numbers and from random times up to a limit.
    """
    rng = random.Random(seed)

    def time_s(limit_s: float) -> float:
        """A multiple of the coarse clock's tick, or a number that no clock has."""
        return (rng.randrange(int(limit_s / TICK_S)) + 1) * TICK_S if ticks else rng.uniform(1e-3, limit_s)

    block_size = rng.choice([1, 4, 16])
    blocks = rng.randint(20, 120) * 16 // block_size
    scenario = base().replace(
        {
            **NO_FRONT_END,
            "engine.block_size": block_size,
            "engine.num_gpu_blocks_override": blocks + 1,  # one is the engine's own
            "engine.max_model_len": blocks * block_size // rng.choice([1, 1, 3]),
            "engine.max_num_seqs": rng.choice([1, 3, 8, 64]),
            "engine.max_num_batched_tokens": rng.choice([64, 64, 256]),
            "engine.front_end_service_s": rng.choice([0.0, 0.0 if ticks else 0.01, TICK_S]),
            **rules(rng, time_s),
        }
    )
    return Case(scenario, _random_requests(rng, scenario.engine["max_model_len"], time_s), ticks)


def _random_requests(rng: random.Random, longest: int, time_s: Callable[[float], float]) -> Requests:
    count, span_s = rng.randint(3, 40), rng.choice([0.02, 0.3, 3.0, 10.0])
    half = longest // 2
    grid = 2.0**32
    arrival_s = np.array(sorted(time_s(span_s) for _ in range(count)))
    patience_s = np.array([time_s(3.0) if rng.random() < 0.3 else np.inf for _ in range(count)])
    return Requests(
        np.rint(arrival_s * grid) / grid,
        np.array(
            [longest if rng.random() < 0.01 else rng.randint(1, rng.choice([8, half])) for _ in range(count)]
        ),
        np.array([rng.choice([1, 2, rng.randint(1, half)]) for _ in range(count)]),
        np.rint(patience_s * grid) / grid,
    )


def leaps_change_nothing(case: Case, name: str, some: int) -> Run:
    """Assert that leaps, without a limit and of at most *some*, give the stepped run's bytes; return it.

    Every request has come to its end, and blocks and tokens are conserved.
    """
    stepped = case.run(max_leap=1)
    expected = answer(stepped)
    summary = Result(stepped).summary()
    assert summary["checks"]["blocks_conserved"], name
    assert summary["checks"]["tokens_conserved"], name
    counts = summary["requests"]
    assert counts["unfinished"] == 0, name
    assert counts["offered"] == sum(counts[status] for status in STATUS) == len(case.requests), name
    for max_leap in (None, some):
        found = answer(case.run(max_leap))
        assert [part for part in expected if found[part] != expected[part]] == [], f"{name}, leap {max_leap}"
    return stepped


def statuses(run: Run) -> Counter[str]:
    """How many requests of *run* came to which end."""
    return Counter(STATUS[code] for code in run.recorder.column("status").tolist())


def assert_often(tally: Counter[str], names: tuple[str, ...], least: int) -> None:
    """Each of *names* happened in *least* cases or more: nothing passed for want of it."""
    assert {name: tally[name] for name in names if tally[name] < least} == {}
