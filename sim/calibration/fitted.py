"""What a fit of one class of kernels hands on: coefficients for a profile, and how far they held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from sim.calibration.folds import Errors, errors_of
from sim.hardware.residuals import Residuals

_PER_LINE = 24


@dataclass(frozen=True, eq=False)
class Fitted:
    """One class of kernels of one backend.

    key: where it belongs in a profile's kernels (`gemm.bf16`); section: its mapping there.
    covariance: of the coefficients' logarithms. measured_s, predicted_s: times of all rows (s), the latter by
    fits that had not seen the row's shape; datasheet_s: what the card's datasheet alone would say.
    """

    key: str
    section: Mapping[str, Any]
    covariance: Mapping[str, tuple[float, ...]]
    measured_s: np.ndarray
    predicted_s: np.ndarray
    datasheet_s: np.ndarray
    shapes: int
    what: str
    """What the rows are, in words, for the profile's provenance."""
    estimated: Mapping[str, str] | None = None
    """Coefficients that the rows cannot tell, and where each comes from instead."""

    @property
    def errors(self) -> Errors:
        """Held out."""
        return errors_of(self.predicted_s, self.measured_s)

    @property
    def datasheet_errors(self) -> Errors:
        return errors_of(self.datasheet_s, self.measured_s)


def residual_section(residuals: Residuals) -> dict[str, Any]:
    """The mapping of `residual` in a profile, in thousandths."""
    permille = np.rint(1000.0 * (residuals.ratios - 1.0)).astype(int).reshape(-1)
    per_line = residuals.ratios.shape[-1] if residuals.ratios.ndim > 1 else _PER_LINE
    lines = [permille[start : start + per_line] for start in range(0, len(permille), per_line)]
    axes = {name: [_plain(node) for node in nodes] for name, nodes in residuals.axes.items()}
    assert len(permille) == prod(len(nodes) for nodes in axes.values())
    return {**axes, "permille": "".join(" ".join(map(str, line)) + "\n" for line in lines)}


def rounded(value: float, digits: int = 4) -> float:
    """*value* to so many significant digits."""
    return float(f"{value:.{digits}g}")


def _plain(node: float) -> int | float:
    return int(node) if float(node).is_integer() else rounded(float(node), 6)
