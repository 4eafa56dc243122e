"""Records that hold several requests, as one record a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

Record = Mapping[str, Any]


def benchmark_requests(record: Record) -> Iterator[Record]:
    """The requests of a benchmark's result: the detailed arrays of vLLM and SGLang, an item a request."""
    parts = {
        name: record[name]
        for name in ("start_times", "input_lens", "output_lens")
        if isinstance(record.get(name), list)
    }
    errors = record.get("errors")
    if isinstance(errors, list):
        parts["status"] = ["failed" if error else "ok" for error in errors]
    for values in zip_longest(*parts.values()):
        yield dict(zip(parts, values, strict=True))


def simultaneous_requests(record: Record) -> Iterator[Record]:
    """The requests of a line of AIBrix, all at the line's time."""
    requests = record.get("requests")
    for request in requests if isinstance(requests, list) else []:
        yield {**(request if isinstance(request, Mapping) else {}), "timestamp": record.get("timestamp")}


def session_requests(record: Record) -> Iterator[Record]:
    """The requests of a line of LLMServingSim: a session's, each sent when the tool that the one before
    called has ended; or the line itself."""
    requests = record.get("sub_requests")
    if not isinstance(requests, list):
        yield record
        return
    delay_ns = None
    for request in requests:
        own = request if isinstance(request, Mapping) else {}
        first = (
            {"arrival_time_ns": record.get("arrival_time_ns")} if delay_ns is None else {"delay_ns": delay_ns}
        )
        yield {**own, "session_id": record.get("session_id"), **first}
        delay_ns = own.get("tool_duration_ns") or 0
