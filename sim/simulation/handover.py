"""Records that are handed over while the run goes on, so that it needs no memory of its length."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from sim.serving.sequence import DECODE, DONE, LEAVING
from sim.simulation.clients import Progress
from sim.simulation.recorder import GAP, STEP, STRETCH, TURN, UNFINISHED, Recorder
from sim.simulation.replica import Replica
from sim.workload import Requests

Sink = Callable[[Requests, Recorder], None]
"""Takes requests that are over, in the order of the workload's rows, and their records."""
ROWS = 1 << 15  # requests sent between two times of handing over

_BLANKS = {
    "status": UNFINISHED,
    "queued_s": float("nan"),
    "first_scheduled_s": float("nan"),
    "first_token_s": float("nan"),
    "finish_s": float("nan"),
    "preemptions": 0,
    "cached_tokens": 0,
}


class _Rows(dict[int, Any]):
    """A column of those rows that something is known of; *blank* in all others."""

    __slots__ = ("blank",)

    def __init__(self, blank: Any) -> None:
        self.blank = blank

    def __missing__(self, row: int) -> Any:
        return self.blank


class PassingRecorder(Recorder):
    """A recorder that forgets what it has handed over; rows are those of the whole run all the same."""

    __slots__ = ("first", "first_row")

    def __init__(self) -> None:
        super().__init__(0)
        self.first = 0  # row of the first request that is still here
        self.first_row = 0  # and of the first step
        for name, blank in _BLANKS.items():
            setattr(self, name, _Rows(blank))

    def put(self, name: str, rows: np.ndarray, values: np.ndarray) -> None:
        """See `Recorder`."""
        getattr(self, name).update(zip(rows.tolist(), values.tolist(), strict=True))

    def hand_over(self, last: int, needed_row: int, settled_s: float) -> Recorder:
        """Take out the requests before row *last*, with the steps in which they decoded.

        Steps from *needed_row* on stay here too, and those that stretches of later requests begin in;
        nothing happens to later requests before *settled_s*.
        """
        first, self.first = self.first, last
        taken = Recorder(last - first)
        for name, blank in _BLANKS.items():
            pop, column = getattr(self, name).pop, getattr(taken, name)
            setattr(taken, name, array(column.typecode, [pop(row, blank) for row in range(first, last)]))
        mine = {name: self._split(name, last) for name in ("stretches", "gaps", "turns")}
        for name, log in mine.items():
            log[log.dtype.names[0]] -= first  # type: ignore[index]
            setattr(taken, name, bytearray(log.tobytes()))
        for row in [row for row in self.given_up if row < last]:
            taken.given_up[row - first] = self.given_up.pop(row)
        self._hand_over_steps(taken, mine["stretches"], needed_row)
        taken.settled_s = settled_s
        return taken

    def _split(self, name: str, last: int) -> np.ndarray:
        """Take the rows of requests before *last* out of a log."""
        dtype = {"stretches": STRETCH, "gaps": GAP, "turns": TURN}[name]
        log = np.frombuffer(bytes(getattr(self, name)), dtype)
        mine = log[dtype.names[0]] < last  # type: ignore[index]
        setattr(self, name, bytearray(log[~mine].tobytes()))
        return log[mine]

    def _hand_over_steps(self, taken: Recorder, stretches: np.ndarray, needed_row: int) -> None:
        first, size = self.first_row, STEP.itemsize
        begun = self.column("stretch_first_row")
        self.first_row = kept = min(needed_row, int(begun.min(initial=self.num_rows)))
        end = max(kept, int(stretches["stretch_last_row"].max(initial=-1)) + 1)
        taken.steps = self.steps[: (end - first) * size]
        self.steps = self.steps[(kept - first) * size :]
        taken.num_rows, taken.shared_rows = end - first, end - kept
        stretches["stretch_first_row"] -= first
        stretches["stretch_last_row"] -= first
        taken.stretches = bytearray(stretches.tobytes())


class Handover:
    """Hands requests that are over to *sink*, with their records."""

    def __init__(
        self,
        sink: Sink,
        recorder: PassingRecorder,
        replica: Replica,
        progress: Progress | None = None,
        rows: int = ROWS,
    ) -> None:
        self.sink, self.recorder, self.replica = sink, recorder, replica
        self.progress, self.rows = progress, rows
        self._requests: Requests | None = None  # those that are not handed over
        self._count = self._given = 0

    def add(self, requests: Requests) -> None:
        """These come next."""
        self._last, self._count = requests, self._count + len(requests)
        self._requests = requests if self._requests is None else _joined(self._requests, requests)

    def pass_on(self, pieces: Iterable[Requests]) -> Iterator[tuple[int, Requests]]:
        """*pieces* of the requests as they are asked for, and the row of the first in each."""
        for requests in pieces:
            first = self._count
            self.add(requests)
            yield first, requests

    def told(self, sent: int, expected: int, what: str) -> None:
        """Requests are *sent*: from time to time, hand over."""
        if self.progress:
            self.progress(sent, expected, what)
        if sent - self._given >= self.rows:
            self._given = sent
            self.give(sent)

    def give(self, sent: int) -> None:
        """Hand over what is over of the first *sent* requests: those before the first that is not."""
        recorder, last, needed_row = self.recorder, self.recorder.first, self.recorder.num_rows
        status = recorder.status
        while last < sent and status[last] != UNFINISHED:
            last += 1
        for sequence in self.replica.sequences():
            if sequence.state != DONE:
                last = min(last, sequence.index)
            if sequence.state in (DECODE, LEAVING):
                needed_row = min(needed_row, sequence.first_row)
        if last > recorder.first and self._requests is not None:
            later_s = self._requests.arrival_s[last - recorder.first :]
            self._give(last, needed_row, float(later_s.min(initial=self.replica.env.now)))

    def finish(self) -> Requests:
        """Hand over all that is left; returns the requests without any of their rows."""
        self._give(self._count, self.recorder.num_rows, float("inf"))
        notes, contents, follows = self._last.notes, self._last.contents, self._last.follows
        return replace(_rows(self._last, slice(0)), notes=notes, contents=contents, follows=follows)

    def _give(self, last: int, needed_row: int, settled_s: float) -> None:
        assert self._requests is not None
        count = last - self.recorder.first
        records = self.recorder.hand_over(last, needed_row, settled_s)
        self.sink(_rows(self._requests, slice(count)), records)
        self._requests = _rows(self._requests, slice(count, None))


_COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "priorities", "classes")  # that answers need


def _rows(requests: Requests, rows: slice) -> Requests:
    cut: dict[str, Any] = {
        name: None if column is None else column[rows] for name, column in _columns(requests)
    }
    return Requests(**cut, class_names=requests.class_names)


def _joined(first: Requests, second: Requests) -> Requests:
    pairs = zip(_columns(first), _columns(second), strict=True)
    joined: dict[str, Any] = {
        name: None if one is None else np.concatenate([one, other]) for (name, one), (_, other) in pairs
    }
    return Requests(**joined, class_names=first.class_names)


def _columns(requests: Requests) -> list[tuple[str, Any]]:
    return [(name, getattr(requests, name)) for name in _COLUMNS]
