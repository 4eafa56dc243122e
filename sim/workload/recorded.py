"""What a trace tells of a request beside time and lengths: class, urgency, whose answer it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from sim.clock import on_grid
from sim.workload.trace import Trace, trace_of

MOST_CLASSES = 100
OTHERS = "others"


def recorded_columns(
    workload: Mapping[str, Any], load: Mapping[str, Any], rows: np.ndarray
) -> dict[str, Any]:
    """Columns of `Requests` by name, for requests that are these *rows* of the trace of *workload*'s lengths.

    Answers are waited for where the trace's own times are replayed: `previous` and `think_s` of `Follows`,
    as `follows`. A trace has at most 100 classes; the smallest are one, `others`.
    """
    trace = trace_of(workload, "lengths")
    found: dict[str, Any] = {}
    if trace.classes is not None and len(trace.class_names) > 1:
        classes, names = _classes(trace)
        found |= {"classes": classes[rows], "class_names": names}
    if trace.priorities is not None:
        found["priorities"] = trace.priorities[rows]
    if trace.delay_ns is not None and load.get("mode") == "trace":
        think_s = on_grid(np.maximum(trace.delay_ns, 0) / 1e9 / (load.get("time_scale") or 1.0))
        found["follows"] = _previous(trace)[rows], think_s[rows]
    return found


@lru_cache(maxsize=4)
def _classes(trace: Trace) -> tuple[np.ndarray, tuple[str, ...]]:
    """The class of each request (int16) and their names, the one with most requests first."""
    assert trace.classes is not None
    counts = np.bincount(trace.classes, minlength=len(trace.class_names))
    largest = np.argsort(-counts, kind="stable")
    kept = largest if len(largest) <= MOST_CLASSES else largest[: MOST_CLASSES - 1]
    place = np.full(len(counts), len(kept), dtype=np.int16)
    place[kept] = np.arange(len(kept))
    names = tuple(trace.class_names[number] or "none" for number in kept)
    return place[trace.classes], names if len(kept) == len(largest) else (*names, OTHERS)


@lru_cache(maxsize=4)
def _previous(trace: Trace) -> np.ndarray:
    """For each request (int64) that comes a delay after another the row of that one; -1 for the others."""
    assert trace.delay_ns is not None
    assert trace.sessions is not None
    order = np.lexsort((np.arange(len(trace)), trace.sessions))
    before = np.concatenate([[-1], order[:-1]])
    previous = np.empty(len(trace), dtype=np.int64)
    previous[order] = before
    return np.where(trace.delay_ns >= 0, previous, -1)
