"""The records of a run, part by part: what every answer is folded from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from sim.faults import InputFault
from sim.results.parts import Parts
from sim.results.requests import RequestTable, window_of
from sim.results.steps import StepLog
from sim.simulation import Run
from sim.simulation.clients import Progress


class Records:
    """The tables of a run's requests, in order: one of them all, or, where they are in files, one a part.

    An answer takes the tables one by one and keeps sums, so that it needs no memory of the run's size.
    """

    def __init__(self, run: Run, parts: Parts | None = None, progress: Progress | None = None) -> None:
        self.run, self.parts, self.progress = run, parts, progress

    def __iter__(self) -> Iterator[RequestTable]:
        if self.parts is None:
            yield self.whole
            return
        first = 0
        for requests, recorder in self.parts:
            if self.progress:
                self.progress(first, len(self), "read")
            part = replace(self.run, requests=requests, recorder=recorder)
            yield RequestTable(part, StepLog(recorder, self.run.step_time), self.window, first)
            first += len(requests)

    def __len__(self) -> int:
        return len(self.whole) if self.parts is None else len(self.parts)

    @cached_property
    def whole(self) -> RequestTable:
        """The table of all requests. Raises InputFault where they are in files."""
        if self.parts is not None:
            raise InputFault("the records of a run with run.stream_records are in its files, not in memory")
        return RequestTable.of(self.run)

    @cached_property
    def window(self) -> tuple[float, float]:
        """Start and end of the window, in s."""
        if self.parts is None:
            return self.whole.window
        warmup = self.run.scenario.run["warmup"]
        return window_of(len(self), self.parts.last_arrival_s, self.parts.arrival_s, warmup)
