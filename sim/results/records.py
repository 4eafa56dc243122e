"""The records of a run, part by part: what every answer is folded from."""

from __future__ import annotations

from collections.abc import Iterator

from sim.results.requests import RequestTable
from sim.simulation import Run


class Records:
    """The tables of a run's requests, in order; an ordinary run has one, of all of them.

    An answer takes the tables one by one and keeps sums, so that it needs no memory of the run's size.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.whole = RequestTable.of(run)

    def __iter__(self) -> Iterator[RequestTable]:
        yield self.whole

    def __len__(self) -> int:
        return len(self.whole)

    @property
    def window(self) -> tuple[float, float]:
        """Start and end of the window, in s."""
        return self.whole.window
