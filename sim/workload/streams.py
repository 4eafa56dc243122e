"""Named streams of random numbers: one seed, one independent stream for every source of chance."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Take = Callable[[int], np.ndarray]
"""A source that is drawn from the front on: the next so many values, one-dimensional. Ten and then twenty
are the same bytes as thirty at once."""


def stream(seed: int, name: str) -> np.random.Generator:
    """A new generator at the start of the stream *name* of *seed* (an integer >= 0).

    Equal seeds and names give equal numbers in every process; any other seed or name gives an
    independent stream. So a run may draw more from one source without moving another, and two runs with
    one seed share their random numbers (common random numbers).

    PCG64DXSM: numpy's recommendation for many streams side by side (plain PCG64 can correlate between
    them), with a period of 2^128 and about the speed of the fastest generator that numpy has.
    """
    digest = hashlib.sha256(name.encode()).digest()
    key = np.frombuffer(digest, dtype="<u4", count=4).tolist()
    return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(seed, spawn_key=key)))


@dataclass(frozen=True)
class Streams:
    """The streams of *seed* whose names begin with *prefix*."""

    seed: int
    prefix: str = ""

    def open(self, name: str) -> np.random.Generator:
        """The stream *name* among these, at its start."""
        return stream(self.seed, self.prefix + name)

    def within(self, name: str) -> Streams:
        """The streams of a part of the traffic: their names begin with *name* and a dot."""
        return Streams(self.seed, f"{self.prefix}{name}.")


def running_sum(take: Take) -> Take:
    """The sums of all values of *take* so far."""
    total = 0.0

    def next_sums(count: int) -> np.ndarray:
        nonlocal total
        values = take(count)
        if count:
            values[0] += total
            np.cumsum(values, out=values)
            total = values[-1]
        return values

    return next_sums


def led_by(first: float, take: Take) -> Take:
    """*first*, and then the values of *take*."""
    lead = np.array([first])

    def next_values(count: int) -> np.ndarray:
        nonlocal lead
        values = np.concatenate([lead[:count], take(count - len(lead[:count]))])
        lead = lead[count:]
        return values

    return next_values


def repeated(take: Take, times: int) -> Take:
    """Each value of *take*, *times* in a row."""
    return take if times == 1 else repeated_by(take, lambda count: np.full(count, times), times)


def repeated_by(take: Take, times: Take, mean: float) -> Take:
    """Each value of *take*, as often in a row as *times* has it: whole numbers, *mean* on average."""
    left = np.empty(0)

    def next_values(count: int) -> np.ndarray:
        nonlocal left
        while (lacking := count - len(left)) > 0:
            fresh = math.ceil(lacking / mean)
            left = np.concatenate([left, np.repeat(take(fresh), times(fresh).astype(np.int64))])
        values, left = left[:count], left[count:].copy()
        return values

    return next_values


def numbered(value_of: Callable[[np.ndarray], np.ndarray]) -> Take:
    """The values of 0, 1, 2, ... (int64)."""
    taken = 0

    def next_values(count: int) -> np.ndarray:
        nonlocal taken
        numbers = np.arange(taken, taken + count)
        taken += count
        return value_of(numbers)

    return next_values
