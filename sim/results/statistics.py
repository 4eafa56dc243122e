"""Summaries of samples: mean, percentiles, maximum; weighted ones; trends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

PERCENTILES = (50, 90, 95, 99)
HISTOGRAM_ERROR = 1e-3  # relative, of a percentile read off bins


def describe(values: np.ndarray, reason: str) -> dict[str, Any]:
    """Mean, percentiles and maximum of *values*; all null, with *reason*, where there are none.

    Percentiles interpolate linearly between order statistics, as numpy does by default.
    """
    n = len(values)
    if not n:
        return _undefined(reason)
    ordered = np.sort(values)
    at = np.array(PERCENTILES) / 100.0 * (n - 1)
    low = at.astype(np.int64)
    high = np.minimum(low + 1, n - 1)
    quantiles = ordered[low] + (at - low) * (ordered[high] - ordered[low])
    return _described(float(ordered.mean()), quantiles.tolist(), float(ordered[-1]), n)


def _described(mean: float, quantiles: list[float], largest: float, n: int) -> dict[str, Any]:
    percentiles = {f"p{p}": q for p, q in zip(PERCENTILES, quantiles, strict=True)}
    return {"mean": mean, **percentiles, "max": largest, "n": n}


def _undefined(reason: str) -> dict[str, Any]:
    return {
        "mean": None,
        **{f"p{p}": None for p in PERCENTILES},
        "max": None,
        "n": 0,
        "reason": reason,
    }


@dataclass
class Histogram:
    """Weighted samples that are only ever described.

    *exact* keeps each sample; otherwise samples fall into bins of equal ratio and a percentile is off
    by at most `HISTOGRAM_ERROR`, mean and maximum not at all.
    """

    exact: bool
    _values: list[np.ndarray] = field(default_factory=list)
    _weights: list[np.ndarray] = field(default_factory=list)
    _largest: float = 0.0

    def add(self, values: np.ndarray, weights: np.ndarray) -> None:
        """Add *values* (positive), each *weights* (counts) times."""
        self._largest = max(self._largest, float(values.max(initial=0.0)))
        if self.exact or not len(values):
            self._values.append(values)
            self._weights.append(weights)
            return
        bins = np.rint(np.log(values) / (2 * HISTOGRAM_ERROR)).astype(np.int64)
        lowest = bins.min()
        count = np.bincount(bins - lowest, weights=weights)
        total = np.bincount(bins - lowest, weights=weights * values)
        used = np.flatnonzero(count)
        self._values.append(total[used] / count[used])  # the mean of a bin keeps the overall mean exact
        self._weights.append(count[used].astype(np.int64))

    @property
    def count(self) -> int:
        """How many samples there are."""
        return int(sum(int(w.sum()) for w in self._weights))

    def describe(self, reason: str) -> dict[str, Any]:
        """Like `describe`, by weight; a percentile is the smallest sample that reaches its share."""
        values, weights = np.concatenate(self._values), np.concatenate(self._weights)
        n = int(weights.sum())
        if not n:
            return _undefined(reason)
        order = np.argsort(values, kind="stable")
        values, reached = values[order], np.cumsum(weights[order])
        at = np.searchsorted(reached, np.array(PERCENTILES) / 100.0 * n)
        mean = float(values @ weights[order]) / n
        return _described(mean, values[at].tolist(), self._largest, n)


def growth(
    arrival_s: np.ndarray, leave_s: np.ndarray, start_s: float, end_s: float, batches: int = 10
) -> tuple[float, bool]:
    """How fast the number in the system grows in a window, per s, and whether it clearly does.

    *arrival_s* and *leave_s* (inf for who never left) are of all requests. The window is cut into
    equal *batches*; the slope is the least-squares line through their mean numbers. It counts as
    growth when the Mann-Kendall test of the batches is significant at 1 % (one-sided, normal
    approximation; H. B. Mann, Econometrica 13, 1945) and the growth is more than 1 % of the arrivals.
    """
    length_s = end_s - start_s
    if length_s <= 0.0:
        return 0.0, False
    edges = np.linspace(start_s, end_s, batches + 1)
    mean = np.diff(_integral(leave_s, edges) - _integral(arrival_s, edges)) / (length_s / batches)
    middle = (edges[1:] + edges[:-1]) / 2
    slope = float(np.polyfit(middle - middle.mean(), mean, 1)[0])
    later, earlier = np.triu_indices(batches, 1)[::-1]
    score = int(np.sign(mean[later] - mean[earlier]).sum())
    deviation = (batches * (batches - 1) * (2 * batches + 5) / 18) ** 0.5
    arrived = int(np.count_nonzero((arrival_s >= start_s) & (arrival_s <= end_s)))
    significant = (score - 1) / deviation > 2.326
    return slope, significant and slope * length_s > max(0.01 * arrived, 5.0)


def _integral(event_s: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """sum(min(event, edge)) for each edge: departures' less arrivals' integrates the number inside."""
    ordered = np.sort(event_s)
    passed = np.searchsorted(ordered, edges)
    total = np.concatenate([[0.0], np.cumsum(np.where(np.isfinite(ordered), ordered, 0.0))])
    return total[passed] + (len(ordered) - passed) * edges
