"""The knee search, on a queue whose knee and capacity are known by formula."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from analytic import Answer, FakeScenario, highest_rate_with_ttft_p99, queueing

from sim.faults import InputFault
from sim.planning.knee import find_knee
from sim.planning.limits import limits_of


def scenario(rate_per_s: float = 4.0, **slo: float) -> FakeScenario:
    return FakeScenario(load={"rate_per_s": rate_per_s}, slo=slo)


@pytest.mark.parametrize("bound_s", [0.16, 0.2, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("start_per_s", [0.001, 4.0, 10_000.0])
def test_the_knee_is_where_the_formula_has_it(bound_s: float, start_per_s: float) -> None:
    """From any start the knee lies below the load that the formula gives, by two percent at most."""
    knee = find_knee(scenario(start_per_s, ttft_p99_s=bound_s), simulate=queueing())
    true = highest_rate_with_ttft_p99(bound_s)
    assert true / 1.0201 <= knee.rate_per_s <= true * 1.0001


@pytest.mark.parametrize("capacity_per_s", [0.02, 10.0, 900.0])
def test_the_capacity_is_bracketed(capacity_per_s: float) -> None:
    """The true capacity lies between the highest stable and the lowest unstable load, two percent apart."""
    simulate = queueing(capacity_per_s, service_s=0.01 / capacity_per_s)
    knee = find_knee(scenario(ttft_p99_s=1e3), simulate=simulate)
    assert knee.capacity_rate_per_s < capacity_per_s <= knee.first_unstable_rate_per_s
    assert knee.first_unstable_rate_per_s <= knee.capacity_rate_per_s * 1.0201


def test_a_finer_tolerance_is_kept() -> None:
    """With precision=0.002 the knee is within two in a thousand."""
    knee = find_knee(scenario(ttft_p99_s=0.3), simulate=queueing(), precision=0.002)
    assert 5.0 / 1.0021 <= knee.rate_per_s <= 5.0


def test_a_tighter_limit_never_gives_a_higher_knee() -> None:
    """Knees fall (or stay) as the limit tightens."""
    bounds_s = (0.155, 0.18, 0.25, 0.4, 0.8, 2.0)
    knees = [find_knee(scenario(ttft_p99_s=x), simulate=queueing()).rate_per_s for x in bounds_s]
    assert all(low <= high * 1.02 for low, high in pairwise(knees))


def test_all_points_at_and_below_the_knee_pass() -> None:
    """At the knee and at every lower load tried, all limits hold; the next load tried breaks one."""
    knee = find_knee(scenario(ttft_p99_s=0.3), simulate=queueing())
    passing = [point.passes for point in knee.points if point.load <= knee.rate_per_s]
    above = next(point for point in knee.points if point.load > knee.rate_per_s)
    assert all(passing)
    assert not above.passes
    assert len(passing) >= 4


def test_loads_lie_on_both_sides_of_the_capacity() -> None:
    """About ten loads reach from a tenth of the capacity to a little beyond it, and few more are run."""
    knee = find_knee(scenario(ttft_p99_s=1.0), simulate=queueing())
    near = [point.load for point in knee.points if 0.9 <= point.load <= 13]
    assert len(near) >= 10
    assert near[0] <= 1.01
    assert near[-1] >= 12
    assert len(knee.points) <= 26


def test_replications_of_all_loads_share_their_seeds() -> None:
    """Common random numbers: a load's first seed is the scenario's, its next ones those of every load."""
    ran: list[tuple[float, int]] = []

    def simulate(scenario: Any) -> Answer:
        ran.append((scenario.load["rate_per_s"], scenario.run["seed"]))
        return queueing()(scenario)

    find_knee(replace(scenario(ttft_p99_s=0.5), run={"seed": 7}), simulate=simulate)
    seeds: dict[float, set[int]] = {}
    for load, seed in ran:
        seeds.setdefault(load, set()).add(seed)
    ordered = sorted(seeds.values(), key=len)
    assert all(small <= large for small, large in pairwise(ordered))
    assert all(7 in own for own in ordered)
    assert len(ordered[-1]) >= 10


def test_the_limit_that_gives_way_first_is_named() -> None:
    """Of two limits the one that is crossed at the lower load is the breaking one."""
    tight_tpot = find_knee(scenario(ttft_p99_s=3.0, tpot_p99_s=0.025), simulate=queueing())
    tight_ttft = find_knee(scenario(ttft_p99_s=0.2, tpot_p99_s=0.05), simulate=queueing())
    assert tight_tpot.breaking_limit == "tpot_p99_s"
    assert tight_ttft.breaking_limit == "ttft_p99_s"
    assert tight_ttft.reason.startswith("TTFT p99 gives way first: ")
    assert tight_ttft.limits["ttft_p99_s"]["at_knee"] <= 0.2
    assert tight_ttft.limits["tpot_p99_s"]["limit"] == 0.05


def test_with_loose_limits_the_queue_gives_way() -> None:
    """A limit that nothing reaches leaves the capacity as the knee, and no limit is blamed."""
    knee = find_knee(scenario(tpot_p99_s=10.0), simulate=queueing())
    assert knee.rate_per_s == knee.capacity_rate_per_s
    assert knee.breaking_limit is None
    assert knee.reason.startswith("the queue gives way before any limit does")


def test_a_limit_below_the_unloaded_latency_is_infeasible() -> None:
    """No load passes: the answer says so, and shows the nearest miss."""
    knee = find_knee(scenario(ttft_p99_s=0.1), simulate=queueing())
    assert not knee.feasible
    assert knee.rate_per_s is None
    assert "where 100 ms is allowed" in knee.reason
    assert knee.nearest_miss["rate_per_s"] == min(point.load for point in knee.points)
    assert knee.nearest_miss["limits"]["ttft_p99_s"]["value"] == pytest.approx(0.15, rel=0.02)
    assert knee.limits["ttft_p99_s"] == {"at_knee": None, "limit": 0.1}


def test_a_knee_far_below_the_spread_is_still_found() -> None:
    """A limit just above the unloaded latency: the search reaches down and bisects there."""
    knee = find_knee(scenario(ttft_p99_s=0.156), simulate=queueing())
    assert knee.rate_per_s == pytest.approx(highest_rate_with_ttft_p99(0.156), rel=0.021)


def test_an_undefined_statistic_is_not_evaluated() -> None:
    """TPOT of one-token answers is null: the limit is said to be not evaluated, the others decide."""
    knee = find_knee(scenario(ttft_p99_s=0.3, tpot_p99_s=0.05), simulate=queueing(tpot_s=None))
    assert knee.rate_per_s == pytest.approx(5.0, rel=0.021)
    assert knee.limits["tpot_p99_s"]["at_knee"] is None
    assert knee.limits["tpot_p99_s"]["reason"] == "not evaluated: no request has two output tokens"
    assert any("TPOT p99" in warning for warning in knee.warnings)


def test_without_any_evaluated_limit_there_is_no_knee() -> None:
    """If the only limit is undefined, no load is claimed to meet it."""
    knee = find_knee(scenario(tpot_p99_s=0.05), simulate=queueing(tpot_s=None))
    assert not knee.feasible
    assert "no limit could be evaluated" in knee.reason


def test_when_nothing_completes_the_search_ends_at_once() -> None:
    """All requests never schedulable: one run, no knee, and the reason counts them."""
    knee = find_knee(scenario(ttft_p99_s=1.0), simulate=queueing(turned_away=2000))
    assert not knee.feasible
    assert len(knee.points) == 1
    assert "0 of 2,000; 2,000 never schedulable" in knee.reason


def test_requests_turned_away_at_the_knee_are_said() -> None:
    """Latencies of the served alone would flatter: the share turned away is a warning."""
    knee = find_knee(scenario(ttft_p99_s=1.0), simulate=queueing(turned_away=20))
    assert knee.warnings == ("at the knee 20 never schedulable of 2,000 offered: latencies leave them out",)


def test_a_percentile_of_few_requests_is_warned_of() -> None:
    """Sixteen replications of 25 requests have four beyond the p99; a mean of them needs no warning."""

    def simulate(scenario: Any) -> Answer:
        values = queueing()(scenario).summary()
        return Answer(values | {"ttft_s": {**values["ttft_s"], "n": 25}})

    few = find_knee(scenario(ttft_p99_s=1.0), simulate=simulate)
    mean = find_knee(scenario(ttft_mean_s=1.0), simulate=simulate)
    assert few.warnings == ("TTFT p99 rests on 4 requests beyond it; run more requests",)
    assert mean.warnings == ()


def test_a_queue_that_never_grows_ends_the_search() -> None:
    """If no load tried is unstable, the search stops and says that the capacity is unknown."""
    knee = find_knee(scenario(ttft_p99_s=1.0), simulate=queueing(1e12))
    assert knee.feasible
    assert knee.capacity_rate_per_s is None
    assert knee.saturated_output_throughput is None
    assert "unknown" in knee.warnings[0]


def test_a_system_that_is_never_stable_has_no_knee() -> None:
    """If the queue grows at every load the answer says so."""

    def simulate(scenario: Any) -> Answer:
        return Answer(queueing()(scenario).summary() | {"stable": False})

    knee = find_knee(scenario(ttft_p99_s=1.0), simulate=simulate)
    assert not knee.feasible
    assert knee.capacity_rate_per_s is None
    assert knee.reason.startswith("the queue grows at every load tried")


def test_limits_that_hold_only_at_higher_loads_do_not_make_a_knee() -> None:
    """A system slow when idle (partial groups wait) has no knee, but the reason tells where limits hold."""

    def simulate(scenario: Any) -> Answer:
        values = queueing()(scenario).summary()
        if scenario.load["rate_per_s"] < 2:
            values["ttft_s"]["p99"] = 9.0
        return Answer(values)

    knee = find_knee(scenario(ttft_p99_s=0.5), simulate=simulate)
    assert not knee.feasible
    assert "limits do hold at" in knee.reason


def test_saturated_throughput_is_that_above_capacity() -> None:
    """Output tokens per second beyond capacity: the queue's 10/s of 200 tokens."""
    knee = find_knee(scenario(ttft_p99_s=0.3), simulate=queueing())
    assert knee.saturated_output_throughput == pytest.approx(2000)


