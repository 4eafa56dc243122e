"""Static batching on timelines that a hand can derive: every iteration takes one second.

A group that starts at t has its first tokens at t + 1 and then one token a second, in every slot, until
its longest answer ends.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import assert_often, in_seconds, leaps_change_nothing, random_case, sent, statuses
from support import NO_FRONT_END, base

from sim.cli.catalogue import text_of
from sim.faults import InputFault
from sim.hardware import HardwareProfile
from sim.model import ModelSpec
from sim.results import Result
from sim.scenario import Scenario
from sim.serving.compile import compile_step_time
from sim.serving.static import StaticScheduler
from sim.simulation import Run, simulate


def engine(group: int, wait_s: float = 10.0, reservations: int = 100, longest: int = 1024) -> Scenario:
    """Groups of *group*; the pool has room for *reservations* of max_model_len *longest*."""
    return base().replace(
        {
            **NO_FRONT_END,
            "engine.preset": "static",
            "engine.max_num_seqs": group,
            "engine.batch_wait_s": wait_s,
            "engine.max_model_len": longest,
            "engine.num_gpu_blocks_override": reservations * -(-longest // 16) + 1,
        }
    )


@pytest.fixture(params=[1, None], ids=["stepping", "leaping"])
def run(request: pytest.FixtureRequest) -> Callable[..., Run]:
    """Every story is told twice."""
    return in_seconds(request.param)


def times(run: Run, name: str) -> list[float]:
    return run.recorder.column(name).tolist()


# -- the preset ------------------------------------------------------------------------------------


def test_the_preset_says_what_is_different() -> None:
    """Groups of 8, a second for company, contiguous reservations; the rest as in vLLM V1, and shown so."""
    static, usual = base().replace({"engine.preset": "static"}), base()
    other = {key for key, value in static.engine.items() if usual.engine[key] != value}
    assert {"preset", "max_num_seqs", "batch_wait_s", "kv_layout"} <= other
    # From 8 slots, from reservations, and since a padded group has no graph.
    follow = {"max_cudagraph_capture_size", "enable_prefix_caching", "cudagraph_prefill"}
    follow |= {"enable_chunked_prefill"}
    assert other <= {"preset", "max_num_seqs", "batch_wait_s", "kv_layout"} | follow
    own = {key: static.engine[key] for key in ("max_num_seqs", "batch_wait_s", "kv_layout")}
    assert own == {"max_num_seqs": 8, "batch_wait_s": 1.0, "kv_layout": "contiguous"}
    assert {static.sources[f"engine.{key}"] for key in own} == {"preset static"}
    shown = text_of("engine", "static")
    assert shown.startswith("static\n")
    for key, words in (
        ("max_num_seqs", "[8]"),
        ("batch_wait_s", "[1.0]"),
        ("kv_layout", "[contiguous]"),
    ):
        assert words in next(line for line in shown.splitlines() if line.startswith(f"engine.{key} "))


# -- when a group starts ---------------------------------------------------------------------------


def test_a_full_group_starts_at_once(run: Callable[..., Run]) -> None:
    """B makes A's group full at 1: first tokens at 2, answers of three end at 4."""
    done = run(engine(2), (0, 5, 3), (1, 5, 3))
    assert times(done, "first_scheduled_s") == [1, 1]
    assert times(done, "first_token_s") == [2, 2]
    assert times(done, "finish_s") == [4, 4]


def test_a_group_that_is_not_full_starts_when_its_head_has_waited(run: Callable[..., Run]) -> None:
    """A waits its four seconds; B, at 3, and C, at the very instant, go with it, D the next time.

    D comes at 4.5 and has waited for 2.5 seconds when the group ends, so it starts at 8.5.
    """
    done = run(engine(8, wait_s=4), (0, 5, 3), (3, 5, 3), (4, 5, 3), (4.5, 5, 3))
    assert times(done, "first_scheduled_s") == [4, 4, 4, 8.5]
    assert times(done, "finish_s") == [7, 7, 7, 11.5]


def test_without_a_wait_whoever_is_there_starts(run: Callable[..., Run]) -> None:
    """A starts alone; B and C find it running and start together when it ends."""
    done = run(engine(8, wait_s=0), (0, 5, 4), (1, 5, 1), (2, 5, 1))
    assert times(done, "first_scheduled_s") == [0, 4, 4]


