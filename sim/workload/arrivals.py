"""When requests arrive: a shape at unit rate, stretched to the load's mean rate; or a trace's own times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sim.clock import on_grid
from sim.faults import InputFault
from sim.workload.distributions import Length, fixed, geometric
from sim.workload.modulation import Clock, Series, States
from sim.workload.renewals import renewal_times
from sim.workload.streams import Streams, Take, numbered, repeated, repeated_by
from sim.workload.tenants import merged_times, tenant_shares
from sim.workload.trace import Trace, trace_of

_MOST_ARRIVALS = 1e8
_BLOCK = 1 << 13


@dataclass(eq=False)
class Arrivals:
    """The arrival times of a run, one after the other: float64 seconds, never falling, on the clock's grid.

    source: the times, not on the grid, without end. count: how many the run has, or None. until_s: they lie
    before that. rows: after so many a trace begins again, which is counted. own_notes: the trace's.
    """

    source: Take
    count: int | None = None
    until_s: float = math.inf
    rows: float = math.inf
    own_notes: Mapping[str, int] = field(default_factory=dict)
    sent: int = field(default=0, init=False)
    over: bool = field(default=False, init=False)

    def take(self, count: int) -> np.ndarray:
        """The next *count* times; fewer, or none, at the end of the run."""
        left = count if self.count is None else min(count, self.count - self.sent)
        times_s = np.empty(0) if self.over else on_grid(self.source(left))
        within_s = times_s[: np.searchsorted(times_s, self.until_s)]
        if len(within_s) < left and self.until_s == math.inf:
            raise InputFault(
                f"run.requests must be at most {self.sent + len(within_s)}, which arrive before the rates of "
                f"workload.arrivals.series end at 0 (got {self.count}); or give run.duration_s"
            )
        self.over = self.over or len(within_s) < count
        self.sent += len(within_s)
        return within_s

    def rest(self) -> np.ndarray:
        """All times that are left."""
        if self.count is not None:
            return self.take(self.count)
        pieces = [self.take(_BLOCK)]
        while not self.over:
            pieces.append(self.take(_BLOCK))
        return np.concatenate(pieces)

    @property
    def notes(self) -> dict[str, int]:
        """The trace's notes, and how often it was begun again, up to the last time that was taken."""
        again = int((self.sent - 1) // self.rows)
        return {**self.own_notes, **({"trace_repeated": again} if again > 0 else {})}


def arrivals_of(
    workload: Mapping[str, Any], load: Mapping[str, Any], run: Mapping[str, Any], streams: Streams
) -> Arrivals:
    """The arrivals of *run* (`requests` or `duration_s`).

    *load* has `rate_per_s`, or `mode` burst or trace (with `time_scale`). In a closed loop (`concurrency`)
    they are still to come, and zero. Raises InputFault.
    """
    if load.get("concurrency") is not None:  # when they arrive is for the simulation to tell
        return Arrivals(np.zeros, _count(run, "a closed loop has no duration"))
    mode = load.get("mode")
    if mode == "burst":
        return Arrivals(np.zeros, _count(run, "a burst has no duration"))
    if mode == "trace":
        return _recorded(workload, load.get("time_scale"), run, streams)
    if load.get("rate_per_s") is None:
        raise InputFault("load needs rate_per_s, or mode: trace or burst")
    return _open_loop(workload, float(load["rate_per_s"]), run, streams)


def _open_loop(
    workload: Mapping[str, Any], rate_per_s: float, run: Mapping[str, Any], streams: Streams
) -> Arrivals:
    if not 0 < rate_per_s < math.inf:
        raise InputFault(f"load.rate_per_s must be > 0 (got {rate_per_s:g})")
    expected_requests(rate_per_s, run)
    source, until_s = open_times(workload, rate_per_s, streams), run.get("duration_s")
    count, until_s = (run["requests"], math.inf) if until_s is None else (None, until_s)
    if (workload.get("arrivals") or {}).get("kind") != "trace":
        return Arrivals(source, count, until_s)
    trace = _trace_of(workload)
    return Arrivals(source, count, until_s, len(trace), trace.notes)


def open_times(
    workload: Mapping[str, Any], rate_per_s: float, streams: Streams, begin_s: float = 0.0
) -> Take:
    """Arrival times in seconds from *begin_s* on, without end and not on the grid, of *rate_per_s* requests
    a second on average, of all tenants. A batch, and several `answers`, come at one time. Raises
    InputFault."""
    if not workload.get("tenants"):
        return _times_of_one(workload, rate_per_s, streams, begin_s)
    rates_per_s = rate_per_s * tenant_shares(workload)
    sources = [
        _times_of_one(workload, own_per_s, streams.within(f"tenants.{number}"), begin_s)
        for number, own_per_s in enumerate(rates_per_s.tolist())
    ]
    return merged_times(sources, rates_per_s, begin_s)


def _times_of_one(workload: Mapping[str, Any], rate_per_s: float, streams: Streams, begin_s: float) -> Take:
    arrivals, answers = workload.get("arrivals") or {"kind": "poisson"}, int(workload.get("answers") or 1)
    if arrivals["kind"] == "trace":
        trace = _trace_of(workload)
        unit = recorded_times(trace, arrivals.get("jitter_s"), streams)
    else:
        unit = renewal_times(arrivals, streams)
    batch = _batch(arrivals.get("batch"))
    together = answers * (batch.mean if batch else 1)

    def steady(count: int) -> np.ndarray:
        return unit(count) * together / rate_per_s

    times_s = _modulated(arrivals, steady, streams, begin_s)
    if batch:
        times_s = repeated_by(times_s, batch.open(streams, "arrivals.batch"), batch.mean)
    return repeated(times_s, answers)


def _batch(batch: Mapping[str, Any] | None) -> Length | None:
    """How many requests come together; None where it is one."""
    if not batch:
        return None
    return fixed(batch["mean"]) if batch["kind"] == "fixed" else geometric(batch["mean"])


def _modulated(arrivals: Mapping[str, Any], steady: Take, streams: Streams, begin_s: float) -> Take:
    """The times of *steady*, from *begin_s* on, at a rate that goes up and down as `arrivals` has it."""
    series, chain = arrivals.get("series"), arrivals["kind"] in ("mmpp", "on_off")
    if not series and not chain:
        return lambda count: begin_s + steady(count)
    states = States(arrivals, streams) if chain else None
    return Clock(Series.of(series) if series else None, states, begin_s).carried(steady)


def recorded_times(trace: Trace, jitter_s: float | None, streams: Streams) -> Take:
    """The trace's gaps with mean 1; after its last request the trace begins again, one mean gap later."""
    arrival_ns = _moved_ns(trace, jitter_s, streams)
    rows = len(arrival_ns)
    span_ns = arrival_ns[-1] - arrival_ns[0]
    if rows < 2 or span_ns == 0:
        raise InputFault(
            f"{trace.path}: to have a mean rate, requests must arrive at two times at least "
            f"(got {rows}, all at one time); use load: burst"
        )
    cycle = (arrival_ns - arrival_ns[0]) * ((rows - 1) / span_ns)
    return numbered(lambda numbers: numbers // rows * rows + cycle[numbers % rows])


def _moved_ns(trace: Trace, jitter_s: float | None, streams: Streams) -> np.ndarray:
    """The trace's times, each moved by a random share of *jitter_s*, in order; its rows keep theirs."""
    arrival_ns = trace.require_times()
    if not jitter_s:
        return arrival_ns
    return np.sort(arrival_ns + 1e9 * jitter_s * streams.open("arrivals.jitter").random(len(arrival_ns)))


def expected_requests(rate_per_s: float, run: Mapping[str, Any]) -> float:
    """How many requests *run* has at *rate_per_s*. Raises InputFault where they are too many."""
    if (duration_s := run.get("duration_s")) is None:
        return _count(run, "give run.requests or run.duration_s")
    if (expected := duration_s * rate_per_s) > _MOST_ARRIVALS:
        raise InputFault(
            f"run.duration_s {duration_s:g} at load.rate_per_s {rate_per_s:g} makes {expected:.3g} requests;"
            f" a run has {_MOST_ARRIVALS:.0e} at most"
        )
    return expected


def _recorded(
    workload: Mapping[str, Any], time_scale: float | None, run: Mapping[str, Any], streams: Streams
) -> Arrivals:
    """The trace's own times, *time_scale* times faster, up to the run's limit or the last row."""
    trace = _trace_of(workload)
    time_scale = 1.0 if time_scale is None else time_scale
    if not 0 < time_scale < math.inf:
        raise InputFault(f"load.time_scale must be > 0 (got {time_scale:g})")
    times_s = _moved_ns(trace, workload["arrivals"].get("jitter_s"), streams) / 1e9 / time_scale
    asked, until_s = run.get("requests") or len(trace), run.get("duration_s") or math.inf
    count = min(len(trace), asked) if until_s == math.inf else len(trace)
    unsent = len(trace) - min(count, int(np.searchsorted(times_s, until_s)))
    beyond = {"requests_beyond_trace": asked - len(trace), "trace_rows_not_sent": unsent}
    _refuse_all_warm_up(trace, min(float(times_s[count - 1]), until_s), run)
    source = numbered(lambda rows: times_s[rows])
    notes = {**trace.notes, **{note: number for note, number in beyond.items() if number > 0}}
    return Arrivals(source, count, until_s, len(trace), notes)


def _refuse_all_warm_up(trace: Trace, last_s: float, run: Mapping[str, Any]) -> None:
    warmup = run.get("warmup")
    if isinstance(warmup, Mapping) and 0 < last_s <= warmup["seconds"]:
        raise InputFault(
            f"{trace.path}: the last request comes at {last_s:.6g} s, within run.warmup of "
            f"{warmup['seconds']:g} s, so that nothing is left to measure; give a shorter one"
        )


def _trace_of(workload: Mapping[str, Any]) -> Trace:
    arrivals = workload.get("arrivals") or {"kind": "poisson"}
    if arrivals["kind"] != "trace":
        raise InputFault(
            f"load: trace needs a workload with recorded times, but workload.arrivals.kind is "
            f"{arrivals['kind']}; give load.rate_per_s, or a trace file as the workload"
        )
    return trace_of(workload, "arrivals")


def _count(run: Mapping[str, Any], instead: str) -> int:
    if run.get("requests") is None:
        raise InputFault(f"run.requests is missing: {instead}")
    return int(run["requests"])
