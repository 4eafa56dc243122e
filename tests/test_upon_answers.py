"""Sessions that wait for answers, and users beside a rate: by hand, and by laws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import statuses
from support import NO_FRONT_END, EvenSteps, base

from sim.results import Result
from sim.scenario import Scenario
from sim.simulation import Run, simulate
from sim.workload import Requests
from sim.workload.requests import Follows

SESSIONS = {"turns": {"kind": "fixed", "mean": 3}, "think": {"kind": "exponential", "mean_s": 4.0}}
LENGTHS = {"kind": "lognormal", "prompt_mean": 200, "output_mean": 60, "cv": 1.0}
AGENTS = {
    **SESSIONS,
    "tools": {
        "calls": {"kind": "geometric", "mean": 2},
        "time": {"kind": "exponential", "mean_s": 1.0},
        "output": {"kind": "geometric", "mean": 50},
    },
}


def scenario(**changes: Any) -> Scenario:
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return base().replace({**NO_FRONT_END, "run.warmup": 0.0, **dotted})


def thinking(requests: int = 400, sessions: dict[str, Any] = SESSIONS, **changes: Any) -> Scenario:
    workload = {"lengths": LENGTHS, "sessions": sessions}
    return scenario(workload=workload, load={"rate_per_s": 6.0}, run__requests=requests, **changes)


def mixed(users: int = 3, think_s: float | None = None, **changes: Any) -> Scenario:
    """A chat at a rate beside *users* of a batch."""
    batch: dict[str, Any] = {"concurrency": users, "lengths": {**LENGTHS, "prompt_mean": 900}}
    if think_s:
        batch["think"] = {"kind": "fixed", "mean_s": think_s}
    workload = {"lengths": LENGTHS, "classes": {"chat": {}, "batch": batch}}
    return scenario(workload=workload, load={"rate_per_s": 4.0}, **changes)


@pytest.fixture(params=[1, None], ids=["stepping", "leaping"])
def run(request: pytest.FixtureRequest) -> Callable[..., Run]:
    """Every story is told twice, in iterations of one second."""

    def simulated(scenario: Scenario, requests: Requests | None = None) -> Run:
        return simulate(scenario, request.param, requests=requests, step_time=EvenSteps(1.0))

    return simulated


def of_class(run: Run, name: str) -> np.ndarray:
    assert run.requests.classes is not None
    return run.requests.classes == run.requests.class_names.index(name)


# -- by hand ---------------------------------------------------------------------------------------


def test_a_turn_is_sent_when_its_user_has_read_and_thought(run: Callable[..., Run]) -> None:
    """Answers of 3 and 2 s: sent at 0, then at 3 + 4, then at 9 + 1; a stranger comes at 8, joins the second
    turn's batch, and is the third in order."""
    follows = Follows(np.array([-1, 0, 1, -1]), np.array([0.0, 4.0, 1.0, 0.0]))
    arrival_s = np.array([0.0, 4.0, 5.0, 12.0])
    rows = Requests(arrival_s, np.full(4, 5), np.array([3, 2, 1, 4]), follows=follows)
    done = run(thinking(), rows)
    assert done.requests.arrival_s.tolist() == [0, 7, 10, 12]
    assert done.recorder.column("finish_s").tolist() == [3, 9, 11, 16]
    assert done.requests.output_tokens.tolist() == [3, 2, 1, 4]


