"""When requests arrive: a shape at unit rate, stretched to the load's mean rate; or a trace's own times."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sim.clock import on_grid
from sim.faults import InputFault, did_you_mean
from sim.workload.streams import stream
from sim.workload.trace import Trace, read_trace

_MOST_ARRIVALS = 1e8
Shape = Callable[[int], np.ndarray]
"""The first n arrivals at unit mean rate; a longer draw begins with the shorter one."""


def arrival_times(
    workload: Mapping[str, Any], load: Mapping[str, Any], run: Mapping[str, Any]
) -> tuple[np.ndarray, dict[str, int]]:
    """Arrival times in seconds (float64, never falling, on the clock's grid), and a trace's notes.

    *load* has `rate_per_s`, or `mode` burst or trace (with `time_scale`); *run* has `requests` or
    `duration_s`. Arrivals lie before `duration_s`. In a closed loop (`concurrency`) they are still to come,
    and zero. Raises InputFault.
    """
    if load.get("concurrency") is not None:  # when they arrive is for the simulation to tell
        return np.zeros(_count(run, "a closed loop has no duration")), {}
    mode = load.get("mode")
    if mode == "burst":
        return np.zeros(_count(run, "a burst has no duration")), {}
    if mode == "trace":
        return _recorded(_trace_of(workload), load.get("time_scale"), run)
    if load.get("rate_per_s") is None:
        raise InputFault("load needs rate_per_s, or mode: trace or burst")
    return _open_loop(workload, float(load["rate_per_s"]), run)


def _open_loop(
    workload: Mapping[str, Any], rate_per_s: float, run: Mapping[str, Any]
) -> tuple[np.ndarray, dict[str, int]]:
    if not 0 < rate_per_s < math.inf:
        raise InputFault(f"load.rate_per_s must be > 0 (got {rate_per_s:g})")
    shape, trace = _shape(workload, int(run.get("seed", 1)))
    shape = _in_groups(shape, int(workload.get("answers") or 1))
    if (duration_s := run.get("duration_s")) is None:
        times_s = on_grid(shape(_count(run, "give run.requests or run.duration_s")) / rate_per_s)
    else:
        times_s = _until(duration_s, rate_per_s, shape)
    return times_s, _trace_notes(trace, len(times_s)) if trace else {}


def _in_groups(shape: Shape, size: int) -> Shape:
    """*size* requests at each time of *shape*, at the same mean rate of requests."""
    if size == 1:
        return shape
    return lambda count: np.repeat(shape(-(-count // size)) * size, size)[:count]


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


def open_shape(workload: Mapping[str, Any], seed: int) -> Shape:
    """The shape that `workload.arrivals.kind` names. Raises InputFault."""
    return _shape(workload, seed)[0]


def _shape(workload: Mapping[str, Any], seed: int) -> tuple[Shape, Trace | None]:
    """The shape that `workload.arrivals.kind` names, and the trace when it is one."""
    arrivals = workload.get("arrivals") or {"kind": "poisson"}
    kind = arrivals["kind"]
    if kind == "trace":
        trace = _trace_of(workload)
        return recorded_shape(trace), trace
    if kind not in _SHAPES:
        raise InputFault(f"workload.arrivals.kind {kind} is unknown{did_you_mean(kind, [*_SHAPES, 'trace'])}")
    return _SHAPES[kind](seed), None


def poisson_shape(seed: int) -> Shape:
    """A Poisson process: gaps are independent and exponential with mean 1."""
    return lambda count: np.cumsum(stream(seed, "arrivals").standard_exponential(count))


def constant_shape(seed: int) -> Shape:
    """One request each unit of time, the first at 0. Needs no *seed*; takes it like every shape."""
    return lambda count: np.arange(count, dtype=np.float64)


_SHAPES: dict[str, Callable[[int], Shape]] = {"poisson": poisson_shape, "constant": constant_shape}


def recorded_shape(trace: Trace) -> Shape:
    """The trace's gaps with mean 1; after its last request the trace begins again, one mean gap later."""
    arrival_ns = trace.require_times()
    rows = len(arrival_ns)
    if rows < 2 or arrival_ns[-1] == 0:
        raise InputFault(
            f"{trace.path}: to have a mean rate, requests must arrive at two times at least "
            f"(got {rows}, all at one time); use load: burst"
        )
    cycle = arrival_ns * ((rows - 1) / arrival_ns[-1])

    def shape(count: int) -> np.ndarray:
        cycles, row = np.divmod(np.arange(count), rows)
        return cycles * rows + cycle[row]

    return shape


def _until(duration_s: float, rate_per_s: float, shape: Shape) -> np.ndarray:
    """Every arrival of *shape*, at *rate_per_s*, before *duration_s*."""
    expected = expected_requests(rate_per_s, {"duration_s": duration_s})
    count = math.ceil(expected + 5 * math.sqrt(expected)) + 16
    while (times_s := on_grid(shape(count) / rate_per_s))[-1] < duration_s:
        count *= 2
    return _before(times_s, duration_s)


def _before(times_s: np.ndarray, duration_s: float) -> np.ndarray:
    within = times_s[: np.searchsorted(times_s, duration_s)]
    if len(within) == 0:
        raise InputFault(f"no request arrives within run.duration_s {duration_s:g}; give a longer duration")
    return within


def _recorded(
    trace: Trace, time_scale: float | None, run: Mapping[str, Any]
) -> tuple[np.ndarray, dict[str, int]]:
    """The trace's own times, *time_scale* times faster, up to the run's limit or the last row."""
    time_scale = 1.0 if time_scale is None else time_scale
    if not 0 < time_scale < math.inf:
        raise InputFault(f"load.time_scale must be > 0 (got {time_scale:g})")
    times_s = on_grid(trace.require_times() / 1e9 / time_scale)
    if run.get("duration_s") is not None:
        times_s = _before(times_s, run["duration_s"])
    elif run.get("requests") is not None:
        times_s = times_s[: run["requests"]]
    notes = _trace_notes(trace, len(times_s))
    if (asked := run.get("requests") or 0) > len(trace):
        notes["requests_beyond_trace"] = asked - len(trace)
    return times_s, notes


def _trace_of(workload: Mapping[str, Any]) -> Trace:
    arrivals = workload.get("arrivals") or {"kind": "poisson"}
    if arrivals["kind"] != "trace":
        raise InputFault(
            f"load: trace needs a workload with recorded times, but workload.arrivals.kind is "
            f"{arrivals['kind']}; give load.rate_per_s, or a trace file as the workload"
        )
    return read_trace(arrivals["path"], workload.get("zero_output") or "drop")


def _trace_notes(trace: Trace, sent: int) -> dict[str, int]:
    """The reader's notes, and how often the trace is begun again to send *sent* requests."""
    again = (sent - 1) // len(trace)
    return dict(trace.notes) | ({"trace_repeated": again} if again > 0 else {})


def _count(run: Mapping[str, Any], instead: str) -> int:
    if run.get("requests") is None:
        raise InputFault(f"run.requests is missing: {instead}")
    return int(run["requests"])
