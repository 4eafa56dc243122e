"""Rates that change: arrivals of a steady process, carried to the times of one whose rate goes up and down.

A relative rate has a mean of 1. Its integral is the operational time, in which arrivals come steadily; the
inverse of the integral carries them to seconds (E. Cinlar, Introduction to Stochastic Processes, 1975,
ch. 4.7). A relative rate is made of pieces on which it is straight: those of a series, the states of a
Markov chain, or both, multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.workload.streams import Streams, Take

_BLOCK = 256  # stays, or pieces of a series, at a time
_LONG_AGO_S = -(2.0**22)  # before any run


@dataclass(frozen=True, eq=False)
class Series:
    """A relative rate over time: from begin_s[i] on it is rates[i], rising by slopes[i] a second (float64).

    period_s: after that it begins again; inf where it does not.
    """

    begin_s: np.ndarray
    rates: np.ndarray
    slopes: np.ndarray
    period_s: float

    @classmethod
    def of(cls, series: Mapping[str, Any]) -> Series:
        """As `workload.arrivals.series` describes it, scaled to a mean of 1 over its period, or its span:
        outside that the first and the last rate hold."""
        times_s, rates = (np.array(series[key], dtype=np.float64) for key in ("times_s", "rates"))
        period_s = series.get("period_s")
        if period_s is None:
            ends_s, ends = times_s[1:], rates[1:]
        else:
            ends_s, ends = np.append(times_s[1:], period_s), np.append(rates[1:], rates[0])
        stays_s, begins = ends_s - times_s[: len(ends)], rates[: len(ends)]
        if series["interpolation"] == "step":
            ends = begins
        mean = float(stays_s @ (begins + ends)) / 2 / float(ends_s[-1])
        slopes = np.divide(ends - begins, stays_s, out=np.zeros_like(stays_s), where=stays_s > 0)
        if period_s is None:
            times_s = np.concatenate([[_LONG_AGO_S], times_s])
            rates, slopes = np.append(rates[0], rates), np.concatenate([[0.0], slopes, [0.0]])
        return cls(times_s, rates / mean, slopes / mean, math.inf if period_s is None else float(period_s))

    def until_s(self, begin_s: float) -> float:
        """Some periods after *begin_s*; inf where there are none."""
        if self.period_s == math.inf:
            return math.inf
        periods = 2 + _BLOCK // len(self.begin_s)
        return (math.floor(begin_s / self.period_s) + periods) * self.period_s

    def begins_within(self, begin_s: float, end_s: float) -> np.ndarray:
        """Where a piece begins between *begin_s* and *end_s* (both apart)."""
        all_s = self.begin_s
        if self.period_s < math.inf:
            first, last = (math.floor(at_s / self.period_s) for at_s in (begin_s, end_s))
            all_s = (np.arange(first, last + 1)[:, None] * self.period_s + all_s).ravel()
        return all_s[(all_s > begin_s) & (all_s < end_s)]

    def inside(self, at_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rate and slope at times that are not where a piece begins."""
        if self.period_s < math.inf:
            at_s = at_s % self.period_s
        piece = np.searchsorted(self.begin_s, at_s, "right") - 1
        return self.rates[piece] + self.slopes[piece] * (at_s - self.begin_s[piece]), self.slopes[piece]


