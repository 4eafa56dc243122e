"""From a measured point to a scenario that says the same, or a sentence why there is none.

What a row leaves open is filled from the tables of `engines`, `lengths` and here: by engine, kind of lengths
and harness, never by row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sim.faults import InputFault
from sim.hardware import HardwareProfile
from sim.scenario import Scenario, load
from sim.simulation import ledger_of
from sim.validation.engines import Family, family_of, settings_of
from sim.validation.flags import noted_offline_batch, read_flags
from sim.validation.harness import harness_of, requests_of
from sim.validation.lengths import Lengths, lengths_of
from sim.validation.names import card_of, model_of
from sim.validation.points import Point

_ANY_MODEL = "llama-3-8b"
_WEIGHTS = {"fp16": "fp16", "bf16": "bf16", "fp8": "fp8", "fp8-block": "fp8", "int8": "int8"}
_NEAR_CAPACITY = 0.85
"""Share of its own offline rate from which on an open loop counts as saturated."""
_LONGEST_SDS = 4.0
"""Standard deviations above the mean logarithm at which a prompt without a cap is taken to be the longest."""
_SERVED = 0.95
"""Share of the offered requests that a server below capacity completes in time."""


@dataclass(frozen=True)
class Setup:
    """A point as a scenario. A server of several replicas is simulated as one of them with its share."""

    point: Point
    scenario: Scenario
    replicas: int
    estimated: bool
    """Whether the card's kernels are estimates, not measured."""


def setup_of(point: Point) -> Setup | str:
    """The scenario of *point*, or the sentence that says why it has none."""
    engine = family_of(point)
    if engine is None:
        return f"engine {point.engine} is not simulated"
    if reason := _not_simulated(point):
        return reason
    lengths = lengths_of(point, engine.in_lockstep(point))
    if isinstance(lengths, str):
        return lengths
    try:
        return _resolved(point, engine, lengths)
    except InputFault as fault:
        return fault.faults[0].removeprefix("scenario: ").removeprefix("point: ")


def _not_simulated(point: Point) -> str:
    """What no scenario can say of the row's server; nothing if one can."""
    weights = point.weight_dtype.casefold()
    if weights and weights not in _WEIGHTS:
        return f"weights in {point.weight_dtype} have no kernels in a profile"
    if (point.n_gpu or 1) > 1 and point.tp is None:
        return f"the row does not say how {point.n_gpu} GPUs are used"
    if (point.n_gpu or 1) % (point.tp or 1):
        return f"{point.n_gpu} GPUs are no whole number of groups of {point.tp}"
    if re.search(r"-pp 2|pp[2-9]", point.flags):
        return "pipeline parallelism is not simulated"
    return ""


