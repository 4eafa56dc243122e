"""The SLO knee: the highest load at which every limit holds, there and at every lower load tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sim.faults import InputFault
from sim.planning.limits import Limit, limits_of
from sim.planning.search import Bracket, Point, Progress, Search, Simulate, Summarised
from sim.planning.wording import duration, number, turned_away

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sim.scenario import Scenario

FEWEST_BEYOND = 10
"""A percentile with fewer requests beyond it is an anecdote; the answer says so."""


@dataclass(frozen=True)
class Knee:
    """The answer of `find_knee`. Rates are requests per second, offered to the whole system.

    *at* is the run at the knee, None where no load passes (*reason* says why, *nearest_miss* what came
    closest). *limits* holds each limit's value at the knee and its bound, in seconds. *breaking_limit* is
    the one that gives way first, None if the queue does. *capacity_rate_per_s* is the highest load seen
    with a queue that does not grow, None if none was seen to grow. *points* are all runs, sorted by load.
    """

    scenario: Scenario
    axis: str
    points: tuple[Point, ...]
    at: Point | None
    reason: str
    limits: dict[str, dict[str, Any]]
    breaking_limit: str | None
    capacity_rate_per_s: float | None
    first_unstable_rate_per_s: float | None
    saturated_output_throughput: float | None
    nearest_miss: dict[str, Any] | None
    warnings: tuple[str, ...]
    draw: Callable[[Knee], Figure] | None = field(default=None, repr=False, compare=False)

    @property
    def feasible(self) -> bool:
        return self.at is not None

    @property
    def rate_per_s(self) -> float | None:
        return None if self.at is None else self.at.rate_per_s

    @property
    def requests(self) -> int:
        """How many requests the run at the lowest load was offered."""
        return int(self.points[0].summary["requests"]["offered"])

    @property
    def time_scale(self) -> float | None:
        """How many times faster than recorded, where a trace's own times are replayed."""
        return self.at.load if self.at and self.axis == "load.time_scale" else None

    def as_dict(self) -> dict[str, Any]:
        """What `kneesim knee --json` prints."""
        scaled = self.axis == "load.time_scale"
        knee: dict[str, Any] = {"rate_per_s": self.rate_per_s}
        if scaled:
            knee["time_scale"] = self.time_scale
        answer: dict[str, Any] = {
            "knee": {**knee, "limits": self.limits, "breaking_limit": self.breaking_limit},
            "capacity_rate_per_s": self.capacity_rate_per_s,
            "first_unstable_rate_per_s": self.first_unstable_rate_per_s,
            "saturated_output_throughput": self.saturated_output_throughput,
            "feasible": self.feasible,
            "reason": self.reason,
            "warnings": list(self.warnings),
        }
        if self.nearest_miss is not None:
            answer["nearest_miss"] = self.nearest_miss
        if self.at is not None and "cost" in self.at.summary:
            answer["cost_at_knee"] = self.at.summary["cost"]
        return answer | {"points": [_point_as_dict(point, scaled) for point in self.points]}

    def plot(self) -> Figure:
        """The knee's figure, as `sim.report.figures.knee_figure` draws it."""
        if self.draw is None:
            raise TypeError("this knee was found without draw=; call sim.report.figures.knee_figure(knee)")
        return self.draw(self)


def find_knee(
    scenario: Scenario,
    *,
    simulate: Simulate | None = None,
    progress: Progress | None = None,
    tolerance: float = 0.02,
    draw: Callable[[Knee], Figure] | None = None,
) -> Knee:
    """Find the highest load that meets every limit of *scenario*'s `slo`.

    The load is `load.rate_per_s`, or `load.time_scale` where a trace's own times are replayed; every run
    has the scenario's seed. *simulate* answers a scenario with something that has `summary()`; *progress*
    is told after each run; knee and capacity are found to *tolerance* (relative); *draw* is what
    `Knee.plot` calls. Raises `InputFault` for a scenario without limits or whose load has no rate.
    """
    if not 0.001 <= tolerance < 1:
        raise InputFault(f"tolerance must lie between 0.001 and 1 (got {tolerance})")
    search = Search(scenario, limits_of(scenario.slo), simulate or _simulated, progress)
    search.run(tolerance)
    return _answer(search, draw)


def _simulated(scenario: Scenario) -> Summarised:
    from sim.results import Result
    from sim.simulation import simulate

    return Result(simulate(scenario))


def _point_as_dict(point: Point, scaled: bool) -> dict[str, Any]:
    load = {"rate_per_s": point.rate_per_s, **({"time_scale": point.load} if scaled else {})}
    broken = [limit.name for limit in point.broken]
    return {**load, "passes": point.passes, "broken_limits": broken, **point.summary}


