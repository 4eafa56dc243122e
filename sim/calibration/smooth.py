"""Smooth forms fitted to measured times: least squares of logarithms, and how sure their coefficients are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

Seconds = Callable[[Mapping[str, float]], np.ndarray]
_TYPICAL = 0.1  # of a logarithm: rows further off count by the distance, not by its square
_TIGHT = 1e-3


@dataclass(frozen=True)
class Coefficient:
    """One number to be fitted, above 0: where to start, and between which bounds."""

    name: str
    start: float
    low: float
    high: float


@dataclass(frozen=True)
class Smooth:
    """Fitted coefficients by name, and the covariance of their logarithms, a row for each.

    Of a coefficient at one of its bounds the data say nothing more: its row and column are 0.
    """

    values: Mapping[str, float]
    covariance: Mapping[str, tuple[float, ...]]


def fit_logs(
    seconds: Seconds, measured_s: np.ndarray, coefficients: Sequence[Coefficient], shapes: np.ndarray
) -> Smooth:
    """The coefficients with which *seconds* (of a mapping by name) is nearest to *measured_s* in logarithms.

    Rows of one shape err together, so that the covariance is that of independent *shapes*, not of rows
    (Liang and Zeger, Biometrika 73, 1986, theorem 2: the sandwich).
    """
    from scipy.optimize import least_squares

    names = [coefficient.name for coefficient in coefficients]
    target = np.log(measured_s)

    def off(logs: np.ndarray) -> np.ndarray:
        return np.log(seconds(dict(zip(names, np.exp(logs), strict=True)))) - target

    low = np.log([coefficient.low for coefficient in coefficients])
    high = np.log([coefficient.high for coefficient in coefficients])
    start = np.log([coefficient.start for coefficient in coefficients])
    start = np.clip(start, low + _TIGHT * (high - low), high - _TIGHT * (high - low))
    found = least_squares(off, start, bounds=(low, high), loss="soft_l1", f_scale=_TYPICAL)
    inside = (found.x > low + _TIGHT) & (found.x < high - _TIGHT)
    covariance = np.zeros((len(names), len(names)))
    covariance[np.ix_(inside, inside)] = _sandwich(np.asarray(found.jac)[:, inside], found.fun, shapes)
    values = dict(zip(names, np.exp(found.x).tolist(), strict=True))
    return Smooth(values, dict(zip(names, map(tuple, covariance.tolist()), strict=True)))


def restarted(coefficients: Sequence[Coefficient], at: Mapping[str, float]) -> list[Coefficient]:
    """The same *coefficients*, starting where an earlier fit ended."""
    return [replace(coefficient, start=at[coefficient.name]) for coefficient in coefficients]


def _sandwich(slopes: np.ndarray, off: np.ndarray, shapes: np.ndarray) -> np.ndarray:
    bread = np.linalg.pinv(slopes.T @ slopes)
    scores = np.zeros((int(shapes.max()) + 1, slopes.shape[1]))
    np.add.at(scores, shapes, slopes * off[:, None])
    return np.asarray(bread @ (scores.T @ scores) @ bread)
