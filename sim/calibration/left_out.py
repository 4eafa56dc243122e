"""How often intervals hold a set-up that the constants have not seen.

A set-up is taken out of a fit to first order (derivatives are those of the whole fit), and predicted by what
is left: constants, and how far set-ups and points lie apart. So all set-ups are left out, one after the
other, without a simulation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.calibration.observation import Observation, Predict
from sim.calibration.server_fit import Fit
from sim.calibration.spread import PRIOR_COUNT, Spread, Units, precision, spread_of

_STEP_U, _STEP_LOG = 0.08, 0.03
_TURNS = 4  # of spread and constants in turn


@dataclass(frozen=True)
class LeftOut:
    """Each unit of a fit (`Fit.units`) as its set-up's absence has it predicted.

    residual: log measured - log predicted; sd: its standard deviation, of the constants, the set-up and the
    point; covered: whether the interval holds the measured value.
    """

    residual: np.ndarray
    sd: np.ndarray
    covered: np.ndarray

    @property
    def coverage(self) -> float:
        """Share of the measured values that their intervals hold."""
        return float(self.covered.mean())


def leave_out(fit: Fit, confidence: float = 0.90) -> LeftOut:
    """Leave each set-up of *fit* out in turn. Raises ValueError where there is only one."""
    setups = np.unique(fit.units.setup)
    if len(setups) < 2:
        raise ValueError("one set-up cannot be left out of itself")
    residual, sd = np.zeros_like(fit.residual), np.zeros_like(fit.residual)
    for setup in setups:
        gone = fit.units.setup == setup
        residual[gone], sd[gone] = _without(fit, gone)
    return LeftOut(residual, sd, np.abs(residual) <= _quantile(confidence, len(setups) - 1) * sd)


def _without(fit: Fit, gone: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Residuals of the units *gone*, predicted by the others, and their standard deviations."""
    kept = Units(fit.units.which[~gone], fit.units.setup[~gone], fit.units.point[~gone])
    jacobian, prior = fit.jacobian[~gone], fit.space.precision()
    spread, away = _spread_without(fit, gone), np.zeros(len(fit.u))
    for _ in range(_TURNS):
        inverse = precision(kept, spread)
        covariance = np.linalg.inv(jacobian.T @ inverse @ jacobian + prior)
        slope = jacobian.T @ inverse @ fit.residual[~gone] - prior @ (fit.u - fit.space.start)
        away = covariance @ slope
        spread = spread_of(kept, fit.residual[~gone] - jacobian @ away, spread)
    here = fit.jacobian[gone]
    own = np.array([spread.total_sd(which) ** 2 for which in fit.units.which[gone]])
    variance = np.einsum("ij,jk,ik->i", here, covariance, here) + own
    return fit.residual[gone] - here @ away, np.sqrt(variance)


def _spread_without(fit: Fit, gone: np.ndarray) -> Spread:
    whole = fit.spread
    return Spread(whole.point_sd, whole.setup_sd, whole.point_weight[~gone], dict(whole.setup_weight))


def foretold(
    fit: Fit, point: Observation, predict: Predict, kernel_sd: float = 0.0, confidence: float = 0.90
) -> dict[str, tuple[float, float, float]]:
    """Each metric of *point*: low end, prediction and high end, the constants' errors and all others in it.

    *kernel_sd* is what else the kernels of that card are off by, as a logarithm, beyond the spread over
    set-ups that the fit saw. Empty where *point* cannot be predicted.
    """
    at = predict(point.case, fit.constants(point.card))
    if isinstance(at, str):
        return {}
    slopes = _slopes(fit, point, predict, dict(at))
    answer = {}
    for name, value in at.items():
        if name in slopes:
            which = int(name.startswith("ttft"))
            variance = float(slopes[name] @ fit.covariance @ slopes[name])
            sd = np.sqrt(variance + fit.spread.total_sd(which) ** 2 + kernel_sd**2)
            reach = float(np.exp(_quantile(confidence, fit.setups) * sd))
            answer[name] = (value / reach, value, value * reach)
    return answer


def _slopes(fit: Fit, point: Observation, predict: Predict, at: dict[str, float]) -> dict[str, np.ndarray]:
    """By metric, the derivatives of the logarithm by every coordinate of the fit."""
    slopes = {name: np.zeros(len(fit.u)) for name, value in at.items() if value > 0}
    for name in fit.constants(point.card).as_dict():
        index = fit.space.index(name, point.card)
        step = _STEP_LOG if fit.space.coordinates[index].kind.of_card else _STEP_U
        moved = fit.u.copy()
        moved[index] += step
        there = predict(point.case, fit.space.constants(moved, point.card, fit.overlapped))
        if not isinstance(there, str):
            for metric in slopes:
                if there.get(metric):
                    slopes[metric][index] = np.log(there[metric] / at[metric]) / step
    return slopes


def _quantile(confidence: float, setups: int) -> float:
    from scipy.stats import t

    return float(t.ppf(0.5 + confidence / 2.0, PRIOR_COUNT + setups))
