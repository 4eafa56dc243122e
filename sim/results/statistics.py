"""Summaries of samples: mean, percentiles, maximum; weighted ones; trends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

PERCENTILES: tuple[float, ...] = (50, 90, 95, 99)
EXACT_VALUES = 200_000
BIN_ERROR = 1e-3  # relative


def describe(values: np.ndarray, reason: str, percentiles: Sequence[float] = PERCENTILES) -> dict[str, Any]:
    """Mean, percentiles and maximum of *values*; all null, with *reason*, where there are none.

    Percentiles interpolate linearly between order statistics, as numpy does by default.
    """
    n = len(values)
    if not n:
        return _undefined(reason, percentiles)
    ordered = np.sort(values)
    at = np.array(percentiles) / 100.0 * (n - 1)
    low = at.astype(np.int64)
    high = np.minimum(low + 1, n - 1)
    quantiles = ordered[low] + (at - low) * (ordered[high] - ordered[low])
    return _described(float(ordered.mean()), quantiles.tolist(), float(ordered[-1]), n, percentiles)


def _described(
    mean: float, quantiles: list[float], largest: float, n: int, percentiles: Sequence[float]
) -> dict[str, Any]:
    named = {f"p{p:g}": q for p, q in zip(percentiles, quantiles, strict=True)}
    return {"mean": mean, **named, "max": largest, "n": n}


def _undefined(reason: str, percentiles: Sequence[float]) -> dict[str, Any]:
    named = dict.fromkeys(f"p{p:g}" for p in percentiles)
    return {"mean": None, **named, "max": None, "n": 0, "reason": reason}


@dataclass
class WeightedSample:
    """Positive values with counts that are only ever described; *largest* is their maximum.

    More than `EXACT_VALUES` of them are kept in bins of equal ratio: a percentile is then off by at
    most `BIN_ERROR`, the mean and the maximum not at all.
    """

    largest: float = 0.0
    _values: list[np.ndarray] = field(default_factory=list)
    _weights: list[np.ndarray] = field(default_factory=list)
    _kept: int = 0

    def add(self, values: np.ndarray, weights: np.ndarray) -> None:
        """Add *values*, each *weights* times."""
        self.largest = max(self.largest, float(values.max(initial=0.0)))
        self._values.append(values)
        self._weights.append(weights)
        self._kept += len(values)
        if self._kept > EXACT_VALUES:
            self._bin()

    def _bin(self) -> None:
        values, weights = np.concatenate(self._values), np.concatenate(self._weights)
        bins = np.rint(np.log(values) / BIN_ERROR).astype(np.int64)
        bins -= bins.min()
        count = np.bincount(bins, weights=weights)
        total = np.bincount(bins, weights=weights * values)
        used = np.flatnonzero(count)
        self._values = [total[used] / count[used]]  # the mean of a bin keeps the overall mean exact
        self._weights = [np.rint(count[used]).astype(np.int64)]
        self._kept = len(used)

    def describe(self, reason: str, percentiles: Sequence[float] = PERCENTILES) -> dict[str, Any]:
        """Like `describe`, by weight; a percentile is the smallest value that reaches its share."""
        if not self._kept:
            return _undefined(reason, percentiles)
        values, weights = np.concatenate(self._values), np.concatenate(self._weights)
        order = np.argsort(values, kind="stable")
        values, weights = values[order], weights[order]
        reached = np.cumsum(weights)
        n = int(reached[-1])
        at = np.searchsorted(reached, np.array(percentiles) / 100.0 * n)
        mean = float(values @ weights) / n
        return _described(mean, values[at].tolist(), self.largest, n, percentiles)


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
