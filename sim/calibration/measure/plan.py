"""In which order points are measured: those first that tell most about the rest."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from sim.calibration.measure.grids import Classes
from sim.calibration.measure.points import Point, work

_SIZES = ("m", "n", "k", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "bytes", "n_gpus")
_CALLS = 8  # a point costs about so many of its calls: one to begin with, warm-up, the repeats
_SETUP_S = 0.02
_RANKS_S = 3.0  # to start the processes that all-reduce


def ordered(classes: Classes) -> list[Point]:
    """All points, each once. Whenever one stops, what is done is spread over all classes and sizes.

    Classes take turns by their shares; within a class each next point is the one farthest, in the
    logarithms of its sizes, from all before it: the corners, then the middles, then between.
    """
    turns = [
        (rank / share, number, point)
        for number, (share, points) in enumerate(classes.values())
        for rank, point in enumerate(farthest_first(points), 1)
    ]
    return list(dict.fromkeys(point for _, _, point in sorted(turns, key=lambda turn: turn[:2])))


def farthest_first(points: Sequence[Point]) -> list[Point]:
    """*points*, the middle one first, then always the one farthest from those already there.

    Points that differ in variant alone stay together. Gonzalez, Theoretical Computer Science 38 (1985).
    """
    groups: dict[tuple[float, ...], list[Point]] = {}
    for point in points:
        groups.setdefault(_place(point), []).append(point)
    together = list(groups.values())
    return [point for index in _order(tuple(groups)) for point in together[index]]


@cache  # dtypes share their grids
def _order(corners: tuple[tuple[float, ...], ...]) -> list[int]:
    places = np.array(corners)
    places = places[:, np.ptp(places, axis=0) > 0]
    middle = (places.max(axis=0) + places.min(axis=0)) / 2
    order = [int(np.argmin(((places - middle) ** 2).sum(axis=1)))]
    apart = np.full(len(places), np.inf)
    while len(order) < len(places):
        away = places - places[order[-1]]
        apart = np.minimum(apart, np.einsum("ij,ij->i", away, away))
        order.append(int(np.argmax(apart)))
    return order


def _place(point: Point) -> tuple[float, ...]:
    return tuple(float(np.log2(1 + (getattr(point, size) or 0))) for size in _SIZES)


@dataclass
class Pace:
    """How long a point will take, judged by the fastest seen of its op, types and variant.

    A small kernel's rates are far below a large one's, so that the first guesses are too long, and shrink.
    """

    _rates: dict[tuple[str | None, ...], tuple[float, float]] = field(default_factory=dict)

    def learn(self, point: Point, time_s: float) -> None:
        """A call of *point* took *time_s*."""
        flops, moved = work(point)
        known = self._rates.get(point.kind, (0.0, 0.0))
        self._rates[point.kind] = max(known[0], flops / time_s), max(known[1], moved / time_s)

    def cost_s(self, point: Point) -> float:
        """What measuring *point* will take on the clock; trying it out, where nothing of its kind was yet."""
        rates = self._rates.get(point.kind)
        if rates is None:
            return _RANKS_S if point.op == "all_reduce" else _SETUP_S
        pairs = zip(work(point), rates, strict=True)
        return _SETUP_S + _CALLS * sum(amount / rate for amount, rate in pairs if rate > 0)


class Queue:
    """Points still to be measured: the first in order that is not too long goes first.

    Points that no guess lets through yet wait, and are tried again when the guesses have changed.
    """

    def __init__(self, points: Sequence[Point], pace: Pace) -> None:
        self._ready = list(enumerate(points))
        self._place = {point: place for place, point in self._ready}
        self._long: list[tuple[int, Point]] = []
        self._pace = pace

    def __len__(self) -> int:
        return len(self._ready) + len(self._long)

    def next(self, most_s: float) -> Point | None:
        """The next point that costs at most *most_s*, taken out; None if there is none."""
        for entry in [one for one in self._long if self._pace.cost_s(one[1]) <= most_s]:
            self._long.remove(entry)
            heapq.heappush(self._ready, entry)
        while self._ready:
            entry = heapq.heappop(self._ready)
            if self._pace.cost_s(entry[1]) <= most_s:
                return entry[1]
            self._long.append(entry)
        return None

    def put_back(self, point: Point) -> None:
        """*point* was not measured after all; it keeps its place."""
        heapq.heappush(self._ready, (self._place[point], point))

    def drop(self, kind: tuple[str | None, ...]) -> list[Point]:
        """Take out all points of *kind*."""
        entries = [*self._ready, *self._long]
        self._ready = sorted(entry for entry in self._ready if entry[1].kind != kind)
        self._long = [entry for entry in self._long if entry[1].kind != kind]
        return [point for _, point in entries if point.kind == kind]
