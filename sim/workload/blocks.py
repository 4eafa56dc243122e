"""Traffic drawn again in blocks: another sample of what a single record shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sim.clock import on_grid
from sim.workload.requests import Requests


def in_blocks(requests: Requests, begin_s: float, starts_s: Sequence[float], block_s: float) -> Requests:
    """*requests* until *begin_s*, and then blocks of *block_s* that begin at *starts_s*, one after the other.

    Requests keep their place in a block, their lengths and what else belongs to them. The record is a circle:
    a block goes on at its beginning. What a row shares with others it shares once: a copy of it belongs to
    other users.
    """
    arrival_s, length_s = requests.arrival_s, circle_s(requests)
    rows = [np.arange(np.searchsorted(arrival_s, begin_s))]
    times_s = [arrival_s[rows[0]]]
    twice_s = np.concatenate([arrival_s, arrival_s + length_s])
    for number, start_s in enumerate(starts_s):
        first, last = np.searchsorted(twice_s, [start_s, start_s + block_s])
        rows.append(np.arange(first, last) % len(requests))
        times_s.append(twice_s[first:last] - start_s + (begin_s + number * block_s))
    return _taken(requests, np.concatenate(rows), on_grid(np.concatenate(times_s)))


def circle_s(requests: Requests) -> float:
    """The length of the record, in s: to its last request, and a mean gap on to the first one again."""
    last_s = float(requests.arrival_s[-1])
    return last_s * len(requests) / max(len(requests) - 1, 1)


def sent_faster(requests: Requests, factor: float) -> Requests:
    """The same requests at *factor* times their rate."""
    return replace(requests, arrival_s=on_grid(requests.arrival_s / factor))


def _taken(requests: Requests, rows: np.ndarray, arrival_s: np.ndarray) -> Requests:
    def of(column: np.ndarray | None) -> np.ndarray | None:
        return None if column is None else column[rows]

    contents = requests.contents
    return replace(
        requests,
        arrival_s=arrival_s,
        prompt_tokens=requests.prompt_tokens[rows],
        output_tokens=requests.output_tokens[rows],
        patience_s=of(requests.patience_s),
        priorities=of(requests.priorities),
        classes=of(requests.classes),
        contents=None if contents is None else contents.take(rows, _copies(rows)),
        follows=None,
    )


def _copies(rows: np.ndarray) -> np.ndarray:
    """How often each of *rows* stands before its place."""
    order = np.argsort(rows, kind="stable")
    first = np.searchsorted(rows[order], rows[order])
    copies = np.empty_like(rows)
    copies[order] = np.arange(len(rows)) - first
    return copies
