"""The queue of the priority policy: smaller priorities first, among equals who came first."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from sim.serving.sequence import Sequence


class PriorityQueue:
    """Waiting sequences, with the part of a deque's manners that the scheduler uses.

    Whoever is put back in front after a preemption has no advantage: it takes its place by priority.
    """

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Sequence]] = []

    def append(self, sequence: Sequence) -> None:
        """*sequence* takes its place."""
        heappush(self._heap, (sequence.priority, sequence.came, sequence))

    appendleft = append

    def popleft(self) -> Sequence:
        """Remove and return the most urgent."""
        return heappop(self._heap)[2]

    def __getitem__(self, position: int) -> Sequence:
        """The most urgent is at 0; the others are in no order."""
        return self._heap[position][2]

    def __iter__(self) -> Iterator[Sequence]:
        return (entry[2] for entry in self._heap)

    def __len__(self) -> int:
        return len(self._heap)
