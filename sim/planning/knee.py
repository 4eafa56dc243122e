"""The SLO knee: the highest load at which every limit holds, there and at every lower load tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sim.faults import InputFault
from sim.planning import unloaded
from sim.planning.elasticities import can_saturate, saturated, saturating_requests
from sim.planning.error_bar import Interval
from sim.planning.interrupted import KneeInterrupted
from sim.planning.judge import judge
from sim.planning.judgement import Judgement
from sim.planning.limits import Limit, limits_of
from sim.planning.reasons import evaluated, nearest_miss, warnings_of, why_here, why_nowhere
from sim.planning.roofline_knees import roofline_knees
from sim.planning.search import (
    TIME_SCALE,
    Point,
    Progress,
    Search,
    Simulate,
    Summarised,
    judged_limits,
    same_warm_up,
)
from sim.planning.wording import number, output_rate
from sim.scenario import Scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPEED = ("wall_s", "requests_per_s")  # of a run's `simulator`
USUAL_RUNS = 120  # what a progress bar starts from


@dataclass(frozen=True)
class Knee:
    """The answer of `find_knee`. Rates are requests per second, offered to the whole system.

    *at* is the run at the knee, None where no load passes (*reason* says why, *nearest_miss* what came
    closest). *limits* holds each limit's value at the knee and its bound, in seconds. *breaking_limit* is
    the one that gives way first, None if the queue does. *capacity_rate_per_s* is the highest load seen
    with a queue that neither grows nor is kept short by refusals, None if none was seen to. *interval* is
    the knee's, in requests per second, None for a reason. *binding* and *capacity_elasticities* say what
    knee and capacity depend on, *hardware_knees* where the hardware changes its manner; None and empty where
    the runs were not simulated here. *points* are all loads tried, sorted. *may_miss* is the share of a
    run's windows that may miss a limit; None where they do not decide.
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
    interval: Interval | None
    interval_reason: str | None
    binding: Mapping[str, Any] | None
    capacity_elasticities: Mapping[str, float] | None
    hardware_knees: Mapping[str, Any]
    nearest_miss: dict[str, Any] | None
    warnings: tuple[str, ...]
    may_miss: float | None = None
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
    def power_knee_rate_per_s(self) -> float | None:
        """Of the stable loads tried, the one with the most requests/s for each second of mean E2E."""

        def power(point: Point) -> float:
            mean_s = point.summary["e2e_s"]["mean"]
            return (point.summary["request_throughput"] or 0.0) / mean_s if mean_s else 0.0

        best = max((p for p in self.points if p.stable), key=power, default=None)
        return best.rate_per_s if best is not None and power(best) > 0 else None

    @property
    def time_scale(self) -> float | None:
        """How many times faster than recorded, where a trace's own times are replayed."""
        return self.at.load if self.at and self.axis == TIME_SCALE else None

    @property
    def asked(self) -> tuple[Limit, ...]:
        """The limits, as this knee was judged by them."""
        return limits_of(self.scenario.slo, self.may_miss)

    @property
    def unit(self) -> str:
        """Of the load that was sought."""
        return "times as fast as recorded" if self.axis == TIME_SCALE else "requests/s"

    @property
    def load_interval(self) -> Interval | None:
        """`interval` in the unit of the load that was sought."""
        if self.at is None or self.interval is None:
            return None
        return self.interval.times(self.at.load / self.at.rate_per_s)

    @property
    def windows(self) -> dict[str, Any] | None:
        """How the windows at the knee fared, where they decide; None where they do not.

        `may_miss` is the share of them that may miss a limit.
        """
        if self.at is None or self.may_miss is None or "windows" not in self.at.summary:
            return None
        found = {k: x for k, x in self.at.summary["windows"].items() if k != "by_window"}
        return {**found, "may_miss": self.may_miss}

    @property
    def peak_rate_per_s(self) -> float | None:
        """Requests per second in the busiest window at the knee, where windows decide."""
        if self.windows is None or self.at is None:
            return None
        rows = self.at.summary["windows"]["by_window"]
        return float(max(row["requests"] / (row["end_s"] - row["start_s"]) for row in rows))

    def as_dict(self) -> dict[str, Any]:
        """What `kneesim knee --json` prints."""
        knee: dict[str, Any] = {"rate_per_s": self.rate_per_s}
        if self.axis == TIME_SCALE:
            knee["time_scale"] = self.time_scale
        if self.windows is not None:
            knee |= {"peak_rate_per_s": self.peak_rate_per_s, "windows": self.windows}
        if self.at is not None and (interval := self.load_interval) is not None:
            knee["interval"] = interval.as_dict(self.at.load)
        elif self.interval_reason:
            knee |= {"interval": None, "interval_reason": self.interval_reason}
        if self.binding is not None:
            knee["binding"] = dict(self.binding)
        answer: dict[str, Any] = {
            "knee": {**knee, "limits": self.limits, "breaking_limit": self.breaking_limit},
            "capacity_rate_per_s": self.capacity_rate_per_s,
            "first_unstable_rate_per_s": self.first_unstable_rate_per_s,
            "saturated_output_throughput": self.saturated_output_throughput,
            "power_knee_rate_per_s": self.power_knee_rate_per_s,
            **self._time_scales(),
            **self.hardware_knees,
            "feasible": self.feasible,
            "reason": self.reason,
            "warnings": list(self.warnings),
        }
        if self.capacity_elasticities is not None:
            answer["capacity_elasticities"] = dict(self.capacity_elasticities)
        if self.nearest_miss is not None:
            answer["nearest_miss"] = self.nearest_miss
        if self.at is not None and "cost" in self.at.summary:
            answer["cost_at_knee"] = self.at.summary["cost"]
        return answer | {"points": [_point_as_dict(point) for point in self.points]}

    def _time_scales(self) -> dict[str, float | None]:
        """The loads of a trace's own times as multiples of them."""
        if self.axis != TIME_SCALE:
            return {}
        per_rate = self.points[0].load / self.points[0].rate_per_s
        rates = {
            "capacity": self.capacity_rate_per_s,
            "first_unstable": self.first_unstable_rate_per_s,
            "power_knee": self.power_knee_rate_per_s,
        }
        return {f"{name}_time_scale": rate and rate * per_rate for name, rate in rates.items()}

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
    precision: float | None = None,
    draw: Callable[[Knee], Figure] | None = None,
) -> Knee:
    """Find the highest load that meets every limit of *scenario*'s `slo`, and how sure that is.

    The load is `load.rate_per_s`, or `load.time_scale` where a trace's own times are replayed. *precision*
    (default: `run.precision`) is half the width of the knee's sampling interval, relative to it; a trace,
    which cannot be replicated, is bisected that far. *simulate* answers a scenario with something like a
    `Result`; what needs the physics behind it (elasticities, the total interval) is then left out.
    *progress* is told after each run; *draw* is what `Knee.plot` calls. Raises `InputFault` for a scenario
    without limits or whose load has no rate, `KneeInterrupted` on Ctrl-C.
    """
    precision = float(scenario.run.get("precision", 0.02)) if precision is None else precision
    if not 0.001 <= precision <= 0.5:
        raise InputFault(f"precision must lie between 0.001 and 0.5 (got {precision})")
    physics = simulate is None and isinstance(scenario, Scenario)
    if physics:
        scenario = same_warm_up(scenario)
    limits = judged_limits(scenario)
    _enough_requests(limits, scenario.run.get("requests"))
    search = Search(scenario, limits, _counted(simulate or _simulated, progress))
    try:
        if physics and unloaded.look(search):
            hopeless = Judgement(None, None, None, hardware_knees=roofline_knees(scenario))
            return _answer(search, hopeless, draw)
        if physics and not search.is_one_path and can_saturate(scenario):
            requests = 2 * saturating_requests(scenario)
            search.know_capacity(saturated(scenario, search.simulate, requests))
        search.explore(min(precision, 0.02))
        found = judge(search, precision, physics)
    except KeyboardInterrupt:
        raise KneeInterrupted(scenario, search.points) from None
    return _answer(search, found, draw)


