"""Prefix caching, priorities and asynchronous scheduling as a whole run shows them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import NO_FRONT_END, EvenSteps, base

import sim
from sim.report.text import run_text
from sim.results import Result
from sim.simulation import simulate
from sim.workload import Requests

SHARED = Path(__file__).parents[1].parent / "shared"
MOONCAKE = SHARED / "data" / "traces" / "mooncake" / "conversation_trace.jsonl.gz"
BLOCK = 16


def result(workload: dict[str, Any], **changes: Any) -> Result:
    """A run of *workload* (on top of fixed lengths) at one request a second, with these changes."""
    lengths = {"kind": "fixed", "prompt_tokens": 500, "output_tokens": 20}
    return Result(simulate(base().replace({"workload": {"lengths": lengths, **workload}, **changes})))


def test_answers_to_one_prompt_compute_it_once() -> None:
    """Four answers, prompts of 500: three find 31 whole blocks, and the prompt's 4 last tokens are theirs."""
    run = result({"answers": 4}, **{"load.rate_per_s": 1.0, "run.requests": 400})
    cached = run.requests.cached_tokens.to_numpy().reshape(100, 4)
    assert set(cached[:, 0]) == {0}
    assert set(cached[:, 1:].ravel()) == {31 * BLOCK}
    assert run.summary()["prefix_cache_hit_rate"] == pytest.approx(0.75 * 31 * BLOCK / 500)


def test_a_turn_finds_all_that_was_said_but_the_last_token() -> None:
    """The next prompt begins with the last one and its answer, whose last token was never computed."""
    sessions = {"turns": {"kind": "fixed", "mean": 3}, "gap": {"kind": "fixed", "mean_s": 100.0}}
    run = result({"sessions": sessions}, **{"load.rate_per_s": 0.5, "run.requests": 300})
    table = run.requests
    known = table.prompt_tokens.to_numpy()
    first, second, third = 500, 1020, 1540
    assert {first, second, third} == set(known)
    for prompt, before in ((second, first), (third, second)):
        whole_blocks = (before + 20 - 1) // BLOCK * BLOCK
        late = table.arrival_s.to_numpy() > 250.0  # whose session began within the run
        assert set(table.cached_tokens[late & (known == prompt)]) == {whole_blocks}


def test_heads_are_computed_once_each_when_nothing_is_evicted() -> None:
    """20 heads of 320 tokens, everybody has one: all but the first of each find 20 blocks."""
    prefixes = {"kind": "groups", "groups": 20, "tokens": 320, "zipf": 1.0}
    run = result({"prefixes": prefixes}, **{"load.rate_per_s": 2.0, "run.requests": 1000})
    cached = run.requests.cached_tokens.to_numpy()
    assert set(cached) == {0, 320}
    assert (cached == 0).sum() == 20
    assert run.summary()["prefix_cache_evicted_blocks"] == 0


def test_the_cache_rescues_part_of_what_preemption_threw_away() -> None:
    """On the same requests more than a third of the tokens computed again are found, and fewer are lost."""
    changes = {
        "engine.num_gpu_blocks_override": 801,
        "engine.max_model_len": 4096,
        "load.rate_per_s": 12.0,
        "run.requests": 600,
    }
    lengths = {"lengths": {"kind": "lognormal", "prompt_mean": 300, "output_mean": 300, "cv": 0.5}}
    on, off = (
        result(lengths, **changes, **{"engine.enable_prefix_caching": caching}).summary()
        for caching in (True, False)
    )
    assert off["preemptions"] > 50
    assert on["recomputed_tokens"] < 0.67 * off["recomputed_tokens"]
    assert on["prefix_cache_hit_rate"] == 0.0  # what the preempted find again counts for nobody


def test_the_urgent_pass_those_who_wait() -> None:
    """One slot, steps of 1 s: of two who wait, the later but more urgent is served first."""
    scenario = base().replace(
        {**NO_FRONT_END, "engine.max_num_seqs": 1, "engine.scheduling_policy": "priority"}
    )
    arrival_s = np.array([0.0, 1.5, 2.5])
    five = np.array([5, 5, 5])
    sent = Requests(arrival_s, five, five, priorities=np.array([1, 1, 0]))
    run = simulate(scenario, requests=sent, step_time=EvenSteps(1.0))
    assert run.recorder.column("finish_s").tolist() == [5.0, 15.0, 10.0]


def test_a_run_tells_of_each_priority() -> None:
    """Counts and latencies by class add up to everybody's; the urgent wait less; the table names them."""
    lengths = {"lengths": {"kind": "lognormal", "prompt_mean": 4000, "output_mean": 200, "cv": 1.0}}
    run = result(
        {**lengths, "priorities": {"weights": [0.25, 0.75]}},
        **{"engine.scheduling_policy": "priority", "load.rate_per_s": 12.0, "run.requests": 600},
    )
    summary = run.summary()
    urgent, others = summary["by_class"]["priority 0"], summary["by_class"]["priority 1"]
    assert urgent["requests"]["offered"] + others["requests"]["offered"] == 600
    assert urgent["requests"]["offered"] == pytest.approx(150, abs=45)
    assert urgent["ttft_s"]["mean"] < others["ttft_s"]["mean"] / 3
    assert urgent["ttft_s"]["n"] + others["ttft_s"]["n"] == summary["ttft_s"]["n"]
    assert set(run.requests.traffic_class) == {"priority 0", "priority 1"}
    assert "TTFT p99, priority 0" in run_text(summary)


