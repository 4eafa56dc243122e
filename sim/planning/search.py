"""The first runs of a knee search: which loads are tried, in what order, and what the runs say together.

All on the same random numbers (one seed): bracket the capacity, spread about ten loads below and a little
above it, and reach further down if even the lowest fails. `sim.planning.locate` goes on from there with
replications; where there are none, since a trace is one sample path, the knee is bisected. Traffic without a
steady state is judged by windows (`sim.results.windows`), each load in one run of full length. The search
keeps no state but its points: what is known is read off them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sim.clock import HORIZON_S
from sim.faults import InputFault
from sim.planning.limits import Limit, as_judged, broken_limits, limits_of, turned_away_share
from sim.planning.wording import joined
from sim.results.windows import MOST_TURNED_AWAY
from sim.workload import generate
from sim.workload.steady import has_no_steady_state

if TYPE_CHECKING:
    from sim.scenario import Scenario

RATE, TIME_SCALE = "load.rate_per_s", "load.time_scale"  # the keys that can be turned
SPREAD = (0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.25)  # shares of the capacity
JUST_ABOVE = 1.02
NEARLY_UNLOADED = 0.01
MOST_DOUBLINGS = 20
MOST_HALVINGS = 40
PILOT_REQUESTS = 1000  # of a run that only has to show where it is worth looking
BELOW = (0.985, 0.96, 0.92)  # shares of a bisected knee that must pass, too


class Summarised(Protocol):
    """What a simulation answers with."""

    def summary(self) -> dict[str, Any]: ...

    def series(self, metric: str) -> np.ndarray: ...

    def sample(self, metric: str, first: int | None = None) -> tuple[np.ndarray, np.ndarray | None]: ...


Simulate = Callable[["Scenario"], Summarised]
Progress = Callable[[int, int, str], None]  # runs made, runs expected, the load of the last one


@dataclass(frozen=True)
class Point:
    """One run. *load* is the value of the scenario's load key *axis*, *rate_per_s* what that offers."""

    load: float
    rate_per_s: float
    summary: Mapping[str, Any]
    broken: tuple[Limit, ...]
    axis: str = RATE

    @property
    def loads(self) -> dict[str, float]:
        """The load by its keys in an answer: always as a rate, and as a multiple where that is sought."""
        scale = {"time_scale": self.load} if self.axis == TIME_SCALE else {}
        return {"rate_per_s": self.rate_per_s, **scale}

    @property
    def turns_away(self) -> bool:
        """Whether more than `MOST_TURNED_AWAY` of what is offered is not served."""
        return turned_away_share(self.summary) > MOST_TURNED_AWAY

    @property
    def stable(self) -> bool:
        """Whether the load can be served for ever: no queue grows, and none is kept short by refusals."""
        return bool(self.summary["stable"]) and not self.turns_away

    @property
    def completed(self) -> int:
        return int(self.summary["requests"]["completed"])

    @property
    def passes(self) -> bool:
        """Stable, somebody was served, and no limit is known to be missed."""
        return self.stable and self.completed > 0 and not self.broken

    @property
    def served_load(self) -> float:
        """The load that would offer what this run completed: about the capacity, if the run is above it."""
        served_per_s = self.summary["request_throughput"] or 0.0
        return self.load * served_per_s / self.rate_per_s if self.rate_per_s > 0 else 0.0


@dataclass(frozen=True)
class Bracket:
    """The last good point with only good ones below it, and the first bad one; None where there is none."""

    good: Point | None
    bad: Point | None

    def contains(self, load: float) -> bool:
        return self.good is not None and self.bad is not None and self.good.load < load < self.bad.load

    def middle(self, tolerance: float) -> float | None:
        """Where to look next (the geometric mean); None within *tolerance*, or where one of the two lacks."""
        if self.good is None or self.bad is None or self.bad.load <= self.good.load * (1 + tolerance):
            return None
        return sqrt(self.good.load * self.bad.load)


@dataclass(frozen=True)
class Saturated:
    """What a system completes while its queue is never empty: the load it can bear for ever."""

    requests_per_s: float
    output_tokens_per_s: float


