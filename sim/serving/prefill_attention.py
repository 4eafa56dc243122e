"""Attention of prompt chunks in one layer, for the numbers of one model on one GPU."""

from __future__ import annotations

from bisect import bisect_right
from math import exp, log

import numpy as np

from sim.hardware import AttentionShape
from sim.hardware import PrefillAttention as Kernel
from sim.hardware.residuals import Residuals


class PrefillAttention:
    """`sim.hardware.PrefillAttention` of one *shape*, for plain numbers: it is asked once an iteration."""

    __slots__ = ("_causal", "_logs", "_overhead", "_p", "_pair_s", "_root", "_spans", "_token_s", "_tokens")

    def __init__(self, kernel: Kernel, shape: AttentionShape) -> None:
        heads = float(shape.heads)
        self._causal = kernel.causal_weight
        self._pair_s = 4.0 * heads * float(shape.head_dim) / kernel.flops_per_s
        self._token_s = heads * kernel.head_token_s
        self._p, self._root = kernel.exponent, 1.0 / kernel.exponent
        self._overhead = kernel.overhead_s**kernel.exponent
        self._tokens: list[float] = []
        table = kernel.table(shape)
        if table is not None:
            self._tokens, self._spans, self._logs = _grid(table, heads)

    def seconds(self, new_tokens: int, with_cached: int, squares: int) -> float:
        """Of chunks with *new_tokens* in all; *with_cached* sums new x cached tokens, *squares* new x new."""
        pairs = with_cached + self._causal * squares
        work_s = pairs * self._pair_s + new_tokens * self._token_s
        smooth_s = (self._overhead + work_s**self._p) ** self._root
        if not self._tokens:
            return smooth_s
        i, a = _between(self._tokens, log(new_tokens))
        j, b = _between(self._spans, log(pairs / (self._causal * new_tokens)))
        low, high = self._logs[i], self._logs[i + 1]
        below = low[j] + b * (low[j + 1] - low[j])
        above = high[j] + b * (high[j + 1] - high[j])
        return smooth_s * exp(below + a * (above - below))


def _between(nodes: list[float], at: float) -> tuple[int, float]:
    """The node at or below, and how far on the way to the next; the edges hold outside."""
    i = bisect_right(nodes, at) - 1
    if i < 0:
        return 0, 0.0
    if i > len(nodes) - 2:
        return len(nodes) - 2, 1.0
    return i, (at - nodes[i]) / (nodes[i + 1] - nodes[i])


def _grid(table: Residuals, heads: float) -> tuple[list[float], list[float], list[list[float]]]:
    """Logarithms of the nodes in new tokens and in span tokens, two at least, and of the ratios there."""
    logs = np.log(table.ratios)
    if "head_tokens" not in table.axes:
        logs = logs[np.newaxis]
    if "span_tokens" not in table.axes:
        logs = logs[:, np.newaxis]
    tokens, spans = (table.axes.get(name, np.ones(1)) for name in ("head_tokens", "span_tokens"))
    if len(tokens) == 1:
        tokens, logs = np.append(tokens, 2.0 * tokens), np.repeat(logs, 2, axis=0)
    if len(spans) == 1:
        spans, logs = np.append(spans, 2.0 * spans), np.repeat(logs, 2, axis=1)
    return np.log(tokens / heads).tolist(), np.log(spans).tolist(), logs.tolist()
