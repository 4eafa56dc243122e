"""Attention of decoding batches, tabulated over their contexts, so that a leap costs two look-ups.

Of n sequences a layer takes a time that depends on the sum of their contexts, which grows by n an iteration.
The sum over a run of iterations is an integral over that; it is tabulated for each n when n is first met.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np

NODES = 256  # good to 4e-4, a hundredth of what kernels are known to

_TOGETHER = 16  # numbers of sequences that are tabulated at once: most of the cost is for the first
Seconds = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From numbers of sequences and sums of their contexts (broadcastable) to the seconds of a layer."""
Pieces = list[tuple[float, float, float, float]]
"""Between two nodes: the first in tokens, the seconds there, half their rise a token, the integral so far."""


class DecodeAttention:
    """Seconds a layer, and their integral over context tokens, for 1..*most_sequences* sequences.

    *seconds* is tabulated at nodes equally spaced in the square root of the sum, where it bends, made to
    never fall, and integrated exactly between them as the straight lines that join them. n sequences have
    *most_context_tokens* together at most, and *longest_tokens* each.
    """

    def __init__(
        self,
        seconds: Seconds,
        most_sequences: int,
        most_context_tokens: int,
        longest_tokens: int,
        nodes: int = NODES,
    ) -> None:
        self._seconds = seconds
        n = np.arange(most_sequences + 1)
        # Half an iteration beyond the fullest cache: sums over iterations are taken between their midpoints.
        most = np.minimum(most_context_tokens, np.maximum(n, 1) * longest_tokens) + n + 1.0
        root = np.sqrt(most * 1.001)  # rounding must not leave the table
        self.per_root = (nodes / root).tolist()
        self.pieces: list[Pieces] = [[]] * len(n)
        self._filled = np.zeros(len(n), dtype=bool)
        self._last = nodes - 1
        shares = np.linspace(0.0, 1.0, nodes + 1)
        self._nodes = shares * shares  # of the largest context of each n
        self._largest = root * root
        self._columns = np.empty((len(n), 4, nodes))
        self.least_s = seconds(n, n.astype(float))

    def of(self, n: int) -> Pieces:
        """The table of *n* sequences; piece ``int(sqrt(tokens) * per_root[n])`` holds *tokens*."""
        return self.pieces[n] or self._pieces_of(n)

    def at(self, n: int, context_tokens: float) -> float:
        """Seconds of one layer; beyond the largest context the last piece goes on."""
        node, value, half_rise, _ = self.of(n)[min(int(sqrt(context_tokens) * self.per_root[n]), self._last)]
        return value + 2.0 * (context_tokens - node) * half_rise

    def upto(self, n: np.ndarray, context_tokens: np.ndarray) -> np.ndarray:
        """The integral from 0 to *context_tokens*, in s x tokens; equal shapes. As `Composition` has it.

        Beyond the largest context, which no batch has but a question may, the last piece goes on.
        """
        for block in np.unique(n[~self._filled[n]] // _TOGETHER).tolist():
            self._fill(block * _TOGETHER)
        i = (np.sqrt(context_tokens) * np.asarray(self.per_root)[n]).astype(np.int64)
        i = np.minimum(i, self._last)
        node, value, half_rise, area = (self._columns[n, column, i] for column in range(4))
        d = context_tokens - node
        return area + d * (value + d * half_rise)

    def reaching(self, n: int, seconds: float) -> float:
        """The context at which a layer of *n* sequences takes *seconds*; -inf where it always takes more, and
        infinite where it never does."""
        self.of(n)
        node, value, half_rise, _ = self._columns[n]
        if seconds <= value[0]:
            return -np.inf
        i = int(np.searchsorted(value, seconds)) - 1
        rise = 2.0 * half_rise[i]
        reached = node[i] + (seconds - value[i]) / rise if rise > 0.0 else np.inf
        return reached if reached < self._largest[n] else np.inf

    def _fill(self, n: int) -> None:
        """The columns of *n* and its neighbours, which a batch comes by next."""
        first = n // _TOGETHER * _TOGETHER
        many = np.arange(first, min(first + _TOGETHER, len(self._columns)))[:, np.newaxis]
        nodes = self._nodes * self._largest[many]
        seconds = np.maximum.accumulate(self._seconds(many, nodes), axis=1)
        width = np.diff(nodes)
        columns = self._columns[first : first + _TOGETHER]
        columns[:, 0], columns[:, 1] = nodes[:, :-1], seconds[:, :-1]
        columns[:, 2] = np.diff(seconds) / width / 2.0
        columns[:, 3, 0] = 0.0
        columns[:, 3, 1:] = np.cumsum(width * (seconds[:, 1:] + seconds[:, :-1]) / 2.0, axis=1)[:, :-1]
        self._filled[many] = True

    def _pieces_of(self, n: int) -> Pieces:
        if not self._filled[n]:
            self._fill(n)
        self.pieces[n] = list(zip(*self._columns[n].tolist(), strict=True))
        return self.pieces[n]
