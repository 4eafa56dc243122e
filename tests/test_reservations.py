"""What admission sets aside for whom: hand-made timelines of one-second iterations, then laws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from cases import (
    admitting,
    assert_often,
    in_seconds,
    long_tailed,
    random_case,
)
from scipy import stats
from support import NO_FRONT_END, EvenSteps, answer

from sim.faults import InputFault
from sim.results import Result
from sim.serving.reservation import Reservation
from sim.serving.scheduler import RESERVED_TOKENS
from sim.serving.sequence import Sequence
from sim.simulation import Run, simulate
from sim.workload import mean_context_tokens


@pytest.fixture(params=[1, None], ids=["stepping", "leaping"])
def run(request: pytest.FixtureRequest) -> Callable[..., Run]:
    """Every story is told twice."""
    return in_seconds(request.param)


def begins(run: Run) -> list[float]:
    return run.recorder.column("first_scheduled_s").tolist()


def status(run: Run) -> list[str]:
    return Result(run).requests["status"].tolist()


# -- what is set aside -----------------------------------------------------------------------------


def test_what_is_set_aside_says_how_many_run_at_once(run: Callable[..., Run]) -> None:
    """Ten blocks; prompts of 16 and answers of 65, which peak at five blocks.

    By the prompt all four start at once, and two are preempted; by an expected answer of 64 (80 tokens,
    five blocks) two run at a time; by the longest permitted answer of 65 (81 tokens, six) one does.
    """
    four = [(0, 16, 65)] * 4
    by_prompt = run(admitting(blocks=10), *four)
    assert begins(by_prompt) == [0, 0, 0, 0]
    assert by_prompt.scheduler.preemptions > 0
    expected = run(admitting(blocks=10, reserve="expected", expected_output_tokens=64), *four)
    assert begins(expected) == [0, 0, 65, 65]
    worst = run(admitting(blocks=10, reserve="max", max_output_tokens=65), *four)
    assert begins(worst) == [0, 65, 130, 195]
    assert expected.scheduler.preemptions == worst.scheduler.preemptions == 0


def test_the_expected_answer_is_the_workloads_mean_unless_given() -> None:
    """300 tokens for 2000 in: reservations of 2300 tokens, so that 5000 hold two.

    Nobody expects more than is permitted.
    """
    scenario = admitting(reserve="expected", max_reserved_tokens=5000)
    scheduler = simulate(scenario.replace({"run.requests": 1})).scheduler
    assert scheduler.reservation.output_tokens == 300
    done = simulate(scenario.replace({"load": "burst", "run.requests": 6}))
    assert Result(done).summary()["concurrency_max"] == 6
    assert done.recorder.column("decodes").max() == 2
    capped = scenario.replace({"admission.max_output_tokens": 100, "run.requests": 1})
    assert simulate(capped).scheduler.reservation.output_tokens == 100


def test_answers_beyond_the_expected_are_served_all_the_same(run: Callable[..., Run]) -> None:
    """Two are admitted for 20 tokens each and take five blocks each of the pool's eight: one is preempted.

    It comes back when what it has by then, not what was expected, fits.
    """
    done = run(admitting(blocks=8, reserve="expected", expected_output_tokens=4), *[(0, 16, 65)] * 2)
    assert status(done) == ["completed"] * 2
    assert done.scheduler.preemptions == 1
    assert done.scheduler.reservation.tokens == done.scheduler.reservation.blocks == 0


def test_a_promise_covers_what_a_sequence_has_got() -> None:
    """A preempted sequence brings its answer so far; nobody is promised more than the context allows."""
    reservation, sequence = Reservation(4, 100, 1000, 16), Sequence(0, 16, 90)
    assert (reservation.tokens_of(sequence), reservation.blocks_of(sequence)) == (20, 2)
    sequence.generated = 48
    assert (reservation.tokens_of(sequence), reservation.blocks_of(sequence)) == (64, 4)
    assert Reservation(90, 100, 1000, 16).tokens_of(Sequence(0, 16, 84)) == 100


def test_without_a_cap_the_longest_permitted_answer_is_what_the_context_leaves(
    run: Callable[..., Run],
) -> None:
    """Ten blocks, a context of 160 tokens: whoever runs has them all."""
    assert begins(run(admitting(blocks=10, reserve="max"), *[(0, 16, 5)] * 3)) == [0, 5, 10]


def test_max_reserved_tokens_limits_what_runs_together(run: Callable[..., Run]) -> None:
    """Prompts of 30 under 100 tokens: three at once; the fourth is held by reserved_tokens.

    Waiting for a reservation is named as what binds.
    """
    done = run(admitting(max_reserved_tokens=100), *[(0, 30, 10)] * 4)
    assert begins(done) == [0, 0, 0, 10]
    summary = Result(done).summary()
    assert summary["binding"]["resource"] == "reserved_tokens"
    assert summary["binding"]["shares"]["reserved_tokens"] == 0.5
    assert set(done.recorder.column("held_by").tolist()) == {0, RESERVED_TOKENS}


def test_nobody_passes_a_head_that_waits_for_its_reservation(run: Callable[..., Run]) -> None:
    """C would fit beside A, but B is ahead of it."""
    assert begins(run(admitting(max_reserved_tokens=100), (0, 60, 5), (1, 60, 5), (1, 10, 5))) == [0, 5, 5]


def test_a_limit_beyond_the_pool_changes_nothing() -> None:
    """Setting aside prompts is what the engine does, and so many tokens are never there."""
    limit = {"admission.max_reserved_tokens": 10**6}
    tally = Counter[str]()
    for seed in range(30):
        case = random_case(seed, True, lambda rng, time_s: {"engine.max_num_batched_tokens": 64})
        limited = simulate(case.scenario.replace(limit), requests=case.requests, step_time=EvenSteps(2.0**-6))
        free, same = answer(case.run()), answer(limited)
        assert [part for part in free if part != "summary" and free[part] != same[part]] == []
        tally["preempted"] += limited.scheduler.preemptions > 0
    assert_often(tally, ("preempted",), 3)


def test_what_can_never_be_set_aside_is_refused_on_arrival(run: Callable[..., Run]) -> None:
    """A needs 101 of 100 reserved tokens, B 81 of 80 tokens in the pool once its answer is set aside."""
    assert status(run(admitting(max_reserved_tokens=100), (0, 101, 1), (0, 100, 1))) == [
        "never_schedulable",
        "completed",
    ]
    capped = admitting(blocks=5, reserve="max", max_output_tokens=20).replace({"engine.max_model_len": 80})
    assert status(run(capped, (0, 60, 20), (0, 61, 19))) == ["completed"] * 2
    expected = admitting(blocks=5, reserve="expected", expected_output_tokens=64)
    assert status(run(expected.replace({"engine.max_model_len": 80}), (0, 16, 65))) == ["completed"]


# -- contiguous ------------------------------------------------------------------------------------


def test_contiguous_reservations_schedule_like_reserve_max_and_hold_more() -> None:
    """The same requests at the same times; but what is set aside is in use, and twenty fill the pool.

    Nobody is ever preempted.
    """
    paged = simulate(long_tailed().replace({"admission.reserve": "max"}))
    contiguous = simulate(long_tailed().replace({"engine.kv_layout": "contiguous"}))
    one, other = answer(paged), answer(contiguous)
    assert [part for part in one if part != "summary" and one[part] != other[part]] == []
    held, used = Result(contiguous).summary()["kv_cache"], Result(paged).summary()["kv_cache"]
    assert contiguous.scheduler.preemptions == 0
    assert held["usage_max"] == 1.0
    assert held["usage_mean"] > 8 * used["usage_mean"]
    assert held["wasted_fraction"] > 0.85 > 0.02 > used["wasted_fraction"]


def test_a_contiguous_reservation_is_held_from_the_first_schedule_to_the_end(run: Callable[..., Run]) -> None:
    """Two of 1024 tokens (64 blocks), the second from 50 to 101, overlap: 64 x 152 block-seconds in 101.

    At most 128 blocks at once; with C, which begins when A ends, no more than that.
    """
    scenario = admitting().replace({"engine.kv_layout": "contiguous", "engine.max_model_len": 1024})
    cache = Result(run(scenario, (0, 100, 101), (50, 100, 51))).summary()["kv_cache"]
    assert cache["usage_mean"] == pytest.approx(64 * 152 / 101 / 1000)
    assert cache["usage_max"] == 128 / 1000
    three = Result(run(scenario, (0, 100, 101), (50, 100, 80), (101, 100, 5))).summary()["kv_cache"]
    assert three["usage_max"] == 128 / 1000


def test_a_contiguous_layout_needs_room_for_one_reservation() -> None:
    """As many blocks as max_model_len needs, less the engine's own: refused in one sentence."""
    scenario = long_tailed().replace(
        {"engine.kv_layout": "contiguous", "engine.num_gpu_blocks_override": 512}
    )
    with pytest.raises(InputFault, match="one reservation of max_model_len 8192 takes 512 KV blocks, 511"):
        simulate(scenario)


