"""What the tokens of requests are, as far as requests share them: streams of tokens, by number."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

Told = tuple[tuple[tuple[int, int], ...], int]
"""Of one request: (id, end) of each segment, and the id of its tail (-1: private)."""

_CHUNK = 4096  # requests whose contents are Python objects at a time
_MOST_CHUNKS = 16


@dataclass(frozen=True, eq=False)
class Contents:
    """The tokens of n requests, as segments of shared streams; row i is request i.

    offsets: int64 [n + 1]; segments offsets[i] to offsets[i + 1] are those of request i. ids: int64, the
    stream of each segment. ends: int64, the prompt token up to which (exclusive) it reaches, rising within
    a request: tokens [previous end, end) of the prompt are the stream's from that position on. What follows
    the last segment, the rest of the prompt and the answer, is the stream `tails`[i] (int64 [n]), or
    private to the request where that is -1.

    A stream begins at the same token after the same stream in every request that has it. So two requests
    share tokens as long as their ids are equal, up to the shorter of the last equal id's ends.
    """

    offsets: np.ndarray
    ids: np.ndarray
    ends: np.ndarray
    tails: np.ndarray
    _told: dict[int, list[Told]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def none(cls, count: int) -> Contents:
        """Of *count* requests that share nothing."""
        nothing = np.empty(0, dtype=np.int64)
        return cls(np.zeros(count + 1, dtype=np.int64), nothing, nothing, np.full(count, -1))

    def __len__(self) -> int:
        return len(self.tails)

    def of(self, request: int) -> Told:
        """The (id, end) pairs of *request* and its tail, as plain integers."""
        chunk, row = divmod(request, _CHUNK)
        rows = self._told.get(chunk)
        return (self._tell(chunk) if rows is None else rows)[row]

    def _tell(self, chunk: int) -> list[Told]:
        rows = slice(chunk * _CHUNK, (chunk + 1) * _CHUNK)
        bounds = self.offsets[rows.start : rows.stop + 1]
        inside = slice(bounds[0], bounds[-1])
        pairs = tuple(zip(self.ids[inside].tolist(), self.ends[inside].tolist(), strict=True))
        at = (bounds - bounds[0]).tolist()
        told = [
            (pairs[first:last], tail)
            for first, last, tail in zip(at[:-1], at[1:], self.tails[rows].tolist(), strict=True)
        ]
        if len(self._told) >= _MOST_CHUNKS:
            self._told.clear()
        self._told[chunk] = told
        return told

    def take(self, rows: np.ndarray, apart: np.ndarray | None = None) -> Contents:
        """The contents of the requests *rows* (int64). Those of different *apart* (int64, one a row, at
        least 0) share nothing."""
        offsets, index = ragged(self.offsets, rows)
        ids, tails = self.ids[index], self.tails[rows]
        if apart is not None:
            streams = 1 + int(max(self.ids.max(initial=-1), self.tails.max(initial=-1)))
            ids = ids + np.repeat(apart, np.diff(offsets)) * streams
            tails = np.where(tails < 0, tails, tails + apart * streams)
        return Contents(offsets, ids, self.ends[index], tails)


def ragged(offsets: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Offsets of *rows* laid one after the other, and where each of their items stands now."""
    lengths = np.diff(offsets)[rows]
    laid = np.concatenate([[0], np.cumsum(lengths)])
    return laid, np.arange(laid[-1]) + np.repeat(offsets[rows] - laid[:-1], lengths)
