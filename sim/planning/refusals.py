"""The knee of a server that refuses: where `MOST_TURNED_AWAY` of all that is offered is not served.

Between two loads a few percent apart the share turned away, pooled over replications on common random
numbers, is a straight line; the interval is that of the share at the knee, over the line's slope.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np

from sim.planning.interval import BESIDE, LEAST_REPLICATIONS
from sim.planning.limits import turned_away_share
from sim.planning.replications import Replications
from sim.planning.search import Search
from sim.results.windows import MOST_TURNED_AWAY

NARROW = 1.06  # ratio of the two loads


@dataclass(frozen=True)
class Refusing:
    """The knee's load, its sampling interval, from how many replications, and whether it is precise."""

    load: float
    low: float
    high: float
    replications: int
    reached: bool


def refusing(
    search: Search, runs: Replications, between: tuple[float, float], asked: tuple[float, float, int]
) -> Refusing:
    """Where more than `MOST_TURNED_AWAY` are turned away, starting from the loads *between*.

    *asked*: half the interval's width relative to the knee, its confidence, and the most replications.
    """
    from scipy.special import stdtrit

    precision, confidence, most = asked
    low, high = _narrowed(runs, *between)
    count = min(LEAST_REPLICATIONS, most)
    while True:
        below, above = _shares(runs, low, count), _shares(runs, high, count)
        rise = max(float((above - below).mean()), 1e-9)
        part = min(max((MOST_TURNED_AWAY - float(below.mean())) / rise, -1.0), 2.0)
        load = low + part * (high - low)
        there = below + part * (above - below)
        error = float(there.std(ddof=1)) / sqrt(count)
        half = float(stdtrit(count - 1, 0.5 + confidence / 2)) * error / rise * (high - low)
        reached = half <= precision * load
        if reached or count >= most:
            break
        count = min(most, ceil(1.5 * count))
    knee = rounded(load)
    line = (low, float(below.mean())), (high, float(above.mean()))
    _judge(search, runs, knee, line)
    return Refusing(knee, load - half, load + half, count, reached)


def rounded(load: float) -> float:
    """To five digits, as all loads of a search."""
    return float(f"{load:.5g}")


def _narrowed(runs: Replications, low: float, high: float) -> tuple[float, float]:
    """Two loads `NARROW` apart; only at the second are more than `MOST_TURNED_AWAY` turned away."""

    def serves(load: float) -> bool:
        return float(_shares(runs, load, BESIDE).mean()) <= MOST_TURNED_AWAY

    while not serves(low):
        low, high = rounded(low / NARROW), low
    while serves(high):
        low, high = high, rounded(high * NARROW)
    while high > low * NARROW:
        middle = rounded(sqrt(low * high))
        low, high = (middle, high) if serves(middle) else (low, middle)
    return low, high


def _shares(runs: Replications, load: float, count: int) -> np.ndarray:
    return np.array([turned_away_share(run.summary()) for run in runs.at(load, count)])


def _judge(
    search: Search, runs: Replications, knee: float, line: tuple[tuple[float, float], tuple[float, float]]
) -> None:
    """Loads on the *line* have its share; others that contradict the *knee* by a single run are pooled.

    The line goes on to the knee where more replications have moved that past one of the two loads.
    """
    (low, below), (high, above) = line
    for load in {low, knee, high, *(point.load for point in search.points)}:
        if min(low, knee) <= load <= max(high, knee):
            share = below + (above - below) * (load - low) / (high - low)
        elif (load < knee) == search.at(load).turns_away:
            share = float(_shares(runs, load, BESIDE).mean())
        else:
            continue
        share = min(share, MOST_TURNED_AWAY) if load <= knee else share
        summary = runs.at(load, 1)[0].summary()
        search.judge(load, {**summary, "turned_away_share": share}, search.at(load).broken)
