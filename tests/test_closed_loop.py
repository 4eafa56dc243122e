"""Users who think, send, wait for the answer and think again: laws of closed loops, and one by hand."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from math import factorial
from typing import Any

import numpy as np
import pytest
from cases import assert_often, leaps_change_nothing, random_case, statuses
from scipy import stats
from support import NO_FRONT_END, EvenSteps, base

from sim.results import Result
from sim.scenario import Scenario
from sim.simulation import Run, simulate
from sim.workload import Requests

CONFIDENCE = 0.99


def users(count: int, **changes: Any) -> Scenario:
    """*count* users; *changes* by key, with `__` for the point."""
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return base().replace({**NO_FRONT_END, "load": {"concurrency": count}, **dotted})


def fixed(mean_s: float) -> dict[str, Any]:
    return {"kind": "fixed", "mean_s": mean_s}


def rows(*requests: tuple[float, ...]) -> Requests:
    """Requests (prompt, answer[, patience]), in the order in which they are to be sent."""
    prompts, answers = (np.array([r[i] for r in requests], dtype=np.int64) for i in range(2))
    patience_s = np.array([r[2] if len(r) > 2 else np.inf for r in requests])
    return Requests(np.zeros(len(requests)), prompts, answers, patience_s)


@pytest.fixture(params=[1, None], ids=["stepping", "leaping"])
def run(request: pytest.FixtureRequest) -> Callable[..., Run]:
    """Every story is told twice, in iterations of one second."""

    def simulated(scenario: Scenario, *requests: tuple[float, ...]) -> Run:
        return simulate(scenario, request.param, requests=rows(*requests), step_time=EvenSteps(1.0))

    return simulated


def sent_s(run: Run) -> list[float]:
    return run.requests.arrival_s.tolist()


def in_system(run: Run) -> np.ndarray:
    """Requests in the system right after each send, those that end at its instant left out."""
    finish_s = np.sort(run.recorder.column("finish_s"))
    arrival_s = run.requests.arrival_s
    return np.arange(1, len(arrival_s) + 1) - np.searchsorted(finish_s, arrival_s, side="right")


# -- by hand ---------------------------------------------------------------------------------------


def test_a_user_sends_again_when_answered(run: Callable[..., Run]) -> None:
    """One user, answers of 3, 1 and 5 seconds: sent at 0, 3 and 4; with two seconds of thought 0, 5, 8."""
    three = (5, 3), (5, 1), (5, 5)
    assert sent_s(run(users(1), *three)) == [0, 3, 4]
    assert sent_s(run(users(1, load__think=fixed(2.0)), *three)) == [0, 5, 8]


def test_the_next_row_goes_to_whoever_is_next(run: Callable[..., Run]) -> None:
    """Answers of 10 and 2: the second user sends at 2, joins the batch of 3 and is answered at 6."""
    assert sent_s(run(users(2), (5, 10), (5, 2), (5, 3), (5, 20))) == [0, 0, 2, 6]


def test_equal_answers_keep_users_in_step(run: Callable[..., Run]) -> None:
    """Four users, twelve equal answers of seven seconds: three rounds, each sent at once."""
    done = run(users(4), *[(5, 7)] * 12)
    assert sent_s(done) == [0] * 4 + [7] * 4 + [14] * 4
    assert done.recorder.column("finish_s").tolist() == [7] * 4 + [14] * 4 + [21] * 4


def test_a_request_joins_the_iteration_after_the_one_that_freed_its_user(run: Callable[..., Run]) -> None:
    """B's answer ends at 2 while A decodes on: the next is sent at 2, too late for the batch formed then."""
    done = run(users(2), (5, 9), (5, 2), (5, 3))
    assert sent_s(done)[2] == 2
    assert done.recorder.column("first_scheduled_s")[2] == 3


def test_more_users_than_requests_send_what_there_is(run: Callable[..., Run]) -> None:
    """All at once, and nothing twice."""
    assert sent_s(run(users(9), *[(5, 7)] * 4)) == [0] * 4


def test_a_user_who_gives_up_thinks_and_sends_again(run: Callable[..., Run]) -> None:
    """Impatient after 4.5 seconds of an answer of ten: sends at 6.5, though the iteration ends at 5."""
    done = run(users(1, load__think=fixed(2.0)), (5, 10, 4.5), (5, 2))
    assert sent_s(done) == [0, 6.5]
    assert statuses(done) == {"cancelled": 1, "completed": 1}