def test_rows_are_in_order_of_their_sends(run: Callable[..., Run]) -> None:
    """The second turn, nominally at 1, is sent at 10 + 1, after a stranger's request at 5: rows, records and
    the row that is waited for are numbered anew."""
    follows = Follows(np.array([-1, 0, -1]), np.array([0.0, 1.0, 0.0]))
    rows = Requests(np.array([0.0, 1.0, 11.0]), np.full(3, 5), np.array([4, 9, 2]), follows=follows)
    done = run(thinking(), rows)
    assert done.requests.arrival_s.tolist() == [0, 5, 11]
    late = Requests(np.array([0.0, 1.0, 3.0, 20.0]), np.full(4, 5), np.array([10, 9, 2, 1]),
                    follows=Follows(np.array([-1, 0, -1, -1]), np.array([0.0, 1.0, 0.0, 0.0])))  # fmt: skip
    done = run(thinking(), late)
    assert done.requests.arrival_s.tolist() == [0, 3, 11, 20]
    assert done.requests.output_tokens.tolist() == [10, 2, 9, 1]
    assert done.recorder.column("finish_s").tolist()[:2] == [10, 5]
    assert done.requests.follows is not None
    assert done.requests.follows.previous.tolist() == [-1, -1, 0, -1]


def test_nothing_is_sent_after_the_end(run: Callable[..., Run]) -> None:
    """The last request with a time of its own comes at 6; a turn that would come at 11 is left out."""
    follows = Follows(np.array([-1, 0, -1]), np.array([0.0, 1.0, 0.0]))
    rows = Requests(np.array([0.0, 1.0, 6.0]), np.full(3, 5), np.array([10, 9, 2]), follows=follows)
    done = run(thinking(), rows)
    assert done.requests.arrival_s.tolist() == [0, 6]
    assert statuses(done) == {"completed": 2}
    assert done.requests.notes["turns_not_sent"] == 1


def test_users_send_until_the_last_request_at_a_rate(run: Callable[..., Run]) -> None:
    """Two requests at a rate, at 0 and 7; one user whose answers take 3 s and who thinks 1 s: 0, 4; one at
    8 is not sent."""
    rows = Requests(
        np.array([0.0, 0.0, 0.0, 0.0, 7.0]),
        np.full(5, 5),
        np.array([2, 3, 3, 3, 2]),
        classes=np.array([0, 1, 1, 1, 0], dtype=np.int16),
        class_names=("chat", "batch"),
    )
    done = run(mixed(1, 1.0), rows)
    assert done.requests.arrival_s.tolist() == [0, 0, 4, 7]
    assert of_class(done, "batch").tolist() == [False, True, True, False]


# -- laws ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sessions", [SESSIONS, AGENTS], ids=["people", "agents"])
def test_a_session_never_overlaps_itself(sessions: dict[str, Any]) -> None:
    """Each turn, each call is sent exactly so long after the end of the one before as was drawn; what the run
    did not send is no row of it. Leaping and stepping agree in bytes."""
    done = simulate(thinking(800, sessions))
    stepped = simulate(thinking(800, sessions), 1)
    follows, finish_s = done.requests.follows, done.recorder.column("finish_s")
    assert follows is not None
    waiting = np.flatnonzero(follows.previous >= 0)
    assert len(waiting) > 300
    sent_s = done.requests.arrival_s[waiting]
    assert np.array_equal(sent_s, finish_s[follows.previous[waiting]] + follows.think_s[waiting])
    assert (np.diff(done.requests.arrival_s) >= 0).all()
    assert statuses(done) == {"completed": len(done.requests)}
    assert stepped.requests.arrival_s.tobytes() == done.requests.arrival_s.tobytes()
    assert stepped.recorder.column("finish_s").tobytes() == finish_s.tobytes()
    checks = Result(done).summary()["checks"]
    assert checks["blocks_conserved"]
    assert checks["tokens_conserved"]


def test_users_keep_their_number_in_the_system() -> None:
    """Beside a rate: never more of the batch than its users, and who does not think sends upon each end."""
    done = simulate(mixed(3, run__requests=300))
    batch = of_class(done, "batch")
    finish_s, arrival_s = done.recorder.column("finish_s")[batch], done.requests.arrival_s[batch]
    inside = np.arange(1, len(arrival_s) + 1) - np.searchsorted(np.sort(finish_s), arrival_s, "right")
    assert inside.max() == 3
    assert np.isin(arrival_s[3:], finish_s).all()
    assert np.count_nonzero(finish_s <= done.requests.arrival_s[-1]) + 3 == len(arrival_s)
    assert np.count_nonzero(~batch) == 300
    assert statuses(done) == {"completed": len(done.requests)}
    by_class = Result(done).summary()["by_class"]
    assert by_class["batch"]["requests"]["offered"] == len(arrival_s)
    assert Result(done).summary()["checks"]["tokens_conserved"]