def test_reservations_waste_what_the_distribution_of_lengths_says() -> None:
    """1 - (mean context met in a batch) / (tokens reserved), where every iteration takes equally long.

    The mean context is E[o p + o^2/2] / E[o]; a ratio estimate over the run's own requests says how far
    a sample may be from it (99 %), and that is less than a hundredth.
    """
    scenario = long_tailed().replace({"engine.kv_layout": "contiguous", **NO_FRONT_END})
    done = simulate(scenario, step_time=EvenSteps(2.0**-10))
    prompts, outputs = done.requests.prompt_tokens, done.requests.output_tokens
    mean = mean_context_tokens(scenario.workload)
    deviation = (outputs * (prompts + outputs / 2 - mean)).std() / outputs.mean() / len(outputs) ** 0.5
    half = stats.norm.ppf(0.995) * deviation / 8192
    assert half < 0.01
    # The prefill is an iteration, too, and its tokens are not in the cache before it ends.
    in_prefill = (prompts + outputs / 2).mean() / outputs.mean() / 8192
    waste = Result(done).summary()["kv_cache"]["wasted_fraction"]
    assert abs(waste - (1 - mean / 8192)) < half + in_prefill


@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_pages_waste_under_half_a_block_a_sequence(block_size: int) -> None:
    """The last block of a sequence is half full on average: (size - 1) / 2 tokens of it are not used."""
    scenario = long_tailed().replace(
        {"engine.block_size": block_size, "engine.num_gpu_blocks_override": 200_000 // block_size}
    )
    done = simulate(scenario.replace(NO_FRONT_END), step_time=EvenSteps(2.0**-10))
    waste = Result(done).summary()["kv_cache"]["wasted_fraction"]
    mean, half = mean_context_tokens(scenario.workload), block_size / 2
    assert waste < half / (half + mean) * 1.05
    assert waste == pytest.approx((half - 0.5) / (half - 0.5 + mean), rel=0.1)


def test_reserving_for_the_longest_answer_makes_preemption_impossible() -> None:
    """In every random run, however long the answers and small the pool."""
    for seed in range(60):
        case = random_case(seed, True, lambda rng, time_s: {"admission.reserve": "max"})
        assert case.run().scheduler.preemptions == 0