def test_patience_counts_from_the_send(run: Callable[..., Run]) -> None:
    """Two of the 4.5 seconds go by in the front end; two tokens have come by then, at 3 and 4."""
    done = run(users(1, engine__front_end_latency_s=2.0), (5, 10, 4.5), (5, 2))
    assert done.recorder.column("finish_s")[0] == 4.5
    assert Result(done).requests["output_tokens"].tolist() == [2, 2]


def test_who_gives_up_in_the_front_end_is_free_at_that_moment(run: Callable[..., Run]) -> None:
    """The front end takes five seconds; the user has gone after one and sends again at 1 + 2."""
    scenario = users(1, load__think=fixed(2.0), engine__front_end_latency_s=5.0)
    done = run(scenario, (5, 10, 1.0), (5, 2))
    assert sent_s(done) == [0, 3]
    assert done.recorder.column("finish_s").tolist() == [1, 10]
    assert done.recorder.column("queued_s").tolist() == [5, 8]


def test_a_refused_request_frees_its_user(run: Callable[..., Run]) -> None:
    """Three users, one runs, one may wait: the third is refused at 0 and, after a second's thought, again
    at 1, 2 and so on, until the first is answered."""
    scenario = users(3, load__think=fixed(1.0), engine__max_num_seqs=1, admission__max_queued_requests=1)
    done = run(scenario, *[(5, 4)] * 9)
    assert sent_s(done)[:6] == [0, 0, 0, 1, 1, 2]
    assert statuses(done)["rejected"] > 0
    assert statuses(done)["completed"] >= 2


def test_a_request_that_can_never_run_frees_its_user(run: Callable[..., Run]) -> None:
    """Longer than the model's context: refused on arrival, and the user thinks."""
    done = run(users(1, load__think=fixed(2.0)), (10**6, 4), (5, 2), (5, 2))
    assert sent_s(done) == [0, 2, 6]
    assert statuses(done) == {"never_schedulable": 1, "completed": 2}


def test_a_missed_deadline_frees_its_user(run: Callable[..., Run]) -> None:
    """One at a time: the second user's request leaves the queue at 3, and the next is sent at 4."""
    scenario = users(2, load__think=fixed(1.0), engine__max_num_seqs=1, admission__queue_deadline_s=3.0)
    done = run(scenario, (5, 6), (5, 6), (5, 2))
    assert sent_s(done) == [0, 0, 4]
    assert statuses(done) == {"timed_out": 1, "completed": 2}


def test_the_callers_requests_are_left_as_they_were() -> None:
    """Times of arrival are the run's; what was handed in can be sent again."""
    requests = rows(*[(5, 3)] * 5)
    first, second = (simulate(users(2), requests=requests, step_time=EvenSteps(1.0)) for _ in range(2))
    assert requests.arrival_s.tolist() == [0.0] * 5
    assert sent_s(first) == sent_s(second) == [0, 0, 3, 3, 6]


# -- laws ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["vllm-v1", "static"])
@pytest.mark.parametrize("mean_s", [0.0, 1.5])
def test_the_interactive_response_time_law(mean_s: float, preset: str) -> None:
    """N = X (R + Z), but for the users' first and last rounds (P. J. Denning and J. P. Buzen, 1978).

    Until the last send, at T, each of N users has gone through rounds of answer and thought whose times
    add up to T or, with the last round, to at most one round more.
    """
    count = 24
    think = {"load.think": fixed(mean_s)} if mean_s else {}
    scenario = base().replace(
        {
            "engine.preset": preset,
            "engine.max_model_len": 8192,
            **({"engine.batch_wait_s": 0.2} if preset == "static" else {}),
            "workload": {"lengths": {"kind": "lognormal", "prompt_mean": 300, "output_mean": 100, "cv": 1}},
            "load": {"concurrency": count},
            "run": {"requests": 1500, "warmup": 0.0},
            **think,
        }
    )
    done = simulate(scenario)
    result = Result(done)
    assert statuses(done) == {"completed": 1500}
    assert in_system(done).max() <= count
    rounds_s = result.requests["e2e_s"].to_numpy() + mean_s
    last_s = float(done.requests.arrival_s[-1])
    law = len(rounds_s) / last_s * rounds_s.mean()
    assert count - 1e-9 <= law <= count * (1 + rounds_s.max() / last_s)
    summary = result.summary()
    assert summary["concurrency_max"] == count
    assert summary["concurrency_mean"] <= count + 1e-9
    assert mean_s or summary["concurrency_mean"] == pytest.approx(count)
    assert summary["stable"], "users who wait for their answers do not pile up"


