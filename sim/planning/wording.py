"""Numbers as people read them: three digits and a unit."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, log10
from typing import Any

NAMES = {
    "ttft": "TTFT",
    "server_ttft": "server TTFT",
    "queue": "queueing",
    "tpot": "TPOT",
    "itl": "ITL",
    "stall": "longest stall",
    "e2e": "E2E",
}


NOT_COMPLETED = ("rejected", "timed_out", "cancelled", "never_schedulable", "unfinished")


def number(value: float | None, digits: int = 3, *, padded: bool = False) -> str:
    """*value* with *digits* significant digits, thousands separated, no exponent: 0.0512, 5.2, 12,300.

    *padded* keeps the zeros at the end (5.20), so that a column's digits stand below each other.
    """
    if value is None:
        return "-"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits}g}")
    decimals = max(0, digits - 1 - floor(log10(abs(rounded))))
    if decimals > 8:
        return f"{rounded:g}"
    text = f"{rounded:,.{decimals}f}"
    return text if padded or decimals == 0 else text.rstrip("0").rstrip(".")


def duration(seconds: float | None, *, padded: bool = False) -> str:
    """*seconds* in the unit that reads best: `49.2 ms`, `1.32 s`, `2.1 h`."""
    if seconds is None:
        return "-"
    size = abs(seconds)
    if size == 0:
        return "0 s"
    if size < 0.9995e-3:
        return f"{number(seconds * 1e6, padded=padded)} us"
    if size < 0.9995:
        return f"{number(seconds * 1e3, padded=padded)} ms"
    if size < 10_000:
        return f"{number(seconds, padded=padded)} s"
    return f"{number(seconds / 3600, padded=padded)} h"


def gibibytes(size_bytes: float | None) -> str:
    """*size_bytes* in GiB with two decimals, as the engine's log prints it: `14.96 GiB`."""
    return "-" if size_bytes is None else f"{size_bytes / 2**30:,.2f} GiB"


def joined(parts: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""


def turned_away(counts: Mapping[str, int]) -> str:
    """Who of a summary's `requests` did not complete: `3 rejected, 20 never schedulable`, or nothing."""
    found = [f"{counts[kind]:,} {kind.replace('_', ' ')}" for kind in NOT_COMPLETED if counts.get(kind)]
    return ", ".join(found)


def output_rate(summary: Mapping[str, Any], kind: str = "output_throughput") -> float | None:
    """The output tokens (or another *kind* of throughput) per second that a run is quoted with.

    What completed in the window, or the makespan's rate where that is higher: the window of a short or
    overloaded run is mostly the filling of the batch.
    """
    rates = (summary[kind], summary.get("makespan", {}).get(kind))
    return max((rate for rate in rates if rate is not None), default=None)
