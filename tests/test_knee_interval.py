"""The knee's sampling interval: it holds the true knee as often as it says, where the true knee is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from analytic import FakeScenario, single_server, wait_beyond_m_d_1, wait_beyond_m_m_1

from sim.planning.judge import sampled
from sim.planning.knee import find_knee
from sim.planning.limits import limits_of
from sim.planning.search import Search

BOUND_S = 10.0


def scenario(seed: int = 1, **run: Any) -> FakeScenario:
    settings = {"requests": 2000, "seed": seed, "warmup": 0.1, **run}
    return FakeScenario(load={"rate_per_s": 0.5}, slo={"queue_p99_s": BOUND_S}, run=settings)


def knee_by_formula(beyond: Callable[[float, float], float]) -> float:
    """The rate at which one request in a hundred waits longer than `BOUND_S`, by bisection."""
    low, high = 0.1, 0.99
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle, BOUND_S) < 0.01 else (low, middle)
    return low


def covered(repetitions: int, exponential: bool, precision: float) -> float:
    """The share of searches, each on its own seed, whose interval holds the knee by formula.

    Their seeds are not those on which the method was chosen.
    """
    true = knee_by_formula(wait_beyond_m_m_1 if exponential else wait_beyond_m_d_1)
    held = 0
    for seed in range(10_000, 10_000 + repetitions):
        asked = scenario(seed=seed)
        search = Search(asked, limits_of(asked.slo), single_server(exponential))
        search.explore(0.02)
        _, sampling = sampled(search, precision, controlled=False)
        held += sampling.low <= true <= sampling.high
    return held / repetitions


def test_waits_by_formula_are_textbook_values() -> None:
    """M/D/1 with rho = 0.5 waits not at all half the time; both laws have their exponential tails."""
    assert wait_beyond_m_d_1(0.5, 0.0) == pytest.approx(0.5)
    assert wait_beyond_m_m_1(0.5, 0.0) == pytest.approx(0.5)
    assert wait_beyond_m_d_1(0.8, 10.0) < wait_beyond_m_m_1(0.8, 10.0)


@pytest.mark.parametrize("exponential", [False, True], ids=["M/D/1", "M/M/1"])
def test_the_knee_agrees_with_the_formula(exponential: bool) -> None:
    """To one percent the knee is where the waiting-time distribution has it."""
    true = knee_by_formula(wait_beyond_m_m_1 if exponential else wait_beyond_m_d_1)
    asked = scenario(most_replications=1000)
    knee = find_knee(asked, simulate=single_server(exponential), precision=0.01)
    low, high = knee.interval.sampling
    assert knee.rate_per_s == pytest.approx(true, rel=0.01)
    assert (high - low) / 2 <= 0.01 * knee.rate_per_s
    assert low <= true <= high
    assert knee.interval.replications >= 10


def test_the_interval_holds_the_knee_as_often_as_it_says() -> None:
    """95 % intervals on M/D/1, stopping rule included: of 40 searches at least 33 hold it (3.5 sigma)."""
    assert covered(40, False, 0.03) >= 33 / 40


@pytest.mark.slow
@pytest.mark.parametrize("precision", [0.01, 0.02])
def test_coverage_of_a_thousand_searches(precision: float) -> None:
    """The same with a thousand: 93 to 97 % hold it."""
    share = covered(1000, False, precision)
    print(f"M/D/1, precision {precision}: {share:.3f}")
    assert 0.93 <= share <= 0.97
