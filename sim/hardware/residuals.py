"""What a smooth form misses: a table of measured over fitted, between whose nodes one reads in logarithms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np

from sim.model.fields import Fields


@dataclass(frozen=True, eq=False)
class Residuals:
    """Measured time over the smooth form's, on a grid; `factor` interpolates linearly in the logarithms.

    *axes* are the grid's nodes by the name of their quantity, increasing and above 0; *ratios* has one axis
    of that length for each, in that order. Outside the grid the nearest edge holds, so that a table never
    bends where nothing was measured.
    """

    axes: Mapping[str, np.ndarray]
    ratios: np.ndarray

    def at(self, **at: float) -> Residuals:
        """The table of the other axes, where the quantities named are these."""
        axes, logs = dict(self.axes), np.log(self.ratios)
        for name in [name for name in self.axes if name in at]:
            axis = list(axes).index(name)
            below, share = between(axes.pop(name), np.asarray(float(at[name])))
            above = min(int(below) + 1, logs.shape[axis] - 1)
            logs = (1.0 - share) * logs.take(int(below), axis) + share * logs.take(above, axis)
        return Residuals(axes, np.exp(logs))

    def factor(self, **at: float | np.ndarray) -> np.ndarray:
        """The ratio at these quantities (broadcastable shapes), one for each axis; others are idle."""
        here = {name: value for name, value in at.items() if name in self.axes}
        fixed = {name: float(value) for name, value in here.items() if np.ndim(value) == 0}
        if fixed and len(fixed) < len(self.axes):
            return self.at(**fixed).factor(**here)
        corners = [between(nodes, np.asarray(at[name], dtype=float)) for name, nodes in self.axes.items()]
        logs = np.log(self.ratios)
        total: np.ndarray | float = 0.0
        for choice in product((0, 1), repeat=len(corners)):
            weight: np.ndarray | float = 1.0
            index: list[np.ndarray] = []
            for side, (below, share) in zip(choice, corners, strict=True):
                weight = weight * (share if side else 1.0 - share)
                index.append(np.minimum(below + side, self._last(len(index))))
            total = total + weight * logs[tuple(np.broadcast_arrays(*index))]
        return np.exp(total)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Residuals):
            return NotImplemented
        if self.axes.keys() != other.axes.keys():
            return False
        same = all(np.array_equal(nodes, other.axes[name]) for name, nodes in self.axes.items())
        return same and np.array_equal(self.ratios, other.ratios)

    def __hash__(self) -> int:
        return hash((*self.axes, self.ratios.shape))

    def _last(self, axis: int) -> int:
        return self.ratios.shape[axis] - 1


def between(nodes: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The node at or below, and how far on the way to the next in the logarithm (0 to 1)."""
    if len(nodes) == 1:
        return np.zeros(at.shape, dtype=np.int64), np.zeros(at.shape)
    inside = np.clip(at, nodes[0], nodes[-1])
    below = np.clip(np.searchsorted(nodes, inside, side="right") - 1, 0, len(nodes) - 2)
    low, high = np.log(nodes[below]), np.log(nodes[below + 1])
    return below, (np.log(inside) - low) / (high - low)


def read_residuals(fields: Fields, *axes: str, key: str = "residual") -> Residuals | None:
    """The table under *key*, on those of *axes* that it has nodes for; None if there is none.

    `permille` is a text of whole numbers, the last axis running fastest: measured over fitted, less 1, in
    thousandths.
    """
    if not fields.has(key):
        return None
    section = fields.section(key)
    nodes = {name: np.array(section.numbers(name)) for name in axes if section.has(name)}
    for name, values in nodes.items():
        if (np.diff(values) <= 0).any() or values[0] <= 0:
            section.fault(name, "must rise from a number above 0")
    permille = _whole_numbers(section)
    section.end()
    sizes = [len(values) for values in nodes.values()]
    if permille is None:
        return None
    if not nodes or len(permille) != prod(sizes):
        section.fault(
            "permille",
            f"must be {' x '.join(map(str, sizes)) or 'nodes of axes'} numbers (got {len(permille)})",
        )
        return None
    if (permille <= -1000).any():
        section.fault("permille", f"must be above -1000, a time of nothing (got {permille.min():.0f})")
        return None
    return Residuals(nodes, 1.0 + permille.reshape(sizes) / 1000.0)


def _whole_numbers(section: Fields) -> np.ndarray | None:
    text = section.text("permille")
    try:
        return _read_numbers(text)
    except (ValueError, OverflowError):
        words = text.split()
        odd = next((word for word in words if not word.lstrip("+-").isdigit()), words[0])
        section.fault("permille", f"must be whole numbers with spaces between (got {odd})")
        return None


@lru_cache(maxsize=256)
def _read_numbers(text: str) -> np.ndarray:
    """Read once for all runs on a card: tables are long, and a fit makes thousands of runs."""
    numbers = np.array(list(map(int, text.split())), dtype=np.int64)
    numbers.setflags(write=False)
    return numbers
