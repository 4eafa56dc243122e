"""Fit a length distribution to recorded lengths: how the shipped profiles were made."""

from __future__ import annotations

import numpy as np

TAIL_SHARES = (0.9, 0.99, 0.995, 0.999, 0.9995)


def fit_quantile_table(tokens: np.ndarray, points: int) -> tuple[list[float], list[float]]:
    """Quantiles and tokens of a table with at most *points* points for recorded *tokens* (whole numbers).

    Begins with the two ends and some points of the tail, on which the mean and the second moment rest, and
    adds, one by one, the point at which the table is furthest from the recorded distribution. Points lie
    half-way between whole numbers, where rounding to the nearest integer cuts, so that the probabilities up
    to each point are exact after rounding.
    """
    values, counts = np.unique(tokens, return_counts=True)
    edges = np.concatenate([[values[0] - 0.5], values + 0.5])
    shares = np.concatenate([[0.0], np.cumsum(counts) / len(tokens)])
    tail = np.searchsorted(shares[:-1], TAIL_SHARES)
    chosen = sorted({0, *tail.tolist(), len(edges) - 1})
    while len(chosen) < points:
        error = np.abs(_table_share(shares[chosen], edges[chosen], edges) - shares)
        if error.max() == 0:
            break
        chosen = sorted({*chosen, int(error.argmax())})
    return np.round(shares[chosen], 6).tolist(), edges[chosen].tolist()


def table_distance(quantiles: list[float], table_tokens: list[float], tokens: np.ndarray) -> float:
    """Kolmogorov-Smirnov distance between a rounded quantile table and recorded *tokens*: the largest
    difference of their distribution functions at any whole number."""
    whole = np.arange(tokens.min() - 1, tokens.max() + 1)
    recorded = np.searchsorted(np.sort(tokens), whole, side="right") / len(tokens)
    table = _table_share(np.array(quantiles), np.array(table_tokens), whole + 0.5)
    return float(np.abs(table - recorded).max())


def _table_share(quantiles: np.ndarray, table_tokens: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """The table's probability of at most *tokens*."""
    return np.interp(np.log(np.maximum(tokens, table_tokens[0])), np.log(table_tokens), quantiles)
