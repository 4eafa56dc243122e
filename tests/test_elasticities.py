"""What binds, and what the hardware's own knees are: laws of the simulated system."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import sim
from sim.planning.elasticities import Elasticities, can_saturate, of_capacity
from sim.planning.error_bar import parts_of, total_of
from sim.planning.kernel_error import kernel_error
from sim.planning.knee import Knee, find_knee
from sim.planning.resources import SPEEDS, scaled
from sim.planning.roofline_knees import roofline_knees
from sim.results import Result
from sim.results.statistics import correlation_length, growth, mser_5
from sim.simulation import ledger_of, simulate

CHAT: dict[str, Any] = {
    "hardware": "a100-80gb-sxm",
    "model": "llama-3-8b",
    "workload": {
        "arrivals": {"kind": "poisson"},
        "lengths": {"kind": "lognormal", "prompt_mean": 500, "output_mean": 60, "cv": 0.8},
    },
    "engine": {"max_num_seqs": 128},
    "load": {"rate_per_s": 8},
    "slo": {"tpot_p90_s": 0.03},
    "run": {"requests": 600, "precision": 0.1},
}


def chat(**changes: Any) -> sim.Scenario:
    return sim.load(CHAT).replace(changes)


def result(scenario: sim.Scenario) -> Result:
    return Result(simulate(scenario))


@cache
def knee() -> Knee:
    return find_knee(chat())


@pytest.mark.parametrize("gpus", [1, 2])
def test_speed_elasticities_of_capacity_sum_to_one(gpus: int) -> None:
    """Everything one percent faster at fixed KV is one percent more capacity; links count between GPUs."""
    asked = chat(**{"engine.tensor_parallel_size": gpus})
    found = of_capacity(asked, result, ledger_of(asked))
    assert found.speeds_sum == pytest.approx(1.0, abs=0.02)
    assert (found.of["link"] > 0.005) is (gpus > 1)
    assert all(found.of[name] > -0.02 for name in SPEEDS)


def test_starved_of_blocks_the_cache_binds() -> None:
    """With blocks for a dozen requests capacity rises with the pool, and more than with the batch limit."""
    asked = chat(**{"engine.num_gpu_blocks_override": 550, "engine.max_model_len": 4096})
    found = of_capacity(asked, result, ledger_of(asked))
    assert found.of["kv_blocks"] > 0.1 > abs(found.of["max_num_seqs"])
    assert found.ranked()[0] in ("kv_blocks", "memory_bandwidth", "compute")


def test_faster_means_faster() -> None:
    """A profile twice as fast in every respect halves every latency."""
    asked = chat(**{"load.rate_per_s": 0.2, "run.requests": 50})
    changed, ledger = asked, ledger_of(asked)
    for name in SPEEDS:
        changed = scaled(changed, name, 2.0, ledger)
    slow, fast = (result(x).series("e2e").mean() for x in (asked, changed))
    assert fast == pytest.approx(slow / 2, rel=0.02)


def test_the_total_interval_holds_sampling_and_all_parts() -> None:
    """Parts are listed, each no wider than the total, which holds the sampling interval."""
    answer = knee().as_dict()["knee"]
    interval = answer["interval"]
    low, high = interval["total"]
    assert low <= interval["sampling"][0] <= answer["rate_per_s"] <= interval["sampling"][1] <= high
    assert {"sampling", "gemm", "attention_decode", "memory", "host", "front_end"} <= set(interval["parts"])
    widest = max(part["relative"] for part in interval["parts"].values())
    assert widest <= np.log(high / answer["rate_per_s"]) * 1.001
    assert answer["binding"]["resource"] in answer["binding"]["elasticities"]
    assert answer["binding"]["next"] != answer["binding"]["resource"]


def test_parts_add_in_quadrature() -> None:
    """Without elasticities only sampling is left; the total is then the sampling interval."""
    asked = chat()
    parts = parts_of(asked, Elasticities({}), ledger_of(asked), 0.95)
    assert total_of(10.0, (9.5, 10.5), parts) == pytest.approx((9.5, 10.5))
    gemm = parts_of(asked, Elasticities({"gemm": 0.5}), ledger_of(asked), 0.95)["gemm"]
    assert gemm.uncertainty == kernel_error(asked, "gemm")[0] > 0
    assert gemm.relative == pytest.approx(1.96 * 0.5 * gemm.uncertainty, rel=0.01)


def test_kv_reads_equal_weights_at_a_batch_of_28_at_4k() -> None:
    """An 8B model at a context of 4096: weights that a step reads over KV bytes of a sequence."""
    asked = chat(**{"workload.lengths": {"kind": "fixed", "prompt_tokens": 4096, "output_tokens": 1}})
    found = roofline_knees(asked)["roofline_knees"]
    assert found["kv_equals_weights_batch"] == pytest.approx(28, abs=0.5)


def test_an_absent_knee_of_the_hardware_has_a_reason() -> None:
    """Four sequences reach no knee of a decode step; a budget of 64 tokens none of the linear layers."""
    few = {"engine.max_num_seqs": 4, "engine.max_num_batched_tokens": 64}
    found = roofline_knees(chat(**few))["roofline_knees"]
    assert found["kv_equals_weights_batch"] is None
    assert "max_num_seqs is reached first, at 4" in found["kv_equals_weights_batch_reason"]
    assert found["linear_batch"] is None
    assert "at most 64 tokens" in found["linear_batch_reason"]


@pytest.mark.parametrize(
    "limit",
    [
        "admission.max_queued_requests",
        "admission.max_queued_tokens",
        "admission.queue_deadline_s",
        "engine.max_num_queued_reqs",
        "engine.max_num_queued_tokens",
    ],
)
def test_a_bounded_queue_is_not_saturated_at_once(limit: str) -> None:
    """A queue with a limit would refuse a burst: its capacity is bracketed instead."""
    assert can_saturate(chat())
    assert not can_saturate(chat(**{limit: 5}))


def test_caching_raises_the_knee_of_sessions() -> None:
    """Turns cannot all be sent at once: the capacity is bracketed, and higher where turns find the last."""
    workload = {
        "lengths": {"kind": "fixed", "prompt_tokens": 900, "output_tokens": 20},
        "sessions": {"turns": {"kind": "fixed", "mean": 3}, "gap": {"kind": "fixed", "mean_s": 1}},
    }
    few = {"run.requests": 300, "run.most_replications": 2, "run.precision": 0.3}
    on, off = (
        find_knee(chat(workload=workload, **few, **{"engine.enable_prefix_caching": caching}))
        for caching in (True, False)
    )
    assert on.rate_per_s is not None
    assert off.rate_per_s is not None
    assert on.rate_per_s > 1.2 * off.rate_per_s
    assert on.capacity_rate_per_s is not None


def test_a_filling_batch_is_no_growing_queue() -> None:
    """Long prompts and long answers, a run shorter than a stay: stable, since nobody waits."""
    lengths = {"kind": "fixed", "prompt_tokens": 4000, "output_tokens": 1500}
    asked = chat(**{"workload.lengths": lengths, "load.rate_per_s": 0.5, "run.requests": 30})
    assert result(asked).summary()["stable"]
    assert not result(asked.replace({"load.rate_per_s": 40, "run.requests": 600})).summary()["stable"]


@pytest.mark.parametrize("limit", ["admission.max_queued_requests", "engine.max_num_queued_reqs"])
def test_a_bounded_queue_is_stable_at_any_load(limit: str) -> None:
    """Whoever finds the queue full is refused: nothing grows; as long as nobody has, it may well."""
    for most, stable in ((150, True), (100_000, False)):
        assert result(chat(**{"load.rate_per_s": 200, limit: most})).summary()["stable"] is stable


def test_growth_is_no_burst() -> None:
    """A steady rise is growth; a burst in the last tenth of a window is not."""
    at = np.arange(0.0, 1000.0)
    assert growth(at, at + 10 + 0.2 * at, (0.0, 1000.0))[1]
    burst = np.sort(np.concatenate([at, np.full(300, 950.0)]))
    assert not growth(burst, burst + 10, (0.0, 1000.0))[1]


def test_mser_5_cuts_the_ramp() -> None:
    """A ramp of 100 and then noise about a mean: about the ramp goes, of noise alone next to nothing."""
    noise = np.random.default_rng(1).standard_normal(2000)
    ramp = np.concatenate([np.linspace(-30, 0, 100), np.zeros(1900)])
    assert 85 <= mser_5(noise + ramp) <= 130
    assert mser_5(noise) <= 200


def test_correlation_length_of_an_autoregression() -> None:
    """x' = a x + noise is worth (1 + a) / (1 - a) values for one independent one."""
    noise = np.random.default_rng(2).standard_normal(50_000)
    series = np.zeros(len(noise))
    for i in range(1, len(noise)):
        series[i] = 0.8 * series[i - 1] + noise[i]
    assert correlation_length(series) == pytest.approx(9.0, rel=0.15)
    assert correlation_length(noise) == pytest.approx(1.0, abs=0.1)
