"""A run window by window: the worst five minutes, and the share of windows in which a limit is missed.

Traffic without a steady state is judged by windows (`run.window_s`) of equal length from the end of warm-up
on, by when a request is sent. A last one shorter than half a window belongs to the one before it. A window
with fewer requests than the limits' percentiles need (100 for a p99) is pooled with the next ones until
there are enough; it then counts as so many windows. The rule of a knee holds in every window, too: where
more than `MOST_TURNED_AWAY` are not served, latencies of the others say little.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.results.records import Records
from sim.results.requests import RequestTable
from sim.results.statistics import Sample, WeightedSample, fewest_values
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


def windows(records: Records) -> dict[str, Any]:
    """`windows` of a summary; nothing for a run without limits or with less than two windows."""
    slo, length_s = records.run.scenario.slo, float(records.run.scenario.run["window_s"])
    start_s, end_s = records.window
    if not slo or end_s - start_s < 2 * length_s:
        return {}
    fewest = max(fewest_values(_parts(name)[1]) for name in slo)
    edges_s = _edges_s(records.window, length_s)
    at = np.zeros(len(edges_s), dtype=np.int64)
    for table in records:
        at += np.searchsorted(table.run.requests.arrival_s, edges_s)
    at[-1] = len(records)
    spans = _pooled(at, edges_s, fewest)
    if len(spans) < 2:
        return {}
    rows = _rows(records, spans)
    count = sum(span.windows for span in spans)
    missed = sum(span.windows for span, row in zip(spans, rows, strict=True) if row["missed"])
    found = {
        "length_s": length_s,
        "count": count,
        "share_in_violation": missed / count,
        "worst": _worst(rows, _bounds(slo)),
        "by_window": rows,
    }
    return {"windows": found}


def _bounds(slo: Mapping[str, float]) -> dict[str, float]:
    return {**slo, TURNED_AWAY: MOST_TURNED_AWAY}


def spans_of(
    arrival_s: np.ndarray, window: tuple[float, float], length_s: float, fewest: int
) -> tuple[Span, ...]:
    """The windows of *length_s* between the ends of *window* (s), pooled to *fewest* requests at least.

    *arrival_s* never falls. What is left over at the end belongs to the last window.
    """
    edges_s = _edges_s(window, length_s)
    at = np.searchsorted(arrival_s, edges_s)
    at[-1] = len(arrival_s)
    return _pooled(at, edges_s, fewest)


def _edges_s(window: tuple[float, float], length_s: float) -> np.ndarray:
    """Where windows begin and end, in s."""
    start_s, end_s = window
    count = max(1, int((end_s - start_s) / length_s + 0.5))
    return np.append(start_s + length_s * np.arange(count), end_s)


def _pooled(at: np.ndarray, edges_s: np.ndarray, fewest: int) -> tuple[Span, ...]:
    """The windows between *edges_s*, of which *at* are the first requests, pooled to *fewest* at least."""
    spans, begun, count = [], 0, len(at) - 1
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


def _rows(records: Records, spans: Sequence[Span]) -> list[dict[str, Any]]:
    """Of each window: requests offered, each limit's value (None: undefined), and which are missed."""
    slo, first, rows = records.run.scenario.slo, 0, []
    left = deque(_Window(span, slo) for span in spans)
    for table in records:
        last = first + len(table)
        lost = np.isin(table.status, _LOST)
        values = {name: _values(table, _parts(name)[0]) for name in slo}
        for window in list(left):
            if window.span.first >= last:
                break
            which = slice(max(window.span.first - first, 0), min(window.span.last, last) - first)
            window.add(table, which, values, int(lost[which].sum()))
            if window.span.last <= last:  # its samples are not needed any more
                rows.append(left.popleft().row())
        first = last
    return rows


def _values(table: RequestTable, metric: str) -> np.ndarray:
    """A latency of each request, in s; NaN where it is undefined, or no number of a request."""
    nan = np.full(len(table), np.nan)
    return nan if metric == "itl" else np.where(table.completed, getattr(table, f"{metric}_s"), nan)


class _Window:
    """One window, from tables that hold some of its requests each."""

    def __init__(self, span: Span, slo: Mapping[str, float]) -> None:
        self.span, self.slo, self.lost = span, slo, 0
        self.samples = {name: WeightedSample() if _is_gaps(name) else Sample() for name in slo}

    def add(self, table: RequestTable, which: slice, values: Mapping[str, np.ndarray], lost: int) -> None:
        """Add the requests *which* of *table*, their *values* by limit (s) and how many are *lost*."""
        self.lost += lost
        for name, sample in self.samples.items():
            if isinstance(sample, WeightedSample):
                mask = np.zeros(len(table), dtype=bool)
                mask[which] = table.completed[which]
                table.log.add_gaps([(sample, mask)])
            else:
                sample.add(values[name][which][np.isfinite(values[name][which])])

    def row(self) -> dict[str, Any]:
        """The window in the summary."""
        span, bounds, values = self.span, _bounds(self.slo), {}
        offered = span.last - span.first
        for name, sample in self.samples.items():
            statistic = _parts(name)[1]
            percentiles = (float(statistic[1:]),) if statistic.startswith("p") else ()
            values[name] = sample.describe("", percentiles)[statistic]
        if self.lost:
            values[TURNED_AWAY] = self.lost / offered
        missed = [name for name, value in values.items() if value is not None and value > bounds[name]]
        pooled = {"windows": span.windows} if span.windows > 1 else {}
        place = {"start_s": span.start_s, "end_s": span.end_s, "requests": offered, **pooled}
        return {**place, "values": values, "missed": missed}


def _is_gaps(name: str) -> bool:
    return _parts(name)[0] == "itl"


def _worst(rows: list[dict[str, Any]], bounds: dict[str, float]) -> dict[str, Any] | None:
    """The window and limit whose value is the largest multiple of what is allowed; the first of equals."""

    def all_values() -> Iterator[tuple[float, dict[str, Any]]]:
        for row in rows:
            for name, value in row["values"].items():
                if value is not None:
                    found = {"start_s": row["start_s"], "end_s": row["end_s"], "limit": name, "value": value}
                    yield value / bounds[name], found

    return max(all_values(), key=lambda pair: pair[0], default=(0.0, None))[1]