def test_a_wait_that_no_clock_has_ends_on_the_grid(run: Callable[..., Run]) -> None:
    """A tenth of a second is no sum of powers of two; the group's times are, and all that follow."""
    begin_s, end_s = (
        times(run(engine(2, wait_s=0.1), (0.5, 5, 3)), name)[0] for name in ("first_scheduled_s", "finish_s")
    )
    assert abs(begin_s - 0.6) <= 2.0**-33
    assert begin_s * 2.0**32 == round(begin_s * 2.0**32)
    assert end_s == begin_s + 3


def test_nobody_joins_a_group_that_runs(run: Callable[..., Run]) -> None:
    """C comes at 1 to a group of two that ends at 10, and by then has waited long enough to start alone."""
    done = run(engine(2, wait_s=4), (0, 5, 10), (0, 5, 10), (1, 5, 2))
    assert times(done, "first_scheduled_s") == [0, 0, 10]


def test_who_has_not_waited_long_enough_waits_on_after_the_group(run: Callable[..., Run]) -> None:
    """C, at 1 with a wait of 20, is alone when the group ends at 10 and starts at 21; D comes too late."""
    done = run(engine(2, wait_s=20), (0, 5, 10), (0, 5, 10), (1, 5, 2), (21.5, 5, 2))
    assert times(done, "first_scheduled_s") == [0, 0, 21, 41.5]


def test_a_full_group_that_has_formed_meanwhile_starts_when_the_other_ends(run: Callable[..., Run]) -> None:
    """C and D are two, so they start at 5 whatever the wait."""
    done = run(engine(2, wait_s=100), (0, 5, 5), (0, 5, 5), (1, 5, 2), (2, 5, 2))
    assert times(done, "first_scheduled_s") == [0, 0, 5, 5]


def test_a_burst_goes_in_full_groups_and_a_last_partial_one(run: Callable[..., Run]) -> None:
    """Five at once in groups of two: at 0, 4 and, alone, at 8, since the fifth has waited longer than 3."""
    done = run(engine(2, wait_s=3), *[(0, 5, 4)] * 5)
    assert times(done, "first_scheduled_s") == [0, 0, 4, 4, 8]
    assert Result(done).summary()["makespan"]["duration_s"] == 12


def test_the_last_partial_group_waits_for_company_that_never_comes(run: Callable[..., Run]) -> None:
    """The third of three, at 6, waits its three seconds although the engine is idle from 4 on."""
    assert times(run(engine(2, wait_s=3), (0, 5, 4), (0, 5, 4), (6, 5, 4)), "finish_s") == [4, 4, 13]


# -- padding ---------------------------------------------------------------------------------------


def test_prompts_are_padded_to_the_longest(run: Callable[..., Run]) -> None:
    """Prompts of 10, 60 and 100 are one step of 300 tokens, 130 of them padding.

    The first decode then reads 101 tokens in each of the three slots.
    """
    done = run(engine(3), (0, 10, 5), (0, 60, 5), (0, 100, 5))
    assert times(done, "prefill_tokens")[0] == 300
    assert times(done, "prefill_sequences")[0] == 3
    assert times(done, "context_tokens")[1] == 303
    assert done.scheduler.padded_tokens == 130


def test_80_and_800_tokens_in_one_group_idle_720_slot_steps(run: Callable[..., Run]) -> None:
    """The short answer ends at 80, but its slot is held until 800: 720 steps for nothing."""
    done = run(engine(2, longest=4096), (0, 5, 80), (0, 5, 800), (1, 5, 1), (1, 5, 1))
    assert times(done, "finish_s") == [80, 800, 801, 801]
    summary = Result(done).summary()
    assert summary["idle_slot_steps"] == 720
    assert summary["padded_tokens"] == 720
    assert set(times(done, "decodes")) == {0, 2}, "ended answers are computed on"


def test_answers_of_one_token_end_with_the_prefill(run: Callable[..., Run]) -> None:
    """The whole group is over after one step."""
    assert times(run(engine(2), (0, 5, 1), (0, 50, 1)), "finish_s") == [1, 1]