class Search:
    """Runs of one scenario at several loads.

    *axis* is the scenario key that is turned: `load.rate_per_s`, or `load.time_scale` where a trace's own
    times are replayed. Raises `InputFault` if the load has neither.
    """

    def __init__(self, scenario: Scenario, limits: tuple[Limit, ...], simulate: Simulate) -> None:
        self.scenario = scenario
        self.limits = limits
        self.axis, self.start = _axis(scenario.load)
        self.simulate = simulate
        self.saturated: Saturated | None = None
        self._points: dict[float, Point] = {}

    @property
    def is_one_path(self) -> bool:
        """Whether nothing in the traffic is random: a trace's own times and lengths."""
        workload = self.scenario.workload
        kinds = {workload.get(part, {}).get("kind") for part in ("arrivals", "lengths")}
        moved = workload.get("arrivals", {}).get("jitter_s") is not None
        return self.axis == TIME_SCALE or (kinds == {"trace"} and not moved)

    @property
    def by_windows(self) -> bool:
        """Whether loads are judged window by window."""
        return has_no_steady_state(self.scenario.workload)

    @property
    def requests(self) -> int | None:
        """The length of a pilot run; None where it is that of the scenario."""
        given = self.scenario.run.get("requests")
        if given is None or self.is_one_path or self.by_windows:
            return None
        return min(int(given), PILOT_REQUESTS)

    def know_capacity(self, found: Saturated | None) -> None:
        """Take *found*, to five digits as all loads, for the capacity; None: look for it."""
        if found is not None:
            load = float(f"{found.requests_per_s:.5g}")
            self.saturated = Saturated(load, found.output_tokens_per_s)

    def explore(self, tolerance: float) -> None:
        """Bracket the capacity to *tolerance* (relative) unless it is known, and try loads around it."""
        if self.saturated is None:
            self._bracket_capacity()
            self._narrow_capacity(tolerance)
            self._spread()
            return
        for share in (*SPREAD, 1.0, JUST_ABOVE):
            self.at(share * self.saturated.requests_per_s)
        if not self.points[0].passes:
            self.at(NEARLY_UNLOADED * self.saturated.requests_per_s)

    def bisect(self, tolerance: float) -> None:
        """Bracket the knee to *tolerance* (relative), and look at loads just below it.

        One run a load need not be missing its limits at all loads above the first that does.
        """
        while True:
            while (load := self.knee().middle(tolerance)) is not None:
                self.at(load)
            found = self.knee().good
            if found is None or all(self.at(share * found.load).passes for share in BELOW):
                return

    def judge(self, load: float, summary: Mapping[str, Any], broken: tuple[Limit, ...]) -> None:
        """Put what replications say about *load* in the place of a pilot run, or beside the others."""
        if self.saturated is not None and load > self.saturated.requests_per_s:
            summary = {**summary, "stable": False}
        summary = as_judged(self.limits, summary)
        self._points[load] = Point(load, self._rate_per_s(load, summary), summary, broken, self.axis)

    def judge_run(self, load: float, summary: Mapping[str, Any]) -> None:
        """Judge *load* by the summary of one run."""
        self.judge(load, summary, broken_limits(self.limits, summary))

    def at(self, load: float) -> Point:
        """The run at *load* (rounded to five digits), made now unless it is known."""
        load = float(f"{load:.5g}")
        if load not in self._points:
            changes: dict[str, Any] = {self.axis: load}
            if self.requests is not None:
                changes["run.requests"] = self.requests
            changed = self.scenario.replace(changes, source="knee search")
            self.judge_run(load, self.simulate(changed).summary())
        return self._points[load]

    def _rate_per_s(self, load: float, summary: Mapping[str, Any]) -> float:
        return load if self.axis == RATE else _offered_rate_per_s(summary)

    @property
    def points(self) -> tuple[Point, ...]:
        """All runs, sorted by load."""
        return tuple(self._points[load] for load in sorted(self._points))

    def capacity(self) -> Bracket:
        return self._bracket([point.stable for point in self.points])

    def knee(self) -> Bracket:
        return self._bracket([point.passes for point in self.points])

    def knee_at(self, load: float) -> Bracket:
        """The point at *load*, and the first above it that does not pass."""
        return Bracket(self.at(load), next((p for p in self.points if p.load > load and not p.passes), None))

    def _bracket(self, good: list[bool]) -> Bracket:
        points, first_bad = self.points, good.index(False) if False in good else len(good)
        return Bracket(
            points[first_bad - 1] if first_bad > 0 else None,
            points[first_bad] if first_bad < len(points) else None,
        )

    def _bracket_capacity(self) -> None:
        """Double the load until the queue grows, or come down until it does not."""
        point = self.at(self.start)
        for _ in range(MOST_DOUBLINGS):
            if not point.stable or not point.completed:
                break
            point = self.at(point.load * 2)
        for _ in range(MOST_HALVINGS):
            lowest = self.points[0]
            if lowest.stable or lowest.load <= self._slowest():
                break
            guess = min(lowest.load / 2, 0.9 * lowest.served_load or lowest.load / 2)
            self.at(max(guess, self._slowest()))

    def _narrow_capacity(self, tolerance: float) -> None:
        """Try what the overloaded run completed, and a step to either side; then bisect."""
        unstable, step = self.capacity().bad, 1 + 0.9 * tolerance
        guess = unstable.served_load if unstable else 0.0
        for load in (guess, guess * step, guess / step):
            if self.capacity().contains(load):
                self.at(load)
        while (middle := self.capacity().middle(tolerance)) is not None:
            self.at(middle)

    def _spread(self) -> None:
        """About ten loads around the capacity, and one far below if the lowest of them misses a limit."""
        bracket = self.capacity()
        if bracket.good is None or bracket.bad is None:
            return
        capacity, slowest = bracket.good.load, self._slowest()
        for share in SPREAD:
            load = max(share * capacity, slowest)
            if all(abs(load - point.load) > 0.03 * capacity for point in self.points):
                self.at(load)
        nearly_unloaded = max(NEARLY_UNLOADED * capacity, slowest)
        if not self.points[0].passes and nearly_unloaded < self.points[0].load:
            self.at(nearly_unloaded)

    def _slowest(self) -> float:
        """The lowest load at which the run's clock still holds the last arrival."""
        lowest = self.points[0]
        return lowest.load * lowest.summary["window"]["end_s"] / (0.45 * HORIZON_S)


