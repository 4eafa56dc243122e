"""Summaries of samples: mean, percentiles, maximum; weighted ones; trends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np

PERCENTILES: tuple[float, ...] = (50, 90, 95, 99)
EXACT_VALUES = 200_000
MOST_VALUES = 1 << 20  # of a sample that comes in parts
BIN_ERROR = 1e-3  # relative
_BINNED = (2.0**-32, 2.0**64)  # smaller and larger values share the bins at these ends


def fewest_values(statistic: str) -> int:
    """How many values a *statistic* (`mean`, `max`, `p99`) needs to be one of theirs: 100 for a p99."""
    if not statistic.startswith("p"):
        return 1
    return ceil(1.0 / (1.0 - float(statistic[1:]) / 100.0) - 1e-9)


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
    """Values from 0 on, with counts, that are only ever described; *largest* is their maximum.

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
        bins = np.rint(np.log(np.clip(values, *_BINNED)) / BIN_ERROR).astype(np.int64)
        bins -= bins.min()
        count = np.bincount(bins, weights=weights)
        total = np.bincount(bins, weights=weights * values)
        used = np.flatnonzero(count)
        self._values = [total[used] / count[used]]  # the mean of a bin keeps the overall mean exact
        self._weights = [np.rint(count[used]).astype(np.int64)]
        self._kept = len(used)

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """The values and how often each counts."""
        if not self._kept:
            return np.empty(0), np.empty(0, dtype=np.int64)
        return np.concatenate(self._values), np.concatenate(self._weights)

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


@dataclass
class Sample:
    """Values from 0 on that come in parts and are only ever described.

    As `describe` has it, unless there are several parts and more than *most* values in them: then as
    `WeightedSample` has it, in constant memory.
    """

    most: int = MOST_VALUES
    _parts: list[np.ndarray] = field(default_factory=list)
    _kept: int = 0
    _binned: WeightedSample | None = None

    def add(self, values: np.ndarray) -> None:
        """Add *values*."""
        self._parts.append(values)
        self._kept += len(values)
        if self._binned is None and len(self._parts) > 1 and self._kept > self.most:
            self._binned = WeightedSample()
        if self._binned is not None:
            for part in self._parts:
                self._binned.add(part, np.ones(len(part), dtype=np.int64))
            self._parts = []

    def describe(self, reason: str, percentiles: Sequence[float] = PERCENTILES) -> dict[str, Any]:
        """See `describe`."""
        if self._binned is not None:
            return self._binned.describe(reason, percentiles)
        return describe(self._values(), reason, percentiles)

    def median(self) -> float | None:
        """Half of them are smaller; None where there are none."""
        if self._binned is not None:
            median: float = self._binned.describe("", (50,))["p50"]
            return median
        values = self._values()
        return float(np.median(values)) if len(values) else None

    def _values(self) -> np.ndarray:
        if not self._parts:
            return np.empty(0)
        return self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)


def growth(
    begin_s: np.ndarray, end_s: np.ndarray, window: tuple[float, float], batches: int = 10
) -> tuple[float, bool]:
    """How fast a number of requests grows in a window, per s, and whether it clearly does (see `Growth`)."""
    number = Growth(window, batches)
    number.add(begin_s, end_s)
    return number.slope()


class Growth:
    """How fast a number of requests grows in a window, from requests that come in parts.

    The *window* (s) is cut into equal *batches*; the slope is the median of the slopes between all pairs of
    their means (Theil 1950, Sen 1968), which a burst in a few of them does not move. It counts as growth
    when the Mann-Kendall test of the batches is significant at 1 % (one-sided, normal approximation; H. B.
    Mann, Econometrica 13, 1945) and the growth is more than 1 % of those that began in the window, and more
    than five.
    """

    def __init__(self, window: tuple[float, float], batches: int = 10) -> None:
        self.window, self.batches = window, batches
        self._edges = np.linspace(*window, batches + 1)
        self._inside_s = np.zeros(batches + 1)  # requests times seconds up to each edge
        self._began = self._seen = 0

    def add(self, begin_s: np.ndarray, end_s: np.ndarray) -> None:
        """Add requests that count from *begin_s* to *end_s* (inf where they never ended)."""
        self._seen += len(begin_s)
        self._began += int(np.count_nonzero((begin_s >= self.window[0]) & (begin_s <= self.window[1])))
        self._inside_s += _integral(end_s, self._edges) - _integral(begin_s, self._edges)

    def slope(self) -> tuple[float, bool]:
        """The slope, per s, and whether it counts as growth."""
        batches, length_s = self.batches, self.window[1] - self.window[0]
        if length_s <= 0.0 or not self._seen:
            return 0.0, False
        mean = np.diff(self._inside_s) / (length_s / batches)
        later, earlier = np.triu_indices(batches, 1)[::-1]
        rise = mean[later] - mean[earlier]
        slope = float(np.median(rise / (later - earlier))) * batches / length_s
        deviation = (batches * (batches - 1) * (2 * batches + 5) / 18) ** 0.5
        significant = (int(np.sign(rise).sum()) - 1) / deviation > 2.326
        return slope, bool(significant and slope * length_s > max(0.01 * self._began, 5.0))


