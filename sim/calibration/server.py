"""Constants of servers from what they were measured to do: Gauss-Newton over simulations.

`fit_constants` minimises the distance between the logarithms of measured and predicted metrics, weighed by
`spread`, plus that between constants and what was believed of them (`constants.KINDS`). Derivatives are
differences between simulations with the same random numbers. Constants that the points do not identify
keep their start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any

import numpy as np

from sim.calibration.constants import BY_NAME, Constants
from sim.calibration.space import Space, space_of
from sim.calibration.spread import (
    FIRST,
    PACE,
    PRIOR_COUNT,
    Spread,
    Units,
    first_spread,
    misfit,
    precision,
    spread_of,
)

Metrics = Mapping[str, float]
Predict = Callable[[Any, Constants], Metrics | str]
Progress = Callable[[int, int, str], None]

MOST_POINTS = 40
_ITERATIONS = 6
_STEP_U, _STEP_LOG = 0.08, 0.03
_LONGEST = 1.5  # of a step, in u
_REACH = 1.645  # standard deviations to either side of an interval
_NEAR, _FAR = 0.02, 0.25  # steps that end the descent, and that make derivatives old
_IDENTIFIED = 0.7  # standard deviation after over before
_CLEAR = 4.0  # of -2 log likelihood: what a host that is longer than the GPU must gain over one that is not
_ALIKE = 2.0  # difference of -2 log likelihood that tells nothing
_SCAN: Mapping[bool, Mapping[str, tuple[float, ...]]] = {
    False: {
        "host_step_s": (0.5e-3, 2e-3, 6e-3),
        "host_sequence_s": (20e-6, 80e-6),
        "eager_layer_s": (0.0, 0.3e-3),
    },
    True: {
        "host_step_s": (0.3e-3, 0.6e-3, 1e-3, 1.6e-3, 2.5e-3, 4e-3, 6e-3, 9e-3),
        "host_sequence_s": (10e-6, 20e-6, 40e-6, 80e-6, 150e-6),
        "eager_layer_s": (0.0, 0.3e-3),
    },
}
"""Values from which the way down may begin, where host times are added or overlapped."""
_SCANNED_POINTS = 10
_UNPREDICTED = 1e4
"""How far off a point counts whose scenario constants make impossible."""


@dataclass(frozen=True)
class Observation:
    """A measured point: what `Predict` takes, where it was measured, and what.

    metrics: names beginning with ttft are of the first token; throughputs contain `throughput` or `tok_s`;
    the others are times. Units are those of the predictions.
    """

    case: Any
    setup: str
    card: str
    metrics: Metrics


@dataclass(frozen=True)
class Fit:
    """Constants with their covariance, and how far apart measured and predicted still are."""

    space: Space
    u: np.ndarray
    covariance: np.ndarray
    identified: np.ndarray
    overlapped: bool
    told_apart: float
    """By how much -2 log likelihood is smaller than with host times combined the other way."""
    spread: Spread
    information: np.ndarray
    """What the points alone say: the inverse covariance without beliefs."""
    jacobian: np.ndarray
    """Derivatives of the logarithm of the predictions, (units, coordinates)."""
    residual: np.ndarray
    units: Units
    points: int
    setups: int

    def constants(self, card: str) -> Constants:
        """The constants for *card*."""
        return self.space.constants(self.u, card, self.overlapped)

    @property
    def count(self) -> int:
        """How many constants were fitted."""
        return int(self.identified.sum())

    def sd_u(self, index: int, runs: float = 1.0) -> float:
        """Standard deviation of a coordinate after *runs* times as many points as were measured."""
        if runs == 1.0:
            return float(np.sqrt(self.covariance[index, index]))
        return float(np.sqrt(np.linalg.inv(runs * self.information + self.space.precision())[index, index]))

    def interval(self, index: int, confidence: float = 0.90) -> tuple[float, float]:
        """The interval of the constant at a coordinate, in its own unit."""
        return self._about(index, self.u, self.sd_u(index), confidence)

    def believed(self, index: int, confidence: float = 0.90) -> tuple[float, float]:
        """The interval that was believed before anything was measured."""
        return self._about(
            index, self.space.start, float(np.sqrt(self.space.prior[index, index])), confidence
        )

    def _about(self, index: int, u: np.ndarray, sd: float, confidence: float) -> tuple[float, float]:
        from scipy.stats import t

        reach = (
            float(
                t.ppf(
                    0.5 + confidence / 2.0,
                    PRIOR_COUNT + self.setups if self.setups > 1 else PRIOR_COUNT + self.points,
                )
            )
            * sd
        )
        low = float(self.space.bounded(u - reach)[index])
        kind = self.space.coordinates[index].kind
        return kind.value_of(low), kind.value_of(float(u[index]) + reach)


def fit_constants(
    points: Sequence[Observation],
    predict: Predict,
    start: Constants,
    *,
    overlapped: bool | None = None,
    most_points: int = MOST_POINTS,
    progress: Progress | None = None,
) -> Fit:
    """The constants that the *points* speak for, beginning at *start* (all set).

    Host times are summed with the GPU's or overlapped with them, whichever fits better (start's where both
    fit alike), or as *overlapped* says. More than *most_points* are thinned out, evenly over set-ups.
    Points that cannot be predicted are left out; raises ValueError where none is left.
    """
    chosen = thinned(points, most_points)
    ways = (bool(start.overlapped), not start.overlapped) if overlapped is None else (overlapped,)
    fits = []
    for number, way in enumerate(ways):
        done = number * len(chosen) * 60

        def told(count: int, done: int = done) -> None:
            if progress:
                progress(done + count, len(ways) * len(chosen) * 60, "simulations")

        fits.append(_Fitting(chosen, predict, start, way, told).run())
    if len(fits) == 1:
        return fits[0][1]
    (first, one), (second, other) = fits
    better, worse = (other, second - first) if second < first - _ALIKE else (one, second - first)
    return replace(better, told_apart=abs(worse))


def thinned(points: Sequence[Observation], most: int) -> list[Observation]:
    """At most *most* of *points*: of each set-up in turn the first, the last, the middle, and so on."""
    if len(points) <= most:
        return list(points)
    by_setup: dict[tuple[str, str], list[Observation]] = {}
    for point in points:
        by_setup.setdefault((point.card, point.setup), []).append(point)
    queues = [[rows[i] for i in _spread_out(len(rows))] for rows in by_setup.values()]
    turns = [queue[turn] for turn in range(max(map(len, queues))) for queue in queues if turn < len(queue)]
    return turns[:most]


def _spread_out(n: int) -> list[int]:
    """0..n-1 with the ends first, then what halves the gaps."""
    order, gaps = [0, n - 1][: min(n, 2)], [(0, n - 1)]
    while gaps:
        low, high = gaps.pop(0)
        middle = (low + high) // 2
        if middle not in (low, high):
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return order


class _Fitting:
    """One fit, with host times summed or *overlapped*."""

    def __init__(
        self,
        points: Sequence[Observation],
        predict: Predict,
        start: Constants,
        overlapped: bool,
        told: Callable[[int], None],
    ) -> None:
        self.predict, self.overlapped, self.told = predict, overlapped, told
        self.cards = list(dict.fromkeys(point.card for point in points))
        self.space = space_of(start, self.cards)
        self.prior = self.space.precision()
        self.simulated = 0
        self.idle: set[str] = set()
        self.points = [known for point in points if (known := self._predictable(point)).metrics]
        if not self.points:
            raise ValueError("no point can be predicted")
        self.units = _units(self.points)

    def run(self) -> tuple[float, Fit]:
        """-2 log likelihood (up to a constant) of the best constants, and the fit."""
        if self.overlapped:
            found = self._descended(self.space.start)
            for beginning in (self.space.start, found[0]):
                other = self._descended(self._scanned(beginning))
                if self._score(*other[:2]) < self._score(*found[:2]) - _CLEAR:
                    found = other
        else:
            found = self._descended(self._scanned(self.space.start))
        return self._score(*found[:2]), self._fit(*found)

    def _score(self, u: np.ndarray, residual: np.ndarray, units: Units | None = None) -> float:
        """-2 log likelihood and log belief, under the spreads believed at first."""
        distance = u - self.space.start
        return misfit(units or self.units, residual) + float(distance @ self.prior @ distance)

    def _descended(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray, Spread, np.ndarray]:
        """The way down from *u*: where it ends, the residual and spread there, and the derivatives.

        Derivatives are taken again where the last ones were taken far away, and mended by what a step did
        where they were not.
        """
        taken = u
        spread, residual = first_spread(self.units), self._residual(u)
        jacobian = self._jacobian(u, residual)
        for _ in range(_ITERATIONS):
            spread = self._respread(residual, spread)
            inverse = precision(self.units, spread)
            moved, after = self._searched(u, residual, self._step(u, residual, jacobian, inverse), inverse)
            if np.abs(moved - u).max() < _NEAR:
                break
            jacobian = _broyden(jacobian, moved - u, residual - after)
            u, residual = moved, after
            if np.abs(u - taken).max() > _FAR:
                taken, jacobian = u, self._jacobian(u, residual)
        spread = self._respread(residual, spread)
        return u, residual, spread, jacobian

    def _fit(self, u: np.ndarray, residual: np.ndarray, spread: Spread, jacobian: np.ndarray) -> Fit:
        information = jacobian.T @ precision(self.units, spread) @ jacobian
        covariance = np.linalg.inv(information + self.prior)
        identified = np.diag(covariance) < _IDENTIFIED**2 * np.diag(self.space.prior)
        for index in np.flatnonzero(identified):
            if self.space.coordinates[index].kind.scale is not None:
                identified[index], covariance = self._profiled(int(index), u, residual, spread, covariance)
        return Fit(
            space=self.space,
            u=u,
            covariance=covariance,
            identified=identified,
            overlapped=self.overlapped,
            told_apart=0.0,
            spread=spread,
            information=information,
            jacobian=jacobian,
            residual=residual,
            units=self.units,
            points=len(self.points),
            setups=len(np.unique(self.units.setup)),
        )

    def _profiled(
        self, index: int, u: np.ndarray, residual: np.ndarray, spread: Spread, covariance: np.ndarray
    ) -> tuple[bool, np.ndarray]:
        """Whether one host time is known as well as derivatives say, and the covariance if it is not.

        Where the longer of host and GPU counts, they tell of one side only. So the distance is looked up at
        both ends of the interval, the other constants moved as they go with it; where it has hardly grown,
        the constant's variance is what was believed of it.
        """
        inverse = precision(self.units, spread)
        least = self._distance(u, residual, inverse)
        sd = np.sqrt(covariance[index, index])
        for way in (-1.0, 1.0):
            moved = self.space.bounded(
                u + way * _REACH * sd * covariance[:, index] / covariance[index, index]
            )
            if abs(moved[index] - u[index]) < 0.1 * sd:
                continue  # at its bound
            share = abs(moved[index] - u[index]) / (_REACH * sd)
            grown = self._distance(moved, self._residual(moved), inverse) - least
            if grown < 0.3 * (share * _REACH) ** 2:
                wider = self.space.prior[index, index] / covariance[index, index]
                scale = np.ones(len(u))
                scale[index] = np.sqrt(wider)
                return False, covariance * np.outer(scale, scale)
        return True, covariance

    def _respread(self, residual: np.ndarray, spread: Spread) -> Spread:
        for _ in range(3):
            spread = spread_of(self.units, residual, spread)
        return spread

    def _step(
        self, u: np.ndarray, residual: np.ndarray, jacobian: np.ndarray, inverse: np.ndarray
    ) -> np.ndarray:
        """The Gauss-Newton step, at most `_LONGEST` in any coordinate; none below a bound."""
        curvature = jacobian.T @ inverse @ jacobian + self.prior
        slope = jacobian.T @ inverse @ residual - self.prior @ (u - self.space.start)
        free = ~((self.space.bounded(u - 1e-9) == u) & (slope < 0.0))
        step = np.zeros(len(u))
        step[free] = np.linalg.solve(curvature[np.ix_(free, free)], slope[free])
        longest = np.abs(step).max()
        return step if longest <= _LONGEST else step * (_LONGEST / longest)

    def _searched(
        self, u: np.ndarray, residual: np.ndarray, step: np.ndarray, inverse: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where the step, or a half or a quarter of it, makes the distance smaller; else *u*."""
        best = self._distance(u, residual, inverse)
        for share in (1.0, 0.4, 0.15):
            moved = self.space.bounded(u + share * step)
            after = self._residual(moved)
            if self._distance(moved, after, inverse) < best:
                return moved, after
        return u, residual

    def _distance(self, u: np.ndarray, residual: np.ndarray, inverse: np.ndarray) -> float:
        apart = u - self.space.start
        return float(residual @ inverse @ residual + apart @ self.prior @ apart)

    def _scanned(self, u: np.ndarray) -> np.ndarray:
        """A beginning from which the way is down: the best of some values, one host time after the other.

        Where the GPU takes longer than an overlapped host, no derivative tells what the host takes.
        """
        few = [self.points[i] for i in _spread_out(len(self.points))[:_SCANNED_POINTS]]
        units = _units(few)
        best = self._score(u, self._residual(u, few), units)
        for name, values in _SCAN[self.overlapped].items():
            index, kind = self.space.index(name, ""), BY_NAME[name]
            for value in map(kind.u_of, values):
                moved = u.copy()
                moved[index] = value
                score = self._score(moved, self._residual(moved, few), units)
                if score < best:
                    u, best = moved, score
        return u

    # -- simulations -------------------------------------------------------------------------------

    def _predicted(self, point: Observation, u: np.ndarray) -> Metrics:
        """The metrics of *point* at *u*; none where it cannot be predicted."""
        self.simulated += 1
        self.told(self.simulated)
        predicted = self.predict(point.case, self.space.constants(u, point.card, self.overlapped))
        return {} if isinstance(predicted, str) else predicted

    def _predictable(self, point: Observation) -> Observation:
        """*point* with those of its metrics that are predicted."""
        predicted = self._predicted(point, self.space.start)
        kept = {name: value for name, value in point.metrics.items() if predicted.get(name)}
        return replace(point, metrics=kept)

    def _residual(self, u: np.ndarray, points: Sequence[Observation] | None = None) -> np.ndarray:
        """log(measured / predicted), one row a unit: the mean over the point's metrics of that class.

        Throughputs count the other way round: all of a point's are slow together.
        """
        rows = []
        for point in self.points if points is None else points:
            predicted = self._predicted(point, u)
            logs: tuple[list[float], list[float]] = ([], [])
            for name, measured in point.metrics.items():
                value = predicted.get(name) or measured * _UNPREDICTED
                sign = -1.0 if "throughput" in name or "tok_s" in name else 1.0
                logs[FIRST if name.startswith("ttft") else PACE].append(sign * log(measured / value))
            rows += [float(np.mean(of_class)) for of_class in logs if of_class]
        return np.array(rows)

    def _jacobian(self, u: np.ndarray, residual: np.ndarray) -> np.ndarray:
        """Of the logarithm of predictions, (units, coordinates); what moved nothing once is passed over."""
        jacobian = np.zeros((len(residual), len(u)))
        for name, kind in BY_NAME.items():
            if name in self.idle:
                continue
            step = _STEP_LOG if kind.of_card else _STEP_U
            columns = np.array([self.space.index(name, point.card) for point in self.points])
            moved = u.copy()
            moved[np.unique(columns)] += step
            change = (residual - self._residual(moved)) / step
            jacobian[np.arange(len(residual)), columns[self.units.point]] = change
            if kind.of_card and not change.any():  # no link, say; what is hidden now may show elsewhere
                self.idle.add(name)
        return jacobian


def _classes(point: Observation) -> np.ndarray:
    """Whether *point* has metrics of pace, and of the first token."""
    first = [name.startswith("ttft") for name in point.metrics]
    return np.array([not all(first), any(first)])


def _units(points: Sequence[Observation]) -> Units:
    names = list(dict.fromkeys((point.card, point.setup) for point in points))
    rows = [
        (which, names.index((point.card, point.setup)), number)
        for number, point in enumerate(points)
        for which in (PACE, FIRST)
        if _classes(point)[which]
    ]
    columns = np.array(rows, dtype=int).reshape(-1, 3).T
    return Units(*columns)


def _broyden(jacobian: np.ndarray, step: np.ndarray, change: np.ndarray) -> np.ndarray:
    """*jacobian* after a step that changed the predictions by *change*."""
    return jacobian + np.outer(change - jacobian @ step, step) / float(step @ step)


def values_of(fits: Iterable[Fit]) -> int:
    """How many constants some fits have together."""
    return sum(fit.count for fit in fits)
