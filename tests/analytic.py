"""Serving systems with a formula for everything: what the knee, its figure and the CLI are tested on.

And the textbook's queue with one server, simulated (`one_place`), for what limits and people do to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import stats
from support import NO_FRONT_END, EvenSteps, base

from sim.results.statistics import growth
from sim.simulation import Run, simulate
from sim.workload.streams import stream

STEP_S = 2.0**-11
TOKENS = 2000
SERVICE_S = TOKENS * STEP_S


@dataclass(frozen=True)
class FakeScenario:
    """As much of a Scenario as planning and report read."""

    load: Mapping[str, Any] = field(default_factory=lambda: {"rate_per_s": 4.0})
    slo: Mapping[str, float] = field(default_factory=lambda: {"ttft_p99_s": 1.0, "tpot_p99_s": 0.05})
    run: Mapping[str, Any] = field(
        default_factory=lambda: {"requests": 2000, "seed": 1, "warmup": 0.1, "stream_records": False}
    )
    name: str = "chat"
    hardware: Mapping[str, Any] = field(
        default_factory=lambda: {
            "name": "a100-80gb-sxm",
            "provenance": {
                "kernels.gemm": {"kind": "measured", "source": "published kernel tables", "points": 240},
                "memory_bytes": {"kind": "datasheet", "source": "datasheet"},
                "kernels.all_reduce": {"kind": "estimated", "source": "link bandwidth"},
            },
        }
    )
    model: Mapping[str, Any] = field(default_factory=lambda: {"name": "llama-3-8b", "dtype": "bf16"})
    engine: Mapping[str, Any] = field(
        default_factory=lambda: {
            "preset": "vllm-v1@0.32",
            "max_num_seqs": 256,
            "enable_prefix_caching": False,
            "tensor_parallel_size": 1,
        }
    )
    deployment: Mapping[str, Any] = field(default_factory=lambda: {"replicas": 1})
    workload: Mapping[str, Any] = field(
        default_factory=lambda: {
            "name": "azure-2023-conv",
            "arrivals": {"kind": "poisson"},
            "lengths": {"kind": "table"},
        }
    )
    cost: Mapping[str, Any] = field(default_factory=lambda: {"gpu_hour_usd": 1.79})
    sha256: str = "0" * 64

    def replace(self, changes: Mapping[str, Any], source: str = "override") -> FakeScenario:
        changed = self
        for path, value in changes.items():
            section, key = path.split(".")
            changed = replace(changed, **{section: {**getattr(changed, section), key: value}})
        return changed


@dataclass(frozen=True)
class Answer:
    values: dict[str, Any]

    def summary(self) -> dict[str, Any]:
        return self.values

    def series(self, metric: str) -> np.ndarray:
        mean = self.values[f"{metric}_s"]["mean"]
        return np.full(200, np.nan if mean is None else mean)

    def sample(self, metric: str, first: int | None = None) -> tuple[np.ndarray, None]:
        """Values with exactly the summary's percentiles (their mean is not kept)."""
        found = self.values[f"{metric}_s"]
        if found["mean"] is None:
            return np.empty(0), None
        names = {0.5: "p50", 0.9: "p90", 0.95: "p95", 0.99: "p99", 1.0: "max"}
        heights = [found[name] for name in names.values()]
        return np.interp(np.linspace(0, 1, 1001), [0.0, *names], [heights[0], *heights]), None


def statistics(mean: float | None, spread: float = 1.0) -> dict[str, Any]:
    """mean, p50, p90, p99 of an exponential tail above *mean*; all null, with a reason, where undefined."""
    names = ("mean", "p50", "p90", "p95", "p99", "max")
    if mean is None:
        return {**dict.fromkeys(names), "n": 0, "reason": "no request has two output tokens"}
    factors = (1.0, 0.8, 1 + spread, 1 + 1.3 * spread, 1 + 2 * spread, 1 + 3 * spread)
    return {name: mean * factor for name, factor in zip(names, factors, strict=True)} | {"n": 1800}