def _enough_requests(limits: tuple[Limit, ...], requests: int | None) -> None:
    """Refuse to read a percentile off fewer requests than have one."""
    faults = [
        f"slo.{limit.name}: a {limit.statistic} needs run.requests of at least {limit.fewest_requests}"
        f" (got {requests})"
        for limit in limits
        if requests is not None and requests < limit.fewest_requests
    ]
    if faults:
        raise InputFault(faults)


def _simulated(scenario: Scenario) -> Summarised:
    from sim.results import Result
    from sim.simulation import simulate

    return Result(simulate(scenario))


def _counted(simulate: Simulate, progress: Progress | None) -> Simulate:
    """*simulate* that tells *progress* how many runs there were."""
    if progress is None:
        return simulate
    made = 0

    def told(scenario: Scenario) -> Summarised:
        nonlocal made
        result = simulate(scenario)
        made += 1
        rate, scale = (scenario.load.get(key) for key in ("rate_per_s", "time_scale"))
        faster = "all at once" if scale is None else f"{number(scale)} times as fast"
        what = faster if rate is None else f"{number(rate)} requests/s"
        progress(made, max(made, USUAL_RUNS), what)
        return result

    return told


def _point_as_dict(point: Point) -> dict[str, Any]:
    broken = [limit.name for limit in point.broken]
    # How fast this machine was has no place in an answer that is the same everywhere.
    simulator = {k: x for k, x in point.summary.get("simulator", {}).items() if k not in SPEED}
    return {
        **point.loads,
        "passes": point.passes,
        "broken_limits": broken,
        **point.summary,
        "simulator": simulator,
    }