class States:
    """The states of a Markov chain, one after the other, and how long each lasts (exponentially).

    The chain begins as it is at any time: a state's probability is its share of the time, pi_i ~ nu_i s_i, nu
    the stationary distribution of the `transitions` and s_i the mean stay. Rates are scaled to sum(pi r) = 1.
    """

    def __init__(self, arrivals: Mapping[str, Any], streams: Streams) -> None:
        rates, self._mean_stay_s, moves = chain_of(arrivals)
        shares = time_shares(self._mean_stay_s, moves)
        self._rates = rates / float(shares @ rates)
        self._cumulative = np.cumsum(moves, axis=1)[:, :-1]
        self._uniform = streams.open("arrivals.states").random
        self._exponential = streams.open("arrivals.stays").standard_exponential
        self._state = int(np.searchsorted(np.cumsum(shares)[:-1], self._uniform(), "right"))

    def take(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Seconds and rates of the next *count* stays."""
        goes_to = (self._uniform(count)[:, None, None] >= self._cumulative).sum(axis=2)
        visited, state = [], self._state
        for next_of in goes_to.tolist():
            visited.append(state)
            state = next_of[state]
        self._state = state
        return self._exponential(count) * self._mean_stay_s[visited], self._rates[visited]


def chain_of(arrivals: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Relative rates, mean stays in s, and the probabilities of what comes after each state (rows)."""
    if arrivals["kind"] == "on_off":
        rates, stays_s = [1.0, 0.0], [arrivals["on_s"], arrivals["off_s"]]
    else:
        rates, stays_s = arrivals["rates"], arrivals["sojourn_s"]
    moves = arrivals.get("transitions") or [[0.0, 1.0], [1.0, 0.0]]
    return np.array(rates, dtype=np.float64), np.array(stays_s, dtype=np.float64), np.array(moves)


def time_shares(mean_stay_s: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """The share of the time that each state has in the long run, of a chain in which all can be reached."""
    size = len(moves)
    equations = np.vstack([moves.T - np.eye(size), np.ones(size)])
    visits, *_ = np.linalg.lstsq(equations, np.append(np.zeros(size), 1.0), rcond=None)
    shares = visits * mean_stay_s
    return shares / shares.sum()


class Clock:
    """Carries operational times, which never fall, to seconds from *begin_s* on, one after the other.

    Pieces are rows of begin, end, rate, slope and the operational time at the begin; those that are over are
    forgotten.
    """

    def __init__(self, series: Series | None, states: States | None, begin_s: float = 0.0) -> None:
        self._series, self._states = series, states
        self._stay_end_s, self._stay_rate = np.array([begin_s]), np.ones(1)
        self._pieces = np.empty((5, 0))
        self._end_s, self._done = begin_s, 0.0
        self._last_s = -math.inf

    def carried(self, take: Take) -> Take:
        """The times of *take* in seconds; inf for those that never come, where the rate ends at zero."""
        return lambda count: self._seconds(take(count))

    def _seconds(self, operational: np.ndarray) -> np.ndarray:
        if len(operational) == 0:
            return operational
        while self._done <= operational[-1] and self._end_s < math.inf:
            self._extend()
        first = np.searchsorted(operational, self._pieces[4])  # of each piece
        counts = np.diff(np.append(first, len(operational)))
        begin_s, end_s, rate, slope, done = np.repeat(self._pieces, counts, axis=1)
        more = operational - done
        speed = (rate + np.sqrt(np.maximum(rate**2 + 2 * slope * more, 0.0))) / 2  # on average, until then
        never_s = np.where(more > 0, math.inf, 0.0)
        times_s = np.minimum(begin_s + np.divide(more, speed, out=never_s, where=speed > 0), end_s)
        times_s[0] = max(times_s[0], self._last_s)
        np.maximum.accumulate(times_s, out=times_s)  # against rounding
        self._last_s = float(times_s[-1])
        self._pieces = self._pieces[:, np.flatnonzero(counts)[-1] :]
        return times_s

    def _extend(self) -> None:
        """Some more pieces: to the end of the last stay that was drawn, or of some periods of the series."""
        begin_s, end_s, parts = self._end_s, math.inf, [np.array([self._end_s])]
        if self._states is not None:
            if self._stay_end_s[-1] <= begin_s:
                stays_s, self._stay_rate = self._states.take(_BLOCK)
                self._stay_end_s = begin_s + np.cumsum(stays_s)
            end_s = float(self._stay_end_s[-1])
            parts.append(self._stay_end_s[:-1])
        if self._series is not None:
            end_s = min(end_s, self._series.until_s(begin_s))
            parts.append(self._series.begins_within(begin_s, end_s))
        begins_s = np.unique(np.concatenate(parts))
        self._append(begins_s[(begins_s >= begin_s) & (begins_s < end_s)], end_s)

    def _append(self, begins_s: np.ndarray, end_s: float) -> None:
        """Pieces that begin at *begins_s*, the last of which ends at *end_s*."""
        ends_s = np.append(begins_s[1:], end_s)
        half_s = np.minimum(ends_s - begins_s, 2.0**22) / 2
        rate, slope = np.ones(len(begins_s)), np.zeros(len(begins_s))
        if self._series is not None:
            rate, slope = self._series.inside(begins_s + half_s)
        if self._states is not None:
            factor = self._stay_rate[np.searchsorted(self._stay_end_s, begins_s + half_s, "right")]
            rate, slope = rate * factor, slope * factor
        done = self._done + np.cumsum(2 * half_s * rate)
        rate = np.maximum(rate - slope * half_s, 0.0)
        before = np.append(self._done, done[:-1])
        self._pieces = np.hstack([self._pieces, np.array([begins_s, ends_s, rate, slope, before])])
        self._end_s, self._done = end_s, float(done[-1])