def repair_throughput_per_s(count: int, service_s: float, think_s: float) -> float:
    """M/M/1//N: the server's rate times the probability that somebody is there.

    P(nobody) = 1 / sum of N! / (N - k)! (service / think)^k (L. Kleinrock, Queueing Systems 1, 1975, 3.8).
    """
    terms = [factorial(count) / factorial(count - k) * (service_s / think_s) ** k for k in range(count + 1)]
    return (1 - 1 / sum(terms)) / service_s


@pytest.mark.parametrize(("count", "think_s"), [(4, 1.0), (4, 4.0), (12, 4.0)])
def test_the_machine_repair_model(count: int, think_s: float) -> None:
    """One at a time, geometric answers of 1000 tokens, exponential thought: inside a 99 % interval.

    A geometric number of short iterations is an exponential time but for a thousandth of its variance.
    The interval is narrow enough to tell the law from a server that is never idle, or a user more.
    """
    step_s, tokens = 2.0**-11, 1000
    scenario = users(
        count,
        engine__max_num_seqs=1,
        workload={"lengths": {"kind": "geometric", "prompt_tokens": 1, "output_mean": tokens}},
        load__think={"kind": "exponential", "mean_s": think_s},
        run__requests=2000,
    )
    rates = []
    for seed in range(20):
        done = simulate(scenario.replace({"run.seed": seed}), step_time=EvenSteps(step_s))
        finish_s = np.sort(done.recorder.column("finish_s"))[100:-count]
        rates.append((len(finish_s) - 1) / (finish_s[-1] - finish_s[0]))
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(rates) - 1) * stats.sem(rates)
    expected = repair_throughput_per_s(count, tokens * step_s, think_s)
    assert abs(np.mean(rates) - expected) < half
    assert half < 0.02 * expected
    assert abs(repair_throughput_per_s(count + 1, tokens * step_s, think_s) - expected) > half
    assert count > 4 or 1 / (tokens * step_s) - expected > half


def test_a_longer_run_begins_with_the_shorter_one() -> None:
    """The same users send the same requests at the same times, and go on."""
    short, long = (
        simulate(users(5, load__think={"kind": "exponential", "mean_s": 2.0}, run__requests=count))
        for count in (100, 300)
    )
    first_end_s = short.recorder.column("finish_s").min()
    assert sent_s(short)[:95] == sent_s(long)[:95]
    assert first_end_s == long.recorder.column("finish_s").min()


# -- leaps -----------------------------------------------------------------------------------------


def random_loop(rng: random.Random, time_s: Callable[[float], float]) -> dict[str, Any]:
    """Users with and without thought, patience, deadlines, bounded queues, static groups."""
    think = {
        "think": {"kind": rng.choice(["fixed", "exponential"]), "mean_s": rng.choice([0.1, time_s(1.0)])}
    }
    changes: dict[str, Any] = {
        "load": {"concurrency": rng.choice([1, 2, 5, 12, 60]), **(think if rng.random() < 0.6 else {})}
    }
    if rng.random() < 0.25:
        changes |= {"engine.preset": "static", "engine.batch_wait_s": rng.choice([0.0, time_s(0.5)])}
    elif rng.random() < 0.3:
        changes["admission.reserve"] = rng.choice(["max", "expected"])
    if rng.random() < 0.3:
        changes["admission.max_queued_requests"] = rng.choice([1, 3])
    if rng.random() < 0.3:
        changes["admission.queue_deadline_s"] = time_s(1.0)
    return changes


@pytest.mark.parametrize("ticks", [True, False], ids=["ties", "free"])
def test_leaps_change_nothing(ticks: bool) -> None:
    """To the last bit; each request is sent once, in order, and never by more users than there are."""
    tally, cases = Counter[str](), 50
    for seed in range(cases):
        done = leaps_change_nothing(random_case(seed, ticks, random_loop), f"loop {seed}", 2 + seed % 5)
        tally += Counter(statuses(done).keys())
        assert all(before <= after for before, after in pairwise(sent_s(done)))
        assert in_system(done).max() <= done.scenario.load["concurrency"]
    assert_often(tally, ("completed", "cancelled", "rejected", "timed_out"), cases // 20)
