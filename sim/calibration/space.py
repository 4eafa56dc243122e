"""The coordinates in which constants are fitted: one of each host time, one efficiency a card."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from sim.calibration.constants import BY_NAME, KINDS, Constants, Kind

_KNOWN = 1e-4  # of a standard deviation

OTHER_CARDS = ""
"""Stands for a card that was not measured: what the measured ones have in common is believed of it."""


@dataclass(frozen=True)
class Coordinate:
    """A constant, of one card if it belongs to cards."""

    kind: Kind
    card: str | None = None

    @property
    def name(self) -> str:
        """`host_step_s`, or `compute of NAME`."""
        of = f" of {self.card or 'other cards'}" if self.card is not None else ""
        return self.kind.name + of


@dataclass(frozen=True)
class Space:
    """Coordinates with what is believed of them: *start* (u) and *prior*, their covariance."""

    coordinates: tuple[Coordinate, ...]
    start: np.ndarray
    prior: np.ndarray

    def index(self, name: str, card: str) -> int:
        """Which coordinate the constant *name* has on *card*; a card not measured has that of others."""
        kind = BY_NAME[name]
        wanted = (card, OTHER_CARDS) if kind.of_card else (None,)
        for one in wanted:
            for i, coordinate in enumerate(self.coordinates):
                if coordinate.kind is kind and coordinate.card == one:
                    return i
        raise KeyError(name)

    def constants(self, u: np.ndarray, card: str, overlapped: bool | None) -> Constants:
        """The constants of *card* at *u*."""
        values = {kind.name: kind.value_of(float(u[self.index(kind.name, card)])) for kind in KINDS}
        return Constants(**values, overlapped=overlapped)

    def bounded(self, u: np.ndarray) -> np.ndarray:
        """The nearest *u* where no time is negative."""
        least = np.array([0.0 if c.kind.scale is not None else -np.inf for c in self.coordinates])
        return np.maximum(u, least)

    def precision(self) -> np.ndarray:
        """The inverse of the prior covariance."""
        return np.linalg.inv(self.prior)


def space_of(start: Constants, cards: Sequence[str], held: Collection[str] = ()) -> Space:
    """The space of the constants for *cards* (distinct), about *start*; those *held* are known."""
    values = start.as_dict()
    coordinates = [Coordinate(kind) for kind in KINDS if not kind.of_card]
    for kind in KINDS:
        if kind.of_card:
            coordinates += [Coordinate(kind, card) for card in (*cards, OTHER_CARDS)]
    u = np.array([c.kind.u_of(values[c.kind.name]) for c in coordinates])
    prior = np.diag([c.kind.prior_sd**2 for c in coordinates])
    for i, one in enumerate(coordinates):
        for j, other in enumerate(coordinates):
            if i != j and one.kind is other.kind:
                prior[i, j] = one.kind.common_sd**2
    known = np.array([_KNOWN if c.kind.name in held else 1.0 for c in coordinates])
    return Space(tuple(coordinates), u, prior * np.outer(known, known))
