"""The knee's error bar: sampling, and what the profile, the memory ledger, host and front end leave open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, hypot, log
from typing import TYPE_CHECKING, Any

from sim.hardware.efficiency import CLASSES
from sim.planning.elasticities import Elasticities
from sim.planning.interval import normal_quantile
from sim.planning.kernel_error import kernel_error
from sim.planning.resources import ENGINE_TIMES

if TYPE_CHECKING:
    from sim.hardware import MemoryLedger
    from sim.scenario import Scenario

# One standard deviation, relative, of what no held-out error is known for.
HOST = 0.2  # the step and sequence times fitted to one engine on one host, used for others
FRONT_END = 0.3  # published 7 to 12 ms a request
MEMORY_ESTIMATES = 0.3  # activations and overhead of the ledger, where they are not given
_NORMAL_95 = normal_quantile(0.95)  # an engine file's intervals hold 90 %


@dataclass(frozen=True)
class Part:
    """One source of uncertainty: *relative* is half its interval, as a share of the knee."""

    relative: float
    elasticity: float
    uncertainty: float
    source: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "relative": self.relative,
            "elasticity": self.elasticity,
            "uncertainty": self.uncertainty,
            "source": self.source,
        }


@dataclass(frozen=True)
class Interval:
    """Intervals of a load at *confidence*: of *sampling* alone, and in *total* (None: not worked out).

    *drawn* says how other samples of a trace were drawn; None where the replications are seeds.
    """

    confidence: float
    sampling: tuple[float, float]
    total: tuple[float, float] | None
    parts: Mapping[str, Part]
    replications: int
    requests: int | None
    left_out: int | None
    reached: bool
    drawn: Mapping[str, Any] | None = None

    def times(self, factor: float) -> Interval:
        """The same in another unit of load."""
        low, high = self.sampling
        total = None if self.total is None else (self.total[0] * factor, self.total[1] * factor)
        changed = {**self.__dict__, "sampling": (low * factor, high * factor), "total": total}
        return Interval(**changed)

    def as_dict(self, load: float) -> dict[str, Any]:
        """The contract's `interval`; a part is half its interval, relative to the knee."""
        low, high = self.sampling
        own: dict[str, Any] = {"relative": (high - low) / 2 / load, "replications": self.replications}
        own |= {"requests_each": self.requests, "left_out": self.left_out, "reached": self.reached}
        own |= self.drawn or {}
        parts = {"sampling": own, **{name: part.as_dict() for name, part in self.parts.items()}}
        total = {} if self.total is None else {"total": list(self.total)}
        return {"confidence": self.confidence, "sampling": [low, high], **total, "parts": parts}


def parts_of(
    scenario: Scenario, elasticities: Elasticities, ledger: MemoryLedger, confidence: float
) -> dict[str, Part]:
    """The parts beside sampling: |elasticity| x relative standard deviation x normal quantile.

    A class of kernels is one scale, as uncertain as `kernel_error` says.
    """
    z = normal_quantile(0.5 + confidence / 2)
    known: dict[str, tuple[float, str]] = {}
    for name in CLASSES:
        if name != "all_reduce" or scenario.engine["tensor_parallel_size"] > 1:
            known[name] = kernel_error(scenario, name)
    known["host"] = _engine_error(scenario, "host", HOST, "fitted to one engine on one host")
    known["front_end"] = _engine_error(scenario, "front_end", FRONT_END, "published values differ by this")
    known["kv_blocks"] = _memory_error(scenario, ledger)
    parts = {}
    for name, (error, source) in known.items():
        e = elasticities.of.get(name, 0.0)
        label = "memory" if name == "kv_blocks" else name
        parts[label] = Part(z * abs(e) * error, e, error, source)
    return parts


def total_of(load: float, sampling: tuple[float, float], parts: Mapping[str, Part]) -> tuple[float, float]:
    """Sampling and *parts* added in quadrature, each side for itself, in the logarithm of the load."""
    model = hypot(*(part.relative for part in parts.values()))
    low = hypot(log(load / sampling[0]), model)
    high = hypot(log(sampling[1] / load), model)
    return load * exp(-low), load * exp(high)


def _engine_error(scenario: Scenario, part: str, otherwise: float, words: str) -> tuple[float, str]:
    """The largest relative error of the engine's times of *part* (host, front_end), by its file.

    They are one scale: as uncertain as the one that is known worst. Where no file says, *otherwise*.
    """
    engine = scenario.engine
    known = {
        key: spread
        for key, origin in (engine.get("provenance") or {}).items()
        if key in ENGINE_TIMES[part] and (spread := _relative_sd(engine[key], origin)) is not None
    }
    if not known:
        return otherwise, words
    worst = max(known, key=lambda key: known[key])
    return known[worst], f"{worst} of engine {engine.get('name')}"


def _relative_sd(value: float, origin: Mapping[str, Any]) -> float | None:
    """The standard deviation of an engine's number, as a share of it, where its origin tells it."""
    if origin.get("interval") and value:
        low, high = origin["interval"]
        return float((high - low) / (2 * _NORMAL_95 * value))
    return origin.get("relative_sd")


def _memory_error(scenario: Scenario, ledger: MemoryLedger) -> tuple[float, str]:
    engine = scenario.engine
    if engine["num_gpu_blocks_override"] is not None or engine["kv_cache_memory_bytes"] is not None:
        return 0.0, "the pool is given"
    estimated = {"activation_bytes": ledger.activation_bytes, "overhead_bytes": ledger.overhead_bytes}
    open_bytes = sum(size for name, size in estimated.items() if engine[name] is None)
    return MEMORY_ESTIMATES * open_bytes / ledger.kv_cache_bytes, "activations and overhead are estimates"