def test_a_trace_is_searched_along_its_time_scale() -> None:
    """With the trace's own times the answer is a multiplier as well as a rate."""
    trace = FakeScenario(load={"mode": "trace", "time_scale": 1.0}, slo={"ttft_p99_s": 0.3})
    answer = find_knee(trace, simulate=queueing(trace_rate_per_s=2.0)).as_dict()
    assert answer["knee"]["time_scale"] == pytest.approx(2.5, rel=0.021)
    assert answer["knee"]["rate_per_s"] == pytest.approx(5.0, rel=0.021)
    assert all(point["rate_per_s"] == pytest.approx(2 * point["time_scale"]) for point in answer["points"])


def test_the_answer_is_json_and_has_the_contract_keys() -> None:
    """as_dict is what `knee --json` prints: points sorted by load, a run's summary in each, no NaN."""
    answer = find_knee(scenario(ttft_p99_s=0.3), simulate=queueing()).as_dict()
    json.dumps(answer, allow_nan=False)
    loads = [point["rate_per_s"] for point in answer["points"]]
    assert {"knee", "capacity_rate_per_s", "saturated_output_throughput", "feasible", "reason"} <= set(answer)
    assert {"rate_per_s", "limits"} <= set(answer["knee"])
    assert answer["cost_at_knee"]["usd_per_1m_output_tokens"] > 0
    assert loads == sorted(loads)
    assert all("ttft_s" in point for point in answer["points"])


