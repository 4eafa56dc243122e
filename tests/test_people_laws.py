"""Who loses patience and asks again, in laws: the load they make, what it is worth, and that nothing is lost.

One sequence at a time (`analytic.one_place`). Intervals are t-intervals (99 %) over replications.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from analytic import SERVICE_S, STEP_S, TOKENS, one_place, reneging, t_interval

from sim.results import Result
from sim.simulation.recorder import CANCELLED, COMPLETED, REJECTED


def impatient(limit: str, patience: float) -> dict[str, Any]:
    """People who wait an exponential time, *patience* services in the mean, each time they ask."""
    return {"workload__patience": {limit: {"kind": "exponential", "mean_s": patience * SERVICE_S}}}


def asking_again(most: int, after: float, **more: Any) -> dict[str, Any]:
    """And who ask again, *most* times, half of *after* to *after* services after they left."""
    after_s = after * SERVICE_S
    habits = {"max": most, "base_s": after_s, "cap_s": after_s, "jitter": 0.5, "timeout_s": 1e6}
    return {"workload__retries": {**habits, "on": ["abandoned"], **more}}


def test_people_who_ask_again_make_the_load_of_their_fixed_point() -> None:
    """Who leaves the queue and comes back long after, twice at most: a' = a (1 - p^3) / (1 - p), p = p(a').

    Attempts are alike: each has new patience, the queue has forgotten the last one, and the wait in a queue
    does not depend on one's own answer. So each is abandoned with the same p, attempt k + 1 is made with
    p^k, and sends per piece of work are 1 + p + p^2 = (1 - p^3) / (1 - p). What comes back, spread over 50
    services, is Poisson like the rest, so p is that of M/M/1+M at the load a' of all sends: a fixed point.
    Pieces that are never served are p^3. With the p of those who ask once it would be far less.
    """
    load, patience, most, count = 1.2, 2.0, 2, 1500
    offered = load
    for _ in range(100):
        left = reneging(offered, patience)
        offered = load * (1 - left ** (most + 1)) / (1 - left)
    steady, per_piece, lost = slice(350, 1150), [], []  # sent again while others still come
    for run in one_place(load, count, 8, **impatient("queue", patience), **asking_again(most, 100)):
        attempts = np.bincount(run.recorder.column("attempt_request"), minlength=count)
        per_piece.append(1 + float(attempts[steady].mean()))
        lost.append(float((run.recorder.column("status")[steady] != COMPLETED).mean()))
    middle, half = t_interval(per_piece)
    assert abs(middle - offered / load) < half
    once = reneging(load, patience)
    assert middle - half > (1 - once ** (most + 1)) / (1 - once)
    middle, half = t_interval(lost)
    assert abs(middle - left ** (most + 1)) < half


def test_a_busy_server_does_no_more_useful_work_for_those_who_ask_again() -> None:
    """At three times its rate it is never idle, and P / (1 + P) of its tokens are useful, P the patience.

    An answer in progress ends at rate 1 and is abandoned at rate 1 / P, so that a time in service is
    1 / (1 + 1 / P) in the mean, of which 1 / (1 + 1 / P)^2 is for those who stay to the end. Who asks again
    sends more than twice as much, and cannot get more.
    """
    patience, rate, useful = 2.0, [], {}
    for name, again in (("once", {}), ("again", asking_again(3, 10))):
        done = list(one_place(3.0, 500, 6, **impatient("total", patience), **again))
        useful[name] = t_interval(
            [Result(run).summary()["useful_output_throughput"] * STEP_S for run in done]
        )
        rate.append(np.mean([1 + len(run.recorder.column("attempt_sent_s")) / 500 for run in done]))
    most = patience / (1 + patience)
    assert abs(useful["once"][0] - most) < useful["once"][1] < most / 5
    assert useful["again"][0] - useful["again"][1] < most
    assert rate[1] > 2 * rate[0]


@cache
def everything(retries: bool = True) -> Result:
    """People without patience at a server that refuses, with a limit on the time to the answer's end."""
    again = asking_again(3, 2.0, on=["rejected", "abandoned"]) if retries else {}
    limits = {"admission__max_queued_requests": 3, "slo__e2e_p90_s": 4 * SERVICE_S, "run__warmup": 0.15}
    return Result(next(one_place(1.5, 600, 1, **impatient("total", 3.0), **again, **limits)))


