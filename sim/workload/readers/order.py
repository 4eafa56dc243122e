"""The order of a trace's requests: turns that follow an answer, rows out of order, clocks set back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.workload.readers.columns import NO_TIME, Columns, take
from sim.workload.readers.faults import at_lines

_HOUR_NS = 3600 * 10**9
_FEW_STEPS = 3
_LONG = 5  # so many times that rise, on either side of a step back, are a stretch of time and not stragglers


def in_order(columns: Columns, path: str, local: bool, notes: dict[str, int]) -> Columns:
    """*columns* sorted by arrival (rows of one time in the file's order), with times from the first.

    *local*: times are dates without a zone. *notes* counts rows that came after a later one, and rows that
    are another one's double. Raises InputFault where the clock was set back, or where the file is two traces
    one after the other.
    """
    columns = _with_delays(columns, path)
    times = columns.arrival_ns
    assert times is not None
    _check_clock(times, columns.lines, path, local)
    if behind := int(np.count_nonzero(times < np.maximum.accumulate(times))):
        notes["trace_rows_sorted"] = behind
        columns = take(columns, np.argsort(times, kind="stable"))
        times = columns.arrival_ns
        assert times is not None
    times -= times[0]
    if alike := _alike(columns, times):
        notes["trace_rows_alike"] = alike
    return columns


def _with_delays(columns: Columns, path: str) -> Columns:
    """Requests without a time of their own get one, as if answers took none; those with one have no delay."""
    times, delays, sessions = columns.arrival_ns, columns.delay_ns, columns.sessions
    assert times is not None
    own = times != NO_TIME
    if own.all():
        return replace(columns, delay_ns=None)
    sessions = np.arange(len(times)) if sessions is None else sessions
    delays = np.full(len(times), -1) if delays is None else delays
    order = np.argsort(sessions, kind="stable")
    first = np.diff(sessions[order], prepend=-1) != 0
    lost = order[(first | (delays[order] < 0)) & ~own[order]]
    if len(lost):
        sentence = "has no time, and no delay after another request of its session"
        raise at_lines(path, [(line, sentence) for line in columns.lines[lost].tolist()])
    latest = np.maximum.accumulate(np.where(own[order], np.arange(len(order)), 0))
    waited = np.cumsum(np.where(own[order], 0, delays[order]))
    filled = np.empty_like(times)
    filled[order] = times[order][latest] + waited - waited[latest]
    return replace(columns, arrival_ns=filled, delay_ns=np.where(own, -1, delays))


def _check_clock(times: np.ndarray, lines: np.ndarray, path: str, local: bool) -> None:
    """Raises InputFault where the times go back, once or a few times, for a long stretch of rows."""
    back = np.flatnonzero(times[1:] < times[:-1]) + 1
    if len(back) == 0:
        return
    latest = np.maximum.accumulate(times)
    drops = latest[back - 1] - times[back]
    steps = back[drops >= drops.max() / 10]
    if len(steps) > _FEW_STEPS:
        return  # rows in no order at all, or logs of several workers
    faults = []
    for row in steps.tolist():
        ahead = np.flatnonzero(times[row:] >= latest[row - 1])
        stretch = int(ahead[0]) if len(ahead) else len(times) - row
        if min(_rises(times[:row]), _rises(times[row : row + stretch])) < _LONG:
            continue
        dropped, span = int(latest[row - 1] - times[row]), int(latest[row - 1] - times[:row].min())
        if 2 * dropped >= span:
            faults.append((int(lines[row]), _two_traces(dropped, span)))
        elif local and abs(dropped - _HOUR_NS) <= _HOUR_NS // 12:
            faults.append((int(lines[row]), _SUMMER))
    if faults:
        raise at_lines(path, faults)


def _rises(times: np.ndarray) -> int:
    return int(np.count_nonzero(times[1:] > times[:-1]))


_SUMMER = (
    "the time goes back by an hour here: a clock set back at the end of summer time? write the times in UTC, "
    "or with their zone"
)


def _two_traces(dropped_ns: int, span_ns: int) -> str:
    return (
        f"the time goes back by {dropped_ns / 1e9:g} s here, of {span_ns / 1e9:g} s so far: two traces in "
        "one file? split it here; if both were recorded side by side, sort the rows by time"
    )


def _alike(columns: Columns, times: np.ndarray) -> int:
    """How many rows are, in time, tokens and block ids, the double of another."""
    tied = np.concatenate([[False], times[1:] == times[:-1]])
    rows = np.flatnonzero(tied | np.append(tied[1:], False))
    if len(rows) == 0:
        return 0
    keys = [column[rows] for column in (columns.output_tokens, columns.prompt_tokens, times)]
    order = np.lexsort(keys)
    same = np.logical_and.reduce([key[order][1:] == key[order][:-1] for key in keys])
    if columns.ids is None:
        return int(np.count_nonzero(same))
    placed = rows[order]
    pairs = zip(placed[:-1][same].tolist(), placed[1:][same].tolist(), strict=True)
    return sum(columns.ids[one] == columns.ids[other] for one, other in pairs)
