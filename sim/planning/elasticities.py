"""What binds: by how many percent capacity and knee change with one percent of a resource.

Finite differences on the same random numbers. Of the capacity they are central ones of the saturated
throughput, of the knee one-sided ones through the implicit function: what a resource does to the limit's
statistic at the knee's load, over what the load does to it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

import numpy as np

from sim.faults import InputFault
from sim.hardware.efficiency import CLASSES
from sim.planning.crossing import crossing, log_pressure
from sim.planning.interval import Triple
from sim.planning.limits import Limit
from sim.planning.replications import pooled
from sim.planning.resources import SIZES, SPEEDS, can_matter, scaled
from sim.planning.search import Bracket, Point, Saturated, Search, Simulate, Summarised

if TYPE_CHECKING:
    from sim.hardware import MemoryLedger
    from sim.scenario import Scenario

STEP = 1.05  # of a central difference
SIDE = 0.9  # of a one-sided one: a tenth less, which a pool of blocks always allows
SATURATING = 1000  # requests, and at least four full batches
_MOST_SATURATING = 4000
CROSSING_TOLERANCE = 0.01  # of a load at which a changed scenario gives way
_ENOUGH = 2000  # requests behind a difference at the knee


@dataclass(frozen=True)
class Elasticities:
    """d ln value / d ln resource, by resource; what was not asked for is absent."""

    of: dict[str, float]

    @property
    def speeds_sum(self) -> float:
        return sum(self.of.get(name, 0.0) for name in SPEEDS)

    def ranked(self) -> list[str]:
        """Speeds and sizes, the most binding first; those without effect are left out."""
        named = [name for name in (*SPEEDS, *SIZES) if self.of.get(name, 0.0) > 0.005]
        return sorted(named, key=lambda name: -self.of[name])


def can_saturate(scenario: Scenario) -> bool:
    """Whether everything may be sent at once without being turned away or given up.

    The turns of sessions never are: each comes its time after the one before. Nor are traffic classes, which
    come at rates of their own, nor what waits for a connection.
    """
    timed = {"patience", "sessions", "classes", "retries", "connections"} & scenario.workload.keys()
    return not timed and not scenario.has_queue_limit


def saturated(scenario: Scenario, simulate: Simulate, requests: int) -> Saturated | None:
    """What is completed per second while *requests* sent at once are worked off; None if next to nothing."""
    result = simulate(_burst(scenario, requests))
    rate = _steady_rate(result)
    return Saturated(rate, rate * float(result.summary()["output_tokens"]["mean"])) if rate else None


def _burst(scenario: Scenario, requests: int) -> Scenario:
    return scenario.replace({"load": {"mode": "burst"}, "run.requests": requests}, source="saturation")


def _steady_rate(result: Summarised) -> float:
    """From the end of the first fifth of the answers to that of the fourth: the batch is full in between."""
    end_s = result.series("e2e")
    end_s = np.sort(end_s[np.isfinite(end_s)])
    first, last = len(end_s) // 5, len(end_s) * 4 // 5
    if last - first < 2 or end_s[last] <= end_s[first]:
        return 0.0
    return (last - first) / float(end_s[last] - end_s[first])


def saturating_requests(scenario: Scenario) -> int:
    """Enough to see a full batch for a while."""
    return min(max(SATURATING, 4 * int(scenario.engine["max_num_seqs"])), _MOST_SATURATING)


def of_capacity(
    scenario: Scenario, simulate: Simulate, ledger: MemoryLedger, with_classes: bool = False
) -> Elasticities:
    """Elasticities of the saturated throughput, KV blocks fixed while speeds change."""
    requests = saturating_requests(scenario)

    def measured(resource: str, factor: float) -> float:
        changed = scaled(scenario, resource, factor, ledger)
        rate = _steady_rate(simulate(_burst(changed, requests)))
        return log(rate) if rate else 0.0

    found = {}
    for name in (*SPEEDS, *(CLASSES if with_classes else ())):
        alone = name in ("link", "all_reduce") and scenario.engine["tensor_parallel_size"] == 1
        rise = 0.0 if alone else measured(name, STEP) - measured(name, 1 / STEP)
        found[name] = rise / (2 * log(STEP))
    base = measured("kv_blocks", 1.0)
    for name in SIZES:
        try:
            found[name] = (measured(name, SIDE) - base) / log(SIDE)
        except InputFault:  # one full context would not fit: no such engine
            continue
    return Elasticities(found)


def of_knee(triple: Triple, limit: Limit, simulate: Simulate, ledger: MemoryLedger) -> Elasticities:
    """Elasticities of the load at which *limit* gives way, to speeds, sizes and classes of kernels."""
    runs, load = triple.runs, triple.middle
    count = 1 if runs.requests is None else max(1, round(_ENOUGH / runs.requests))
    base = runs.at(load, count)
    before = _log_statistic(limit, base, runs.first)
    slope = triple.slope(limit)
    found = {}
    for name in (*SPEEDS, *SIZES, *CLASSES):
        if not can_matter(runs.scenario, name, base[0].summary()):
            found[name] = 0.0
            continue
        try:
            changed = [scaled(runs.scenario_of(load, r), name, SIDE, ledger) for r in range(count)]
            after = _log_statistic(limit, [simulate(x) for x in changed], runs.first)
        except InputFault:
            continue
        found[name] = -(after - before) / log(SIDE) / slope
    return Elasticities(found)


def of_crossing(search: Search, scenario: Scenario, knee: Bracket, ledger: MemoryLedger) -> Elasticities:
    """Elasticities of the load at which the windows of *scenario* give way, between the points of *knee*.

    On the same random numbers, with a tenth less of each resource.
    """
    assert knee.good is not None
    assert knee.bad is not None

    def found_with(resource: str, factor: float) -> float:
        def pressure(load: float) -> float:
            at = scenario.replace({search.axis: float(f"{load:.5g}")}, source="elasticities")
            return log_pressure(
                search.limits, search.simulate(scaled(at, resource, factor, ledger)).summary()
            )

        return crossing(pressure, base * factor**0.5, CROSSING_TOLERANCE)

    base = between(search.limits, knee.good, knee.bad)
    found = {}
    for name in (*SPEEDS, *SIZES, *CLASSES):
        if not can_matter(scenario, name, knee.good.summary):
            found[name] = 0.0
            continue
        try:
            found[name] = log(found_with(name, SIDE) / base) / log(SIDE)
        except InputFault:
            continue
    return Elasticities(found)


def between(limits: Sequence[Limit], good: Point, bad: Point) -> float:
    """Where a straight line in the logarithms has the knee between two loads."""
    below, above = (log_pressure(limits, point.summary) for point in (good, bad))
    share = -below / (above - below) if below <= 0 < above else 0.0
    return float(good.load * (bad.load / good.load) ** share)


def _log_statistic(limit: Limit, results: list[Summarised], first: int | None) -> float:
    pool = pooled(limit.statistic, [result.sample(limit.metric, first) for result in results])
    return float(pool.log(np.ones((1, len(results))))[0])