def test_the_run_has_all_that_people_do() -> None:
    """Refused, abandoned in service, asked again: with all their ends."""
    records = everything().run.recorder
    for statuses in (records.column("status"), records.column("attempt_status")):
        assert {CANCELLED, REJECTED} <= set(statuses.tolist())
    assert (records.column("attempt_tokens") > 0).sum() > 20
    assert max(np.bincount(records.column("attempt_request"))) == 3


def test_littles_law_counts_pieces_of_work() -> None:
    """L T, less the stays of those who came, is what hangs over the window's edges: exact to the last bit.

    A piece is inside from its first send to the end of its last attempt, back-offs included. All times are
    multiples of 2^-32 s, and so are their sums.
    """
    result = everything()
    found, rows = result.summary(), result.requests
    inside = rows[rows.status != "rejected"]
    start_s, end_s = found["window"]["start_s"], found["window"]["end_s"]
    came_s, left_s = inside.arrival_s.to_numpy(), inside.finish_s.to_numpy()
    events_s = np.concatenate([came_s, left_s])
    order = np.argsort(events_s)
    number = np.cumsum(np.repeat([1, -1], len(came_s))[order])[:-1]
    within_s = np.diff(np.clip(events_s[order], start_s, end_s))
    held_s = float(number @ within_s)
    assert found["concurrency_mean"] == held_s / (end_s - start_s)
    before = ((came_s < start_s, start_s), (came_s <= end_s, end_s))  # the last comes at the end
    over = [float((left_s - at_s)[came & (left_s > at_s)].sum()) for came, at_s in before]
    assert over[0] != over[1]
    assert start_s in came_s  # who comes at the start counts
    assert found["checks"]["littles_law_relative_error"] == abs(over[0] - over[1]) / held_s


def test_every_token_is_useful_or_of_a_failed_attempt_or_abandoned() -> None:
    """By the window, to the last bit; and over the whole run the only place makes a token an iteration.

    But for the iterations in progress when a client leaves: no other is lost.
    """
    result = everything()
    found, rows, records = result.summary(), result.requests, result.run.recorder
    start_s, end_s = found["window"]["start_s"], found["window"]["end_s"]
    left_s, tokens = records.column("attempt_left_s"), records.column("attempt_tokens")
    in_attempts = int(tokens[(left_s > start_s) & (left_s <= end_s)].sum())
    ended = rows[(rows.finish_s > start_s) & (rows.finish_s <= end_s)]
    useful = int(ended.output_tokens[ended.status == "completed"].sum())
    abandoned = int(ended.output_tokens[ended.status == "cancelled"].sum())
    span_s = end_s - start_s
    assert min(useful, in_attempts, abandoned) > TOKENS / 2
    assert found["output_throughput"] == (useful + in_attempts + abandoned) / span_s
    assert found["useful_output_throughput"] == useful / span_s
    in_progress = int((np.array(records.status) == CANCELLED)[~np.isnan(records.first_scheduled_s)].sum())
    iterations = int(records.column("iterations").sum())
    assert iterations == int(rows.output_tokens.sum()) + int(tokens.sum()) + in_progress


def test_goodput_counts_a_piece_of_work_once() -> None:
    """Of the pieces that were offered, with retries or without: those in time, from the first send on."""
    for result in (everything(), everything(retries=False)):
        found, rows = result.summary(), result.requests
        offered = rows[rows.in_window]
        good = offered[(offered.status == "completed") & (offered.e2e_s <= 4 * SERVICE_S)]
        assert found["window"]["requests"] == len(offered) == 510
        assert found["goodput_fraction"] == len(good) / 510
        assert found["requests"]["offered"] == 600
    assert (offered.arrival_s == everything().requests[everything().requests.in_window].arrival_s).all()
