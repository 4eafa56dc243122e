"""Replications: the same loads again on other random numbers, and what they say when pooled.

Replication r has one seed at every load, so that loads are compared on common random numbers. The values of
a limit's metric are pooled over replications before a percentile is taken. Whole replications are what is
drawn again in a bootstrap, since requests of one run depend on each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.planning.limits import Limit
from sim.planning.search import Simulate, Summarised
from sim.results.statistics import correlation_length, mser_5

if TYPE_CHECKING:
    from sim.scenario import Scenario

TAIL = 6.0  # a percentile of redrawn replications is sought in so many times its share of the values
KEPT = 400  # of those values, evenly by rank; between two of them a percentile is interpolated
_LEAST_S = 1e-9  # stands for 0 s, which has no logarithm


def seed_of(seed: int, replication: int) -> int:
    """The seed of a replication: the scenario's own for number 0, independent ones for the others."""
    if replication == 0:
        return seed
    return int(np.random.SeedSequence(seed, spawn_key=(replication,)).generate_state(1)[0])


class Replications:
    """Runs of one scenario at several loads, replication by replication; each is made once and kept.

    *axis* is the scenario key that is the load; *requests* (None: as the scenario says) the length of a
    run; *first* the first request that counts (None: the scenario's warm-up decides).
    """

    def __init__(
        self, scenario: Scenario, axis: str, limits: Iterable[Limit], simulate: Simulate, requests: int | None
    ) -> None:
        self.scenario, self.axis, self.limits = scenario, axis, tuple(limits)
        self.requests, self.first = requests, None if requests is None else 0
        self._simulate = simulate
        self._runs: dict[float, list[Summarised]] = {}
        self._pools: dict[tuple[float, str, int], Pool] = {}

    @property
    def count(self) -> int:
        """Runs made so far."""
        return sum(map(len, self._runs.values()))

    def loads(self, count: int) -> list[float]:
        """The loads that have *count* replications, in order."""
        return sorted(load for load, runs in self._runs.items() if len(runs) >= count)

    def at(self, load: float, count: int) -> list[Summarised]:
        """The first *count* replications at *load*."""
        runs = self._runs.setdefault(load, [])
        for replication in range(len(runs), count):
            runs.append(self._simulate(self.scenario_of(load, replication)))
        return runs[:count]

    def scenario_of(self, load: float, replication: int) -> Scenario:
        """What replication number *replication* at *load* simulates."""
        changes = {self.axis: load, "run.seed": seed_of(self.scenario.run["seed"], replication)}
        if self.requests is not None:
            changes["run.requests"] = self.requests
        return self.scenario.replace(changes, source="knee search")

    def pool(self, load: float, limit: Limit, count: int) -> Pool:
        """The values of *limit*'s metric in the first *count* replications at *load*."""
        key = load, limit.name, count
        if key not in self._pools:
            samples = [run.sample(limit.metric, self.first) for run in self.at(load, count)]
            self._pools[key] = pooled(limit.statistic, samples)
        return self._pools[key]

    def settle(self, load: float, count: int) -> None:
        """Leave out as many requests more as MSER-5 says, of the mean over *count* replications at *load*.

        The limit that needs most decides.
        """
        if self.first is None:
            return
        cuts = [mser_5(_mean_series(self.at(load, count), limit.metric)) for limit in self.limits]
        self.first = max([self.first, *cuts])
        self._pools.clear()

    def correlation_length(self, load: float, count: int, metric: str, share: float = 1.0) -> float:
        """Requests that carry as much as one independent request about *metric*: the mean over runs.

        With a *share* below 1, about which requests are among so many largest.
        """
        rows = [run.series(metric)[self.first :] for run in self.at(load, count)]
        rows = [row[np.isfinite(row)] for row in rows]
        if share < 1.0 and any(map(len, rows)):
            edge = np.quantile(np.concatenate(rows), 1.0 - share)
            rows = [(row > edge).astype(np.float64) for row in rows]
        return float(np.mean([correlation_length(row) for row in rows if len(row)] or [1.0]))


