"""Control variates: what arrivals and lengths alone say about latencies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import sim.planning.controls
from sim.planning.controls import Controls, Pace, company_of, is_alike_throughout, proxies_s
from sim.planning.limits import limits_of
from sim.workload import Requests


def requests(arrival_s: list[float], prompt: list[int], output: list[int]) -> Requests:
    return Requests(np.array(arrival_s), np.array(prompt), np.array(output))


def test_company_is_counted_over_the_whole_time_of_writing() -> None:
    """One of 4 s, joined after 1 s by one of 2 s, and later by one of 3 s that ends after it."""
    company = company_of(np.array([0.0, 1.0, 3.0]), np.array([4.0, 3.0, 6.0]))
    assert company == pytest.approx([(4 + 2 + 1) / 4, 2.0, (3 + 1) / 3])


def test_alone_an_answer_takes_its_tokens_times_the_pace() -> None:
    """The wait is the prefill, and nothing comes in between."""
    write_s, wait_s = proxies_s(requests([0, 100], [50, 10], [11, 1]), Pace(0.02, 0.0, 0.001, 0.0))
    assert write_s == pytest.approx([10 * 0.02, 0.0])
    assert wait_s == pytest.approx([0.05, 0.01])


def test_prefills_stop_the_writing() -> None:
    """What comes in meanwhile adds its prefill, even if the answer lasts so long only for another."""
    pace = Pace(0.02, 0.0, 0.001, 0.0)
    write_s, wait_s = proxies_s(requests([0, 0.1, 0.3], [0, 200, 50], [11, 1, 1]), pace)
    assert write_s[0] == pytest.approx(0.2 + 0.2 + 0.05)
    assert wait_s == pytest.approx([0.0, 0.2, 0.05])


def test_company_slows_the_writing() -> None:
    """Two at once are each slower by what the other costs."""
    alone, together = (
        proxies_s(requests(times, [0, 0], [101, 101]), Pace(0.02, 0.005, 0.001, 1.0))[0]
        for times in ([0, 1e3], [0, 0])
    )
    assert alone == pytest.approx([2.5, 2.5])
    assert together == pytest.approx([3.0, 3.0])


@pytest.mark.parametrize(
    ("arrivals", "lengths", "alike"),
    [
        ({"kind": "gamma", "cv": 3}, "fixed", True),
        ({"kind": "poisson", "series": {"times_s": [0, 1], "rates": [1, 2]}}, "fixed", False),
        ({"kind": "on_off", "on_s": 1, "off_s": 1}, "fixed", False),
        ({"kind": "trace"}, "fixed", False),
        ({"kind": "poisson"}, "trace", False),
    ],
)
def test_only_traffic_alike_throughout_is_drawn_longer(
    arrivals: dict[str, Any], lengths: str, alike: bool
) -> None:
    """The mean of a control comes from longer draws only where longer traffic has the same mean."""
    workload = {"arrivals": arrivals, "lengths": {"kind": lengths}}
    assert is_alike_throughout(workload) == alike
    assert is_alike_throughout({"classes": {"a": workload, "b": {"lengths": {"kind": "fixed"}}}}) == alike


@pytest.mark.parametrize(("series", "longest"), [(None, 20_000), ({"times_s": [0, 1], "rates": [1, 2]}, 300)])
def test_traffic_that_changes_is_drawn_as_long_as_a_replication(
    series: dict[str, Any] | None, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer draws would have another mean of the control; a replication's own are never longer."""
    asked = []

    def drawn(workload: Any, load: Any, run: dict[str, Any]) -> Requests:
        asked.append(run["requests"])
        return requests([0, 1, 2], [5, 6, 7], [2, 3, 4])

    arrivals = {"kind": "poisson"} | ({"series": series} if series else {})
    workload = {"arrivals": arrivals, "lengths": {"kind": "fixed"}}
    scenario = SimpleNamespace(workload=workload, load={"rate_per_s": 1.0}, run={"seed": 1})
    runs = SimpleNamespace(scenario=scenario, axis="load.rate_per_s", requests=300, first=0)
    monkeypatch.setattr(sim.planning.controls, "generate", drawn)
    controls = Controls(runs, 1.0, Pace(0.02, 0.0, 0.001, 0.0))
    controls.columns(limits_of({"ttft_p99_s": 1.0})[0], 4)
    assert (asked.count(longest), asked[-4:]) == (60 + 4 * (longest == 300), [300] * 4)
