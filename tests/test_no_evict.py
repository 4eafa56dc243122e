"""TensorRT-LLM's way, by hand and in leaps: whole answers promised, prompts whole, nobody preempted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from cases import assert_often, in_seconds, leaps_change_nothing, random_case, statuses
from support import NO_FRONT_END, base

import sim
from sim.results import Result
from sim.scenario import Scenario
from sim.simulation import Run


@pytest.fixture(params=[1, None], ids=["stepping", "leaping"])
def run(request: pytest.FixtureRequest) -> Callable[..., Run]:
    """Every story is told twice."""
    return in_seconds(request.param)


def small(blocks: int = 1000, **engine: Any) -> Scenario:
    """*blocks* of 16 tokens; steps follow one another."""
    keys = {"preset": "tensorrt-llm", "block_size": 16, "async_scheduling": False, **engine}
    keys |= {"num_gpu_blocks_override": blocks, "max_model_len": min(16 * blocks, 4096)}
    return base().replace({**NO_FRONT_END, **{f"engine.{key}": value for key, value in keys.items()}})


def first_and_last(done: Run) -> list[tuple[float, float]]:
    rows = Result(done).requests
    return list(zip(rows["first_token_s"].tolist(), rows["finish_s"].tolist(), strict=True))


def test_whole_answers_are_promised_and_nobody_is_preempted(run: Callable[..., Run]) -> None:
    """Ten blocks. A is promised eight; B, eight as well, waits, and C, which would fit, behind it.

    A ends at 64: B and C, 8 + 2, begin then, and end after 64 and 16 steps of their own.
    """
    done = run(small(10), (0, 64, 64), (0, 64, 64), (0, 16, 16))
    assert first_and_last(done) == [(1, 64), (65, 128), (65, 80)]
    assert done.scheduler.preemptions == 0


def test_a_longer_limit_is_what_admission_says(run: Callable[..., Run]) -> None:
    """Twelve blocks hold two prompts of 64 with answers of 16, but not with answers of up to 64."""
    requests = [(0, 64, 16), (0, 64, 16)]
    assert first_and_last(run(small(12), *requests)) == [(1, 16), (1, 16)]
    limit = {"admission.reserve": "max", "admission.max_output_tokens": 64}
    assert first_and_last(run(small(12).replace(limit), *requests)) == [(1, 16), (17, 32)]


@pytest.mark.parametrize(("chunked", "second"), [(False, 2), (True, 2), (True, 1)])
def test_a_prompt_waits_for_a_step_that_has_room_for_all_of_it(
    chunked: bool, second: int, run: Callable[..., Run]
) -> None:
    """Budget 100: 80 and 80 are two steps, and the second prompt begins in the first only in chunks.

    A prompt of 20 behind it does not pass. One of 101 is refused, unless it may be cut.
    """
    scenario = small(max_num_batched_tokens=100, max_num_seqs=8, enable_chunked_prefill=chunked)
    if second == 1:
        done = run(scenario, (0, 101, 1))
        assert Result(done).requests["status"].tolist() == ["completed"]
        return
    done = run(scenario, (0, 80, 1), (0, 80, 1), (0, 20, 1))
    assert first_and_last(done) == [(1, 1), (2, 2), (2, 2)]
    tokens = done.recorder.column("prefill_tokens").tolist()
    assert tokens == ([100, 80] if chunked else [80, 100])
    if not chunked:
        refused = run(scenario, (0, 101, 1))
        assert Result(refused).requests["status"].tolist() == ["never_schedulable"]


def test_whole_prompts_leave_the_decodes_their_tokens(run: Callable[..., Run]) -> None:
    """Budget 100: beside one decode 99 fit, and 100 wait until it has ended."""
    for prompt, begins in ((99, 2), (100, 4)):
        scenario = small(max_num_batched_tokens=100, max_num_seqs=8)
        assert first_and_last(run(scenario, (0, 10, 3), (0.5, prompt, 1)))[1] == (begins, begins)


def test_the_kv_cache_is_a_share_of_what_is_left() -> None:
    """Nine tenths of what weights, activations and overhead leave; vLLM takes all of it below its share."""
    from sim.simulation import ledger_of

    ledger = ledger_of(sim.load("chat-8b-a100", ["engine={preset: tensorrt-llm, max_model_len: 8192}"]))
    held = ledger.weights_bytes + ledger.activation_bytes + ledger.overhead_bytes
    assert ledger.kv_cache_bytes == int(0.9 * (ledger.gpu_memory_bytes - held))


def random_trt(rng: random.Random, time_s: Callable[[float], float]) -> dict[str, Any]:
    return {
        "engine.preset": "tensorrt-llm",
        "engine.enable_chunked_prefill": rng.random() < 0.3,
        "engine.async_scheduling": rng.random() < 0.6,
        "engine.host_step_s": rng.choice([1e-3, 6e-3, 2e-2]),
        **({"admission.max_queued_requests": rng.choice([1, 3, 8])} if rng.random() < 0.2 else {}),
        **({"admission.queue_deadline_s": time_s(3.0)} if rng.random() < 0.3 else {}),
    }


@pytest.mark.parametrize("ticks", [True, False], ids=["ties", "free"])
def test_leaps_change_nothing(ticks: bool) -> None:
    """To the last bit, and blocks and tokens are conserved; nobody is ever preempted."""
    tally, cases = Counter[str](), 24
    for seed in range(cases):
        case = random_case(seed, ticks, random_trt)
        done = leaps_change_nothing(case, f"trt {seed}", 2 + seed % 5)
        assert done.scheduler.preemptions == 0
        tally += Counter(statuses(done).keys())
        tally["whole"] += not case.scenario.engine["enable_chunked_prefill"]
    often = ("completed", "cancelled", "timed_out", "rejected", "never_schedulable", "whole")
    assert_often(tally, often, cases // 20)