class Peak:
    """The most that is held at one time, by holders that come in parts.

    Of what happens at one instant, givings back come first, or with *takes_first* takings.
    """

    def __init__(self, takes_first: bool = False) -> None:
        self.most = 0
        self._takes_first, self._held = takes_first, 0
        self._at_s, self._change = np.empty(0), np.empty(0, dtype=np.int64)

    def add(
        self, begin_s: np.ndarray, end_s: np.ndarray, held: np.ndarray | int, settled_s: float = float("inf")
    ) -> None:
        """Add holders of *held* each from *begin_s* to *end_s*; later ones begin at *settled_s* or after."""
        amount = np.broadcast_to(held, len(begin_s))
        at_s = np.concatenate([self._at_s, end_s, begin_s])
        change = np.concatenate([self._change, -amount, amount])
        order = np.lexsort((-change if self._takes_first else change, at_s))
        settled = np.searchsorted(at_s[order], settled_s)
        now, self._at_s, self._change = order[:settled], at_s[order[settled:]], change[order[settled:]]
        running = self._held + np.cumsum(change[now])
        self.most = max(self.most, int(running.max(initial=0)))
        self._held = int(running[-1]) if settled else self._held


def mser_5(series: np.ndarray) -> int:
    """How many values to leave out at the start of *series* (no NaN): the MSER-5 rule.

    The cut, among multiples of five in the first half, at which the means of five that are left have the
    smallest variance over their number (K. P. White, M. J. Cobb and S. C. Spratt, Winter Simulation
    Conference 2000).
    """
    means = series[: len(series) // 5 * 5].reshape(-1, 5).mean(axis=1)
    if len(means) < 4:
        return 0
    left = np.arange(len(means), 0, -1)
    centred = means - means.mean()  # the variance does not change, rounding errors do
    sums, squares = np.cumsum(centred[::-1])[::-1], np.cumsum(centred[::-1] ** 2)[::-1]
    spread = (squares - sums**2 / left) / left**2
    return 5 * int(np.argmin(spread[: len(means) // 2 + 1]))


def correlation_length(series: np.ndarray) -> float:
    """Values of *series* (no NaN) that carry as much as one independent value: 1 + 2 x sum of correlations.

    The sum ends where pairs of neighbouring correlations turn negative (C. J. Geyer, Statistical Science 7,
    1992, initial positive sequence).
    """
    n = len(series)
    centred = series - series.mean()
    if n < 4 or not (variance := float(centred @ centred)):
        return 1.0
    transform = np.fft.rfft(centred, 2 * n)
    correlation = np.fft.irfft(transform * transform.conj(), 2 * n)[: n // 2 * 2] / variance
    pairs = correlation[0::2] + correlation[1::2]
    ends = np.flatnonzero(pairs <= 0.0)
    return max(1.0, 2.0 * float(pairs[: ends[0] if len(ends) else len(pairs)].sum()) - 1.0)


def _integral(event_s: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """sum(min(event, edge)) for each edge: departures' less arrivals' integrates the number inside."""
    ordered = np.sort(event_s)
    passed = np.searchsorted(ordered, edges)
    total = np.concatenate([[0.0], np.cumsum(np.where(np.isfinite(ordered), ordered, 0.0))])
    return total[passed] + (len(ordered) - passed) * edges