def _mean_series(runs: list[Summarised], metric: str) -> np.ndarray:
    """The mean over *runs* of each request's value; requests without one in any run are left out."""
    rows = [run.series(metric) for run in runs]
    shortest = min(map(len, rows))
    table = np.array([row[:shortest] for row in rows])
    known = np.isfinite(table)
    counts = known.sum(axis=0)
    sums = np.where(known, table, 0.0).sum(axis=0)
    return sums[counts > 0] / counts[counts > 0]


@dataclass(frozen=True)
class Pool:
    """Values of several replications, ready to be redrawn.

    For a percentile: *values* are some of the largest in falling order, and *beyond* [r, i] counts what
    replication r has at or above values[i]. For a mean, *values* are the replications' sums; for a maximum,
    the logarithms of their maxima. *totals* are how many values each replication has, *share* how much of
    them may lie beyond the percentile.
    """

    statistic: str
    values: np.ndarray
    beyond: np.ndarray
    totals: np.ndarray
    share: float
    thinned: bool = False

    @property
    def empty(self) -> bool:
        return not self.totals.sum()

    def log(self, drawn: np.ndarray) -> np.ndarray:
        """ln of the statistic in s, for each row of *drawn*: how often each replication counts in it.

        A maximum is the geometric mean of the replications' maxima: what a run of this length shows.
        """
        if self.statistic == "mean":
            return np.log(np.maximum((drawn @ self.values) / (drawn @ self.totals), _LEAST_S))
        if self.statistic == "max":
            return (drawn @ self.values) / drawn.sum(axis=1)
        return np.log(np.maximum(self._percentile(drawn), _LEAST_S))

    def _percentile(self, drawn: np.ndarray) -> np.ndarray:
        """The largest value with more than *share* at or above it; interpolated if only some are kept."""
        beyond = drawn @ self.beyond
        most = ((drawn @ self.totals) * self.share * (1 + 1e-12))[:, None]
        at = np.minimum((beyond <= most).sum(axis=1), len(self.values) - 1)
        if not self.thinned:
            return self.values[at]
        at, row = np.maximum(at, 1), np.arange(len(drawn))
        before, after = beyond[row, at - 1], beyond[row, at]
        part = (most[:, 0] - before) / np.maximum(after - before, 1e-300)
        return self.values[at - 1] + np.clip(part, 0.0, 1.0) * (self.values[at] - self.values[at - 1])


def pooled(statistic: str, samples: list[tuple[np.ndarray, np.ndarray | None]]) -> Pool:
    """The `Pool` for a limit's *statistic* of each replication's (values in s, weights or None)."""
    totals = np.array([len(v) if w is None else w.sum() for v, w in samples], dtype=np.float64)
    nothing = np.empty(0)
    if statistic == "mean":
        sums = np.array([v.sum() if w is None else v @ w for v, w in samples])
        return Pool(statistic, sums, nothing, totals, 0.0)
    if statistic == "max":
        most = np.array([np.log(max(v.max(initial=0.0), _LEAST_S)) for v, _ in samples])
        return Pool(statistic, most, nothing, totals, 0.0)
    share = 1.0 - float(statistic[1:]) / 100.0
    values = np.concatenate([v for v, _ in samples])
    weights = np.concatenate([np.ones(len(v)) if w is None else w for v, w in samples])
    owner = np.repeat(np.arange(len(samples)), [len(v) for v, _ in samples])
    order = np.argsort(-values, kind="stable")
    order = order[: 1 + int(np.searchsorted(np.cumsum(weights[order]), TAIL * share * totals.sum()))]
    ends = np.append(np.flatnonzero(np.diff(values[order])), len(order) - 1)  # the last of equal values
    thinned = len(ends) > KEPT
    kept = ends[np.linspace(0, len(ends) - 1, KEPT).astype(np.int64)] if thinned else ends[ends >= 0]
    beyond = [np.cumsum(np.where(owner[order] == r, weights[order], 0.0))[kept] for r in range(len(samples))]
    return Pool(statistic, values[order[kept]], np.array(beyond), totals, share, thinned)
