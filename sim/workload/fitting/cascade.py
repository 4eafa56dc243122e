"""Burstiness on several time scales: independent two-state factors of one rate, fitted by what windows show.

A factor is a two-state Markov chain with a mean of 1; the rate is their product, a Markov-modulated Poisson
process of 2^k states. Second moments of counts are sums of exponentials (as in the superpositions of
Andersen and Nielsen, A Markovian approach for modelling packet traffic, 1998, which add where these
multiply: factors can be silent together), and the probability of silence is a matrix exponential (Fischer
and Meier-Hellstern, The Markov-modulated Poisson process cookbook, 1993). So the fit needs no sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from sim.workload.dispersion import Dispersion

_INDEX_ERROR, _QUIET_ERROR = 0.03, 0.01
"""How exactly an index (relatively) and a share of silent windows are wanted, beside their sampling error."""
_EVEN = 0.2
"""How much a factor that is as often high as low is preferred, where windows do not tell."""
_STARTS = ((0.4, 0.3), (0.25, 0.05), (0.7, 0.6))
"""Where fits begin: share of the time in the high state, low rate over high rate."""


@dataclass(frozen=True, eq=False)
class Cascade:
    """Factors of a rate; arrays of one item a factor.

    high_share: of the time, in the high state. low: rate of the low state over that of the high one.
    time_s: after which the state is forgotten but for 1/e.
    """

    high_share: np.ndarray
    low: np.ndarray
    time_s: np.ndarray

    @property
    def levels(self) -> np.ndarray:
        """Rate in the low and the high state of each factor ([k, 2]), with a mean of 1."""
        high = 1 / (self.high_share + (1 - self.high_share) * self.low)
        return np.column_stack([self.low * high, high])

    @property
    def shares(self) -> np.ndarray:
        """Share of the time of the low and the high state of each factor ([k, 2])."""
        return np.column_stack([1 - self.high_share, self.high_share])

    def index(self, rate_per_s: float, dispersion: Dispersion, span_s: float) -> np.ndarray:
        """Expected index of dispersion at the windows of *dispersion*, cut from samples of *span_s*: the
        variance around a sample's own mean is less by that of the mean."""
        windows_s = dispersion.windows_s
        each = np.floor(span_s / windows_s + 1e-9)
        whole = self._variance(rate_per_s, each * windows_s)
        return (self._variance(rate_per_s, windows_s) - whole / each**2) / (rate_per_s * windows_s)

    def _variance(self, rate_per_s: float, windows_s: np.ndarray) -> np.ndarray:
        """Of the counts in windows: rate t + 2 rate^2 sum over the sets of factors of prod(v) (t / q -
        (1 - e^(-q t)) / q^2), v the variances of its factors and q the sum of their inverse times."""
        variance = (self.shares * self.levels**2).sum(axis=1) - 1
        total = rate_per_s * windows_s
        for chosen in product((False, True), repeat=len(variance)):
            if any(chosen):
                inside = np.array(chosen)
                q = (1 / self.time_s[inside]).sum()
                weight = windows_s / q + np.expm1(-q * windows_s) / q**2
                total = total + 2 * rate_per_s**2 * variance[inside].prod() * weight
        return total

    def quiet(self, rate_per_s: float, windows_s: np.ndarray) -> np.ndarray:
        """Probability of no arrival in windows: pi exp((Q - L) t) 1. Q is in balance with pi in detail, so
        that D (Q - L) / D with D = diag(sqrt(pi)) is symmetric."""
        rates, moves, shares = self.states()
        root = np.sqrt(shares)
        symmetric = root[:, None] * (moves - np.diag(rates * rate_per_s)) / root
        values, vectors = np.linalg.eigh((symmetric + symmetric.T) / 2)
        return np.exp(np.outer(windows_s, values)) @ (root @ vectors) ** 2

    def states(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Relative rates, the generator (rates of moving, rows add to 0) and the shares of the time."""
        rates: np.ndarray = np.ones(1)
        moves: np.ndarray = np.zeros((1, 1))
        shares: np.ndarray = np.ones(1)
        for levels, part, time_s in zip(self.levels, self.shares, self.time_s, strict=True):
            own = (np.tile(part, (2, 1)) - np.eye(2)) / time_s
            moves = np.kron(moves, np.eye(2)) + np.kron(np.eye(len(rates)), own)
            rates, shares = np.kron(rates, levels), np.kron(shares, part)
        return rates, moves, shares

    def arrivals(self) -> dict[str, Any]:
        """As `workload.arrivals`: on_off where it is that, else mmpp."""
        if len(self.low) == 1 and self.low[0] == 0:
            on_s, off_s = (float(f"{self.time_s[0] / part:.4g}") for part in self.shares[0])
            return {"kind": "on_off", "on_s": on_s, "off_s": off_s}
        rates, moves, _ = self.states()
        leaving = -np.diag(moves)
        return {"kind": "mmpp", **_rounded(rates, 1 / leaving), **_transitions(moves, leaving)}


def _rounded(rates: np.ndarray, sojourn_s: np.ndarray) -> dict[str, list[float]]:
    return {
        "rates": [float(f"{rate:.4g}") for rate in rates],
        "sojourn_s": [float(f"{stay_s:.4g}") for stay_s in sojourn_s],
    }


def _transitions(moves: np.ndarray, leaving: np.ndarray) -> dict[str, list[list[float]]]:
    """Rows that add up to 1 though each number is rounded: the largest takes what is left."""
    if len(leaving) == 2:
        return {}
    rows = np.round((moves + np.diag(leaving)) / leaving[:, None], 6)
    for row in rows:
        largest = row.argmax()
        row[largest] = round(1 - (row.sum() - row[largest]), 6)
    return {"transitions": rows.tolist()}


def fit_cascade(measured: Dispersion, rate_per_s: float, span_s: float, most: int = 3) -> Cascade:
    """The fewest factors, up to *most*, whose dispersion and silence agree with *measured*, from samples of
    *span_s* each; a factor more must explain a third of what is left."""
    best, cost = _fit(measured, rate_per_s, span_s, 1)
    for factors in range(2, most + 1):
        if cost < len(measured.index):
            break
        more, less = _fit(measured, rate_per_s, span_s, factors)
        if less > 0.67 * cost:
            break
        best, cost = more, less
    return best


def _fit(measured: Dispersion, rate_per_s: float, span_s: float, factors: int) -> tuple[Cascade, float]:
    """The best of some starts, and the sum of squares that it leaves."""
    from scipy.optimize import least_squares

    def residuals(x: np.ndarray) -> np.ndarray:
        here = _residuals(_of(x), measured, rate_per_s, span_s)
        return np.append(here, _EVEN * x[:factors])

    low, high = np.repeat([[-5.0, -9.0, np.log(0.05)], [5.0, 5.0, np.log(span_s)]], factors, axis=1)
    ends = [
        least_squares(residuals, _start(start, span_s, factors), bounds=(low, high), max_nfev=80)
        for start in _STARTS
    ]
    best = min(ends, key=lambda end: end.cost)
    found = _of(best.x)
    if factors == 1 and found.low[0] < 0.02:  # as good as silent
        silent = Cascade(found.high_share, np.zeros(1), found.time_s)
        if (cost := float((_residuals(silent, measured, rate_per_s, span_s) ** 2).sum())) < 2.2 * best.cost:
            return silent, cost
    return found, 2 * float(best.cost)


def _start(start: Sequence[float], span_s: float, factors: int) -> np.ndarray:
    share, low = (np.log(part / (1 - part)) for part in start)
    times = np.log(np.geomspace(1, max(span_s / 30, 3), factors + 2)[1:-1])
    return np.concatenate([np.full(factors, share), np.full(factors, low), times])


def _of(x: np.ndarray) -> Cascade:
    share, low, times = x.reshape(3, -1)
    return Cascade(1 / (1 + np.exp(-share)), 1 / (1 + np.exp(-low)), np.exp(times))


def _residuals(cascade: Cascade, measured: Dispersion, rate_per_s: float, span_s: float) -> np.ndarray:
    """Differences in units of what sampling and the wish for exactness allow."""
    index_error = np.hypot(np.sqrt(2 / np.maximum(measured.windows - 1, 1)), _INDEX_ERROR)
    index = np.log(cascade.index(rate_per_s, measured, span_s) / np.maximum(measured.index, 1e-3))
    told = (measured.quiet > 0.005) & (measured.quiet < 0.995)
    quiet, windows = measured.quiet[told], measured.windows[told]
    quiet_error = np.hypot(np.sqrt(quiet * (1 - quiet) / windows), _QUIET_ERROR)
    silence = cascade.quiet(rate_per_s, measured.windows_s[told]) - quiet
    return np.concatenate([index / index_error, silence / quiet_error])