def queueing(
    capacity_per_s: float = 10.0,
    *,
    service_s: float = 0.05,
    tpot_s: float | None = 0.012,
    output_tokens: int = 200,
    requests: int = 2000,
    turned_away: int = 0,
    trace_rate_per_s: float = 2.0,
) -> Callable[[Any], Answer]:
    """A single queue: mean TTFT = service_s / (1 - rho) below capacity, growing with the run above it."""

    def simulate(scenario: Any) -> Answer:
        scale = scenario.load.get("time_scale", 1.0) * trace_rate_per_s
        rate_per_s = scenario.load.get("rate_per_s", scale)
        rho = rate_per_s / capacity_per_s
        waited_s = requests * (1 - 1 / rho) / capacity_per_s
        ttft_s = service_s / (1 - rho) if rho < 1 else 100 * service_s + waited_s
        served_per_s = min(rate_per_s, capacity_per_s) * (1 - turned_away / requests)
        length_s = requests / rate_per_s
        usage = min(1.0, 0.9 * rho)
        return Answer(
            {
                "seed": scenario.run["seed"],
                "window": {"start_s": 0.1 * length_s, "end_s": length_s, "requests": 0.9 * requests},
                "requests": {
                    "offered": requests,
                    "completed": requests - turned_away,
                    "rejected": 0,
                    "timed_out": 0,
                    "cancelled": 0,
                    "never_schedulable": turned_away,
                    "unfinished": 0,
                },
                "request_throughput": served_per_s,
                "output_throughput": served_per_s * output_tokens,
                "ttft_s": statistics(ttft_s),
                "tpot_s": statistics(tpot_s and tpot_s * (1 + min(rho, 1.5)), spread=0.3),
                "e2e_s": statistics(tpot_s and ttft_s + output_tokens * tpot_s),
                "output_tokens": {**statistics(output_tokens, 0.5)},
                "stable": rho < 1,
                "queue_growth_per_s": max(0.0, rate_per_s - capacity_per_s),
                "kv_cache": {
                    "num_gpu_blocks": 28000,
                    "block_size": 16,
                    "capacity_tokens": 448000,
                    "usage_mean": 0.7 * usage,
                    "usage_max": usage,
                },
                "preemptions": 0,
                "cost": {
                    "usd_per_1m_output_tokens": 1.79e6 / 3600 / (served_per_s * output_tokens)
                    if served_per_s
                    else None
                },
                "simulator": {"wall_s": 0.1},
            }
        )

    return simulate


def highest_rate_with_ttft_p99(
    bound_s: float, capacity_per_s: float = 10.0, service_s: float = 0.05
) -> float:
    """Where `queueing`'s TTFT p99 = 3 service_s / (1 - rho) meets *bound_s*."""
    return capacity_per_s * (1 - 3 * service_s / bound_s)


@dataclass(frozen=True)
class Waited:
    """A run of `single_server`: waits of every request, and as much of a summary as a search reads."""

    arrival_s: np.ndarray
    wait_s: np.ndarray
    service_s: float

    def series(self, metric: str) -> np.ndarray:
        return self.wait_s

    def sample(self, metric: str, first: int | None = None) -> tuple[np.ndarray, None]:
        return self.wait_s[first or 0 :], None

    def summary(self) -> dict[str, Any]:
        n, skipped = len(self.wait_s), len(self.wait_s) // 10
        start_s, end_s = float(self.arrival_s[skipped]), float(self.arrival_s[-1])
        waited = self.wait_s[skipped:]
        leaves_s = self.arrival_s + self.wait_s
        slope, grows = growth(self.arrival_s, leaves_s, (start_s, end_s))
        served = np.count_nonzero((leaves_s > start_s) & (leaves_s <= end_s)) / (end_s - start_s)
        mean_s = float(waited.mean())
        return {
            "window": {"start_s": start_s, "end_s": end_s, "requests": n - skipped},
            "requests": {"offered": n, "completed": n},
            "request_throughput": served,
            "output_throughput": served,
            "queue_s": {"mean": mean_s, "p99": float(np.quantile(waited, 0.99)), "n": n - skipped},
            "e2e_s": {"mean": mean_s + self.service_s},
            "stable": not grows,
            "queue_growth_per_s": slope,
        }


