"""A run window by window: the worst five minutes, and the share of windows in which a limit is missed.

Traffic without a steady state is judged by windows (`run.window_s`) of equal length from the end of warm-up
on, by when a request is sent. A last one shorter than half a window belongs to the one before it. A window
with fewer requests than the limits' percentiles need (100 for a p99) is pooled with the next ones until
there are enough; it then counts as so many windows. The rule of a knee holds in every window, too: where
more than `MOST_TURNED_AWAY` are not served, latencies of the others say little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.results.requests import RequestTable
from sim.results.statistics import describe, fewest_values
from sim.results.steps import StepLog
from sim.simulation.recorder import CANCELLED, REJECTED, TIMED_OUT

MOST_TURNED_AWAY = 0.01
"""A knee serves what it is offered: at most so many are refused, give up or leave the queue too late."""
TURNED_AWAY = "turned_away"
_LOST = (REJECTED, TIMED_OUT, CANCELLED)


@dataclass(frozen=True)
class Span:
    """Requests first to last (not included) of the run, sent from *start_s* to *end_s*: *windows* windows."""

    first: int
    last: int
    start_s: float
    end_s: float
    windows: int


def windows(table: RequestTable, log: StepLog) -> dict[str, Any] | None:
    """`windows` of a summary; None for a run without limits or with less than two windows."""
    slo, length_s = table.run.scenario.slo, float(table.run.scenario.run["window_s"])
    start_s, end_s = table.window
    if not slo or end_s - start_s < 2 * length_s:
        return None
    fewest = max(fewest_values(_parts(name)[1]) for name in slo)
    spans = spans_of(table.run.requests.arrival_s, table.window, length_s, fewest)
    if len(spans) < 2:
        return None
    rows = _rows(table, log, spans)
    count = sum(span.windows for span in spans)
    missed = sum(span.windows for span, row in zip(spans, rows, strict=True) if row["missed"])
    return {
        "length_s": length_s,
        "count": count,
        "share_in_violation": missed / count,
        "worst": _worst(rows, _bounds(slo)),
        "by_window": rows,
    }


def _bounds(slo: Mapping[str, float]) -> dict[str, float]:
    return {**slo, TURNED_AWAY: MOST_TURNED_AWAY}


def spans_of(
    arrival_s: np.ndarray, window: tuple[float, float], length_s: float, fewest: int
) -> tuple[Span, ...]:
    """The windows of *length_s* between the ends of *window* (s), pooled to *fewest* requests at least.

    *arrival_s* never falls. What is left over at the end belongs to the last window.
    """
    start_s, end_s = window
    count = max(1, int((end_s - start_s) / length_s + 0.5))
    edges_s = start_s + length_s * np.arange(count + 1)
    at = np.searchsorted(arrival_s, edges_s)
    at[-1], edges_s[-1] = len(arrival_s), end_s
    spans, begun = [], 0
    for i in range(1, count + 1):
        if at[i] - at[begun] >= fewest:
            spans.append(_span(at, edges_s, begun, i))
            begun = i
    if begun < count:
        whole = spans.pop() if spans else None
        spans.append(_span(at, edges_s, begun - whole.windows if whole else 0, count))
    return tuple(spans)


def _span(at: np.ndarray, edges_s: np.ndarray, first: int, last: int) -> Span:
    return Span(int(at[first]), int(at[last]), float(edges_s[first]), float(edges_s[last]), last - first)


def _parts(name: str) -> tuple[str, str]:
    """Metric and statistic of a limit: `ttft_p99_s` is of `ttft`, `p99`."""
    metric, statistic, _ = name.rsplit("_", 2)
    return metric, statistic


def _rows(table: RequestTable, log: StepLog, spans: Sequence[Span]) -> list[dict[str, Any]]:
    """Of each window: requests offered, each limit's value (None: undefined), and which are missed."""
    slo = table.run.scenario.slo
    lost, bounds = np.isin(table.status, _LOST), _bounds(slo)
    readers = {name: _reader(table, log, *_parts(name)) for name in slo}
    rows = []
    for span in spans:
        which, offered = slice(span.first, span.last), span.last - span.first
        values = {name: read(which) for name, read in readers.items()}
        if away := int(lost[which].sum()):
            values[TURNED_AWAY] = away / offered
        missed = [name for name, value in values.items() if value is not None and value > bounds[name]]
        pooled = {"windows": span.windows} if span.windows > 1 else {}
        place = {"start_s": span.start_s, "end_s": span.end_s, "requests": offered, **pooled}
        rows.append({**place, "values": values, "missed": missed})
    return rows


def _reader(
    table: RequestTable, log: StepLog, metric: str, statistic: str
) -> Callable[[slice], float | None]:
    """A *statistic* of *metric* of the requests in a slice that completed; None where it is undefined."""
    completed = table.completed
    percentiles = (float(statistic[1:]),) if statistic.startswith("p") else ()
    if metric == "itl":

        def of_gaps(which: slice) -> float | None:
            mask = np.zeros(len(table), dtype=bool)
            mask[which] = completed[which]
            return log.gaps(mask).describe("", percentiles)[statistic]

        return of_gaps
    values = np.where(completed, getattr(table, f"{metric}_s"), np.nan)
    return lambda which: describe(values[which][np.isfinite(values[which])], "", percentiles)[statistic]


def _worst(rows: list[dict[str, Any]], bounds: dict[str, float]) -> dict[str, Any] | None:
    """The window and limit whose value is the largest multiple of what is allowed; the first of equals."""

    def all_values() -> Iterator[tuple[float, dict[str, Any]]]:
        for row in rows:
            for name, value in row["values"].items():
                if value is not None:
                    found = {"start_s": row["start_s"], "end_s": row["end_s"], "limit": name, "value": value}
                    yield value / bounds[name], found

    return max(all_values(), key=lambda pair: pair[0], default=(0.0, None))[1]
