"""Why the knee lies where it does, or nowhere, and what a reader must know, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

from sim.planning.limits import Limit, turned_away_share
from sim.planning.search import Bracket, Point, Search
from sim.planning.wording import duration, number, turned_away
from sim.results.windows import MOST_TURNED_AWAY

FEWEST_BEYOND = 10
"""A percentile with fewer requests beyond it is an anecdote; the answer says so."""


def evaluated(search: Search) -> list[Limit]:
    """The limits whose statistic is defined in at least one run."""
    return [x for x in search.limits if any(x.value_s(p.summary) is not None for p in search.points)]


def first_to_give_way(knee: Bracket) -> Limit | None:
    """Of the limits that the first failing load breaks, the one a straight line reaches first."""
    if knee.good is None or knee.bad is None:
        return None
    good, bad = knee.good.summary, knee.bad.summary

    def reached(limit: Limit) -> float:
        before_s, after_s = limit.value_s(good) or 0.0, limit.value_s(bad) or 0.0
        if after_s <= before_s:  # missed only together with others, in too many windows
            return inf
        return (limit.bound_s - before_s) / (after_s - before_s)

    return min(knee.bad.broken, key=reached, default=None)


def why_here(bad: Point | None, breaking: Limit | None) -> str:
    """What gives way at *bad*, the first load tried beyond the knee."""
    if bad is None:
        return "every limit holds at every load tried; the search ended before anything gave way"
    load = load_words(bad)
    if breaking is None:
        if not bad.completed:
            return f"no request completes at {load}"
        if bad.turns_away:
            return f"{_not_served(bad)} at {load}; a knee serves all but {100 * MOST_TURNED_AWAY:g} %"
        return f"the queue gives way before any limit does: at {load} it grows without end"
    value_s = breaking.value_s(bad.summary)
    queue = "" if bad.stable else f", and {_overload(bad)}"
    return f"{breaking.label} gives way first: {duration(value_s)} at {load}{_when(breaking, bad)}{queue}"


def load_words(point: Point) -> str:
    """`3.04 requests/s`, of a trace's own times also as a multiple: `(0.539 times as fast)`."""
    scale = point.loads.get("time_scale")
    return f"{number(point.rate_per_s)} requests/s" + (
        f" ({number(scale)} times as fast)" if scale is not None else ""
    )


def _when(limit: Limit, point: Point) -> str:
    """Where windows decide, when the limit's worst one is."""
    if limit.missed_windows is None or "windows" not in point.summary:
        return ""
    rows = point.summary["windows"]["by_window"]
    worst = max(rows, key=lambda row: row["values"].get(limit.name) or 0.0)
    return f", from {duration(worst['start_s'])} to {duration(worst['end_s'])}"


def _not_served(point: Point) -> str:
    """`3.1 % of what is offered is turned away`."""
    return f"{number(100 * turned_away_share(point.summary))} % of what is offered is turned away"


def _overload(point: Point) -> str:
    return _not_served(point) if point.turns_away else "its queue grows without end"


def why_nowhere(search: Search) -> str:
    lowest = search.points[0]
    load = load_words(lowest)
    if not any(point.completed for point in search.points):
        counts = lowest.summary["requests"]
        tally = f"0 of {counts['offered']:,}; {turned_away(counts)}"
        return f"no request completed at any load tried (at {load}: {tally})"
    if not evaluated(search):
        why = "; ".join(f"{limit}: {limit.why_undefined(lowest.summary)}" for limit in search.limits)
        return f"no limit could be evaluated ({why})"
    if lowest.turns_away:
        return f"even at {load} {_not_served(lowest)}; a knee serves all but {100 * MOST_TURNED_AWAY:g} %"
    if not lowest.stable:
        return f"the queue grows at every load tried, even at {load}"
    broken = " and ".join(f"{x.label} is {duration(x.value_s(lowest.summary))}" for x in lowest.broken)
    allowed = " and ".join(duration(limit.bound_s) for limit in lowest.broken)
    if len(search.points) == 1:
        alone = f"even for requests that never meet another {broken}, where {allowed} is allowed"
        return f"{alone}; a search would be in vain"
    higher = [point for point in search.points if point.passes]
    passes = f"; limits do hold at {load_words(higher[-1])}, not below" if higher else ""
    return f"already at {load} {broken}, where {allowed} is allowed{passes}"


def nearest_miss(search: Search) -> dict[str, Any] | None:
    """The stable run whose worst limit is missed by the smallest factor."""

    def worst(point: Point) -> float:
        return max((limit.value_s(point.summary) or 0.0) / limit.bound_s for limit in search.limits)

    served = [point for point in search.points if point.stable and point.completed]
    if not served or not evaluated(search):
        return None
    nearest = min(served, key=worst)
    values = {x.name: {"value": x.value_s(nearest.summary), "limit": x.bound_s} for x in search.limits}
    return {"rate_per_s": nearest.rate_per_s, "limits": values}


def warnings_of(search: Search, at: Point | None, replications: int, reached: bool) -> list[str]:
    """What the answer does not show by itself; *reached*: the precision that was asked for."""
    found: list[str] = []
    if at is not None:
        for limit in search.limits:
            found += _doubts(limit, at.summary, replications)
    if not reached:
        found.append(
            f"{replications} replications did not reach the precision asked for: allow more "
            "(run.most_replications) or ask for less (run.precision)"
        )
    if search.by_windows and at is not None and "windows" not in at.summary:
        found.append(
            "at the knee a run has not two windows of run.window_s with enough requests: loads there are "
            "judged as a whole, which hides the worst minutes; give a shorter run.window_s or a longer trace"
        )
    if search.capacity().bad is None and len(search.points) > 1:
        top = number(search.points[-1].rate_per_s)
        found.append(f"capacity and saturated throughput are unknown: no queue grew up to {top} requests/s")
    if at and (lost := turned_away(at.summary["requests"])):
        offered = at.summary["requests"]["offered"]
        found.append(f"at the knee {lost} of {offered:,} offered: latencies leave them out")
    return found


def _doubts(limit: Limit, summary: Mapping[str, Any], replications: int) -> Iterator[str]:
    """Why the limit's value at the knee says less than it seems to."""
    beyond = limit.beyond(summary)
    if limit.value_s(summary) is None:
        yield f"{limit} is not evaluated: {limit.why_undefined(summary)}"
    elif beyond is not None and beyond * replications < FEWEST_BEYOND:
        yield f"{limit.label} rests on {number(beyond * replications)} requests beyond it; run more requests"
    elif limit.statistic == "max":
        yield f"{limit.label} grows with the length of a run: a percentile is a sounder limit"
