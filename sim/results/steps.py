"""What the step log says: durations of single iterations, gaps between tokens, use of the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from sim.results.statistics import WeightedSample
from sim.serving.scheduler import HELD_BY
from sim.simulation import Clockwork
from sim.simulation.recorder import STEP, Recorder

SPREAD = 1e-3  # iterations of a row that differ by less, relatively, count at their mean
_ROWS_AT_A_TIME = 1 << 15


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

    def parts(self) -> Iterator[np.ndarray]:
        """The rows (`sim.simulation.recorder.STEP`), some tens of thousands at a time.

        Sums over a long run's rows are taken over parts, so that they need no memory of its size. Without
        those that are the next records' too.
        """
        rows = np.frombuffer(self.recorder.steps, STEP)[: self.recorder.own_rows]
        for first in range(0, len(rows), _ROWS_AT_A_TIME):
            yield rows[first : first + _ROWS_AT_A_TIME]

    @cached_property
    def longest_s(self) -> np.ndarray:
        """The longest iteration of each row: its last, since contexts only grow."""
        longest = self.end_s - self.start_s
        for first in range(0, len(longest), _ROWS_AT_A_TIME):
            many = np.flatnonzero(self.iterations[first : first + _ROWS_AT_A_TIME] > 1) + first
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
        sample = WeightedSample()
        self.add_gaps([(sample, wanted)])
        return sample

    def add_gaps(self, samples: Sequence[tuple[WeightedSample, np.ndarray]]) -> None:
        """Add to each sample the gaps between two tokens of the requests that are wanted in it."""
        weights = [self._weights(wanted) for _, wanted in samples]
        for first in range(0, self.recorder.num_rows, _ROWS_AT_A_TIME):
            parts = [weight[first : first + _ROWS_AT_A_TIME] for weight in weights]
            rows = np.flatnonzero(np.logical_or.reduce(parts)) + first
            duration_s, count, owner = self.durations_s(rows)
            for (sample, _), weight in zip(samples, weights, strict=True):
                mine = np.flatnonzero(weight[owner])
                sample.add(duration_s[mine], count[mine] * weight[owner[mine]])
                longest_s = self.longest_s[rows[weight[rows] > 0]]
                sample.largest = max(sample.largest, float(longest_s.max(initial=0.0)))
        request, pause_s = self.recorder.column("gap_request"), self.recorder.column("gap_s")
        for sample, wanted in samples:
            pauses_s = pause_s[wanted[request]]
            sample.add(pauses_s, np.ones(len(pauses_s), dtype=np.int64))

    def _weights(self, wanted: np.ndarray) -> np.ndarray:
        """How many of the *wanted* requests decoded in each row."""
        recorder = self.recorder
        mine = wanted[recorder.column("stretch_request")]
        change = np.zeros(recorder.num_rows + 1, dtype=np.int32)
        np.add.at(change, recorder.column("stretch_first_row")[mine], 1)
        np.subtract.at(change, recorder.column("stretch_last_row")[mine] + 1, 1)
        return np.cumsum(change, out=change)[:-1]

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

    @cached_property
    def totals(self) -> Totals:
        """Sums over all rows."""
        totals = Totals()
        for rows in self.parts():
            totals.add(rows)
        return totals


@dataclass
class Totals:
    """Sums over the rows of a step log. Blocks and contexts grow evenly within a row.

    *held_block_s* and *held_token_s* are of the rows without prefill, where every block belongs to a
    decode of known length; *held_by_s* is indexed like `sim.serving.scheduler.HELD_BY`.
    """

    busy_s: float = 0.0
    iterations: int = 0
    sequences: int = 0  # in the batch, summed over iterations
    decoded_tokens: int = 0
    prefill_tokens: int = 0
    context_tokens: float = 0.0  # read by decodes
    pairs: float = 0.0  # of queries and keys
    block_s: float = 0.0
    most_blocks: int = 0
    held_block_s: float = 0.0
    held_token_s: float = 0.0
    context_s: float = 0.0  # tokens that decodes hold, times seconds
    held_by_s: np.ndarray = field(default_factory=lambda: np.zeros(len(HELD_BY)))

    def add(self, rows: np.ndarray) -> None:
        """Add *rows* (`STEP`)."""
        seconds = rows["end_s"] - rows["start_s"]
        n, k = rows["decodes"].astype(np.int64), rows["iterations"].astype(np.int64)
        blocks = (rows["blocks_first"] + rows["blocks_last"]) / 2.0
        prefills = rows["prefill_sequences"]
        read = k * rows["context_tokens"] + n * (k * (k - 1) // 2)
        self.busy_s += float(seconds.sum())
        self.iterations += int(k.sum())
        self.sequences += int((k * (n + prefills)).sum())
        self.decoded_tokens += int((k * n).sum())
        self.prefill_tokens += int(rows["prefill_tokens"].sum(dtype=np.int64))
        self.context_tokens += float(read.sum())
        self.pairs += float(read.sum() + rows["prefill_pairs"].sum(dtype=np.float64))
        self.block_s += float(seconds @ blocks)
        self.most_blocks = max(self.most_blocks, int(rows["blocks_last"].max()))
        only = prefills == 0
        self.held_block_s += float(seconds[only] @ blocks[only])
        self.held_token_s += float(seconds[only] @ (read / k)[only])
        self.context_s += float(seconds @ (read / k))
        self.held_by_s += np.bincount(rows["held_by"], weights=seconds, minlength=len(HELD_BY))


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
