"""The small scenarios behind docs/engine-claims.md: an 8B model on one L40S unless it says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import sim
from sim.results import Result
from sim.scenario import Scenario
from sim.simulation import ledger_of
from sim.simulation import simulate as run_with
from sim.workload import Requests
from sim.workload.contents import Contents

NO_CACHE = {"engine.enable_prefix_caching": False}


@cache
def base() -> Scenario:
    """`replace` makes the others."""
    lengths = {"kind": "fixed", "prompt_tokens": 500, "output_tokens": 100}
    return sim.load(
        {
            "name": "engine claims",
            "hardware": "l40s-48gb-pcie",
            "model": "llama-3.1-8b",
            "workload": {"lengths": lengths},
            "load": "burst",
            "run": {"requests": 8, "warmup": 0},
        }
    )


def sent(
    requests: Sequence[tuple[float, int, int]],
    changes: dict[str, Any],
    heads: Sequence[tuple[int, int]] | None = None,
) -> Result:
    """The base with *changes*, and *requests* (arrival in s, prompt, answer) with heads (id, tokens)."""
    at_s, prompts, answers = (np.array(column) for column in zip(*requests, strict=True))
    contents = None
    if heads is not None:
        ids, ends = (np.array(column) for column in zip(*heads, strict=True))
        contents = Contents(np.arange(len(heads) + 1), ids, ends, np.full(len(heads), -1))
    order = Requests(at_s.astype(float), prompts, answers, np.full(len(at_s), np.inf), contents=contents)
    return Result(run_with(base().replace(changes), requests=order))


@dataclass(frozen=True)
class Frozen:
    """What users of an overcommitted server see."""

    in_time_s: float  # median gap between tokens
    longest_s: float  # gap of all
    worst_of_50_s: float  # largest gap of the request that is 98 % from the best
    over_mean: float  # p99 of E2E over its mean
    recomputed: float  # tokens over those of prompts
    lost: int  # requests that failed
    busy: float


@cache
def overcommitted() -> Frozen:
    """256 slots that want more than the cache has."""
    lengths = {"kind": "lognormal", "prompt_mean": 500, "output_mean": 600, "cv": 1.0}
    load = {"workload": {"lengths": lengths}, "load": {"concurrency": 256}, "run.requests": 1500}
    result = sim.simulate(base().replace({**load, **NO_CACHE, "engine.max_num_seqs": 256}))
    run, table = result.summary(), result.requests
    stalls = np.sort(table["stall_s"].dropna().to_numpy())
    return Frozen(
        run["itl_s"]["p50"],
        run["itl_s"]["max"],
        float(stalls[int(0.98 * len(stalls))]),
        run["e2e_s"]["p99"] / run["e2e_s"]["mean"],
        run["recomputed_tokens"] / float(table["prompt_tokens"].sum()),
        len(table) - int((table["status"] == "completed").sum()),
        run["utilization"]["busy"],
    )


@dataclass(frozen=True)
class Loop:
    """Two prompts that do not fit together."""

    preemptions: int
    recomputed_tokens: int
    last_first_token_s: float
    longest_gap_s: float


@cache
def two_long_prompts(gate: bool) -> Loop:
    """120,000 tokens each, at once, where 197,000 fit."""
    changes = {**NO_CACHE, "engine.scheduler_reserve_full_isl": gate}
    result = sent([(0.0, 120_000, 200), (0.0, 120_000, 200)], changes)
    run = result.summary()
    return Loop(
        run["preemptions"], run["recomputed_tokens"], run["ttft_s"]["max"], float(run["itl_s"]["max"])
    )


@dataclass(frozen=True)
class Beside:
    """A newcomer's prompt among answers that are being written."""

    median_gap_s: float
    p99_gap_s: float
    longest_gap_s: float
    ttft_s: float  # mean of the newcomers
    tokens_per_s: float


def beside(newcomers: int, prompt: int, changes: dict[str, Any], writing: int = 8) -> Beside:
    """*writing* answers of 400 tokens, and *newcomers* with a *prompt* each at 1 s."""
    old = [(0.0, 100, 400)] * writing
    result = sent([*old, *[(1.0, prompt, 16)] * newcomers], {"engine.max_model_len": 16_384, **changes})
    table, run = result.requests, result.summary()
    return Beside(
        run["itl_s"]["p50"],
        run["itl_s"]["p99"],
        float(table["stall_s"][:writing].max()),
        float(table["ttft_s"][writing:].mean()),
        run["makespan"]["output_throughput"],
    )


@cache
def unchunked(prompt: int) -> Beside:
    """One prompt computed whole, in a step of its own."""
    return beside(1, prompt, {"engine.preset": "vllm-v0"})


@cache
def chunked(budget: int) -> Beside:
    """A prompt of 6,144 in chunks of *budget* tokens, 14B on a 96 GB workstation card."""
    card = {"hardware": "rtx-pro-6000-96gb", "model": "qwen3-14b"}
    return beside(1, 6144, {**card, "engine.max_num_batched_tokens": budget})


@cache
def eight_prompts(preset: str) -> Beside:
    """Eight prompts of 8,000 at once; the host's times alike, so that only the policy differs."""
    host = {"engine.async_scheduling": False, "engine.host_step_s": 126e-6, **NO_CACHE}
    return beside(8, 8000, {"engine.preset": preset, **host})


@cache
def capacity(kv_dtype: str) -> int:
    """Tokens that fit in the cache."""
    return ledger_of(base().replace({"engine.kv_cache_dtype": kv_dtype})).kv_cache_tokens


@dataclass(frozen=True)
class Warm:
    """The same long head twice."""

    cold_s: float
    warm_s: float
    found_tokens: int
    held_blocks: int  # between the two, and after them


@cache
def warm() -> Warm:
    """A head of 50,000 tokens and 5,000 of one's own, one request after the other."""
    result = sent([(0.0, 55_000, 16), (60.0, 55_000, 16)], {}, [(0, 50_000)] * 2)
    scheduler = result.run.scheduler
    ttft_s = result.requests["ttft_s"].tolist()
    found = int(result.requests["cached_tokens"].iloc[1])
    return Warm(*ttft_s, found, scheduler.num_blocks - scheduler.free_blocks)


@cache
def alternating(pool_tokens: int) -> tuple[float, float]:
    """Hit rate and mean TTFT in s of two conversations of 30,000 tokens whose turns alternate."""
    changes = {"engine.num_gpu_blocks_override": pool_tokens // 16 + 1, "engine.max_model_len": 32_000}
    turns = [(40.0 * turn, 31_000, 100) for turn in range(20)]
    run = sent(turns, changes, [(turn % 2, 30_000) for turn in range(20)]).summary()
    return run["prefix_cache_hit_rate"], run["ttft_s"]["mean"]


@cache
def one_replica(rate_per_s: float, share: float = 1.0) -> tuple[float, float]:
    """Mean TTFT in s and hit rate of prompts of 9,800 tokens, the first 2,548 of them common to *share*."""
    head = {"kind": "groups", "groups": 1, "tokens": 2548, "share": share}
    lengths = {"kind": "fixed", "prompt_tokens": 9800, "output_tokens": 32}
    load = {"workload": {"lengths": lengths, "prefixes": head}, "load": {"rate_per_s": rate_per_s}}
    run = sim.simulate(base().replace({**load, "run.requests": 1500, "run.warmup": 0.1})).summary()
    return run["ttft_s"]["mean"], run["prefix_cache_hit_rate"]
