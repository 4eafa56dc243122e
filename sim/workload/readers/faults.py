"""Faults of a trace by line of its file: a file of millions of rows may have as many."""

from __future__ import annotations

from collections.abc import Iterable

from sim.faults import InputFault

SHOWN_FAULTS = 20
_KEPT = 1000

Fault = tuple[int, str]
"""(line in the file, sentence without the place)."""


class LineFaults:
    """Gathers the faults of one file in constant memory: the first ones by line, and how many more."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._first: list[Fault] = []
        self._more = 0

    def __bool__(self) -> bool:
        return bool(self._first)

    def add(self, line: int, sentence: str) -> None:
        """A fault on *line*; the sentence begins with what is at fault."""
        self._first.append((int(line), sentence))
        if len(self._first) > _KEPT:
            self._cut()

    def extend(self, faults: Iterable[Fault]) -> None:
        """All of *faults*."""
        for line, sentence in faults:
            self.add(line, sentence)

    def raise_any(self) -> None:
        """Raises `InputFault` with the faults in the file's order, the first 20 in full."""
        if self:
            raise self.told()

    def told(self) -> InputFault:
        """All of them, as one fault."""
        self._cut()
        sentences = [f"{self.path}:{line}: {sentence}" for line, sentence in self._first]
        return InputFault(sentences + ([f"{self.path}: and {self._more} more"] if self._more else []))

    def _cut(self) -> None:
        self._first.sort(key=lambda fault: fault[0])
        self._more += len(self._first[SHOWN_FAULTS:])
        del self._first[SHOWN_FAULTS:]


def at_lines(path: str, faults: Iterable[Fault]) -> InputFault:
    """*faults* of the file *path*, as one fault."""
    found = LineFaults(path)
    found.extend(faults)
    return found.told()
