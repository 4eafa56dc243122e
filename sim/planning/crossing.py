"""The load at which limits give way, from a few runs: the knee of another sample, or of a changed system."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, log
from typing import Any

from sim.planning.limits import Limit, as_judged, turned_away_share
from sim.results.windows import MOST_TURNED_AWAY

FIRST_STEP, FURTHEST = 0.05, 1.6  # from where a crossing is looked for, in logarithms
_NOTHING = 1e-6


def log_pressure(limits: Sequence[Limit], summary: Mapping[str, Any]) -> float:
    """ln of the largest multiple of what is allowed among a run's limits and its share turned away."""
    values = [(limit.value_s(summary) or 0.0) / limit.bound_s for limit in limits]
    return log(max(*values, turned_away_share(as_judged(limits, summary)) / MOST_TURNED_AWAY, _NOTHING))


def crossing(pressure: Callable[[float], float], start: float, tolerance: float) -> float:
    """The load at which *pressure* turns positive, interpolated within *tolerance* (relative).

    From *start* in growing steps until it lies between two loads; where it does not lie within a factor
    exp(`FURTHEST`), the last load looked at.
    """
    at, step = log(start), FIRST_STEP
    below = above = None
    while abs(at - log(start)) <= FURTHEST:
        value = pressure(exp(at))
        if value > 0:
            above = at, value
        else:
            below = at, value
        if below is None or above is None:
            at += -step if value > 0 else step
            step *= 2
        elif above[0] - below[0] > tolerance:
            at = (below[0] + above[0]) / 2
        else:
            share = -below[1] / (above[1] - below[1])
            return exp(below[0] + share * (above[0] - below[0]))
    return exp(at)