def test_the_search_does_not_depend_on_chance() -> None:
    """Two searches of one scenario give equal answers."""
    first, second = (find_knee(scenario(ttft_p99_s=0.4), simulate=queueing()).as_dict() for _ in range(2))
    assert json.dumps(first) == json.dumps(second)


def test_progress_is_told_after_each_run() -> None:
    """The runs made count up and never exceed the runs expected."""
    told: list[tuple[int, int, str]] = []
    find_knee(scenario(ttft_p99_s=0.3), simulate=queueing(), progress=lambda *news: told.append(news))
    assert [made for made, _, _ in told] == list(range(1, len(told) + 1))
    assert all(made <= expected for made, expected, _ in told)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (FakeScenario(slo={}), "slo must hold at least one limit"),
        (FakeScenario(load={"mode": "burst"}), r"load must have a rate .* \(got burst\)"),
        (FakeScenario(slo={"speed": 1.0}), "slo.speed is no limit"),
    ],
)
def test_scenarios_without_a_knee_are_refused(broken: FakeScenario, sentence: str) -> None:
    """No limit, no rate, a name that is no limit: a sentence each."""
    with pytest.raises(InputFault, match=sentence):
        find_knee(broken, simulate=queueing())


def test_plot_needs_a_way_to_draw() -> None:
    """`plot` hands the knee to the function given as draw=; without one it says where to find one."""
    drawn = find_knee(scenario(ttft_p99_s=0.3), simulate=queueing(), draw=lambda knee: knee.rate_per_s)
    assert drawn.plot() == drawn.rate_per_s
    with pytest.raises(TypeError, match="knee_figure"):
        replace(drawn, draw=None).plot()


def test_a_limit_reads_its_own_name() -> None:
    """Metric, statistic and label come from the key."""
    (limit,) = limits_of({"server_ttft_p99_s": 0.25})
    assert (limit.metric, limit.statistic, limit.label) == ("server_ttft", "p99", "server TTFT p99")
    assert limit.why_undefined({}) == "a run's summary has no p99 of server_ttft_s"