def test_the_step_times_table_goes_on_beyond_the_token_budget() -> None:
    """A group's prompts are one step, whatever the budget: extrapolated within 1 % of a larger table."""
    scenario = engine(8).replace({"engine.max_model_len": 8192, "engine.num_gpu_blocks_override": 8000})
    parts = HardwareProfile.from_mapping(scenario.hardware), ModelSpec.from_mapping(scenario.model)
    small, large = (
        compile_step_time(*parts, {**scenario.engine, "max_num_batched_tokens": budget}, 100_000)
        for budget in (4096, 65_536)
    )
    for tokens in (4097, 5000, 16_384, 65_536):
        measured = [model.mixed_s(0, 0, 8, tokens, 0, 8 * (tokens // 8) ** 2, 8) for model in (small, large)]
        assert measured[0] == pytest.approx(measured[1], rel=0.01)


# -- memory ----------------------------------------------------------------------------------------


def test_memory_may_make_groups_smaller_and_the_run_says_so(run: Callable[..., Run]) -> None:
    """Room for three reservations of max_model_len: six of eight go in two groups, however short they are."""
    done = run(engine(8, wait_s=0, reservations=3), *[(0, 5, 4)] * 6)
    assert times(done, "first_scheduled_s") == [0, 0, 0, 4, 4, 4]
    summary = Result(done).summary()
    assert summary["kv_cache"]["usage_max"] == 1.0
    assert (
        "groups have at most 3 requests, not max_num_seqs 8: the KV cache has no room for more reservations "
        "of max_model_len 1024"
    ) in summary["warnings"]
    unlimited = Result(run(engine(8, reservations=8), (0, 5, 4))).summary()
    assert not any("groups" in warning for warning in unlimited["warnings"])


def test_a_pool_without_room_for_one_reservation_is_refused() -> None:
    """The engine's null block is the one that is missing."""
    scenario = engine(8, reservations=1)
    short = scenario.replace({"engine.num_gpu_blocks_override": 64})
    with pytest.raises(
        InputFault, match="does not fit: one reservation of max_model_len 1024 takes 64 KV bl"
    ):
        simulate(short)
    assert isinstance(simulate(scenario.replace({"run.requests": 3})).scheduler, StaticScheduler)


def test_a_group_may_read_more_padding_than_fits_in_its_reservations() -> None:
    """A long prompt and a long answer of different requests, in a group that fills the memory."""
    scenario = engine(8, wait_s=0, reservations=8)
    requests = sent(*[(0, 1000, 10)] * 7, (0, 10, 1000))
    summary = Result(simulate(scenario, requests=requests)).summary()
    assert summary["requests"]["completed"] == 8


def test_reservations_waste_what_the_lengths_leave_of_them(run: Callable[..., Run]) -> None:
    """Contexts from 100 to 300 in reservations of 1024: 1 - 200/1024 of what is held is never used.

    With a short answer in the group its slot is waste, too, once it has ended: it holds
    100 x (100 + 50) of 200 x 1024 token-seconds.
    """
    alike = Result(run(engine(2), (0, 100, 201), (0, 100, 201))).summary()["kv_cache"]
    assert alike["wasted_fraction"] == pytest.approx(1 - 200 / 1024, rel=0.005)
    assert alike["usage_mean"] == alike["usage_max"] == 2 / 100
    mixed = Result(run(engine(2), (0, 100, 201), (0, 100, 101))).summary()["kv_cache"]
    used = (200 * 200 + 100 * 150) / (2 * 200 * 1024)
    assert mixed["wasted_fraction"] == pytest.approx(1 - used, rel=0.005)


# -- leaving ---------------------------------------------------------------------------------------


def test_the_slot_of_who_gives_up_idles_until_its_group_ends(run: Callable[..., Run]) -> None:
    """B gives up at 4.5: its fifth token is lost, its slot idles for the steps 6 to 10 of A's answer."""
    done = run(engine(2), (0, 5, 10), (0, 5, 10, 4.5), (1, 5, 1), (1, 5, 1))
    assert times(done, "finish_s") == [10, 4.5, 11, 11]
    assert statuses(done) == {"completed": 3, "cancelled": 1}
    assert Result(done).requests["output_tokens"].tolist() == [10, 4, 1, 1]
    assert done.scheduler.idle_slot_steps == 5


def test_a_group_whose_last_request_gives_up_ends_with_the_iteration(run: Callable[..., Run]) -> None:
    """Both have left by 4.5: the next group starts at 5."""
    done = run(engine(2), (0, 5, 10, 2.5), (0, 5, 10, 4.5), (1, 5, 2), (1, 5, 2))
    assert times(done, "first_scheduled_s") == [0, 0, 5, 5]


def test_who_gives_up_in_the_queue_makes_no_group_full(run: Callable[..., Run]) -> None:
    """A leaves at 2, so B and C, at 1 and 3, are the pair; D's wait begins when D comes."""
    done = run(engine(2, wait_s=5), (0, 5, 4, 0.5), (1, 5, 4), (3, 5, 4), (4, 5, 4))
    assert statuses(done) == {"completed": 3, "cancelled": 1}
    assert times(done, "first_scheduled_s")[1:] == [3, 3, 9]


def test_the_wait_is_that_of_the_oldest_who_is_still_there(run: Callable[..., Run]) -> None:
    """A, at 0, would have started its group at 5; it leaves at 2, and B, at 1, starts at 6."""
    done = run(engine(3, wait_s=5), (0, 5, 4, 2), (1, 5, 4))
    assert times(done, "first_scheduled_s")[1] == 6


def test_when_all_who_waited_have_left_the_engine_is_idle(run: Callable[..., Run]) -> None:
    """A leaves at 2; B, at 9, waits its own five seconds."""
    done = run(engine(3, wait_s=5), (0, 5, 4, 2), (9, 5, 4))
    assert times(done, "first_scheduled_s")[1] == 14


def test_an_empty_place_in_the_queue_can_be_taken_at_once(run: Callable[..., Run]) -> None:
    """One may wait: B is refused at 1, A leaves at 2, C has the place at 3."""
    scenario = engine(3, wait_s=5).replace({"admission.max_queued_requests": 1})
    done = run(scenario, (0, 5, 4, 2), (1, 5, 4), (3, 5, 4))
    assert Result(done).requests["status"].tolist() == ["cancelled", "rejected", "completed"]


# -- leaps -----------------------------------------------------------------------------------------


def random_static(rng: random.Random, time_s: Callable[[float], float]) -> dict[str, Any]:
    return {
        "engine.preset": "static",
        "engine.batch_wait_s": rng.choice([0.0, 0.1, time_s(2.0)]),
        "engine.max_num_seqs": rng.choice([1, 2, 3, 8]),
        **({"admission.max_queued_requests": rng.choice([1, 3, 8])} if rng.random() < 0.2 else {}),
        **({"admission.queue_deadline_s": time_s(3.0)} if rng.random() < 0.3 else {}),
    }


@pytest.mark.parametrize("ticks", [True, False], ids=["ties", "free"])
def test_leaps_change_nothing(ticks: bool) -> None:
    """To the last bit, with patience, deadlines and bounded queues, where all instants are ties and not."""
    tally, cases = Counter[str](), 60
    for seed in range(cases):
        done = leaps_change_nothing(random_case(seed, ticks, random_static), f"static {seed}", 2 + seed % 5)
        scheduler = done.scheduler
        tally += Counter(statuses(done).keys())
        tally["padded"] += scheduler.padded_tokens > scheduler.idle_slot_steps
        tally["idle slots"] += scheduler.idle_slot_steps > 0
        tally["smaller groups"] += scheduler.group_size < done.scenario.engine["max_num_seqs"]
    often = ("completed", "cancelled", "timed_out", "rejected", "padded", "idle slots", "smaller groups")
    assert_often(tally, often, cases // 20)


def test_groups_are_what_they_are_said_to_be() -> None:
    """In every random run: a group starts as one, full or overdue, and only when the one before has ended."""
    for seed in range(40):
        done = random_case(seed, True, random_static).run()
        group_size, wait_s = done.scheduler.group_size, done.scenario.engine["batch_wait_s"]
        begin_s, end_s, queued_s = (
            done.recorder.column(f"{name}_s") for name in ("first_scheduled", "finish", "queued")
        )
        over_s = 0.0
        for start_s in np.unique(begin_s[np.isfinite(begin_s)]).tolist():
            group = begin_s == start_s
            assert start_s >= over_s
            assert group.sum() <= group_size
            assert group.sum() == group_size or start_s - queued_s[group].min() >= wait_s - 2.0**-32
            over_s = end_s[group].max()
