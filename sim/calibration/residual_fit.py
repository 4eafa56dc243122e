"""Residual tables: what measured kernels take over what a smooth form says, carried to shapes not measured.

In two steps, each a small linear one. Along the *curve* axes, which every shape runs through (the tokens m
of a linear layer), each shape's logarithms of measured over fitted become values at a few nodes: least
squares with a little stiffness, so that noise between neighbours averages out. Across *shape* axes (n and k)
each node's values are then carried to the whole grid by kriging: a Gaussian process with covariance
`exp(-sum |difference of logarithms| / length)` (Rasmussen and Williams, Gaussian Processes for Machine
Learning, 2006, section 2.2 and equation 4.9), which interpolates between neighbours nearly linearly and
falls back to the mean far from everything measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sim.hardware.residuals import Residuals, between

Columns = Mapping[str, np.ndarray]
_STIFFNESS = 0.02
_WILD = 3.0
_MOST_CANDIDATES = 96


@dataclass(frozen=True)
class Smoothing:
    """How far a shape's residual speaks for its neighbours.

    `length` is the distance in logarithms over which it fades, `noise` the variance of one shape's value
    over that of the residuals themselves, `robust` whether shapes far off all neighbours count less.
    """

    length: float = 4.0
    noise: float = 0.005
    robust: bool = False


def fit_residuals(
    at: Columns,
    log_ratio: np.ndarray,
    curve: Mapping[str, np.ndarray],
    shapes: Mapping[str, np.ndarray],
    smoothing: Smoothing = Smoothing(),
) -> Residuals:
    """The table on the grid *curve* x *shapes* (nodes by axis) through *log_ratio* at the rows *at*."""
    keys = np.column_stack([np.log(at[name]) for name in shapes])
    distinct, shape_of = np.unique(keys, axis=0, return_inverse=True)
    values = _curves(at, log_ratio, curve, shape_of.ravel(), len(distinct))
    grid = np.stack(np.meshgrid(*[np.log(nodes) for nodes in shapes.values()], indexing="ij"), axis=-1)
    carried = krige(distinct, values, grid.reshape(-1, len(shapes)), smoothing)
    sizes = [len(nodes) for nodes in curve.values()], [len(nodes) for nodes in shapes.values()]
    table = np.moveaxis(carried, 0, 1).reshape(*sizes[0], *sizes[1])
    axes = {name: np.asarray(nodes, dtype=float) for name, nodes in (*curve.items(), *shapes.items())}
    return Residuals(axes, np.exp(table))


def choose_nodes(values: np.ndarray, log_ratio: np.ndarray, group: np.ndarray, most: int) -> np.ndarray:
    """Of the distinct *values*, *most* between which straight lines miss least.

    From all of them, one at a time goes whose absence adds least to the squared error summed over the
    *group*s (shapes, each a curve of its own); the ends stay. A step needs a node on either side, which is
    why nodes are taken away, not added. Values that a part of the groups lacks are passed over.
    """
    distinct = spread_nodes(values, _MOST_CANDIDATES)
    kept = np.isin(values, distinct)
    distinct, scatter = _scatter(values[kept], log_ratio[kept], group[kept])
    chosen = list(range(len(distinct)))
    while len(chosen) > max(most, 2):
        without = [[*chosen[:place], *chosen[place + 1 :]] for place in range(1, len(chosen) - 1)]
        chosen = max(without, key=lambda nodes: _explained(distinct, scatter, nodes))
    return distinct[chosen]


def _scatter(values: np.ndarray, log_ratio: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values that most groups have, and the sums of products over the groups' curves there."""
    distinct, column = np.unique(values, return_inverse=True)
    curves = np.full((group.max() + 1, len(distinct)), np.nan)
    curves[group, column] = log_ratio
    common = np.isfinite(curves).mean(axis=0) > 0.9
    if common.sum() >= 2:
        distinct, curves = distinct[common], curves[:, common]
    whole = curves[np.isfinite(curves).all(axis=1)]
    return distinct, whole.T @ whole


def _explained(distinct: np.ndarray, scatter: np.ndarray, chosen: list[int]) -> float:
    """What the best broken lines with nodes at *chosen* take up of the curves' sum of squares."""
    basis, _ = np.linalg.qr(hat_matrix(distinct[chosen], distinct))
    return float(np.sum(basis * (scatter @ basis)))