def _resolved(point: Point, engine: Family, lengths: Lengths) -> Setup | str:
    told = read_flags(point.flags)
    replicas = max((point.n_gpu or 1) // (point.tp or 1), 1)
    card = card_of(point.gpu)
    base = _base(card, model_of(point.model))
    changes: dict[str, Any] = {
        "engine": _engine(point, engine, told),
        "workload": {"arrivals": {"kind": "poisson"}, "lengths": lengths},
        "load": _load(point, replicas),
        "run": {"requests": max(round(requests_of(point) / replicas), 1), "warmup": 0},
    }
    scenario = base.replace(changes, "point")
    if engine.whole_prompts and "max_num_batched_tokens" not in told:
        scenario = _with_room_for_prompts(scenario, lengths)
    if (share := harness_of(point).kv_free_share) is not None:
        scenario = _with_free_share(scenario, share)
    fitting = _fitting(scenario, told)
    if isinstance(fitting, str):
        return fitting
    return Setup(point, fitting, replicas, _is_estimated(card))


@lru_cache(maxsize=256)
def _base(card: str, model: str) -> Scenario:
    return _on_card(card).replace({"model": model}, "point")


@lru_cache(maxsize=32)
def _on_card(card: str) -> Scenario:
    """A scenario on *card*, whose profile, which is long, is read once for all models."""
    return load(
        {
            "hardware": card,
            "model": _ANY_MODEL,
            "engine": {},
            "workload": {"lengths": {"kind": "fixed", "prompt_tokens": 1, "output_tokens": 1}},
            "load": {"rate_per_s": 1},
        }
    )


def _engine(point: Point, engine: Family, told: Mapping[str, Any]) -> dict[str, Any]:
    named = "fp8" if "fp8" in point.model.casefold() else "auto"
    weights = _WEIGHTS.get(point.weight_dtype.casefold(), named)
    kv = next((name for name in ("fp8", "int8", "bf16", "fp16") if name in point.kv_dtype.casefold()), None)
    settings: dict[str, Any] = {
        "tensor_parallel_size": point.tp or 1,
        "weight_dtype": weights,
        "kv_cache_dtype": kv or engine.kv_dtype_of.get(weights, "auto"),
        **settings_of(engine, point),
    }
    for key, value in told.items():
        if key == "kv_free_fraction":
            settings[engine.fraction_key] = value
        elif key not in ("kv_cache_tokens", "scheduler_steps", "replicas"):
            settings[key] = value
    if point.load_kind == "offline" and (batch := noted_offline_batch(point.flags)):
        settings["max_num_seqs"] = batch
    return settings


def is_plateau(point: Point) -> bool:
    """Whether the row is the plateau under rising rates: as many requests as the engine can serve."""
    return point.load_kind == "rate" and "plateau" in point.notes and point.req_per_s is not None


def _load(point: Point, replicas: int) -> dict[str, Any]:
    value = point.load_value or 1.0
    if point.load_kind == "offline" or is_plateau(point):
        return {"mode": "burst"}
    if point.load_kind == "rate":
        return {"rate_per_s": value / replicas}
    return {"concurrency": max(round(value / replicas), 1)}


def _with_room_for_prompts(scenario: Scenario, lengths: Lengths) -> Scenario:
    """A budget that takes the longest prompt and as many decodes as may run beside it."""
    prompt = lengths["prompt"]
    mu, sigma = prompt["mu"][0], prompt["sigma"][0]
    longest = round(min(prompt.get("max", math.inf), math.exp(mu + _LONGEST_SDS * sigma)))
    if longest <= scenario.engine["max_num_batched_tokens"]:
        return scenario
    budget = longest + scenario.engine["max_num_seqs"]
    return scenario.replace({"engine.max_num_batched_tokens": budget}, "point")


def _with_free_share(scenario: Scenario, share: float) -> Scenario:
    """A KV cache of *share* of what is left of the card's memory."""
    ledger = ledger_of(scenario)
    held = ledger.weights_bytes + ledger.activation_bytes + ledger.overhead_bytes
    pool = int(share * max(ledger.gpu_memory_bytes - held, 0))
    return scenario.replace({"engine.kv_cache_memory_bytes": pool}, "point")


def _fitting(scenario: Scenario, told: Mapping[str, Any]) -> Scenario | str:
    """The scenario with the KV cache that the row tells of, and a context that fits in it."""
    size = scenario.engine["block_size"]
    if (tokens := told.get("kv_cache_tokens")) is not None:
        scenario = scenario.replace({"engine.num_gpu_blocks_override": tokens // size}, "point")
    ledger = ledger_of(scenario)
    if not ledger.fits and "max_model_len" not in told and ledger.num_gpu_blocks > 1:
        longest = (ledger.num_gpu_blocks - 1) * size
        scenario = scenario.replace({"engine.max_model_len": longest}, "point")
        ledger = ledger_of(scenario)
    return scenario if ledger.fits else f"does not fit: {ledger.reason}"


@lru_cache(maxsize=64)
def _is_estimated(card: str) -> bool:
    profile = HardwareProfile.from_mapping(_on_card(card).hardware)
    return profile.provenance("kernels.gemm.bf16.flops_per_s").kind != "measured"


def below_capacity(point: Point, offline_req_per_s: float | None) -> bool:
    """Whether the load leaves the server time: one user, one request, or a rate that it keeps up with.

    *offline_req_per_s* is what the same set-up serves when all requests are there at once, if known.
    """
    if point.load_kind == "concurrency":
        return point.load_value == 1
    if point.load_kind == "offline":
        return point.n_requests == 1
    if is_plateau(point):
        return False
    offered = point.load_value or 0.0
    if point.req_per_s is not None:
        return point.req_per_s >= _SERVED * offered
    return offline_req_per_s is None or offered < _NEAR_CAPACITY * offline_req_per_s
