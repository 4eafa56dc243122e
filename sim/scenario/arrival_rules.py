"""Requirements that more than one key of a workload's arrivals has a part in."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.scenario.rules import Report

Values = Mapping[str, Any]

_NEAR = 1e-6


def arrival_rules(arrivals: Values, report: Report) -> None:
    """The rules within `arrivals`; what is at fault is not in it."""
    kind, series, batch = (arrivals.get(key) or {} for key in ("kind", "series", "batch"))
    written = report.tree.get(("arrivals",)) or {}
    if kind == "gamma" and (written.get("burstiness") is None) == (written.get("cv") is None):
        report("arrivals.burstiness", "and arrivals.cv: exactly one must be there")
    if kind == "weibull" and written.get("cv") is None:
        report("arrivals.cv", "is missing: weibull arrivals need it")
    if kind == "mmpp":
        _chain_rules(arrivals, report)
    if kind == "trace":
        for key in ("series", "batch"):
            if arrivals.get(key):
                report(f"arrivals.{key}", "does not go with arrivals.kind trace, which has its own times")
    if series:
        _series_rules(series, report)
    if batch.get("kind") == "fixed" and batch.get("mean", 1) % 1:
        report("arrivals.batch.mean", f"must be a whole number where kind is fixed (got {batch['mean']:g})")


def endless_rule(arrivals: Values, report: Report) -> None:
    """The rule of arrivals of which more are drawn than are sent: of sessions, and of traffic classes."""
    series = arrivals.get("series") or {}
    if series.get("period_s") is None and not (series.get("rates") or [1])[-1]:
        report("arrivals.series.rates", "must not end at 0 with sessions or classes: no more would come")


def _chain_rules(arrivals: Values, report: Report) -> None:
    rates, stays = arrivals.get("rates"), arrivals.get("sojourn_s")
    if not rates or not stays:
        return
    if len(rates) < 2 or len(rates) != len(stays):
        report("arrivals.rates", "must have as many items as arrivals.sojourn_s, at least 2 "
               f"(got {len(rates)} and {len(stays)})")  # fmt: skip
    elif max(rates) == 0:
        report("arrivals.rates", "must not all be 0")
    elif (moves := arrivals.get("transitions")) is not None:
        _move_rules(moves, len(rates), report)
    elif len(rates) > 2 and report.tree.get(("arrivals", "transitions")) is None:
        report("arrivals.transitions", f"is missing: {len(rates)} states need it")


def _move_rules(moves: list[list[float]], states: int, report: Report) -> None:
    place = "arrivals.transitions"
    if len(moves) != states or any(len(row) != states for row in moves):
        words = ", ".join(str(len(row)) for row in moves)
        report(place, f"must be {states} rows of {states} (got rows of {words})")
        return
    for number, row in enumerate(moves):
        if min(row) < 0 or abs(sum(row) - 1) > _NEAR:
            report(place, f"must be probabilities that add up to 1 in each row (row {number + 1} has {row})")
        if row[number]:
            report(place, f"must be 0 on the diagonal: a stay ends with another state (row {number + 1} has "
                   f"{row[number]:g})")  # fmt: skip
    if apart := _not_reached(moves):
        report(place, "must lead from each state to each other, perhaps through others "
               f"(none leads from {apart[0] + 1} to {apart[1] + 1})")  # fmt: skip


def _not_reached(moves: list[list[float]]) -> tuple[int, int] | None:
    """Two states, the second of which the first never leads to."""
    for start in range(len(moves)):
        reached, new = {start}, [start]
        while new:
            state = new.pop()
            found = {other for other, share in enumerate(moves[state]) if share > 0} - reached
            reached |= found
            new += found
        if lacking := set(range(len(moves))) - reached:
            return start, min(lacking)
    return None


def _series_rules(series: Values, report: Report) -> None:
    place, times, rates = "arrivals.series", series.get("times_s"), series.get("rates")
    period, step = series.get("period_s"), series.get("interpolation") == "step"
    if not times or not rates:
        return
    if len(times) != len(rates) or len(times) < 2:
        report(place, f"must have as many rates as times_s, at least 2 (got {len(rates)} and {len(times)})")
        return
    if times[0] != 0 or any(low >= high for low, high in pairwise(times)):
        report(f"{place}.times_s", "must rise from 0")
    elif period is not None and period < times[-1]:
        report(f"{place}.period_s", f"must be at least the last of times_s, {times[-1]:g} (got {period:g})")
    unused = step and (period is None or period == times[-1])  # the last rate has no time of its own
    if max(rates[:-1] if unused else rates) == 0:
        report(f"{place}.rates", "must not all be 0")