def test_the_text_says_what_was_found() -> None:
    """Three answers of four find their prompt: 74.4 % of all prompt tokens."""
    run = result({"answers": 4}, **{"load.rate_per_s": 1.0, "run.requests": 40})
    assert re.search(r"found in prefix cache +74(\.4)? ?%", run_text(run.summary()))


@pytest.mark.parametrize(("asynchronous", "first_s"), [(False, (1.0, 3.0)), (True, (1.0, 4.0))])
def test_who_comes_during_a_step_is_seen_by_the_one_after_next(
    asynchronous: bool, first_s: tuple[float, float]
) -> None:
    """Steps of 1 s; one comes to an idle engine, one in its second step.

    A synchronous engine has it in the third step; an asynchronous one has formed that when the second
    began, and has it in the fourth.
    """
    scenario = base().replace({**NO_FRONT_END, "engine.async_scheduling": asynchronous})
    sent = Requests(np.array([0.0, 1.5]), np.array([5, 5]), np.array([9, 9]))
    run = simulate(scenario, requests=sent, step_time=EvenSteps(1.0))
    assert tuple(run.recorder.column("first_token_s").tolist()) == first_s


@pytest.mark.parametrize("host_s", [0.0, 0.002, 0.02])
def test_an_asynchronous_step_takes_the_longer_of_gpu_and_host(host_s: float) -> None:
    """The sum without it; a lone request's TPOT says which."""
    lone = {"load.rate_per_s": 0.01, "run.requests": 3, "engine.host_sequence_s": 0.0}

    def tpot_s(**changes: Any) -> float:
        run = result({}, **lone, **{f"engine.{key}": value for key, value in changes.items()})
        return float(run.requests.tpot_s.iloc[0])

    gpu_s = tpot_s(host_step_s=0.0)
    assert 0.005 < gpu_s < 0.01
    assert tpot_s(host_step_s=host_s) == pytest.approx(gpu_s + host_s, rel=1e-6)
    assert tpot_s(host_step_s=host_s, async_scheduling=True) == pytest.approx(max(gpu_s, host_s), rel=1e-6)


def test_a_host_that_is_overtaken_by_a_growing_context_stops_counting() -> None:
    """A step as slow as the host somewhere in one long answer: before it the host counts, then the GPU."""
    long = {"lengths": {"kind": "fixed", "prompt_tokens": 10, "output_tokens": 30_000}}
    lone = {"load.rate_per_s": 0.001, "run.requests": 1, "engine.host_sequence_s": 0.0, "run.warmup": 0.0}

    def e2e_s(host_step_s: float, asynchronous: bool = True) -> float:
        engine = {"engine.host_step_s": host_step_s, "engine.async_scheduling": asynchronous}
        return float(result(long, **lone, **engine).requests.e2e_s.iloc[0])

    alone_s, slow_s = e2e_s(0.0), e2e_s(0.02)
    host_s = alone_s / 30_000  # the mean step: the GPU is faster before the middle, slower behind it
    between_s = e2e_s(host_s)
    assert slow_s == pytest.approx(30_000 * 0.02, rel=1e-3)
    assert alone_s < between_s < e2e_s(host_s, asynchronous=False)
    assert between_s < alone_s * 1.1


@pytest.mark.skipif(not MOONCAKE.exists(), reason="needs the Mooncake trace")
@pytest.mark.parametrize(("blocks", "lru"), [(1_000, 0.0445), (10_000, 0.211), (50_000, 0.355)])
@pytest.mark.parametrize("time_scale", [0.02, 1.0])
def test_hits_on_mooncake_follow_the_lru_curve(blocks: int, lru: float, time_scale: float) -> None:
    """12,031 conversations in a pool of so many times 512 tokens: within 2 points of a bare LRU cache.

    Once nearly one at a time, once as fast as recorded, when the batch takes its part of the pool too.
    """
    scenario = sim.load(
        {
            "name": "mooncake",
            "hardware": {"base": "h100-80gb-sxm", "memory_bytes": "20TB"},
            "model": "llama-3.1-8b",
            "engine": {"num_gpu_blocks_override": blocks * 512 // BLOCK + 1},
            "workload": str(MOONCAKE),
            "load": {"mode": "trace", "time_scale": time_scale},
        }
    )
    summary = Result(simulate(scenario)).summary()
    assert summary["requests"]["completed"] == 12_031
    assert summary["prefix_cache_hit_rate"] == pytest.approx(lru, abs=0.02)
    assert summary["checks"]["tokens_conserved"]
