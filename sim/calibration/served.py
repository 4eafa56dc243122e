"""Measured loads as scenarios: what was sent to the real server is sent to the simulated one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sim.calibration.constants import Constants, constants_of
from sim.calibration.measured_load import LATENCIES, STATISTICS, MeasuredLoad
from sim.calibration.observation import Metrics, Observation
from sim.calibration.server import Progress, fit_constants
from sim.calibration.server_fit import Fit
from sim.clock import on_grid
from sim.faults import InputFault
from sim.results import Result
from sim.scenario import Scenario
from sim.simulation import simulate
from sim.workload import Requests, generate

_ALIKE = 0.01  # mean lengths, relative: not worth scaling
_FITTED = ("mean", "p50")


@dataclass(frozen=True)
class Served:
    """A measured load, the scenario that repeats it, and its requests."""

    load: MeasuredLoad
    scenario: Scenario
    requests: Requests

    def predicted(self, constants: Constants | None = None) -> Metrics:
        """The load's metrics as simulated, by their names, with *constants* in place of the scenario's."""
        scenario = self.scenario if constants is None else constants.applied(self.scenario)
        result = Result(simulate(scenario, requests=self.requests))
        finish_s, output = result.run.recorder.column("finish_s"), result.run.requests.output_tokens
        done = np.isfinite(result.series("e2e"))
        if not done.any():
            return {}
        duration_s = float(finish_s[done].max() - result.run.requests.arrival_s[0])
        metrics = {"output_throughput": float(output[done].sum()) / duration_s}
        for name in LATENCIES:
            values, weights = result.sample(name, first=0)
            if len(values):
                metrics |= _statistics(name, values, weights)
        return metrics


def _statistics(name: str, values: np.ndarray, weights: np.ndarray | None) -> dict[str, float]:
    if weights is None:
        p50, p99 = np.percentile(values, (50, 99)).tolist()
        return {f"{name}_mean_s": float(values.mean()), f"{name}_p50_s": p50, f"{name}_p99_s": p99}
    order = np.argsort(values)
    below = np.cumsum(weights[order]) / weights.sum()
    p50, p99 = values[order][np.minimum(np.searchsorted(below, (0.5, 0.99)), len(order) - 1)].tolist()
    mean = float(np.average(values, weights=weights))
    return {f"{name}_mean_s": mean, f"{name}_p50_s": p50, f"{name}_p99_s": p99}


def served(load: MeasuredLoad, scenario: Scenario) -> Served:
    """*load* as it would be put on the server of *scenario*.

    Lengths are those of each request where the file lists them; else drawn from the scenario's workload and
    scaled to the file's means. Raises `InputFault` where the scenario cannot send such a load.
    """
    sent = load.sent
    count = load.completed if sent is None else len(sent.prompt_tokens)
    changes = {"load": _load_of(load), "run.requests": count, "run.warmup": 0.0}
    if scenario.workload.get("arrivals", {}).get("kind") != "trace" and load.kind == "rate":
        changes["workload"] = {**scenario.workload, "arrivals": {"kind": load.arrivals}}
    repeated = scenario.replace(changes, source=load.place)
    if sent is None:
        requests = _scaled(generate(repeated.workload, repeated.load, repeated.run), load)
    else:
        arrival_s = _arrivals(repeated, count) if sent.sent_s is None else on_grid(sent.sent_s)
        requests = Requests(arrival_s, sent.prompt_tokens, sent.output_tokens)
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    if longest > repeated.engine["max_model_len"]:
        raise InputFault(
            f"{load.place}: a request of {longest} tokens is longer than engine.max_model_len "
            f"{repeated.engine['max_model_len']} of the scenario"
        )
    return Served(load, repeated, requests)


def _load_of(load: MeasuredLoad) -> dict[str, float | str]:
    if load.kind == "rate" and load.value is not None:
        return {"rate_per_s": load.value}
    if load.kind == "concurrency" and load.value is not None:
        return {"concurrency": int(load.value)}
    return {"mode": "burst"}


def _arrivals(scenario: Scenario, count: int) -> np.ndarray:
    return generate(scenario.workload, scenario.load, scenario.run).arrival_s[:count]


def _scaled(requests: Requests, load: MeasuredLoad) -> Requests:
    """*requests* with the mean lengths of the file."""
    columns = {}
    sides = (("prompt_tokens", load.prompt_tokens_mean), ("output_tokens", load.output_tokens_mean))
    for side, mean in sides:
        tokens = getattr(requests, side)
        share = mean / float(tokens.mean())
        if abs(share - 1.0) > _ALIKE:
            if requests.contents is not None:
                raise InputFault(
                    f"{load.place}: its mean {side.replace('_', ' ')} are {mean:.4g}, the workload's "
                    f"{tokens.mean():.4g}; requests that share tokens cannot be scaled: name a workload "
                    "with the file's lengths"
                )
            columns[side] = np.maximum(np.rint(tokens * share).astype(np.int64), 1)
    return replace(requests, **columns) if columns else requests


def calibrate(
    loads: Sequence[MeasuredLoad],
    scenario: Scenario,
    overlapped: bool | None = None,
    progress: Progress | None = None,
) -> tuple[Fit, list[Served]]:
    """The constants of the server that answered *loads*, beginning at *scenario*'s, and the loads served.

    *overlapped*: whether host times overlap with the GPU's; None finds out.
    Raises `InputFault` where a load cannot be sent or has no metric that a simulation predicts.
    """
    faults: list[str] = []
    repeated: list[Served] = []
    for load in loads:
        try:
            repeated.append(served(load, scenario))
            if not observed(load):
                faults.append(f"{load.place}: has no metric to fit (throughput, mean or median latencies)")
        except InputFault as fault:
            faults += fault.faults
    if faults:
        raise InputFault(faults)
    card = str(scenario.hardware["name"])
    points = [Observation(one, "", card, observed(one.load)) for one in repeated]
    start = constants_of(scenario)
    fit = fit_constants(points, _predicted, start, overlapped=overlapped, profiles=True, progress=progress)
    return fit, repeated


def observed(load: MeasuredLoad) -> dict[str, float]:
    """What of *load* is fitted: of each latency the mean, else the median; throughput unless it was sent.

    In an open loop below capacity throughput only repeats the rate.
    """
    found: dict[str, float] = {}
    for name in LATENCIES:
        for statistic in STATISTICS:
            value = load.metrics.get(f"{name}_{statistic}_s")
            if value is not None and statistic in (_FITTED if name != "itl" else ("mean",)):
                found[f"{name}_{statistic}_s"] = value
                break
    if "tpot_mean_s" in found:
        found.pop("itl_mean_s", None)
    throughput = load.metrics.get("output_throughput")
    if throughput is not None and load.kind != "rate":
        found["output_throughput"] = throughput
    return found


def _predicted(case: Served, constants: Constants) -> Metrics | str:
    try:
        return case.predicted(constants)
    except InputFault as fault:
        return fault.faults[0]
