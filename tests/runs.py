"""Small runs that the tests of results share, each with the replay of its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from replay import Replay, replay

import sim
from sim.clock import on_grid
from sim.results import Result
from sim.simulation import simulate
from sim.workload import Requests

FIXED = {
    "arrivals": {"kind": "poisson"},
    "lengths": {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 50},
}
TIGHT = {"num_gpu_blocks_override": 41, "max_model_len": 600, "max_num_seqs": 12}


def result(
    requests: Requests | None = None, engine: Mapping[str, Any] | None = None, **sections: Any
) -> Result:
    """A run of the 8B on an A100 without a front end, with *requests* in place of the scenario's own.

    The plain engine, which `replay` walks through: step after step, without a prefix cache.
    """
    bare = {
        "front_end_latency_s": 0,
        "front_end_service_s": 0,
        "front_end_prompt_token_s": 0,
        "async_scheduling": False,
        "enable_prefix_caching": False,
    }
    document = {
        "name": "test",
        "hardware": "a100-80gb-sxm",
        "model": "llama-3-8b",
        "engine": {**bare, **(engine or {})},
        "workload": FIXED,
        "load": {"rate_per_s": 5},
        "run": {"requests": 100, "warmup": 0.2},
        **sections,
    }
    return Result(simulate(sim.load(document), max_leap=1, requests=requests))


def requests(
    count: int,
    seed: int,
    *,
    rate_per_s: float = 20.0,
    prompt: int = 200,
    output: int = 60,
    patience_s: float | None = None,
) -> Requests:
    """Poisson arrivals of prompts and answers of uniform lengths, up to the given ones."""
    draw = np.random.default_rng(seed)
    return Requests(
        on_grid(np.cumsum(draw.exponential(1 / rate_per_s, count))),
        draw.integers(1, prompt + 1, count),
        draw.integers(1, output + 1, count),
        None if patience_s is None else on_grid(draw.exponential(patience_s, count)),
    )


def at(*arrivals: tuple[float, int, int]) -> Requests:
    """Requests of (arrival in s, prompt tokens, output tokens)."""
    columns = [np.array(column) for column in zip(*arrivals, strict=True)]
    return Requests(on_grid(columns[0].astype(float)), columns[1].astype(int), columns[2].astype(int))


STORIES: dict[str, tuple[Requests, dict[str, Any]]] = {
    "steady": (requests(120, 1), {}),
    "with a front end": (requests(60, 2), {"front_end_latency_s": 0.01, "front_end_service_s": 0.002}),
    "preempting": (requests(80, 3, prompt=120, output=200), TIGHT),
    "preempting without the gate": (
        requests(80, 4, prompt=400, output=100),
        {**TIGHT, "scheduler_reserve_full_isl": False, "max_num_batched_tokens": 128},
    ),
    "crowded": (
        requests(150, 5, rate_per_s=400, prompt=60, output=30),
        {"max_num_batched_tokens": 24, "max_num_seqs": 24, "long_prefill_token_threshold": 4},
    ),
    "crowded and preempting": (
        requests(150, 6, rate_per_s=400, prompt=60, output=90),
        {
            "num_gpu_blocks_override": 30,
            "max_model_len": 300,
            "max_num_batched_tokens": 24,
            "max_num_seqs": 24,
            "long_prefill_token_threshold": 4,
            "scheduler_reserve_full_isl": False,
        },
    ),
    "impatient": (requests(120, 7, patience_s=0.5), {**TIGHT, "front_end_latency_s": 0.01}),
    "impatient and crowded": (
        requests(150, 8, rate_per_s=400, prompt=60, output=60, patience_s=1.0),
        {
            "num_gpu_blocks_override": 30,
            "max_model_len": 300,
            "max_num_batched_tokens": 24,
            "max_num_seqs": 24,
            "long_prefill_token_threshold": 4,
        },
    ),
    "short answers": (requests(100, 9, output=2), {}),
}


@cache
def story(name: str) -> tuple[Result, Replay]:
    sent, engine = STORIES[name]
    found = result(sent, engine, slo={"ttft_p99_s": 0.2, "itl_p99_s": 0.05, "tpot_p90_s": 0.03})
    return found, replay(found.run)


every_story = pytest.mark.parametrize("name", STORIES)
