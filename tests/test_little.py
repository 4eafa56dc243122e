"""Little's law, L = lambda W, as a check of a run, and what a run says when its load is too high.

Over a window, the requests that are inside add up to L T, and the stays of those that arrive in it to
lambda W T. The two differ by what hangs over the edges: the rest of the stays of those who were inside
at the start, less the rest of those who are at the end.
"""

from __future__ import annotations

from typing import Any

import pytest
from support import NO_FRONT_END, EvenSteps, base

from sim.results import Result
from sim.scenario import Scenario
from sim.simulation import simulate

STEP_S = 2.0**-7
SEQUENCES, TOKENS = 16, 64
CAPACITY_PER_S = SEQUENCES / (TOKENS * STEP_S)  # each answer occupies one of the places for 64 iterations


def scenario(load: float, requests: int = 4000, seed: int = 1) -> Scenario:
    """A server of 16 places at *load* times what it can carry."""
    lengths = {"kind": "fixed", "prompt_tokens": 1, "output_tokens": TOKENS}
    return base().replace(
        {
            **NO_FRONT_END,
            "engine.max_num_seqs": SEQUENCES,
            "workload": {"arrivals": {"kind": "poisson"}, "lengths": lengths},
            "load.rate_per_s": load * CAPACITY_PER_S,
            "run.requests": requests,
            "run.seed": seed,
        }
    )


def result(load: float, requests: int = 4000, seed: int = 1) -> Result:
    return Result(simulate(scenario(load, requests, seed), step_time=EvenSteps(STEP_S)))


def summary(load: float, requests: int = 4000, seed: int = 1) -> dict[str, Any]:
    return result(load, requests, seed).summary()


@pytest.mark.parametrize("load", [0.3, 0.5, 0.8, 0.9])
def test_holds_in_a_long_stable_run(load: float) -> None:
    """The error is at most the longest stay times the most that hang over an edge, over L T: below 2 %."""
    answer = result(load, requests=20_000)
    found, table = answer.summary(), answer.requests
    window = found["window"]
    arrival_s, finish_s = table["arrival_s"].to_numpy(), table["finish_s"].to_numpy()
    hang_over = [
        float((finish_s - edge_s)[(arrival_s < edge_s) & (finish_s > edge_s)].sum())
        for edge_s in (window["start_s"], window["end_s"])
    ]
    held_s = found["concurrency_mean"] * (window["end_s"] - window["start_s"])
    bound = max(hang_over) / held_s
    assert found["checks"]["littles_law_relative_error"] <= bound + 1e-12
    assert "littles_law_reason" not in found["checks"]
    assert bound < 0.02


@pytest.mark.parametrize("load", [1.2, 1.5, 2.0])
def test_is_broken_by_an_unstable_run(load: float) -> None:
    """Beyond capacity the error is about the excess of the load, and the run says that it is unstable.

    The queue grows evenly: who comes t after the start finds (load - 1) t of work ahead and stays that
    long, so the stays add up to load (load - 1) T^2 / 2, while (load - 1) T^2 / 2 are held in the window
    (times the capacity, both; with a warm-up, both begin as far in).
    """
    found = summary(load)
    assert found["checks"]["littles_law_relative_error"] == pytest.approx(load - 1, rel=0.2)
    assert "no error of the run" in found["checks"]["littles_law_reason"]
    assert not found["stable"]
    assert any("unstable" in warning for warning in found["warnings"])
    assert found["queue_growth_per_s"] == pytest.approx((load - 1) * CAPACITY_PER_S, rel=0.1)


@pytest.mark.parametrize("load", [1.2, 2.0, 10.0])
def test_a_run_beyond_capacity_ends_by_itself(load: float) -> None:
    """Everybody is served in the end, at the speed of the server: no request is lost or left."""
    found = summary(load)
    assert found["requests"]["completed"] == found["requests"]["offered"] == 4000
    assert found["makespan"]["request_throughput"] == pytest.approx(CAPACITY_PER_S, rel=0.02)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_a_stable_load_is_not_called_unstable(load: float) -> None:
    """In none of 20 runs of 2000 requests, although the queue of some is longer at their end."""
    found = [summary(load, 2000, seed) for seed in range(1, 21)]
    assert [answer["seed"] for answer in found if not answer["stable"]] == []
    assert max(answer["queue_growth_per_s"] for answer in found) > 0.0


def test_stability_is_judged_alike_with_real_step_times() -> None:
    """An 8B model on an H100: capacity is what a flood gets; 0.5 and 0.8 of it are stable, 1.2 is not."""
    flood = base().replace({"load.rate_per_s": 100.0})
    capacity_per_s = Result(simulate(flood)).summary()["makespan"]["request_throughput"]
    for load, stable in ((0.5, True), (0.8, True), (1.2, False)):
        for seed in range(1, 11):
            case = base().replace({"load.rate_per_s": load * capacity_per_s, "run.seed": seed})
            found = Result(simulate(case)).summary()
            assert found["stable"] is stable, (load, seed)
            assert found["requests"]["completed"] == 2000
