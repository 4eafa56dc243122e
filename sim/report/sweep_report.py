"""A sweep as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.planning.grid import Point, word_of
from sim.planning.sweep import Sweep
from sim.planning.wording import duration, number, output_rate
from sim.report.text import table

HEADER = ("requests/s", "tokens/s", "TTFT p99", "TPOT p99", "goodput", "KV max", "$/1M tokens", "queue")
SPEEDS = ("tokens/s/GPU", "tokens/s/user", "Pareto")


def sweep_text(sweep: Sweep) -> str:
    """One line a point: its values, throughput, latencies, cost, and why it cannot run if it cannot."""
    seeds = len({point.seed for point in sweep.points}) > 1
    header = [*sweep.over, *(["seed"] if seeds else []), *HEADER, *SPEEDS]
    cells = [
        [
            *map(word_of, point.values.values()),
            *([str(point.seed)] if seeds else []),
            *_figures(point),
            *speed,
        ]
        for point, speed in zip(sweep.points, _speeds(sweep), strict=True)
    ]
    lines = table(header, cells) if cells else ["no point is finished"]
    faults = [f"{point.label}: {point.fault}" for point in sweep.points if point.fault is not None]
    blocks = [lines, faults, [f"note: {warning}" for warning in sweep.warnings]]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _speeds(sweep: Sweep) -> list[list[str]]:
    """More is better in both; `front` marks points that no other beats in both."""
    return [
        [*(number(speed, padded=True) for speed in pair or (None, None)), "front" if on else ""]
        for pair, on in zip(sweep.speeds, sweep.front, strict=True)
    ]


def _figures(point: Point) -> list[str]:
    summary = point.summary
    if summary is None:
        return ["-"] * (len(HEADER) - 1) + ["cannot run"]
    return [
        number(summary["request_throughput"], padded=True),
        number(output_rate(summary), padded=True),
        duration(summary["ttft_s"]["p99"], padded=True),
        duration(summary["tpot_s"]["p99"], padded=True),
        _percent(summary["goodput_fraction"]),
        _percent(summary["kv_cache"]["usage_max"]),
        number(summary["cost"]["usd_per_1m_output_tokens"], padded=True),
        _queue(summary),
    ]


def _queue(summary: Mapping[str, Any]) -> str:
    if not summary["requests"]["completed"]:
        return "nothing served"
    return "steady" if summary["stable"] else "grows"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
