"""From the first runs to the answer: where the knee lies, how sure that is, and what binds there."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

from sim.planning.by_windows import NOTHING_GAVE_WAY, judge_by_windows
from sim.planning.elasticities import of_capacity, of_knee
from sim.planning.error_bar import Interval, parts_of
from sim.planning.interval import BESIDE, LEAST_REPLICATIONS, Sampling, Triple, estimate, of_means
from sim.planning.judgement import Judgement, with_parts
from sim.planning.locate import Located, locate, long_replications, short_replications, with_values
from sim.planning.reasons import evaluated
from sim.planning.refusals import refusing
from sim.planning.replications import Replications
from sim.planning.search import Search


def judge(search: Search, precision: float, physics: bool) -> Judgement:
    """The knee of *search*, whose first runs are made, to *precision* (see `find_knee`).

    *physics*: the runs are simulations of the scenario's hardware, which may be varied.
    """
    if search.is_one_path or search.by_windows or not evaluated(search):
        found = judge_by_windows(search, precision, physics)
    else:
        found = _replicated(search, precision, physics)
    return _with_hardware(search, found) if physics else found


def _replicated(search: Search, precision: float, physics: bool) -> Judgement:
    found = sampled(search, precision, physics)
    if not isinstance(found, tuple):
        return _without_crossing(search, found, physics)
    triple, sampling = found
    bad = search.capacity().bad
    if bad is not None and sampling.load > bad.load:
        return _queue_first(search, triple.runs, physics)
    return _at_the_knee(search, triple, sampling, physics)


def sampled(search: Search, precision: float, controlled: bool) -> tuple[Triple, Sampling] | Located:
    """Where a limit gives way, from replications; where none does before the queue, between which loads.

    *controlled*: the runs are simulations whose traffic can serve as a control variate.
    """
    runs = short_replications(search)
    between = locate(search, runs)
    if between.low is None or between.high is None or between.queue_first:
        return between
    bad = search.capacity().bad
    unstable = bad.load if bad is not None else float("inf")
    triple = Triple(runs, between.low, between.high, unstable, controlled)
    triple.narrow()
    triple.main = long_replications(search, runs, triple.middle)
    triple.main.settle(triple.middle, min(LEAST_REPLICATIONS, _asked(search)[1]))
    return triple, estimate(triple, precision, *_asked(search))


def _without_crossing(search: Search, between: Located, physics: bool) -> Judgement:
    if between.low is None:
        return Judgement(None, None, None)
    if between.high is None:
        return Judgement(search.at(between.low), None, None, interval_reason=NOTHING_GAVE_WAY)
    return _queue_first(search, short_replications(search), physics)


def _asked(search: Search) -> tuple[float, int, int]:
    run = search.scenario.run
    return float(run.get("confidence", 0.95)), int(run.get("most_replications", 100)), int(run["seed"])


def _at_the_knee(search: Search, triple: Triple, sampling: Sampling, physics: bool) -> Judgement:
    """Everything about a knee at which a limit gives way."""
    knee = float(f"{sampling.load:.5g}")
    _judge_neighbours(search, triple, sampling)
    summary = triple.main.at(knee, 1)[0].summary()
    values = {x: sampling.statistics_s[x.name] for x in triple.limits}
    search.judge(knee, with_values(summary | {"stable": True}, values, sampling.replications), ())
    beyond = next((p for p in search.points if p.load > knee and not p.passes), None)
    interval = Interval(
        sampling.confidence,
        (sampling.low, sampling.high),
        None,
        {},
        sampling.replications,
        sampling.requests,
        sampling.left_out,
        sampling.reached,
    )
    found = Judgement(
        search.at(knee),
        beyond,
        sampling.binding,
        interval,
        replications=sampling.replications,
        reached=sampling.reached,
    )
    if not physics:
        return found
    from sim.simulation import ledger_of

    ledger = ledger_of(search.scenario)
    elasticities = of_knee(triple, sampling.binding, search.simulate, ledger)
    parts = parts_of(search.scenario, elasticities, ledger, sampling.confidence)
    return with_parts(found, knee, elasticities, parts)


def _judge_neighbours(search: Search, triple: Triple, sampling: Sampling) -> None:
    """Loads next to the knee, by the curve that all replications together give."""
    runs = triple.runs
    for load in sorted({triple.low, triple.middle, triple.high}):
        values = {x: triple.statistic_s(x, load, sampling.replications) for x in triple.limits}
        broken = tuple(x for x in values if load > sampling.load and values[x] > x.bound_s)
        count = sampling.replications if load == triple.middle else BESIDE
        summary = with_values(runs.at(load, 1)[0].summary(), values, count)
        if load <= sampling.load:
            summary["stable"] = True
        search.judge(load, summary, broken)


def _queue_first(search: Search, runs: Replications, physics: bool) -> Judgement:
    """The knee is the capacity; its spread is that of what overloaded replications complete."""
    capacity, confidence = search.capacity(), _asked(search)[0]
    good, bad = capacity.good, capacity.bad
    if good is None or bad is None:
        return Judgement(good, bad, None, interval_reason=NOTHING_GAVE_WAY)
    if bad.turns_away:
        return _refusing(search, runs, (good.load, bad.load))
    knee = good
    if search.saturated is not None:  # known better than to the nearest load tried
        knee = search.at(search.saturated.requests_per_s)
    over = float(f"{1.5 * bad.load:.5g}")
    rates = [run.summary()["request_throughput"] for run in runs.at(over, LEAST_REPLICATIONS)]
    half = of_means([log(rate) for rate in rates if rate], confidence)
    ends = knee.load * exp(-half), max(knee.load * exp(half), 0.0 if search.saturated else bad.load)
    count = LEAST_REPLICATIONS
    interval = Interval(confidence, ends, None, {}, count, runs.requests, runs.first, True)
    found = Judgement(knee, bad, None, interval, replications=count)
    if not physics or search.saturated is None:
        return found
    from sim.simulation import ledger_of

    ledger = ledger_of(search.scenario)
    elasticities = of_capacity(search.scenario, search.simulate, ledger, with_classes=True)
    parts = parts_of(search.scenario, elasticities, ledger, confidence)
    return with_parts(found, knee.load, elasticities, parts)


def _refusing(search: Search, runs: Replications, between: tuple[float, float]) -> Judgement:
    """The knee is where too many are turned away."""
    confidence, most, _ = _asked(search)
    found = refusing(
        search, runs, between, (float(search.scenario.run.get("precision", 0.02)), confidence, most)
    )
    count, ends = found.replications, (found.low, found.high)
    interval = Interval(confidence, ends, None, {}, count, runs.requests, runs.first, found.reached)
    beyond = next((p for p in search.points if p.load > found.load and not p.passes), None)
    return Judgement(search.at(found.load), beyond, None, interval, replications=count, reached=found.reached)


def _with_hardware(search: Search, found: Judgement) -> Judgement:
    """What the capacity depends on, and the knees of the hardware itself."""
    from sim.planning.roofline_knees import roofline_knees
    from sim.simulation import ledger_of

    knees = roofline_knees(search.scenario)
    if search.saturated is None:
        return replace(found, hardware_knees=knees)
    capacity = of_capacity(search.scenario, search.simulate, ledger_of(search.scenario))
    return replace(found, hardware_knees=knees, capacity_elasticities=capacity.of)