def _answer(search: Search, found: Judgement, draw: Callable[[Knee], Figure] | None) -> Knee:
    capacity, breaking = search.capacity(), found.breaking
    at = found.at if evaluated(search) else None
    interval = found.interval if at else None
    if at and interval is not None:
        interval = interval.times(at.rate_per_s / at.load)
    return Knee(
        scenario=search.scenario,
        axis=search.axis,
        points=search.points,
        at=at,
        reason=why_here(found.beyond, breaking) if at else why_nowhere(search),
        limits={limit.name: _limit_at(limit, at) for limit in search.limits},
        breaking_limit=breaking.name if at and breaking else None,
        capacity_rate_per_s=_capacity(search),
        first_unstable_rate_per_s=capacity.bad.rate_per_s if capacity.bad else None,
        saturated_output_throughput=_saturated_throughput(search),
        interval=interval,
        interval_reason=found.interval_reason if at else "there is no knee",
        binding=found.binding if at else None,
        capacity_elasticities=found.capacity_elasticities,
        hardware_knees=found.hardware_knees,
        nearest_miss=None if at else nearest_miss(search),
        warnings=tuple(warnings_of(search, at, found.replications, found.reached)),
        may_miss=search.limits[0].missed_windows,
        draw=draw,
    )


def _capacity(search: Search) -> float | None:
    """What the saturated system completes; else the highest load seen with a queue that does not grow."""
    if search.saturated is not None:
        return search.saturated.requests_per_s
    found = search.capacity()
    return found.good.rate_per_s if found.good and found.bad else None


def _saturated_throughput(search: Search) -> float | None:
    if search.saturated is not None:
        return search.saturated.output_tokens_per_s
    seen = [output_rate(point.summary) for point in search.points if not point.stable]
    return max((x for x in seen if x is not None), default=None)


def _limit_at(limit: Limit, at: Point | None) -> dict[str, Any]:
    value_s = limit.value_s(at.summary) if at else None
    answer: dict[str, Any] = {"at_knee": value_s, "limit": limit.bound_s}
    if at and value_s is None:
        answer["reason"] = f"not evaluated: {limit.why_undefined(at.summary)}"
    return answer
