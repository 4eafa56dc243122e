"""Who may wait, and for how long: hand-made timelines of one-second iterations, then laws."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from cases import (
    admitting,
    assert_often,
    in_seconds,
    leaps_change_nothing,
    long_tailed,
    random_case,
    sent,
    statuses,
)
from support import EvenSteps

from sim.results import Result
from sim.serving.scheduler import RESERVED_TOKENS, SEQUENCE_LIMIT
from sim.simulation import Run, simulate
from sim.simulation.recorder import REJECTED


@pytest.fixture(params=[1, None], ids=["stepping", "leaping"])
def run(request: pytest.FixtureRequest) -> Callable[..., Run]:
    """Every story is told twice."""
    return in_seconds(request.param)


def status(run: Run) -> list[str]:
    return Result(run).requests["status"].tolist()


# -- who may wait ----------------------------------------------------------------------------------


def test_a_full_queue_refuses(run: Callable[..., Run]) -> None:
    """One runs (to 10), two may wait: the fourth is refused, and so is the fifth until a place is free."""
    done = run(
        admitting(seqs=1, max_queued_requests=2),
        *[(at_s, 5, 10) for at_s in (0, 1, 2, 3, 9.5, 10.5)],
    )
    assert status(done) == ["completed"] * 3 + ["rejected"] * 2 + ["completed"]
    assert done.recorder.column("finish_s").tolist()[3:5] == [3, 9.5]
    assert Result(done).requests["output_tokens"].tolist()[3:5] == [0, 0]


def test_prompts_that_wait_are_counted_in_tokens(run: Callable[..., Run]) -> None:
    """Under 100 tokens: 60 wait, 50 more are too many, 40 are not."""
    done = run(admitting(seqs=1, max_queued_tokens=100), (0, 90, 10), (1, 60, 1), (2, 50, 1), (3, 40, 1))
    assert status(done) == ["completed", "completed", "rejected", "completed"]


def test_a_deadline_ends_the_wait_exactly_then(run: Callable[..., Run]) -> None:
    """A runs until 10. B waits from 1 and leaves at 5; D, from 6.25 on, has waited 3.75 s and starts at 10.

    Deadlines of an instant come before the schedule that is formed at it, so C, at 6, leaves at 10.
    """
    done = run(admitting(seqs=1, queue_deadline_s=4), (0, 5, 10), (1, 5, 5), (6, 5, 5), (6.25, 5, 5))
    assert status(done) == ["completed", "timed_out", "timed_out", "completed"]
    assert done.recorder.column("finish_s").tolist() == [10, 5, 10, 15]


def test_who_has_been_scheduled_is_past_the_deadline(run: Callable[..., Run]) -> None:
    """Ten blocks, two answers that grow to seven: B is preempted at 65 and waits at 70, yet ends.

    C, which comes at 2 and needs nine blocks, has never run by 72 and leaves.
    """
    done = run(admitting(blocks=10, queue_deadline_s=70), (0, 16, 85), (0, 16, 85), (2, 130, 5))
    assert done.recorder.column("preemptions").tolist() == [0, 1, 0]
    assert status(done) == ["completed", "completed", "timed_out"]
    assert done.recorder.column("finish_s")[2] == 72


def test_a_deadline_that_no_clock_has_is_met_to_the_tick() -> None:
    """A tenth of a second is no sum of powers of two: the leaver's time is on the clock's grid."""
    done = simulate(
        admitting(seqs=1, queue_deadline_s=0.1),
        requests=sent((0, 5, 9), (0.5, 5, 9)),
        step_time=EvenSteps(1.0),
    )
    finish_s = done.recorder.column("finish_s")[1]
    assert abs(finish_s - 0.6) <= 2.0**-33
    assert finish_s * 2.0**32 == round(finish_s * 2.0**32)


def test_refuse_late_learns_the_queues_pace(run: Callable[..., Run]) -> None:
    """One at a time, ten seconds each, and twice as many as that: two ahead take 25 s, three 30 s or more.

    The estimate grows from nothing. Once it is near ten seconds, a deadline of 26 s has half of them
    refused, and nobody times out any more.
    """
    done = run(
        admitting(seqs=1, queue_deadline_s=26, refuse_late=True), *[(5 * n, 5, 10) for n in range(200)]
    )
    late = Result(done).requests.iloc[120:]
    ends = Counter(late["status"])
    assert set(ends) == {"completed", "rejected"}
    assert ends["completed"] == pytest.approx(ends["rejected"], abs=2)
    assert late["queue_s"].max() == 25


def test_time_without_a_queue_is_no_pace(run: Callable[..., Run]) -> None:
    """A pace of ten seconds is known; after three quiet hours two may still wait in front of a third."""
    busy = [(5 * n, 5, 10) for n in range(100)]
    done = run(
        admitting(seqs=1, queue_deadline_s=26, refuse_late=True),
        *busy,
        *[(10_000 + n, 5, 5) for n in range(4)],
    )
    assert status(done)[-4:] == ["completed"] * 4


@cache
def overload(**admission: Any) -> Run:
    """Half as much again as can be served, sixteen at a time, and a deadline of two seconds."""
    rules = {"queue_deadline_s": 2.0, **admission}
    return simulate(
        long_tailed().replace(
            {
                "engine.max_num_seqs": 16,
                "load.rate_per_s": 16.0,
                "slo": {"ttft_p99_s": 3.0},
                **{f"admission.{key}": value for key, value in rules.items()},
            }
        )
    )


def test_an_empty_queue_refuses_nobody() -> None:
    """Whoever was refused as too late found somebody waiting."""
    recorder = overload(refuse_late=True).recorder
    queued_s, begin_s, finish_s = (
        recorder.column(f"{name}_s") for name in ("queued", "first_scheduled", "finish")
    )
    left_queue_s = np.where(np.isnan(begin_s), finish_s, begin_s)
    refused = np.flatnonzero(recorder.column("status") == REJECTED)
    assert len(refused) > 100
    for index in refused.tolist():
        assert ((queued_s < queued_s[index]) & (left_queue_s > queued_s[index])).any()


def test_refusing_late_requests_early_costs_no_goodput() -> None:
    """A deadline alone has its victims wait for nothing.

    Refusing them on arrival leaves far fewer to time out, and as many requests good.
    """
    waits, refuses = (Result(overload(refuse_late=flag)).summary() for flag in (False, True))
    assert waits["requests"]["rejected"] == 0
    assert waits["requests"]["timed_out"] > 200
    assert refuses["requests"]["timed_out"] < 0.6 * waits["requests"]["timed_out"]
    assert refuses["goodput_fraction"] >= waits["goodput_fraction"] - 0.01
    assert waits["stable"] is refuses["stable"] is True, "who waits for two seconds at most never piles up"


def test_answers_end_at_the_cap(run: Callable[..., Run]) -> None:
    """And the run says how many it was."""
    done = run(admitting(max_output_tokens=10), (0, 5, 50), (0, 5, 10), (0, 5, 11))
    assert Result(done).requests["output_tokens"].tolist() == [10, 10, 10]
    assert done.recorder.column("finish_s").tolist() == [10, 10, 10]
    assert "2 answers end at admission.max_output_tokens" in Result(done).summary()["warnings"]


def test_the_table_and_the_counts_say_what_became_of_everybody() -> None:
    """Every end that there is, in one run: each is in the counts as often as in the table."""
    scenario = admitting(seqs=1, max_queued_requests=3, queue_deadline_s=4)
    requests = sent((0, 5, 10), (1, 5000, 5), (1, 5, 5), (2, 5, 5, 1), (6.5, 5, 5), *[(7, 5, 5)] * 4)
    result = Result(simulate(scenario, requests=requests, step_time=EvenSteps(1.0)))
    table, counts = result.requests, result.summary()["requests"]
    assert counts["offered"] == len(table) == 9
    named = {name: count for name, count in counts.items() if name not in ("offered", "retries")}
    assert named == {
        "completed": 2,
        "never_schedulable": 1,
        "timed_out": 3,
        "cancelled": 1,
        "rejected": 2,
        "unfinished": 0,
    }
    assert dict(table["status"].value_counts()) == {name: count for name, count in named.items() if count}
    assert table["e2e_s"].notna().sum() == 2
    assert json.loads(json.dumps(result.summary(), allow_nan=False))["requests"] == counts


def test_who_waited_in_vain_was_in_the_system() -> None:
    """One runs from 0 to 10; two wait from 1 and 2 and leave at 5 and 6: three at most, (10 + 4 + 4) / 10.

    The window ends with the last arrival, at 20, when a fourth comes.
    """
    scenario = admitting(seqs=1, queue_deadline_s=4).replace({"run.warmup": 0.0})
    requests = sent((0, 5, 10), (1, 5, 5), (2, 5, 5), (20, 5, 5))
    summary = Result(simulate(scenario, requests=requests, step_time=EvenSteps(1.0))).summary()
    assert summary["concurrency_max"] == 3
    assert summary["concurrency_mean"] == 18 / 20


# -- leaps -----------------------------------------------------------------------------------------


def every_rule(rng: random.Random, time_s: Callable[[float], float]) -> dict[str, Any]:
    """Each of the rules half of the time, and the other keys that matter to who is admitted."""
    rules = {
        "engine.kv_layout": rng.choice(["paged", "paged", "contiguous"]),
        "engine.scheduler_reserve_full_isl": rng.random() < 0.7,
        "engine.long_prefill_token_threshold": rng.choice([0, 0, 8]),
        "admission.reserve": rng.choice(["prompt", "expected", "max"]),
        "admission.max_reserved_tokens": rng.randint(100, 1500),
        "admission.max_queued_requests": rng.choice([1, 2, 5, 20]),
        "admission.max_queued_tokens": rng.randint(50, 1000),
        "admission.queue_deadline_s": rng.choice([0.1, time_s(2.0), time_s(0.2)]),
        "admission.max_output_tokens": rng.randint(1, 300),
    }
    kept = {key: value for key, value in rules.items() if rng.random() < 0.5}
    if kept.get("admission.reserve") == "expected":
        kept.pop("engine.kv_layout", None)
        kept["admission.expected_output_tokens"] = rng.randint(1, 200)
    if "admission.queue_deadline_s" in kept:
        kept["admission.refuse_late"] = rng.random() < 0.5
    return kept


@pytest.mark.parametrize("ticks", [True, False], ids=["ties", "free"])
def test_leaps_change_nothing(ticks: bool) -> None:
    """To the last bit, with every rule on and off, where all instants are ties and where none is."""
    tally, cases = Counter[str](), 80
    for seed in range(cases):
        done = leaps_change_nothing(random_case(seed, ticks, every_rule), f"rules {seed}", 2 + seed % 5)
        tally += Counter(statuses(done).keys())
        tally["preempted"] += done.scheduler.preemptions > 0
        held_by = set(done.recorder.column("held_by").tolist())
        tally["held by reserved_tokens"] += RESERVED_TOKENS in held_by
        tally["held by sequence_limit"] += SEQUENCE_LIMIT in held_by
        _assert_bounded(done)
    often = (
        "completed",
        "cancelled",
        "timed_out",
        "rejected",
        "never_schedulable",
        "held by reserved_tokens",
    )
    assert_often(tally, (*often, "held by sequence_limit", "preempted"), cases // 20)


def _assert_bounded(run: Run) -> None:
    """The queue never has more first-timers than may wait, and no reservation is left over at the end."""
    admission, recorder = run.scenario.admission, run.recorder
    if (most := admission.get("max_queued_requests")) is not None and not run.scheduler.preemptions:
        assert recorder.column("waiting").max(initial=0) <= most
    if (deadline_s := admission.get("queue_deadline_s")) is not None:
        waited_s = recorder.column("first_scheduled_s") - recorder.column("queued_s")
        assert np.nanmax(waited_s, initial=0.0) < deadline_s + 2.0**-32
    if run.scheduler.reservation is not None:
        assert run.scheduler.reservation.tokens == run.scheduler.reservation.blocks == 0
