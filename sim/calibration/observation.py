"""What constants are fitted to: measured points, and what of them is compared with a prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from sim.calibration.constants import Constants
from sim.calibration.spread import FIRST, PACE, Units

Metrics = Mapping[str, float]
Predict = Callable[[Any, Constants], Metrics | str]


_UNPREDICTED = 1e4
"""How far off a point counts whose scenario constants make impossible."""


@dataclass(frozen=True)
class Observation:
    """A measured point: what `Predict` takes, where it was measured, and what.

    metrics: names beginning with ttft are of the first token; throughputs contain `throughput` or `tok_s`;
    the others are times. Units are those of the predictions.
    """

    case: Any
    setup: str
    card: str
    metrics: Metrics


def residual_of(point: Observation, predicted: Metrics) -> list[float]:
    """log(measured / predicted) of pace and of first token, as far as *point* has them: means over metrics.

    Throughputs count the other way round: all of a point's are slow together.
    """
    logs: tuple[list[float], list[float]] = ([], [])
    for name, measured in point.metrics.items():
        value = predicted.get(name) or measured * _UNPREDICTED
        sign = -1.0 if "throughput" in name or "tok_s" in name else 1.0
        logs[FIRST if name.startswith("ttft") else PACE].append(sign * log(measured / value))
    return [float(np.mean(of_class)) for of_class in logs if of_class]


def _classes(point: Observation) -> np.ndarray:
    """Whether *point* has metrics of pace, and of the first token."""
    first = [name.startswith("ttft") for name in point.metrics]
    return np.array([not all(first), any(first)])


def units_of(points: Sequence[Observation]) -> Units:
    """The rows of `residual_of` over *points*; a set-up on another card is another one."""
    names = list(dict.fromkeys((point.card, point.setup) for point in points))
    rows = [
        (which, names.index((point.card, point.setup)), number)
        for number, point in enumerate(points)
        for which in (PACE, FIRST)
        if _classes(point)[which]
    ]
    columns = np.array(rows, dtype=int).reshape(-1, 3).T
    return Units(*columns)


def thinned(points: Sequence[Observation], most: int) -> list[Observation]:
    """At most *most* of *points*: of each set-up in turn the first, the last, the middle, and so on."""
    if len(points) <= most:
        return list(points)
    by_setup: dict[tuple[str, str], list[Observation]] = {}
    for point in points:
        by_setup.setdefault((point.card, point.setup), []).append(point)
    queues = [[rows[i] for i in spread_out(len(rows))] for rows in by_setup.values()]
    turns = [queue[turn] for turn in range(max(map(len, queues))) for queue in queues if turn < len(queue)]
    return turns[:most]


def spread_out(n: int) -> list[int]:
    """0..n-1 with the ends first, then what halves the gaps."""
    order, gaps = [0, n - 1][: min(n, 2)], [(0, n - 1)]
    while gaps:
        low, high = gaps.pop(0)
        middle = (low + high) // 2
        if middle not in (low, high):
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return order
