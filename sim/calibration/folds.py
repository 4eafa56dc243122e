"""Cross-validation by shape: whole shapes are held out, because rows of one shape know each other's time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

FOLDS = 10


@dataclass(frozen=True)
class Errors:
    """The median and 90th percentile of |predicted / measured - 1| in percent, and of how many rows."""

    median_pct: float
    p90_pct: float
    points: int

    @property
    def score(self) -> float:
        """What one fit is preferred to another by: the median, and a quarter of the 90th percentile."""
        return self.median_pct + self.p90_pct / 4


def errors_of(predicted: np.ndarray, measured: np.ndarray) -> Errors:
    """How far *predicted* is off *measured*, both in the same unit and not empty."""
    off = 100.0 * np.abs(predicted / measured - 1.0)
    return Errors(float(np.median(off)), float(np.quantile(off, 0.9)), len(off))


def shapes_of(columns: Sequence[np.ndarray]) -> np.ndarray:
    """The number of each row's shape: rows that agree in all *columns* have the same one."""
    _, numbers = np.unique(np.column_stack(list(columns)), axis=0, return_inverse=True)
    return numbers.ravel()


def folds_of(shapes: np.ndarray, folds: int = FOLDS, seed: int = 1) -> np.ndarray:
    """The fold of each row: shapes are dealt out evenly at random, always the same way for one *seed*."""
    count = int(shapes.max()) + 1 if len(shapes) else 0
    dealt = np.random.default_rng(seed).permutation(count) % min(folds, max(count, 1))
    return dealt[shapes]


def held_out(
    shapes: np.ndarray,
    predict: Callable[[np.ndarray, np.ndarray], np.ndarray],
    folds: int = FOLDS,
    seed: int = 1,
) -> np.ndarray:
    """A prediction of every row by a fit that has not seen its shape.

    *predict* takes the indices of the rows to fit and of those to predict, and returns the latter's values.
    """
    fold = folds_of(shapes, folds, seed)
    values = np.full(len(shapes), np.nan)
    for number in np.unique(fold):
        away = np.flatnonzero(fold == number)
        values[away] = predict(np.flatnonzero(fold != number), away)
    return values
