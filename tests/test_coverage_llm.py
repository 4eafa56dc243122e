"""How often the interval of an LLM's knee holds the knee that runs a hundred times longer find."""

from __future__ import annotations

from functools import cache

import pytest

import sim
from sim.planning.elasticities import saturated
from sim.planning.interval import Sampling
from sim.planning.judge import sampled
from sim.planning.limits import limits_of
from sim.planning.search import Search, Simulate
from sim.results import Result
from sim.simulation import simulate

CHAT = {
    "name": "short chat",
    "hardware": "a100-80gb-sxm",
    "model": "llama-3-8b",
    "workload": {
        "arrivals": {"kind": "poisson"},
        "lengths": {"kind": "lognormal", "prompt_mean": 400, "output_mean": 40, "cv": 1.0},
    },
    "load": {"rate_per_s": 8},
    "slo": {"tpot_p95_s": 0.03},
    "run": {"requests": 1000},
}


def knee(seed: int, requests: int, precision: float) -> Sampling:
    """The knee as `find_knee` samples it, without what it says beside it."""
    asked = sim.load(CHAT).replace({"run.seed": seed, "run.requests": requests})
    run: Simulate = lambda scenario: Result(simulate(scenario))  # noqa: E731
    search = Search(asked, limits_of(asked.slo), run)
    search.know_capacity(saturated(asked, run, 2000))
    search.explore(0.02)
    found = sampled(search, precision, controlled=True)
    assert isinstance(found, tuple)
    return found[1]


@cache
def true_knee() -> float:
    """From twenty replications of a hundred thousand requests."""
    return knee(10**6, 100_000, 0.5).load


def covered(repetitions: int, precision: float) -> float:
    held = 0
    for seed in range(10_000, 10_000 + repetitions):  # the method was chosen on smaller ones
        found = knee(seed, 1000, precision)
        held += found.low <= true_knee() <= found.high
    return held / repetitions


@pytest.mark.slow
def test_coverage_of_a_thousand_searches_of_an_llm() -> None:
    """95 % intervals to +-5 %, stopping rule included: 93 to 97 % of a thousand hold the true knee."""
    share = covered(1000, 0.05)
    print(f"short chat, precision 0.05: {share:.3f}")
    assert 0.93 <= share <= 0.97