def _answer(search: Search, draw: Callable[[Knee], Figure] | None) -> Knee:
    knee, capacity = search.knee(), search.capacity()
    at = knee.good if _evaluated(search) else None
    breaking = _first_to_give_way(knee)
    saturated = [p.summary["output_throughput"] for p in search.points if not p.stable]
    return Knee(
        scenario=search.scenario,
        axis=search.axis,
        points=search.points,
        at=at,
        reason=_why_here(knee, breaking) if at else _why_nowhere(search),
        limits={limit.name: _limit_at(limit, at) for limit in search.limits},
        breaking_limit=breaking.name if at and breaking else None,
        capacity_rate_per_s=capacity.good.rate_per_s if capacity.good and capacity.bad else None,
        first_unstable_rate_per_s=capacity.bad.rate_per_s if capacity.bad else None,
        saturated_output_throughput=max((x for x in saturated if x is not None), default=None),
        nearest_miss=None if at else _nearest_miss(search),
        warnings=tuple(_warnings(search, at)),
        draw=draw,
    )


def _evaluated(search: Search) -> list[Limit]:
    """The limits whose statistic is defined in at least one run."""
    return [x for x in search.limits if any(x.value_s(p.summary) is not None for p in search.points)]


def _limit_at(limit: Limit, at: Point | None) -> dict[str, Any]:
    value_s = limit.value_s(at.summary) if at else None
    answer: dict[str, Any] = {"at_knee": value_s, "limit": limit.bound_s}
    if at and value_s is None:
        answer["reason"] = f"not evaluated: {limit.why_undefined(at.summary)}"
    return answer


def _first_to_give_way(knee: Bracket) -> Limit | None:
    """Of the limits that the first failing load breaks, the one a straight line reaches first."""
    if knee.good is None or knee.bad is None:
        return None
    good, bad = knee.good.summary, knee.bad.summary

    def reached(limit: Limit) -> float:
        before_s, after_s = limit.value_s(good) or 0.0, limit.value_s(bad) or 0.0
        return (limit.bound_s - before_s) / (after_s - before_s)

    return min(knee.bad.broken, key=reached, default=None)


def _why_here(knee: Bracket, breaking: Limit | None) -> str:
    if knee.bad is None:
        return "every limit holds at every load tried; the search ended before anything gave way"
    load = f"{number(knee.bad.rate_per_s)} requests/s"
    if breaking is None:
        if not knee.bad.completed:
            return f"no request completes at {load}"
        return f"the queue gives way before any limit does: at {load} it grows without end"
    value_s = breaking.value_s(knee.bad.summary)
    queue = "" if knee.bad.stable else ", and its queue grows without end"
    return f"{breaking.label} gives way first: {duration(value_s)} at {load}{queue}"


def _why_nowhere(search: Search) -> str:
    lowest = search.points[0]
    load = f"{number(lowest.rate_per_s)} requests/s"
    if not any(point.completed for point in search.points):
        counts = lowest.summary["requests"]
        tally = f"0 of {counts['offered']:,}; {turned_away(counts)}"
        return f"no request completed at any load tried (at {load}: {tally})"
    if not _evaluated(search):
        why = "; ".join(f"{limit}: {limit.why_undefined(lowest.summary)}" for limit in search.limits)
        return f"no limit could be evaluated ({why})"
    if not lowest.stable:
        return f"the queue grows at every load tried, even at {load}"
    broken = " and ".join(f"{x.label} is {duration(x.value_s(lowest.summary))}" for x in lowest.broken)
    allowed = " and ".join(duration(limit.bound_s) for limit in lowest.broken)
    higher = [point for point in search.points if point.passes]
    passes = f"; limits do hold at {number(higher[-1].rate_per_s)} requests/s, not below" if higher else ""
    return f"already at {load} {broken}, where {allowed} is allowed{passes}"


def _nearest_miss(search: Search) -> dict[str, Any] | None:
    """The stable run whose worst limit is missed by the smallest factor."""

    def worst(point: Point) -> float:
        return max((limit.value_s(point.summary) or 0.0) / limit.bound_s for limit in search.limits)

    served = [point for point in search.points if point.stable and point.completed]
    if not served or not _evaluated(search):
        return None
    nearest = min(served, key=worst)
    values = {x.name: {"value": x.value_s(nearest.summary), "limit": x.bound_s} for x in search.limits}
    return {"rate_per_s": nearest.rate_per_s, "limits": values}


def _warnings(search: Search, at: Point | None) -> list[str]:
    found = [] if at is None else [text for limit in search.limits for text in _doubts(limit, at.summary)]
    if search.capacity().bad is None:
        top = number(search.points[-1].rate_per_s)
        found.append(f"capacity and saturated throughput are unknown: no queue grew up to {top} requests/s")
    if at and (lost := turned_away(at.summary["requests"])):
        offered = at.summary["requests"]["offered"]
        found.append(f"at the knee {lost} of {offered:,} offered: latencies leave them out")
    return found


def _doubts(limit: Limit, summary: Mapping[str, Any]) -> Iterator[str]:
    """Why the limit's value at the knee says less than it seems to."""
    beyond = limit.beyond(summary)
    if limit.value_s(summary) is None:
        yield f"{limit} is not evaluated: {limit.why_undefined(summary)}"
    elif beyond is not None and beyond < FEWEST_BEYOND:
        yield f"{limit.label} rests on {number(beyond)} requests beyond it; run more requests"