def test_another_number_of_users_moves_no_draw_at_a_rate() -> None:
    """The chat's requests come at the same times with the same lengths, in bytes, whatever the batch does."""
    one, many = simulate(mixed(1, run__requests=200)), simulate(mixed(20, run__requests=200))
    for name in ("arrival_s", "prompt_tokens", "output_tokens"):
        first, second = (getattr(run.requests, name)[of_class(run, "chat")] for run in (one, many))
        assert first.tobytes() == second.tobytes()
    assert np.count_nonzero(of_class(many, "batch")) > np.count_nonzero(of_class(one, "batch"))


def test_users_never_run_out_of_requests() -> None:
    """Thirty users of answers of one token send far more than the chat: the run is made anew with enough, and
    begins as the shorter one."""
    batch = {"concurrency": 30, "lengths": {"kind": "fixed", "prompt_tokens": 9, "output_tokens": 1}}
    workload = {"lengths": LENGTHS, "classes": {"chat": {}, "batch": batch}}
    done = simulate(scenario(workload=workload, load={"rate_per_s": 4.0}, run__requests=20))
    mine = of_class(done, "batch")
    assert np.count_nonzero(~mine) == 20
    last_s = done.requests.arrival_s[-1]
    assert np.count_nonzero(done.requests.arrival_s[mine] > 0.9 * last_s) > 10


def test_users_alone_share_the_requests_of_the_run() -> None:
    """Two classes of users and no rate: so many are sent in all, the faster class the more."""
    slow = {"concurrency": 2, "think": {"kind": "fixed", "mean_s": 5.0}}
    workload = {"lengths": LENGTHS, "classes": {"fast": {"concurrency": 2}, "slow": slow}}
    done = simulate(scenario(workload=workload, load={}, run__requests=300))
    assert len(done.requests) == 300
    assert statuses(done) == {"completed": 300}
    assert np.count_nonzero(of_class(done, "fast")) > np.count_nonzero(of_class(done, "slow")) > 10


def test_who_came_first_is_served_first_among_equals() -> None:
    """By the time of the send, not by the row: the batch's rows are drawn before the chat's."""
    changes = {"engine.scheduling_policy": "priority", "engine.max_num_seqs": 1}
    done = simulate(mixed(6, run__requests=60).replace(changes))
    first_s = done.recorder.column("first_scheduled_s")
    assert (np.diff(first_s) >= 0).all()


def test_a_cache_forgets_what_was_idle_long() -> None:
    """At one load of others, the longer sessions wait between turns, the less of their context is still
    there; without others it all is."""
    shares = []
    for idle_s in (0.5, 4.0, 60.0):
        sessions = {"turns": {"kind": "fixed", "mean": 4}, "think": {"kind": "exponential", "mean_s": idle_s},
                    "first": {"kind": "fixed", "mean": 1500}}  # fmt: skip
        classes = {
            "people": {"sessions": sessions, "share": 1, "lengths": {**LENGTHS, "prompt_mean": 100}},
            "others": {"share": 3, "lengths": {"kind": "fixed", "prompt_tokens": 1500, "output_tokens": 20}},
        }
        done = simulate(
            scenario(workload={"classes": classes}, load={"rate_per_s": 8.0}, run__duration_s=150.0,
                     engine__num_gpu_blocks_override=3000, engine__max_model_len=40_000)
        )  # fmt: skip
        mine, cached = of_class(done, "people"), done.recorder.column("cached_tokens")
        shares.append(cached[mine].sum() / done.requests.prompt_tokens[mine].sum())
    assert shares[0] > 0.6
    assert shares[0] > shares[1] > shares[2]
    assert shares[2] < 0.1
