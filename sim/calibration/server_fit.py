"""A fit of servers' constants: values, intervals, and how far measured and predicted lie apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.calibration.constants import Constants
from sim.calibration.space import Space
from sim.calibration.spread import PRIOR_COUNT, Spread, Units


@dataclass(frozen=True)
class Fit:
    """Constants with their covariance, and how far apart measured and predicted still are."""

    space: Space
    u: np.ndarray
    covariance: np.ndarray
    identified: np.ndarray
    overlapped: bool
    told_apart: float
    """By how much -2 log evidence is smaller than with host times combined the other way."""
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
