"""The small scenarios behind docs/claims.md: an 8B model on one A100, and what each claim asks of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np

import sim
from sim.results import Result
from sim.scenario import Scenario
from sim.simulation import ledger_of
from sim.simulation import simulate as run_with
from sim.workload import Requests, mean_context_tokens

CVS = (0.25, 0.5, 1.0, 2.0)
GROUP = 8
NO_SLOT_LIMIT = {"engine.max_num_seqs": 1024, "engine.max_num_batched_tokens": 8192}


@cache
def base() -> Scenario:
    """An 8B model on one A100; `replace` makes the others."""
    return sim.load(
        {
            "name": "claims",
            "hardware": "a100-80gb-sxm",
            "model": "llama-3-8b",
            "workload": {"lengths": {"kind": "fixed", "prompt_tokens": 500, "output_tokens": 100}},
            "load": "burst",
            "run": {"requests": 8, "warmup": 0},
        }
    )


def fixed(prompt_tokens: int, output_tokens: int) -> dict[str, Any]:
    """All requests alike."""
    lengths = {"kind": "fixed", "prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    return {"workload": {"lengths": lengths}}


def varied(prompt_mean: float, output_mean: float, cv: float, prompt_cv: float = 0.0) -> dict[str, Any]:
    """Lognormal answers."""
    means = {"prompt_mean": prompt_mean, "output_mean": output_mean}
    lengths = {"kind": "lognormal", **means, "prompt_cv": prompt_cv, "output_cv": cv}
    return {"workload": {"lengths": lengths}}


def simulated(changes: Mapping[str, Any]) -> Result:
    """The base scenario with *changes*."""
    return sim.simulate(base().replace(changes))


@cache
def decode_s(batch: int, context_tokens: int) -> float:
    """Mean step while *batch* sequences decode, all at about *context_tokens*, in s."""
    length = {**fixed(context_tokens, 64), "run.requests": batch, **NO_SLOT_LIMIT}
    steps = simulated(length).steps
    alone = steps[(steps.decodes == batch) & (steps.prefill_tokens == 0)]
    return float((alone.end_s - alone.start_s).sum() / alone.iterations.sum())


@cache
def prefill_s(prompts: int, prompt_tokens: int) -> float:
    """From the first iteration to the last of *prompts* answers of one token, in s."""
    steps = simulated({**fixed(prompt_tokens, 1), "run.requests": prompts, **NO_SLOT_LIMIT}).steps
    return float((steps.end_s - steps.start_s).sum())


@cache
def rises_ms() -> tuple[float, ...]:
    """What each 64 sequences more cost a decode step, from 256 to 512, in ms."""
    steps = [decode_s(batch, 256) for batch in range(256, 513, 64)]
    return tuple(float(rise) * 1e3 for rise in np.diff(steps))


@dataclass(frozen=True)
class Gain:
    """Continuous over static batching: measured, and E[max of 8] / E[length] of the very answers."""

    measured: float
    of_lengths: float
    of_distribution: float


@cache
def gain(cv: float) -> Gain:
    """At equal slots, answers of mean 100 and the given coefficient of variation, all there at once."""
    load = {**varied(20, 100, cv), "run.requests": 1600, "engine.max_num_seqs": GROUP}
    static = simulated({**load, "engine.preset": "static"})
    answers = static.run.requests.output_tokens.reshape(-1, GROUP)
    per_s = [run.summary()["makespan"]["output_throughput"] for run in (simulated(load), static)]
    return Gain(
        per_s[0] / per_s[1], float(answers.max(axis=1).mean() / answers.mean()), largest_over_mean(cv)
    )


def largest_over_mean(cv: float) -> float:
    """E[max of 8] / E of a lognormal of this coefficient of variation, by its quantile function.

    E[max] is the integral over u of the quantile at u^(1/8); midpoints are enough.
    """
    sigma = float(np.sqrt(np.log1p(cv**2)))
    u = (np.arange(20_000) + 0.5) / 20_000
    normal = NormalDist()
    z = np.array([normal.inv_cdf(float(p)) for p in u ** (1.0 / GROUP)])
    return float(np.exp(sigma * z - sigma**2 / 2).mean())


@cache
def paging_gain() -> float:
    """Paged over reserved in the memory of 8 contexts of 4,096, the batch as large as memory allows."""
    load = {**varied(500, 200, 1.0), "run.requests": 800, **NO_SLOT_LIMIT}
    load |= {"engine.max_model_len": 4096, "engine.num_gpu_blocks_override": GROUP * 256 + 1}
    paged, reserved = (
        simulated({**load, "engine.kv_layout": layout}).summary()["makespan"]["output_throughput"]
        for layout in ("paged", "contiguous")
    )
    return paged / reserved


@cache
def idle_slot_steps() -> int:
    """Of a group of two whose answers have 80 and 800 tokens."""
    given = base().replace({"engine.preset": "static", "engine.max_num_seqs": 2, "run.requests": 2})
    pair = Requests(np.zeros(2), np.array([50, 50]), np.array([80, 800]), np.full(2, np.inf))
    return Result(run_with(given, requests=pair)).summary()["idle_slot_steps"]


@cache
def concurrency(context: int, kv_dtype: str) -> int:
    """Most sequences at once where each reserves *context* tokens."""
    changes = {"engine.max_model_len": context, "engine.kv_cache_dtype": kv_dtype, **NO_SLOT_LIMIT}
    changes |= {**fixed(context // 2, context // 2), "run.requests": 700, "engine.kv_layout": "contiguous"}
    changes |= {"engine.kv_cache_memory_bytes": 40_000_000_000}
    steps = simulated(changes).steps
    return int((steps.decodes + steps.prefill_sequences).max())


@cache
def heads_gain(equal_cache: bool) -> float:
    """Tokens that fit with 8 KV heads over those with 32."""
    changes: dict[str, Any] = {"engine.kv_cache_memory_bytes": 32 * 2**30} if equal_cache else {}
    grouped = base().replace(changes)
    twin = grouped.replace({"model": {"base": "llama-3-8b", "name": "twin", "kv_heads": 32}})
    return ledger_of(grouped).kv_cache_tokens / ledger_of(twin).kv_cache_tokens


@dataclass(frozen=True)
class Waste:
    """Tokens a sequence that paging leaves empty; share of a reservation, measured and by lengths."""

    paged_tokens: float
    paged_share: float
    reserved_share: float
    expected_share: float


@cache
def waste() -> Waste:
    """Of lognormal contexts, under light load, in blocks of 16 and in reservations of 4,096."""
    load = {**varied(600, 200, 0.5, 0.5), "run.requests": 800, "load": {"rate_per_s": 2.0}}
    load |= {"engine.max_model_len": 4096}
    paged, reserved = (simulated({**load, "engine.kv_layout": k}) for k in ("paged", "contiguous"))
    steps = paged.steps[(paged.steps.prefill_tokens == 0) & (paged.steps.decodes > 0)]
    held = (steps.blocks_first + steps.blocks_last) / 2 * 16
    used = steps.context_tokens + steps.decodes * (steps.iterations - 1) / 2
    seconds = steps.end_s - steps.start_s
    return Waste(
        float(((held - used) * seconds).sum() / (steps.decodes * seconds).sum()),
        paged.summary()["kv_cache"]["wasted_fraction"],
        reserved.summary()["kv_cache"]["wasted_fraction"],
        1 - mean_context_tokens(reserved.run.scenario.workload) / 4096,
    )


@cache
def cache_bound() -> dict[str, Any]:
    """A server whose cache is full while its arithmetic idles."""
    load = {**fixed(2000, 1000), "run.requests": 300, "load": {"rate_per_s": 4.0}}
    return simulated({**load, **NO_SLOT_LIMIT, "engine.kv_cache_memory_bytes": 20_000_000_000}).summary()


@cache
def cap() -> tuple[float, float]:
    """p99 E2E with answers cut at 512 over without, and 512 over the 99th percentile of the answers."""
    load = {**varied(200, 300, 1.0), "run.requests": 2000, "load": {"rate_per_s": 1.0}}
    free, cut = simulated(load), simulated({**load, "admission.max_output_tokens": 512})
    e2e_s = [run.summary()["e2e_s"]["p99"] for run in (cut, free)]
    return e2e_s[0] / e2e_s[1], 512 / float(np.quantile(free.run.requests.output_tokens, 0.99))


TUNED = {
    "throughput": {"engine.max_num_seqs": 256, "engine.max_num_batched_tokens": 8192},
    "latency": {"engine.max_num_seqs": 16, "engine.max_num_batched_tokens": 512},
}


@cache
def tuned(aim: str) -> tuple[float, float, float]:
    """Tokens a second under saturation, mean TPOT and p99 of the gaps in s, as tuned for *aim*."""
    load = {**varied(500, 200, 0.5, 0.5), "run.requests": 1500, "load": {"concurrency": 256}}
    run = simulated({**load, **TUNED[aim], "run.warmup": 0.3}).summary()
    return run["output_throughput"], run["tpot_s"]["mean"], run["itl_s"]["p99"]
