"""Limits below what a request takes when it meets nobody: no load can keep them, and no search is needed."""

from __future__ import annotations

from math import sqrt

import numpy as np

from sim.clock import HORIZON_S
from sim.planning.limits import Limit
from sim.planning.search import PILOT_REQUESTS, Search, Summarised

SURE = 4.0  # standard errors beyond which a limit is called missed
FEWEST = 10  # values above a maximum's limit: then runs with other seeds have some, too


def look(search: Search) -> bool:
    """Run requests so far apart that none meets another; True if a limit is clearly missed even so.

    The run is then a point of *search*. Where in doubt, the search decides. A static group that is not
    full waits for company, so that latencies of the lonely say nothing there; and how far a trace's own
    times may be stretched is for the search to find out.
    """
    scenario = search.scenario
    if search.axis != "load.rate_per_s" or scenario.engine["preset"] == "static":
        return False
    requests = min(int(scenario.run.get("requests", PILOT_REQUESTS)), PILOT_REQUESTS)
    load = float(f"{requests / (0.25 * HORIZON_S):.5g}")
    changes = {search.axis: load, "run.requests": requests}
    result = search.simulate(scenario.replace(changes, source="unloaded"))
    missed = tuple(limit for limit in search.limits if _clearly_missed(limit, result))
    if missed:
        search.judge(load, result.summary(), missed)
    return bool(missed)


def _clearly_missed(limit: Limit, result: Summarised) -> bool:
    values, weights = result.sample(limit.metric)
    count = len(values) if weights is None else int(result.summary()["requests"]["completed"])
    if not len(values):
        return False
    if limit.statistic == "mean":
        mean = float(np.average(values, weights=weights))
        deviation = sqrt(float(np.average((values - mean) ** 2, weights=weights)) / count)
        return mean - SURE * deviation > limit.bound_s
    beyond = count * float(np.average(values > limit.bound_s, weights=weights))
    if limit.statistic == "max":
        return beyond >= FEWEST
    share = 1.0 - float(limit.statistic[1:]) / 100.0
    return beyond > count * share + SURE * sqrt(count * share * (1.0 - share)) + 1.0
