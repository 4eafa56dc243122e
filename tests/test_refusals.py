"""A knee serves what it is offered: nobody buys latency with refusals."""

from __future__ import annotations

from functools import cache

import pytest

import sim
from sim.planning.knee import Knee
from sim.planning.limits import turned_away_share
from sim.planning.wording import number
from sim.report.text import headline, knee_text
from sim.results.windows import MOST_TURNED_AWAY

BOUNDED = {"max_queued_requests": 10}
DEADLINE = {"queue_deadline_s": 0.25}
TIGHT_S = 0.0118


@cache
def knee(rule: str = "", **slo: float) -> Knee:
    admission = {"": {}, "bounded": BOUNDED, "deadline": DEADLINE}[rule]
    return sim.find_knee(
        sim.load(
            {
                "name": rule or "open",
                "hardware": "a100-80gb-sxm",
                "model": "llama-3-8b",
                "engine": {"max_num_seqs": 8},
                "admission": admission,
                "workload": {
                    "arrivals": {"kind": "poisson"},
                    "lengths": {"kind": "fixed", "prompt_tokens": 256, "output_tokens": 64},
                },
                "load": {"rate_per_s": 2},
                "slo": slo or {"ttft_p99_s": 10},
                "run": {"requests": 500, "precision": 0.05, "most_replications": 20},
            }
        )
    )


@pytest.mark.parametrize("rule", ["bounded", "deadline"])
def test_a_knee_turns_away_one_percent_at_most(rule: str) -> None:
    """At the knee and below it nearly everybody is served; beyond it more are turned away, and it says so."""
    found = knee(rule)
    assert found.at is not None
    beyond = next(point for point in found.points if point.load > found.at.load and not point.passes)
    for point in found.points:
        if point.load <= found.at.load:
            assert turned_away_share(point.summary) <= MOST_TURNED_AWAY
    share = turned_away_share(beyond.summary)
    assert share > MOST_TURNED_AWAY
    assert beyond.stable is False
    assert headline(found).endswith("beyond that, more than 1 % are turned away")
    assert found.reason.startswith(f"{number(100 * share)} % of what is offered is turned away at ")
    assert found.reason.endswith("a knee serves all but 1 %")
    assert "turns away " in knee_text(found)


@pytest.mark.parametrize("rule", ["bounded", "deadline"])
def test_refusing_does_not_raise_the_capacity(rule: str) -> None:
    """Under a loose limit the knee is what the server can carry or less, whoever would be refused beyond."""
    everybody = knee().capacity_rate_per_s
    served = knee(rule).rate_per_s
    assert everybody is not None
    assert served is not None
    assert 0.4 * everybody < served < 1.02 * everybody


def test_a_limit_that_binds_first_still_does() -> None:
    """Far below the load at which anybody is refused, a limit gives way as if there were no rule."""
    tight = {"tpot_mean_s": TIGHT_S}
    free, bounded = knee("", **tight), knee("bounded", **tight)
    assert bounded.breaking_limit == free.breaking_limit == "tpot_mean_s"
    assert bounded.rate_per_s == pytest.approx(free.rate_per_s, rel=0.02)