def spread_nodes(values: np.ndarray, most: int) -> np.ndarray:
    """The distinct *values*, thinned to at most *most* by taking out whichever stands closest to another."""
    nodes = list(np.unique(values))
    while len(nodes) > most:
        gaps = np.diff(np.log(nodes))
        nodes.pop(int(np.argmin(gaps[:-1] + gaps[1:])) + 1)
    return np.asarray(nodes, dtype=float)


def hat_matrix(nodes: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Weights (rows of *at* x nodes) of interpolation linear in the logarithm, as `Residuals` reads it."""
    below, share = between(np.asarray(nodes, dtype=float), np.asarray(at, dtype=float))
    weights = np.zeros((len(at), len(nodes)))
    rows = np.arange(len(at))
    weights[rows, below] = 1.0 - share
    weights[rows, np.minimum(below + 1, len(nodes) - 1)] += share
    return weights


def krige(known: np.ndarray, values: np.ndarray, at: np.ndarray, smoothing: Smoothing) -> np.ndarray:
    """*values* (shapes x columns) known at the points *known* (shapes x axes), carried to the points *at*.

    Points are logarithms. Each column has its own mean; all share one covariance unless `robust`.
    """
    mean = np.median(values, axis=0)
    covariance = _covariance(known, known, smoothing.length)
    towards = _covariance(at, known, smoothing.length)
    if not smoothing.robust:
        noisy = covariance + smoothing.noise * np.eye(len(known))
        return mean + towards @ np.linalg.solve(noisy, values - mean)
    columns = [_robust(covariance, column, smoothing.noise) for column in (values - mean).T]
    return mean + towards @ np.column_stack(columns)


def _robust(covariance: np.ndarray, values: np.ndarray, noise: float, rounds: int = 3) -> np.ndarray:
    """Weights of *values*; whoever its neighbours predict far off (leave one out) is taken for noisier.

    The error of a shape left out is `(A^-1 v) / diag(A^-1)` (Rasmussen and Williams, equation 5.12).
    """
    noises = np.full(len(values), noise)
    weights = np.zeros(len(values))
    for _ in range(rounds):
        inverse = np.linalg.inv(covariance + np.diag(noises))
        weights = inverse @ values
        error = np.abs(weights / np.diag(inverse))
        usual = _WILD * np.median(error) + 1e-9
        noises = noise * np.maximum(1.0, error / usual) ** 4
    return weights


def _covariance(left: np.ndarray, right: np.ndarray, length: float) -> np.ndarray:
    distance = np.zeros((len(left), len(right)))
    for axis in range(left.shape[1]):
        distance += np.abs(left[:, axis, None] - right[None, :, axis])
    return np.exp(-distance / length)


def _curves(
    at: Columns, log_ratio: np.ndarray, curve: Mapping[str, np.ndarray], shape_of: np.ndarray, shapes: int
) -> np.ndarray:
    """Each shape's values at the curve's nodes (shapes x nodes), the last axis running fastest."""
    weights = np.ones((len(log_ratio), 1))
    for name, nodes in curve.items():
        hats = hat_matrix(nodes, at[name])
        weights = (weights[:, :, None] * hats[:, None, :]).reshape(len(log_ratio), -1)
    stiff = _STIFFNESS * _stiffness([len(nodes) for nodes in curve.values()])
    values = np.empty((shapes, weights.shape[1]))
    order = np.argsort(shape_of, kind="stable")
    for shape, rows in enumerate(np.split(order, np.cumsum(np.bincount(shape_of, minlength=shapes))[:-1])):
        mine = weights[rows]
        values[shape] = np.linalg.solve(mine.T @ mine + stiff, mine.T @ log_ratio[rows])
    return values


def _stiffness(sizes: Sequence[int]) -> np.ndarray:
    """Squared differences of neighbours along each axis, and a touch of size, which leaves none open."""
    total: np.ndarray = 1e-6 * np.eye(int(np.prod(sizes)))
    for axis, size in enumerate(sizes):
        steps = np.diff(np.eye(size), axis=0)
        parts = [steps.T @ steps if other == axis else np.eye(length) for other, length in enumerate(sizes)]
        kron: np.ndarray = np.ones((1, 1))
        for part in parts:
            kron = np.kron(kron, part)
        total = total + kron
    return total
