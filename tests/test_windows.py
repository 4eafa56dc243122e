"""A run is judged by windows: which they are, and which of them miss a limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import NO_FRONT_END, EvenSteps, base

from sim.clock import on_grid
from sim.report.text import run_text
from sim.report.windows_figure import write_windows
from sim.results import Result
from sim.results.windows import spans_of
from sim.simulation import simulate
from sim.workload import Requests

STEP_S, TOKENS = 2.0**-6, 64  # a request holds the server for one second
REGULAR_S = [10.0 * i for i in range(121)]  # one every ten seconds, until 1200 s
BURST_S = [700.0] * 20


def summary(arrivals_s: list[float], **changes: Any) -> dict[str, Any]:
    """A run of requests that are served one at a time, for a second each, in order of arrival."""
    count = len(arrivals_s)
    requests = Requests(on_grid(np.sort(arrivals_s)), np.ones(count, int), np.full(count, TOKENS))
    limits = {"slo": {"queue_max_s": 5.0}, "run.warmup": 0.0}
    scenario = base().replace({**NO_FRONT_END, "engine.max_num_seqs": 1, **limits, **changes})
    return Result(simulate(scenario, requests=requests, step_time=EvenSteps(STEP_S))).summary()


def test_one_bad_five_minutes_are_found() -> None:
    """Twenty more requests at 700 s wait up to 20 s: one of four windows misses the limit of 5 s.

    The regular ones behind them find 21 s of work less 10, and 11 s and their own less 10; nobody else waits.
    """
    found = summary(REGULAR_S + BURST_S)["windows"]
    assert [row["start_s"] for row in found["by_window"]] == [0.0, 300.0, 600.0, 900.0]
    assert [row["requests"] for row in found["by_window"]] == [30, 30, 50, 31]
    assert [row["values"] for row in found["by_window"]] == [
        {"queue_max_s": x} for x in (0.0, 0.0, 20.0, 0.0)
    ]
    assert [row["missed"] for row in found["by_window"]] == [[], [], ["queue_max_s"], []]
    assert (found["count"], found["share_in_violation"]) == (4, 0.25)
    assert found["worst"] == {"start_s": 600.0, "end_s": 900.0, "limit": "queue_max_s", "value": 20.0}


def test_a_window_that_just_holds_misses_nothing() -> None:
    """A limit of 20 s where the longest wait is 20 s; of a little less it is missed."""
    shares = [
        summary(REGULAR_S + BURST_S, slo={"queue_max_s": limit_s})["windows"]["share_in_violation"]
        for limit_s in (20.0, 19.9)
    ]
    assert shares == [0.0, 0.25]


def test_pooled_windows_count_as_so_many() -> None:
    """Of twenty minutes, those that a p90 needs in pairs are two each, in the share that misses it, too."""
    found = summary(REGULAR_S + BURST_S, **{"run.window_s": 60.0, "slo": {"queue_p90_s": 5.0}})["windows"]
    weights = [row.get("windows", 1) for row in found["by_window"]]
    missed = [weight for weight, row in zip(weights, found["by_window"], strict=True) if row["missed"]]
    assert found["count"] == sum(weights) == 20 > len(weights)
    assert found["share_in_violation"] == sum(missed) / 20 > 0


def test_the_worst_window_is_told_in_words() -> None:
    """The text of a run says how many windows miss a limit and which is worst."""
    text = run_text(summary(REGULAR_S + BURST_S))
    assert "1 of 4 miss a limit" in text
    assert "queueing max is 20 s, from 600 s to 900 s" in text


def test_who_is_turned_away_counts_against_a_window() -> None:
    """Of 21 at one instant three may wait and 18 are refused: nobody waits long, and the window fails."""
    found = summary(REGULAR_S + BURST_S, **{"admission.max_queued_requests": 3})["windows"]
    bad = found["by_window"][2]
    assert bad["values"] == {"queue_max_s": 2.0, "turned_away": 18 / 50}
    assert bad["missed"] == ["turned_away"]
    assert found["worst"]["limit"] == "turned_away"


def test_latencies_are_weighed_against_their_limits() -> None:
    """The worst window is the one that exceeds its limit by the largest factor, not by the most seconds."""
    limits = {"slo": {"queue_max_s": 5.0, "e2e_mean_s": 1.0}}
    worst = summary(REGULAR_S + BURST_S, **limits)["windows"]["worst"]
    mean_s = 1.0 + (sum(range(21)) + 11 + 2) / 50
    assert worst["limit"] == "e2e_mean_s"
    assert worst["value"] == pytest.approx(mean_s)


@pytest.mark.parametrize(
    "changes", [{"slo": {}}, {"run.window_s": 601.0}, {"slo": {"queue_p99_s": 5.0}}, {"run.warmup": 0.6}]
)
def test_there_are_no_windows_without_limits_or_length(changes: dict[str, Any]) -> None:
    """No limits, less than two windows, fewer than 100 requests in each of two for a p99: nothing is said."""
    assert "windows" not in summary(REGULAR_S + BURST_S, **changes)


def test_a_quiet_night_makes_longer_windows() -> None:
    """A window with too few requests takes in the next ones; what is left at the end joins the last."""
    day, night = np.arange(0.0, 20.0, 0.1), np.arange(20.0, 50.0, 1.0)
    spans = spans_of(np.concatenate([day, night]), (0.0, 50.0), 10.0, 15)
    assert [(x.start_s, x.end_s, x.windows) for x in spans] == [
        (0.0, 10.0, 1),
        (10.0, 20.0, 1),
        (20.0, 50.0, 3),
    ]
    assert [(x.first, x.last) for x in spans] == [(0, 100), (100, 200), (200, 230)]


@pytest.mark.parametrize(("end_s", "ends_s"), [(34.0, [10.0, 20.0, 34.0]), (36.0, [10.0, 20.0, 30.0, 36.0])])
def test_a_short_rest_belongs_to_the_last_window(end_s: float, ends_s: list[float]) -> None:
    """Less than half a window is none of its own."""
    spans = spans_of(np.arange(0.0, end_s, 0.1), (0.0, end_s), 10.0, 1)
    assert [x.end_s for x in spans] == ends_s
    assert spans[-1].last == len(np.arange(0.0, end_s, 0.1))


def test_the_windows_are_drawn(tmp_path: Path) -> None:
    """The page beside a run has a dot for each window, red where the limit is missed, and the worst."""
    (page,) = write_windows(summary(REGULAR_S + BURST_S), tmp_path)
    text = page.read_text(encoding="utf-8")
    assert text.count('class="dot s-good"') == 3 + 1  # one is the legend's
    assert text.count('class="dot s-bad"') == 1 + 1
    assert "600 s to 900 s: queueing max 20 s, 50 requests" in text
    assert "the worst: queueing max is 20 s, from 600 s to 900 s" in text
    assert not write_windows(summary(REGULAR_S, slo={}), tmp_path)
