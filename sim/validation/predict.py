"""What the simulator says of a measured point: the same statistics, read off as the load generators do."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from sim.faults import InputFault
from sim.results import Result
from sim.scenario import Scenario
from sim.simulation import ledger_of, simulate
from sim.validation.points import LATENCIES, Point
from sim.validation.setups import Setup, setup_of
from sim.workload import mean_context_tokens

if TYPE_CHECKING:
    from sim.calibration.constants import Constants

Advance = Callable[[int, int, str], None]
Metrics = Mapping[str, float]
"""By the column names of the points: out_tok_s, req_per_s, ttft_mean_ms, ttft_p50_ms, ttft_p99_ms, ..."""

SHORT_WAVES, SHORT_REQUESTS = 2, 200
_KEPT = 4096  # predictions in memory, which small tables and fits ask for again


@dataclass(frozen=True)
class Case:
    """A point that can be simulated, with its scenario; `setup` says what stands behind it."""

    setup: Setup

    @property
    def point(self) -> Point:
        return self.setup.point

    @cached_property
    def key(self) -> str:
        """What the prediction depends on, constants aside: equal scenarios are simulated once."""
        scenario = self.setup.scenario
        told = (scenario.engine, scenario.admission, scenario.workload, scenario.load, scenario.run)
        names = (scenario.hardware["name"], scenario.model["name"], self.setup.replicas)
        return json.dumps((names, told), sort_keys=True)


def shortened(case: Case) -> Case:
    """*case* with fewer requests: `SHORT_WAVES` a user, or batches as many, or `SHORT_REQUESTS`.

    A burst of less than the batch that fits would be another load: its steps would be small throughout.
    """
    scenario = case.setup.scenario
    users = scenario.load.get("concurrency")
    least = SHORT_REQUESTS if users is None else max(SHORT_WAVES * users, 8)
    if scenario.load.get("mode") == "burst":
        least = max(least, SHORT_WAVES * _batch(scenario))
    run = {**scenario.run, "requests": min(scenario.run["requests"], least)}
    return Case(dataclasses.replace(case.setup, scenario=dataclasses.replace(scenario, run=run)))


def _batch(scenario: Scenario) -> int:
    """About how many requests of mean length run at once at most."""
    fits = ledger_of(scenario).kv_cache_tokens / mean_context_tokens(scenario.workload)
    return min(int(fits) + 1, scenario.engine["max_num_seqs"])


class Predictor:
    """Predictions by scenario and constants, each made once."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, Constants | None], Metrics | str] = {}

    def __call__(self, case: Case, constants: Constants | None = None) -> Metrics | str:
        """The metrics of *case* with *constants* in place of its own, or why there are none."""
        key = (case.key, constants)
        if key not in self._made:
            if len(self._made) >= _KEPT:
                self._made.clear()
            scenario = case.setup.scenario
            scenario = scenario if constants is None else constants.applied(scenario)
            self._made[key] = _made(scenario, case.setup.replicas)
        return self._made[key]


def cases_of(points: Iterable[Point]) -> tuple[list[Case], dict[str, str]]:
    """The points that can be simulated, and by id why the others cannot."""
    cases: list[Case] = []
    reasons: dict[str, str] = {}
    for point in points:
        setup = setup_of(point)
        if isinstance(setup, str):
            reasons[point.id] = setup
        else:
            cases.append(Case(setup))
    return cases, reasons


def predict(point: Point, constants: Constants | None = None) -> Metrics:
    """The metrics of one *point*. Raises `InputFault` with the reason where it cannot be simulated."""
    setup = setup_of(point)
    if isinstance(setup, str):
        raise InputFault(f"{point.id}: {setup}")
    metrics = Predictor()(Case(setup), constants)
    if isinstance(metrics, str):
        raise InputFault(f"{point.id}: {metrics}")
    return metrics


def _made(scenario: Scenario, replicas: int) -> Metrics | str:
    try:
        run = simulate(scenario)
    except InputFault as fault:
        return fault.faults[0]
    result = Result(run)
    finish_s, output = run.recorder.column("finish_s"), run.requests.output_tokens
    done = np.isfinite(result.series("e2e"))
    if not done.all():
        return f"{int((~done).sum())} of {len(done)} requests do not fit in the KV cache"
    duration_s = float(finish_s.max() - run.requests.arrival_s.min())
    metrics = {
        "out_tok_s": replicas * float(output.sum()) / duration_s,
        "req_per_s": replicas * len(output) / duration_s,
        "duration_s": duration_s,
    }
    for metric in LATENCIES:
        metrics.update(_statistics(metric, result.series(metric)))
    return metrics


def _statistics(metric: str, values_s: np.ndarray) -> Metrics:
    """Mean, median and 99th percentile in ms; none where no request has the latency."""
    known = 1e3 * values_s[np.isfinite(values_s)]
    if not len(known):
        return {}
    p50, p99 = np.percentile(known, (50, 99)).tolist()
    return {f"{metric}_mean_ms": float(known.mean()), f"{metric}_p50_ms": p50, f"{metric}_p99_ms": p99}
