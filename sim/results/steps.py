"""What the step log says: durations of single iterations, gaps between tokens, use of the GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from sim.results.statistics import WeightedSample
from sim.serving.scheduler import HELD_BY
from sim.simulation import Clockwork
from sim.simulation.recorder import Recorder

SPREAD = 1e-3  # iterations of a row that differ by less, relatively, count at their mean
_ROWS_AT_A_TIME = 1 << 16


@dataclass(frozen=True)
class StepLog:
    """A run's step log as columns (`sim.simulation.recorder`), one row a batch, and what follows from it."""

    recorder: Recorder
    step_time: Clockwork
    start_s: np.ndarray = field(init=False)
    end_s: np.ndarray = field(init=False)
    iterations: np.ndarray = field(init=False)
    decodes: np.ndarray = field(init=False)
    context_tokens: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        for name in ("start_s", "end_s", "iterations", "decodes", "context_tokens"):
            object.__setattr__(self, name, self.recorder.column(name))

    def elapsed_s(self, rows: np.ndarray, iterations: np.ndarray) -> np.ndarray:
        """Time from the start of *rows* (compositions) to the end of their *iterations*-th, in s."""
        return self.step_time.elapsed_s(
            self.decodes[rows].astype(np.int64), self.context_tokens[rows].astype(np.int64), iterations
        )

    @cached_property
    def longest_s(self) -> np.ndarray:
        """The longest iteration of each row: its last, since contexts only grow."""
        longest = self.end_s - self.start_s
        many = np.flatnonzero(self.iterations > 1)
        longest[many] -= self.elapsed_s(many, self.iterations[many].astype(np.int64) - 1)
        return longest

    def durations_s(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The iterations of *rows*, regenerated in groups that differ by less than `SPREAD`.

        Returns each group's mean duration in s, how many iterations it has, and its row. Durations
        of a row grow almost evenly, so twice the distance of the last from the mean is their range.
        """
        counts = self.iterations[rows].astype(np.int64)
        mean_s = (self.end_s - self.start_s)[rows] / counts
        rise = 2.0 * (self.longest_s[rows] / mean_s - 1.0)
        groups = np.clip(np.ceil(rise / SPREAD), 1, counts).astype(np.int64)
        few = groups == 1
        owner = np.repeat(np.arange(len(rows)), np.where(few, 0, groups))
        number = np.arange(len(owner)) - np.searchsorted(owner, owner)
        first = number * counts[owner] // groups[owner]
        last = (number + 1) * counts[owner] // groups[owner]
        split = self.elapsed_s(rows[owner], last)
        split -= np.where(first > 0, self.elapsed_s(rows[owner], np.maximum(first, 1)), 0.0)
        size = last - first
        return (
            np.concatenate([mean_s[few], split / size]),
            np.concatenate([counts[few], size]),
            np.concatenate([rows[few], rows[owner]]),
        )

    def gaps(self, wanted: np.ndarray) -> WeightedSample:
        """Every gap between two tokens of the requests that are *wanted* (bool, one a request)."""
        recorder = self.recorder
        weight = self._weights(wanted)
        rows = np.flatnonzero(weight)
        sample = WeightedSample()
        for first in range(0, len(rows), _ROWS_AT_A_TIME):
            duration_s, count, owner = self.durations_s(rows[first : first + _ROWS_AT_A_TIME])
            sample.add(duration_s, count * weight[owner])
        sample.largest = float(self.longest_s[rows].max(initial=0.0))
        pauses = recorder.column("gap_s")[wanted[recorder.column("gap_request")]]
        sample.add(pauses, np.ones(len(pauses), dtype=np.int64))
        return sample

    def _weights(self, wanted: np.ndarray) -> np.ndarray:
        """How many of the *wanted* requests decoded in each row."""
        recorder = self.recorder
        mine = wanted[recorder.column("stretch_request")]
        size = recorder.num_rows + 1
        begin = np.bincount(recorder.column("stretch_first_row")[mine], minlength=size)
        end = np.bincount(recorder.column("stretch_last_row")[mine] + 1, minlength=size)
        return np.cumsum(begin - end)[:-1]

    def stalls_s(self, num_requests: int) -> np.ndarray:
        """The largest gap between two tokens of each request, in s; NaN where there is none."""
        recorder = self.recorder
        stall = np.full(num_requests, -np.inf)
        request = recorder.column("stretch_request")
        first, last = recorder.column("stretch_first_row"), recorder.column("stretch_last_row")
        np.maximum.at(stall, request, _range_max(self.longest_s, first, last))
        np.maximum.at(stall, recorder.column("gap_request"), recorder.column("gap_s"))
        stall[np.isneginf(stall)] = np.nan
        return stall

    def context_sum(self) -> np.ndarray:
        """KV tokens read by the decodes of each row, all its iterations together."""
        n, k = self.decodes.astype(np.float64), self.iterations.astype(np.float64)
        return k * self.context_tokens + n * k * (k - 1) / 2

    def held_by_shares(self) -> dict[str, float]:
        """Share of busy time in which the head of the queue was held up by each resource."""
        seconds = np.bincount(
            self.recorder.column("held_by"), weights=self.end_s - self.start_s, minlength=len(HELD_BY)
        )
        total = float(seconds.sum()) or 1.0
        return {name: float(s) / total for name, s in zip(HELD_BY, seconds, strict=True)}


def _range_max(values: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The largest of values[first..last] (inclusive) for each pair, by doubling windows."""
    level = np.frexp(last - first + 1)[1] - 1  # floor of the logarithm of the length
    result = np.empty(len(first))
    window = values
    for k in range(int(level.max(initial=-1)) + 1):
        here = np.flatnonzero(level == k)
        result[here] = np.maximum(window[first[here]], window[last[here] - (1 << k) + 1])
        window = np.maximum(window[: -(1 << k)], window[1 << k :]) if len(window) > 1 << k else window
    return result
