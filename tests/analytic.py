"""A serving system with a formula for everything: what the knee, its figure and the CLI are tested on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class FakeScenario:
    """As much of a Scenario as planning and report read."""

    load: Mapping[str, Any] = field(default_factory=lambda: {"rate_per_s": 4.0})
    slo: Mapping[str, float] = field(default_factory=lambda: {"ttft_p99_s": 1.0, "tpot_p99_s": 0.05})
    run: Mapping[str, Any] = field(default_factory=lambda: {"requests": 2000, "seed": 1, "warmup": 0.1})
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
