"""Length distributions like recorded lengths: quantile tables, and how prompt and output go together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.workload.portrait import correlations

LEAST_IN_CELL = 10
"""Requests behind a number of a table, at least, so that none can be read back."""
_MOST_POINTS, _MOST_EDGES = 33, 20
_NEAR = 0.02
"""A correlation is met where it is no further off than this."""
_COPULA_DRAWS, _ROUNDS = 50_000, 50

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


@dataclass(frozen=True)
class Lengths:
    """keys: as `workload.lengths`. says: how each part was got, by key. missed: what it does not have."""

    keys: Mapping[str, Any]
    says: Mapping[str, str]
    missed: tuple[str, ...] = ()

    def origins(self, points: int) -> dict[str, dict[str, Any]]:
        """As `provenance`, from *points* requests."""
        return {
            key: {"kind": "measured", "source": says, "points": points} for key, says in self.says.items()
        }


def fit_lengths(prompt_tokens: np.ndarray, output_tokens: np.ndarray) -> Lengths:
    """Tables of both lengths (int64), and how they go together: a rank correlation where that is enough."""
    points = min(_MOST_POINTS, max(len(prompt_tokens) // LEAST_IN_CELL, 2))
    keys: dict[str, Any] = {"kind": "table"}
    says = {}
    for side, tokens in (("prompt", prompt_tokens), ("output", output_tokens)):
        quantiles, table = fit_quantile_table(tokens, points)
        keys[side] = {"quantiles": quantiles, "tokens": table}
        says[f"lengths.{side}"] = (
            f"quantile table of {len(quantiles)} points (mean {tokens.mean():.1f}); Kolmogorov-Smirnov "
            f"distance {table_distance(quantiles, table, tokens):.4f}"
        )
    return _together(keys, says, prompt_tokens, output_tokens)


def _together(
    keys: dict[str, Any], says: dict[str, str], prompt_tokens: np.ndarray, output_tokens: np.ndarray
) -> Lengths:
    """Independent, by a rank correlation, or, where that gives another linear correlation, by cells."""
    linear, ranked = correlations(prompt_tokens, output_tokens)
    if linear is None or ranked is None:
        return Lengths(keys, says)
    drawn = _linear_by_copula(prompt_tokens, output_tokens, ranked)
    words = f"correlation of ranks {ranked:.3f}, linear {linear:.3f}"
    if abs(drawn - linear) < _NEAR and max(abs(ranked), abs(linear)) < _NEAR:
        return Lengths(keys, says | {"lengths": f"prompt and output are independent ({words})"})
    few = len(prompt_tokens) < LEAST_IN_CELL * _MOST_EDGES**2
    if few or abs(drawn - linear) < _NEAR:
        says |= {"lengths": f"a Gaussian copula ({words}; {drawn:.3f} with it)"}
        missed = () if abs(drawn - linear) < _NEAR else ("a linear correlation other than a copula's",)
        return Lengths(keys | {"correlation": round(min(max(ranked, -0.99), 0.99), 3)}, says, missed)
    cells = _cells(prompt_tokens, output_tokens)
    says = {
        "lengths": f"cells of both lengths, of {LEAST_IN_CELL} requests or more or by the margins ({words})"
    }
    return Lengths(cells, says, ("how prompt and output go together within a cell of their table",))


def _linear_by_copula(prompt_tokens: np.ndarray, output_tokens: np.ndarray, ranked: float) -> float:
    """The linear correlation of both lengths if they went together by a Gaussian copula of that rank
    correlation (Spearman's; its normal one is 2 sin(pi r / 6), Pearson 1907)."""
    from scipy.special import ndtr

    normal = 2 * np.sin(np.pi * ranked / 6)
    one, other = np.random.default_rng(1).standard_normal((2, _COPULA_DRAWS))
    shares = ndtr(one), ndtr(normal * one + np.sqrt(1 - normal**2) * other)
    sides = (np.quantile(tokens, share) for tokens, share in
             zip((prompt_tokens, output_tokens), shares, strict=True))  # fmt: skip
    return float(np.corrcoef(*sides)[0, 1])


def _cells(prompt_tokens: np.ndarray, output_tokens: np.ndarray) -> dict[str, Any]:
    """As `workload.lengths` of kind joint, between the points of a table of each side."""
    points = min(_MOST_EDGES, max(int(np.sqrt(len(prompt_tokens) / LEAST_IN_CELL)), 2))
    edges = [_edges(tokens, points) for tokens in (prompt_tokens, output_tokens)]
    counts, *_ = np.histogram2d(prompt_tokens, output_tokens, bins=edges)
    shares = _held_to_margins(counts) / len(prompt_tokens)
    return {
        "kind": "joint",
        "prompt_edges": edges[0],
        "output_edges": edges[1],
        "cells": [[float(f"{share:.3g}") for share in row] for row in shares],
    }


def _edges(tokens: np.ndarray, points: int) -> list[float]:
    """Those of a table, without what `fit_quantile_table` has twice."""
    return sorted(set(fit_quantile_table(tokens, points)[1]))


def _held_to_margins(counts: np.ndarray) -> np.ndarray:
    """*counts* with what cells of too few have put in their place by the rest of their row's and column's
    sums (iterative proportional fitting, Deming and Stephan 1940): no cell tells of few requests."""
    told = counts >= LEAST_IN_CELL
    rows, columns = (np.where(told, 0, counts).sum(axis=axis) for axis in (1, 0))
    spread = np.where(told, 0.0, np.outer(rows, columns))
    for _ in range(_ROUNDS):
        for axis, wanted in ((1, rows), (0, columns)):
            sums = spread.sum(axis=axis, keepdims=True)
            spread *= np.divide(np.expand_dims(wanted, axis), sums, out=np.zeros_like(sums), where=sums > 0)
    return np.where(told, counts, spread)
