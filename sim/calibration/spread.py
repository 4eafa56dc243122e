"""How far measured and predicted lie apart, beyond what constants can mend: by point and by set-up.

The logarithm of measured over predicted is taken to be an effect of the set-up (its model, card and
lengths, which kernels and lengths are off by together) plus one of the point, both with heavy tails, each
of its kind: pace (time a token, throughput, E2E) and first token. Points of one set-up so count for less
than points of many, and rows that are off for reasons of their own for little.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PACE, FIRST = 0, 1
CLASSES = ("pace", "first token")
_DEGREES = 4.0  # of the t-distributions' tails
_NORMAL = 0.772  # mean of weight x square where the tails are those of the normal distribution
_PRIOR_POINT_SD = np.array([0.03, 0.12])
_PRIOR_SETUP_SD = np.array([0.04, 0.15])
PRIOR_COUNT = 3.0  # observations that the priors of the spreads are worth


@dataclass(frozen=True)
class Spread:
    """Standard deviations of the logarithm, by class, and how much each point and set-up counts (0..1)."""

    point_sd: np.ndarray
    setup_sd: np.ndarray
    point_weight: np.ndarray
    setup_weight: dict[tuple[int, int], float]

    def total_sd(self, which: int) -> float:
        """Of one point of a set-up that was not measured, in the logarithm, by class."""
        return float(np.hypot(self.point_sd[which], self.setup_sd[which]))


@dataclass(frozen=True)
class Units:
    """What is compared: row i is the class *which*[i] of point *point*[i], whose set-up is *setup*[i]."""

    which: np.ndarray
    setup: np.ndarray
    point: np.ndarray

    def clusters(self) -> list[tuple[tuple[int, int], np.ndarray]]:
        """The rows that share a set-up's effect: (set-up, class) and their indices."""
        keys = self.setup * len(CLASSES) + self.which
        return [
            ((int(key) // len(CLASSES), int(key) % len(CLASSES)), np.flatnonzero(keys == key))
            for key in np.unique(keys)
        ]


def first_spread(units: Units) -> Spread:
    """What is believed before the first fit."""
    many = len(np.unique(units.setup)) > 1
    setup_sd = _PRIOR_SETUP_SD if many else np.zeros(len(CLASSES))
    weights = {key: 1.0 for key, _ in units.clusters()}
    return Spread(_PRIOR_POINT_SD, setup_sd, np.ones(len(units.which)), weights)


def spread_of(units: Units, residual: np.ndarray, before: Spread) -> Spread:
    """The spread that *residual* (log measured - log predicted, one a row) shows, from that of *before*."""
    point_sum, point_count = PRIOR_COUNT * _PRIOR_POINT_SD**2, np.full(len(CLASSES), PRIOR_COUNT)
    setup_sum, setup_count = PRIOR_COUNT * _PRIOR_SETUP_SD**2, np.full(len(CLASSES), PRIOR_COUNT)
    point_weight, setup_weight = before.point_weight.copy(), {}
    for key, rows in units.clusters():
        which = key[1]
        weights = before.point_weight[rows]
        mean = float(np.average(residual[rows], weights=weights))
        # A lone point's deviation from its set-up is not seen; with one set-up there is only the point's.
        own = before.setup_sd[which] > 0.0
        deviation = residual[rows] - (mean if own else 0.0)
        point_weight[rows] = _weight(deviation / before.point_sd[which])
        point_sum[which] += float((point_weight[rows] * deviation**2).sum()) / _NORMAL
        point_count[which] += len(rows) - (1.0 if own else 0.0)
        mean_variance = before.point_sd[which] ** 2 / weights.sum()
        setup_weight[key] = float(_weight(mean / np.sqrt(before.setup_sd[which] ** 2 + mean_variance)))
        setup_sum[which] += setup_weight[key] * max(mean**2 - mean_variance, 0.0) / _NORMAL
        setup_count[which] += 1.0
    setup_sd = np.sqrt(setup_sum / setup_count) if before.setup_sd.any() else before.setup_sd
    return Spread(np.sqrt(point_sum / point_count), setup_sd, point_weight, setup_weight)


def precision(units: Units, spread: Spread) -> np.ndarray:
    """The inverse covariance of the rows, (rows, rows): blocks of set-ups."""
    inverse = np.zeros((len(units.which), len(units.which)))
    for key, rows in units.clusters():
        which = key[1]
        own = spread.point_weight[rows] / spread.point_sd[which] ** 2
        common = spread.setup_sd[which] ** 2 / max(spread.setup_weight[key], 1e-9)
        block = np.diag(own)
        if common > 0.0:
            block -= np.outer(own, own) / (1.0 / common + own.sum())
        inverse[np.ix_(rows, rows)] = block
    return inverse


def misfit(units: Units, residual: np.ndarray) -> float:
    """-2 log likelihood, constants aside, under the spreads believed at first: one scale for all fits."""
    spread = first_spread(units)
    total = 0.0
    for key, rows in units.clusters():
        which = key[1]
        own = spread.setup_sd[which] > 0.0
        mean = float(np.median(residual[rows])) if own else 0.0
        scaled = (residual[rows] - mean) / spread.point_sd[which]
        total += float(np.log1p(scaled**2 / _DEGREES).sum()) * (_DEGREES + 1.0)
        if own:
            sd = np.sqrt(spread.setup_sd[which] ** 2 + spread.point_sd[which] ** 2 / len(rows))
            total += float(np.log1p((mean / sd) ** 2 / _DEGREES)) * (_DEGREES + 1.0)
    return total


def _weight(scaled: np.ndarray) -> np.ndarray:
    """Of an observation *scaled* by its standard deviation: 1 within it, less in the tails."""
    return np.minimum(1.0, (_DEGREES + 1.0) / (_DEGREES + scaled**2))
