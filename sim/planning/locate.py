"""Between which loads the knee lies, judged by replications instead of single runs.

A single run near the knee passes or fails by luck. So every load that failed below the knee, and the loads on
both sides of it, are replicated and judged by the pooled statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import Any

import numpy as np

from sim.planning.interval import BESIDE, WIDEST
from sim.planning.limits import Limit, turned_away_share
from sim.planning.replications import Replications
from sim.planning.search import Search

SHORTEST, LONGEST = 2000, 40_000  # requests of a replication
INDEPENDENT = 20
INDEPENDENT_BEYOND = 3.0
MORE = 5  # what lies beyond a percentile is told from so many times as much: a short run has too little


@dataclass(frozen=True)
class Located:
    """The loads next to the knee: the last that passes, the first that does not; None where there is none."""

    low: float | None
    high: float | None
    queue_first: bool  # the first that does not keeps every limit, but its queue grows


def short_replications(search: Search) -> Replications:
    """Replications that are compared with each other: at several loads, as long as need be."""
    given = search.scenario.run.get("requests")
    runs = Replications(search.scenario, search.axis, search.limits, search.simulate, None)
    if given is not None:
        runs.requests = min(int(given), SHORTEST)
        runs.first = warm_up_of(search, runs)
    return runs


def long_replications(search: Search, short: Replications, load: float) -> Replications:
    """Replications that say how high the statistics are at *load*: long enough to be alike.

    By how far requests depend on each other, each has at least `INDEPENDENT` independent ones, and
    `INDEPENDENT_BEYOND` beyond every percentile with a limit; within the bounds that run.requests sets.
    """
    if short.requests is None:
        return short
    wanted = float(short.requests)
    for limit in search.limits:
        wanted = max(wanted, INDEPENDENT * short.correlation_length(load, BESIDE, limit.metric))
        if limit.statistic.startswith("p"):
            share = 1.0 - float(limit.statistic[1:]) / 100.0
            length = short.correlation_length(load, BESIDE, limit.metric, min(MORE * share, 0.5))
            wanted = max(wanted, INDEPENDENT_BEYOND * length / share)
    given = int(search.scenario.run["requests"])
    runs = Replications(search.scenario, search.axis, search.limits, search.simulate, None)
    runs.requests = int(min(wanted, max(given, LONGEST) if given >= SHORTEST else given))
    runs.first = warm_up_of(search, runs)
    return runs


def warm_up_of(search: Search, runs: Replications) -> int:
    """The scenario's own warm-up as a number of requests of a replication."""
    warmup, requests = search.scenario.run.get("warmup", 0.0), runs.requests or 0
    if isinstance(warmup, dict):
        return min(int(warmup["seconds"] * search.points[0].rate_per_s), requests // 2)
    return int(warmup * requests)


def locate(search: Search, runs: Replications) -> Located:
    """Replicate what must be looked at twice, and close in until the loads are `WIDEST` apart at most."""
    low, high = _next_to_the_knee(search, runs)
    if low is None or high is None:
        return Located(low, high, False)
    while high > low * WIDEST:
        middle = _between(search, runs, low, high)
        low, high = (middle, high) if _passes(search, runs, middle) else (low, middle)
    return Located(low, high, not _broken(search, runs, high))


def _next_to_the_knee(search: Search, runs: Replications) -> tuple[float | None, float | None]:
    """Neighbours among the loads tried: the last that passes, and the first that does not."""
    low: float | None = None
    for point in search.points:
        if point.passes:
            low = point.load
            continue
        if low is not None and not _passes(search, runs, low):
            break
        if not point.completed or not _passes(search, runs, point.load):
            return low, point.load
        low = point.load
    while low is not None and not _passes(search, runs, low):
        high = low
        low = max((p.load for p in search.points if p.load < high), default=None)
        if low is None or _passes(search, runs, low):
            return low, high
    return low, None


def _between(search: Search, runs: Replications, low: float, high: float) -> float:
    """Where straight lines in the logarithms have the knee, kept off the ends; else the geometric middle."""
    one, shares = np.ones((1, BESIDE)), []
    for limit in _broken(search, runs, high):
        if not runs.pool(low, limit, BESIDE).empty:
            a, b = (float(runs.pool(x, limit, BESIDE).log(one)[0]) for x in (low, high))
            shares.append((log(limit.bound_s) - a) / (b - a) if b > a else 0.5)
    share = min(max(min(shares, default=0.5), 0.2), 0.8)
    return float(f"{exp(log(low) + share * log(high / low)):.5g}")


def _broken(search: Search, runs: Replications, load: float) -> tuple[Limit, ...]:
    """The limits that the pooled replications at *load* miss."""
    one = np.ones((1, BESIDE))
    pools = [(limit, runs.pool(load, limit, BESIDE)) for limit in search.limits]
    return tuple(x for x, pool in pools if not pool.empty and pool.log(one)[0] > log(x.bound_s))


def _passes(search: Search, runs: Replications, load: float) -> bool:
    """Judge *load* by its replications, and let the search know."""
    summaries = [run.summary() for run in runs.at(load, BESIDE)]
    stable = sum(bool(x["stable"]) for x in summaries) > BESIDE / 2
    one, values = np.ones((1, BESIDE)), {}
    for limit in search.limits:
        if not (pool := runs.pool(load, limit, BESIDE)).empty:
            values[limit] = float(np.exp(pool.log(one)[0]))
    broken = tuple(limit for limit, value_s in values.items() if value_s > limit.bound_s)
    lost = sum(map(turned_away_share, summaries)) / BESIDE
    first = summaries[0] | {"stable": stable, "turned_away_share": lost}
    search.judge(load, with_values(first, values, BESIDE), broken)
    return search.at(load).passes


def with_values(summary: dict[str, Any], values_s: dict[Limit, float], replications: int) -> dict[str, Any]:
    """A run's *summary* with the limits' statistics pooled over *replications*."""
    changed = {**summary, "replications": replications}
    for limit, value_s in values_s.items():
        key = f"{limit.metric}_s"
        changed[key] = {**changed[key], limit.statistic: value_s}
    return changed
