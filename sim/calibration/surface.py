"""Residual tables over quantities that all shapes share: one surface of logarithms through all rows at once.

Where no quantity is a shape's own (decode attention's work is sequences x KV heads), the rows of many shapes
lie close together on one grid. Its values at the nodes are the least squares through all rows plus squared
second differences along each axis times a stiffness (a tensor product of linear splines with a difference
penalty: Eilers and Marx, Flexible smoothing with B-splines and penalties, 1996), re-weighted so that a few
rows of another kernel do not bend the surface. Nodes without a row nearby take the nearest supported value.
Nodes that their neighbours imply are left out in the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.hardware.residuals import Residuals, between

_STIFFNESS = 0.001
_TYPICAL = 0.03  # of a logarithm: rows further off count by the distance, not by its square
_ROUNDS = 3
_TOUCH = 1e-4


@dataclass(frozen=True, eq=False)
class Surface:
    """Logarithms on a grid; `support` says at which of its nodes a row had a say. Arrays of one shape."""

    axes: Mapping[str, np.ndarray]
    logs: np.ndarray
    support: np.ndarray

    def residuals(self, tolerance: float) -> Residuals:
        """The table, without nodes that straight lines between the others miss by less than *tolerance*.

        That is the root mean square over supported nodes, of a logarithm; axes are thinned one by one.
        """
        axes, logs, support = dict(self.axes), self.logs, self.support
        for place, (name, nodes) in enumerate(self.axes.items()):
            kept = _kept(
                np.log(nodes), np.moveaxis(logs, place, 0), np.moveaxis(support, place, 0), tolerance
            )
            logs, support = logs.take(kept, axis=place), support.take(kept, axis=place)
            axes[name] = nodes[kept]
        return Residuals(axes, np.exp(logs))


def fit_surface(
    at: Mapping[str, np.ndarray], log_ratio: np.ndarray, nodes: Mapping[str, np.ndarray]
) -> Surface:
    """The surface on the grid of *nodes* through the rows' *log_ratio* at their quantities *at*."""
    weights = _weights(at, nodes)
    penalty = _penalty(list(nodes.values()), _STIFFNESS)
    importance = np.ones(len(log_ratio))
    values = np.zeros(weights.shape[1])
    for _ in range(_ROUNDS):
        scaled = weights.multiply(importance[:, None]).tocsr()
        values = _solve(scaled.T @ weights + penalty, scaled.T @ log_ratio)
        importance = _TYPICAL / np.maximum(np.abs(log_ratio - weights @ values), _TYPICAL)
    support = np.asarray(weights.sum(axis=0)).ravel() > 0
    values = _filled(values, support, list(nodes.values()))
    sizes = [len(axis) for axis in nodes.values()]
    return Surface(dict(nodes), values.reshape(sizes), support.reshape(sizes))


def _kept(at: np.ndarray, logs: np.ndarray, support: np.ndarray, tolerance: float) -> list[int]:
    """Which of the nodes *at* along the first axis stay: one at a time goes that is missed least."""
    flat, counts = logs.reshape(len(at), -1), support.reshape(len(at), -1)
    chosen = list(range(len(at)))
    while len(chosen) > 2:
        without = [[*chosen[:place], *chosen[place + 1 :]] for place in range(1, len(chosen) - 1)]
        missed = [_missed(at, flat, counts, nodes) for nodes in without]
        if min(missed) > tolerance:
            break
        chosen = without[int(np.argmin(missed))]
    return chosen


def _missed(at: np.ndarray, logs: np.ndarray, support: np.ndarray, chosen: list[int]) -> float:
    """How far straight lines between the *chosen* nodes are off all of them, root mean square."""
    below = np.clip(np.searchsorted(at[chosen], at, side="right") - 1, 0, len(chosen) - 2)
    low, high = np.asarray(chosen)[below], np.asarray(chosen)[below + 1]
    share = ((at - at[low]) / (at[high] - at[low]))[:, None]
    off = (1.0 - share) * logs[low] + share * logs[high] - logs
    return float(np.sqrt(np.mean(off[support] ** 2)))


def _weights(at: Mapping[str, np.ndarray], nodes: Mapping[str, np.ndarray]) -> Any:
    """What each node of the grid counts in each row (sparse, rows x nodes), as `Residuals` reads it."""
    from scipy.sparse import csr_matrix

    rows = len(next(iter(at.values())))
    place, share = np.zeros((rows, 1), dtype=np.int64), np.ones((rows, 1))
    for name, axis in nodes.items():
        below, part = between(axis, np.asarray(at[name], dtype=float))
        above = np.minimum(below + 1, len(axis) - 1)
        place = np.hstack([place * len(axis) + below[:, None], place * len(axis) + above[:, None]])
        share = np.hstack([share * (1.0 - part[:, None]), share * part[:, None]])
    index = np.repeat(np.arange(rows), place.shape[1])
    size = int(np.prod([len(axis) for axis in nodes.values()]))
    matrix = csr_matrix((share.ravel(), (index, place.ravel())), shape=(rows, size))
    matrix.eliminate_zeros()
    return matrix


def _penalty(nodes: list[np.ndarray], stiffness: float) -> Any:
    """Squared curvature along each axis (slope, where there are two nodes), and a touch of size."""
    from scipy.sparse import diags, identity, kron

    total = _TOUCH * identity(int(np.prod([len(axis) for axis in nodes])), format="csr")
    for place, axis in enumerate(nodes):
        if len(axis) < 2:
            continue
        gaps = np.diff(np.log(axis))
        bend = diags([-1 / gaps, 1 / gaps], [0, 1], shape=(len(gaps), len(axis)), format="csr")
        if len(axis) > 2:
            middle = (gaps[1:] + gaps[:-1]) / 2
            bend = diags([-1 / middle, 1 / middle], [0, 1], shape=(len(middle), len(gaps))) @ bend
            gaps = middle
        part = bend.T @ diags(gaps) @ bend
        before = identity(int(np.prod([len(other) for other in nodes[:place]])))
        after = identity(int(np.prod([len(other) for other in nodes[place + 1 :]])))
        total = total + stiffness * kron(kron(before, part), after)
    return total


def _solve(matrix: Any, right: np.ndarray) -> np.ndarray:
    """The solution of a symmetric positive definite system whose entries lie near the diagonal."""
    from scipy.linalg import solveh_banded

    entries = matrix.tocoo()
    lower = entries.row >= entries.col
    row, column, value = entries.row[lower], entries.col[lower], entries.data[lower]
    banded = np.zeros((int((row - column).max()) + 1, matrix.shape[0]))
    np.add.at(banded, (row - column, column), value)
    solution: np.ndarray = solveh_banded(banded, right, lower=True)
    return solution


def _filled(values: np.ndarray, support: np.ndarray, nodes: list[np.ndarray]) -> np.ndarray:
    """*values* with those of nodes out of *support* from the nearest in it, by distance of logarithms."""
    from scipy.spatial import cKDTree

    grid = np.stack(np.meshgrid(*[np.log(axis) for axis in nodes], indexing="ij"), axis=-1)
    points = grid.reshape(-1, len(nodes))
    _, nearest = cKDTree(points[support]).query(points[~support])
    filled = values.copy()
    filled[~support] = values[support][nearest]
    return filled