def same_warm_up(scenario: Scenario) -> Scenario:
    """*scenario* with a warm-up that leaves out the same requests of a trace at every multiple of its times.

    A warm-up in seconds is one of the scenario's own `load.time_scale`. Raises `InputFault`.
    """
    warmup = scenario.run.get("warmup")
    if scenario.load.get("mode") != "trace" or not isinstance(warmup, Mapping):
        return scenario
    arrival_s = generate(scenario.workload, scenario.load, scenario.run).arrival_s
    left_out = int(np.searchsorted(arrival_s, warmup["seconds"]))
    return scenario.replace({"run.warmup": left_out / len(arrival_s)}, source="knee search")


def judged_limits(scenario: Scenario) -> tuple[Limit, ...]:
    """The limits of *scenario*, as its runs are judged: without a steady state by windows."""
    by_windows = has_no_steady_state(scenario.workload)
    missed = float(scenario.run.get("windows_in_violation", 0.0)) if by_windows else None
    return limits_of(scenario.slo, missed)


def _axis(load: Mapping[str, Any]) -> tuple[str, float]:
    """The key the search turns and the value it starts from."""
    if "rate_per_s" in load:
        return RATE, float(load["rate_per_s"])
    if load.get("mode") == "trace":
        return TIME_SCALE, float(load.get("time_scale", 1.0))
    given = load.get("mode") or joined(sorted(load)) or "nothing"
    raise InputFault(f"load must have a rate to have a knee: load.rate_per_s or load=trace (got {given})")


def _offered_rate_per_s(summary: Mapping[str, Any]) -> float:
    window = summary["window"]
    length_s = window["end_s"] - window["start_s"]
    return window["requests"] / length_s if length_s > 0 else 0.0