def single_server(exponential: bool) -> Callable[[Any], Waited]:
    """First come, first served, Poisson arrivals, service of one second: constant, or in the mean."""

    def simulate(scenario: Any) -> Waited:
        seed, count = scenario.run["seed"], scenario.run["requests"]
        arrival_s = (
            np.cumsum(stream(seed, "arrivals").standard_exponential(count)) / scenario.load["rate_per_s"]
        )
        work_s = stream(seed, "service").standard_exponential(count) if exponential else np.ones(count)
        total_s = np.concatenate([[0.0], np.cumsum(work_s)[:-1]])  # of those before
        return Waited(arrival_s, total_s + np.maximum.accumulate(arrival_s - total_s) - arrival_s, 1.0)

    return simulate


def wait_beyond_m_m_1(rate_per_s: float, wait_s: float) -> float:
    """P(wait > wait_s), service of one second in the mean: rho exp(-(1 - rho) t)."""
    return rate_per_s * math.exp(-(1 - rate_per_s) * wait_s)


def wait_beyond_m_d_1(rate_per_s: float, wait_s: float) -> float:
    """P(wait > wait_s), service of one second: G. J. Franx, Operations Research Letters 29, 2001.

    The numbers in the system after a departure come from their own recursion (M. F. Neuts), cut off where
    all that matters is known.
    """
    k = int(wait_s) + 1
    arrive = [math.exp(-rate_per_s) * rate_per_s**j / math.factorial(j) for j in range(k + 2)]
    inside = [1.0 - rate_per_s]
    for n in range(k + 1):
        rest = inside[0] * arrive[n] + sum(inside[j] * arrive[n - j + 1] for j in range(1, n + 1))
        inside.append((inside[n] - rest) / arrive[0])
    queue = np.cumsum([inside[0] + inside[1], *inside[2:]])
    left = rate_per_s * (k - wait_s)
    terms = [queue[k - j - 1] * left**j / math.factorial(j) for j in range(k)]
    return 1.0 - math.exp(-left) * sum(terms)


def one_place(load: float, requests: int, replications: int, **rules: Any) -> Iterator[Run]:
    """Runs of a server with one place: Poisson arrivals at *load* times its rate, seeds 0, 1, ...

    Answers are geometric, `TOKENS` in the mean, of iterations so short that service is exponential but for
    1/4000 of its second moment. *rules* are keys of the scenario, with `__` for the point.
    """
    dotted = {key.replace("__", "."): value for key, value in rules.items()}
    scenario = base().replace(
        {
            **NO_FRONT_END,
            "engine.max_num_seqs": 1,
            "workload": {"lengths": {"kind": "geometric", "prompt_tokens": 1, "output_mean": TOKENS}},
            "load.rate_per_s": load / SERVICE_S,
            "run.requests": requests,
            **dotted,
        }
    )
    for seed in range(replications):
        yield simulate(scenario.replace({"run.seed": seed}), step_time=EvenSteps(STEP_S))


def t_interval(values: Sequence[float], confidence: float = 0.99) -> tuple[float, float]:
    """Middle and half-width of the interval for the mean of *values*, one a replication."""
    half = stats.t.ppf((1 + confidence) / 2, len(values) - 1) * stats.sem(values)
    return float(np.mean(values)), float(half)


def blocked(load: float, places: int) -> float:
    """M/M/1/K: an arrival finds all *places*, the server's included, taken (Kleinrock 1975, 3.6)."""
    return (1 - load) * load**places / (1 - load ** (places + 1))


def reneging(load: float, patience: float, states: int = 400) -> float:
    """M/M/1+M: the share that leaves a queue in which each waits an exponential time, *patience* services.

    Births at rate *load*, deaths at 1 + (n - 1) / patience with n there: who is served no longer waits
    (C. Palm, 1957; Erlang-A with one server). E[queue] / patience leave per unit of time, of *load*.
    """
    weight = np.cumprod([1.0, *(load / (1 + (n - 1) / patience) for n in range(1, states))])
    queue = np.maximum(np.arange(states) - 1, 0)
    return float(weight @ queue) / float(weight.sum()) / patience / load
