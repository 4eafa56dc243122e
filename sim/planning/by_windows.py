"""Knees where one run a load decides: of a trace, of a daily curve, and where no limit has a value.

The knee of the scenario's own run is bisected. A trace is one sample, and others are drawn from it; a daily
curve can be drawn again whole, with other seeds, and its knee is that of a typical day.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from sim.planning.elasticities import of_crossing
from sim.planning.error_bar import Interval, parts_of
from sim.planning.judgement import Judgement, with_parts
from sim.planning.other_samples import LEAST_SEEDS, interval_of_trace, knees_of_seeds, of_many
from sim.planning.reasons import first_to_give_way
from sim.planning.replications import seed_of
from sim.planning.search import Bracket, Search
from sim.scenario import Scenario

NOTHING_GAVE_WAY = "nothing gave way in the search"
ONE_PATH = "a trace is one sample path: nothing in it can be drawn again"
QUEUE_FIRST = "the queue gives way before any limit does: how far another trace would move that is not known"
NEAR = 1.1  # loads that are judged by the day that is shown, as a factor from its knee


def judge_by_windows(search: Search, precision: float, physics: bool) -> Judgement:
    """The knee of *search* from one run a load; its interval where windows decide. As `judge` has it."""
    search.bisect(precision)
    bracket = search.knee()
    found = Judgement(bracket.good, bracket.bad, first_to_give_way(bracket), interval_reason=ONE_PATH)
    if not search.by_windows or bracket.good is None:
        return found
    if bracket.bad is None:
        return replace(found, interval_reason=NOTHING_GAVE_WAY)
    if found.breaking is None and not bracket.bad.turns_away:
        return replace(found, interval_reason=QUEUE_FIRST)
    if not search.is_one_path:
        return _of_a_typical_day(search, bracket, precision, physics)
    if not physics:
        return found
    confidence = float(search.scenario.run["confidence"])
    interval = interval_of_trace(search, bracket.good, confidence)
    if isinstance(interval, str):
        return replace(found, interval_reason=interval)
    found = replace(found, interval=interval, interval_reason=None)
    return _with_what_binds(search, search.scenario, bracket, found)


def _of_a_typical_day(search: Search, bracket: Bracket, precision: float, physics: bool) -> Judgement:
    """The mean, in logarithms, of the knees of days with other seeds; shown is the day nearest above it."""
    assert bracket.good is not None
    run = search.scenario.run
    confidence, most = float(run.get("confidence", 0.95)), int(run.get("most_replications", 100))
    count, knees = min(LEAST_SEEDS, most), list[float]()
    while True:
        knees += knees_of_seeds(search, bracket.good.load, range(len(knees), count))
        load, low, high = of_many(knees, confidence)
        reached = (high - low) / 2 <= precision * load
        if reached or count >= most:
            break
        count = min(most, ceil(1.5 * count))
    load = float(f"{load:.5g}")
    day = _day_shown(search, knees, load)
    knee = search.knee_at(load)
    interval = Interval(confidence, (low, high), None, {}, count, run.get("requests"), None, reached)
    found = Judgement(
        knee.good,
        knee.bad,
        first_to_give_way(knee),
        interval,
        replications=count,
        reached=reached,
    )
    return _with_what_binds(search, day, knee, found) if physics and knee.bad else found


def _day_shown(search: Search, knees: Sequence[float], load: float) -> Scenario:
    """The day whose own knee is nearest above *load*; it, and loads near it, are judged by that day."""
    own = search.scenario.run["seed"]
    ranked = sorted(range(len(knees)), key=lambda i: knees[i])
    numbers = [i for i in ranked if knees[i] >= load] or ranked[-1:]
    for number in numbers:
        day = search.scenario.replace({"run.seed": seed_of(own, number)}, source="knee search")
        _judge_by(search, day, load)
        if search.at(load).passes:  # its own knee is interpolated
            break
    for point in search.points:
        if load / NEAR < point.load < load * NEAR and point.load != load:
            _judge_by(search, day, point.load)
    return day


def _judge_by(search: Search, day: Scenario, load: float) -> None:
    run = search.simulate(day.replace({search.axis: load}, source="knee search"))
    search.judge_run(load, run.summary())


def _with_what_binds(search: Search, scenario: Scenario, knee: Bracket, found: Judgement) -> Judgement:
    from sim.simulation import ledger_of

    assert found.at is not None
    assert found.interval is not None
    ledger = ledger_of(scenario)
    elasticities = of_crossing(search, scenario, knee, ledger)
    parts = parts_of(scenario, elasticities, ledger, found.interval.confidence)
    return with_parts(found, found.at.load, elasticities, parts)
