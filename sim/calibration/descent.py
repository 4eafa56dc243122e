"""The way down to the best constants: Gauss-Newton over simulations, from beginnings worth trying."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from sim.calibration.constants import BY_NAME, Constants
from sim.calibration.observation import Metrics, Observation, Predict, residual_of, spread_out, units_of
from sim.calibration.server_fit import Fit
from sim.calibration.space import space_of
from sim.calibration.spread import Spread, Units, first_spread, misfit, precision, spread_of

_ITERATIONS = 6
_STEP_U, _STEP_LOG = 0.08, 0.03
_LONGEST = 1.5  # of a step, in u
_LITTLE = 0.03  # of the distance: a step that promises no more is not made
_REACH = 1.645  # standard deviations to either side of an interval
_NEAR, _FAR = 0.02, 0.5  # steps that end the descent, and that make derivatives old
_IDENTIFIED = 0.7  # standard deviation after over before
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
_SCANNED_POINTS = 6

_Place = tuple[np.ndarray, np.ndarray, Spread, np.ndarray]  # u, residual, spread, jacobian


class Fitting:
    """One fit, with host times summed or *overlapped*."""

    def __init__(
        self,
        points: Sequence[Observation],
        predict: Predict,
        start: Constants,
        overlapped: bool,
        profiles: bool,
        held: Collection[str],
        told: Callable[[int], None],
    ) -> None:
        self.predict, self.overlapped, self.profiles, self.told = predict, overlapped, profiles, told
        self.cards = list(dict.fromkeys(point.card for point in points))
        self.space = space_of(start, self.cards, held)
        self.prior = self.space.precision()
        self.simulated = 0
        self.idle = set(held)
        self.points = [known for point in points if (known := self._predictable(point)).metrics]
        if not self.points:
            raise ValueError("no point can be predicted")
        self.units = units_of(self.points)

    def run(self) -> tuple[float, Fit]:
        """-2 log evidence (up to a constant) of this way of combining host times, and its best fit."""
        start = self.space.start
        beginning = self._scanned(start)
        places = [self._descended(beginning)]
        if self.overlapped:
            if np.any(beginning != start):
                places.append(self._descended(start))
            if np.any((again := self._scanned(places[0][0])) != places[0][0]):
                places.append(self._descended(again))
        best = min(places, key=self._evidence)
        return self._evidence(best), self._fit(*best)

    def _evidence(self, place: _Place) -> float:
        """-2 log of how likely the points are, whatever the constants near *place* (Laplace's method).

        A place where constants must be just so for a good fit so counts for less than one where any will do,
        such as a host that is hidden behind the GPU.
        """
        u, residual, spread, jacobian = place
        curvature = jacobian.T @ precision(self.units, spread) @ jacobian @ self.space.prior
        return self._score(u, residual) + float(np.linalg.slogdet(np.eye(len(u)) + curvature)[1])

    def _score(self, u: np.ndarray, residual: np.ndarray, units: Units | None = None) -> float:
        """-2 log likelihood and log belief, under the spreads believed at first."""
        distance = u - self.space.start
        return misfit(units or self.units, residual) + float(distance @ self.prior @ distance)

    def _descended(self, u: np.ndarray) -> _Place:
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
            step = self._step(u, residual, jacobian, inverse)
            if self._promise(u, residual, jacobian, inverse, step) < _LITTLE:
                break
            moved, after = self._searched(u, residual, step, inverse)
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
        for index in np.flatnonzero(identified) if self.profiles else ():
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

    def _promise(
        self, u: np.ndarray, residual: np.ndarray, jacobian: np.ndarray, inverse: np.ndarray, step: np.ndarray
    ) -> float:
        """By how much *step* would make the distance smaller if all were linear."""
        there = residual - jacobian @ step
        apart, after = u - self.space.start, u + step - self.space.start
        before = float(residual @ inverse @ residual + apart @ self.prior @ apart)
        return before - float(there @ inverse @ there + after @ self.prior @ after)

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
        few = [self.points[i] for i in spread_out(len(self.points))[:_SCANNED_POINTS]]
        units = units_of(few)
        best = self._score(u, self._residual(u, few), units)
        for name, values in _SCAN[self.overlapped].items():
            index, kind = self.space.index(name, ""), BY_NAME[name]
            for value in map(kind.u_of, () if name in self.idle else values):
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
        """log(measured / predicted) at *u*, one row a unit."""
        chosen = self.points if points is None else points
        return np.array([row for point in chosen for row in residual_of(point, self._predicted(point, u))])

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
            if name == "link" and not change.any():  # all on one GPU; others may be hidden here alone
                self.idle.add(name)
        return jacobian


def _broyden(jacobian: np.ndarray, step: np.ndarray, change: np.ndarray) -> np.ndarray:
    """*jacobian* after a step that changed the predictions by *change*."""
    return jacobian + np.outer(change - jacobian @ step, step) / float(step @ step)
