"""Paired differences: two scenarios on the same random numbers, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Values = Sequence[float | None]


@dataclass(frozen=True)
class Number:
    """A number of a run's summary: its dotted *path* there, its name, and what it is.

    *kind* is one of `time` (s), `share`, `rate` (per s), `count` and `usd`. *better* is 1 where more is
    better, -1 where less is, 0 where neither.
    """

    path: str
    name: str
    kind: str
    better: int


@dataclass(frozen=True)
class Difference:
    """Of a number between two scenarios: the *mean* over seeds of theirs minus the first's, and its interval.

    *low* and *high* are the t interval of the mean, None where fewer than two seeds have both. *count* seeds
    have both, of *asked*.
    """

    mean: float | None
    low: float | None
    high: float | None
    count: int
    asked: int

    @property
    def seen(self) -> bool | None:
        """Whether the interval leaves zero out; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return self.low > 0 or self.high < 0

    @property
    def same(self) -> bool:
        """Whether it is zero in every seed: there is nothing that more seeds could show."""
        return self.count > 0 and self.mean == self.low == self.high == 0

    def as_dict(self) -> dict[str, Any]:
        interval = None if self.low is None else [self.low, self.high]
        found = {"mean": self.mean, "interval": interval, "seen": self.seen, "seeds": self.count}
        if self.count == 0:
            return {**found, "reason": "undefined on one side in every seed"}
        if interval is None:
            return {**found, "reason": "one seed has no interval"}
        return found


def difference(first: Values, other: Values, confidence: float) -> Difference:
    """Of *other* to *first*, which hold one value a seed, in the same order; None where it is undefined.

    The pairs' differences are taken as independent and normal: mean +- t s / sqrt(n) with n - 1 degrees of
    freedom (Law, Simulation Modeling and Analysis, 10.2.1). Since two values of a pair rest on the same
    random numbers, most of their chance cancels.
    """
    both = [(a, b) for a, b in zip(first, other, strict=True) if a is not None and b is not None]
    gaps = [b - a for a, b in both]
    mean = sum(gaps) / len(gaps) if gaps else None
    half = half_width(gaps, confidence)
    if mean is None or half is None:
        return Difference(mean, None, None, len(gaps), len(first))
    return Difference(mean, mean - half, mean + half, len(gaps), len(first))


def half_width(values: Sequence[float], confidence: float) -> float | None:
    """Half the t interval of the mean of *values*; None for fewer than two."""
    if len(values) < 2:
        return None
    from scipy.special import stdtrit

    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return float(stdtrit(len(values) - 1, 0.5 + confidence / 2)) * (variance / len(values)) ** 0.5


def mean_of(values: Values) -> float | None:
    """Of those that are there."""
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None
