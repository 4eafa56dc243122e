"""Clients who leave, ask again and wait for connections: a leap changes nothing, and nothing is lost.

The engines of `test_leap_with_everything` and of the other schedulers, with people at random: instants at
which they leave lie anywhere, or on the one clock on which everything is a tie.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
from cases import TICK_S, assert_often, random_case
from support import answer
from test_estimating import random_sglang
from test_leap_equals_step import Case
from test_leap_with_everything import full_case
from test_prefill_first import random_v0
from test_static import random_static

from sim.clock import on_grid
from sim.results import Result
from sim.simulation import Run
from sim.simulation.recorder import ATTEMPT, CANCELLED, COMPLETED, REJECTED, TIMED_OUT

CASES = 80
OTHERS = (random_v0, random_sglang, random_static)


def with_people(case: Case, rng: random.Random) -> Case:
    """*case* with clients of every kind at random."""
    count = len(case.requests)

    def some(share: float, limit_s: float) -> np.ndarray | None:
        ticks_s = TICK_S if case.ticks else 2.0**-32
        times_s = [rng.randrange(1, int(limit_s / ticks_s) + 2) * ticks_s for _ in range(count)]
        return np.array([at_s if rng.random() < share else np.inf for at_s in times_s]) if share else None

    outputs = case.requests.output_tokens.tolist()
    stops = [rng.randrange(0, most) if rng.random() < 0.5 else 0 for most in outputs]
    requests = replace(
        case.requests,
        first_token_patience_s=some(rng.choice([0, 0.3]), 2.0),
        queue_patience_s=some(rng.choice([0, 0.3]), 1.0),
        stop_after=np.array(stops) if rng.random() < 0.6 else None,
        silent=np.array([rng.random() < 0.5 for _ in range(count)]) if rng.random() < 0.5 else None,
    )
    return replace(case, scenario=case.scenario.replace(habits(case.ticks, rng)), requests=requests)


def habits(ticks: bool, rng: random.Random) -> dict[str, Any]:
    """Retries, connections, and when a server notices that somebody has left."""
    changes: dict[str, Any] = {"admission.max_queued_requests": rng.choice([None, 2, 8])}
    if rng.random() < 0.5:
        changes["workload.retries"] = {
            "max": rng.randrange(1, 4),
            "base_s": TICK_S * rng.randrange(1, 20) if ticks else rng.random(),
            "jitter": 0 if ticks else 0.25,
            "timeout_s": rng.choice([1.0, 600.0]),
            "on": ["rejected", "timed_out", *(["abandoned"] if rng.random() < 0.7 else [])],
        }
    if rng.random() < 0.4:
        changes["workload.connections"] = rng.randrange(1, 12)
    if rng.random() < 0.5:
        detection_s = TICK_S * rng.randrange(1, 50) if ticks else float(on_grid(rng.random()))
        silent = {"silent_share": 0.5, "detection_s": detection_s}
        changes["workload.patience"] = {"kind": "fixed", "mean_s": 1000, **silent}
    return changes


def leaps_change_nothing(case: Case, name: str, some: int) -> Run:
    """Assert it, leaps being of any length and of at most *some*; returns the stepped run.

    Every request has come to an end, all blocks are free, and no token is lost.
    """
    stepped = case.run(max_leap=1)
    expected, summary = told(stepped), Result(stepped).summary()
    assert summary["checks"]["blocks_conserved"], name
    assert summary["checks"]["tokens_conserved"], name
    assert not summary["requests"]["unfinished"], name
    assert not stepped.scheduler.num_waiting, name
    for max_leap in (None, some):
        found = told(case.run(max_leap))
        assert [part for part in expected if found[part] != expected[part]] == [], f"{name}, leap {max_leap}"
    return stepped


def test_leaps_change_nothing_with_people() -> None:
    """Summary, requests, logs and attempts in equal bytes, asynchronous engines or not."""
    tally: Counter[str] = Counter()
    for seed in range(CASES):
        case = with_people(full_case(seed), random.Random(f"people {seed}"))
        tally.update(happened(leaps_change_nothing(case, f"people {seed}", 2 + seed % 6)))
    assert_often(tally, tuple(tally), CASES // 10)


def test_leaps_change_nothing_with_people_in_other_engines() -> None:
    """The same where answers stand still while prompts are computed, and in static groups."""
    tally: Counter[str] = Counter()
    for seed in range(CASES // 2):
        case = with_people(
            random_case(seed, seed % 2 == 0, OTHERS[seed % 3]), random.Random(f"others {seed}")
        )
        tally.update(happened(leaps_change_nothing(case, f"others {seed}", 2 + seed % 6)))
    assert_often(tally, tuple(tally), 2)


def told(run: Run) -> dict[str, bytes]:
    """What `support.answer` has, and the log of attempts."""
    names = (*(ATTEMPT.names or ()), "attempt_tokens", *(["sent_s"] if run.recorder.sent_s else []))
    return answer(run) | {name: run.recorder.column(name).tobytes() for name in names}


def happened(run: Run) -> Counter[str]:
    """Which of the things that this file is about occurred in *run*: 1 or 0 each."""
    recorder, requests = run.recorder, run.requests
    failed, at_s = recorder.column("attempt_status"), requests.arrival_s
    status, finish_s = recorder.column("status"), recorder.column("finish_s")
    stop_after = np.zeros(len(requests)) if requests.stop_after is None else requests.stop_after
    partial = recorder.partial_answers
    got = np.array([partial.get(row, -1) for row in range(len(requests))])
    left = status == CANCELLED
    silent = np.zeros(len(requests), bool) if requests.silent is None else requests.silent
    whole = got == requests.output_tokens
    sent_s = recorder.column("sent_s") if recorder.sent_s is not None else at_s
    events = {
        "tried again after a refusal": (failed == REJECTED).any(),
        "tried again after a timeout": (failed == TIMED_OUT).any(),
        "asked again": (failed == CANCELLED).any(),
        "tokens of a failed attempt": (recorder.column("attempt_tokens") > 0).any(),
        "completed in the end": (status[recorder.column("attempt_request")] == COMPLETED).any(),
        "read enough": (left & ~silent & (stop_after > 0) & (got == stop_after)).any(),
        "ran on to the end": (left & silent & whole).any(),
        "noticed": (left & silent & ~whole & (got >= 0)).any(),
        "waited for a connection": (sent_s > at_s).any(),
        "left before a connection": (left & np.isnan(sent_s)).any(),
        "left without a token": (left & np.isnan(recorder.column("first_token_s")) & (finish_s > at_s)).any(),
    }
    return Counter({name: int(occurred) for name, occurred in events.items()})


def test_one_by_one_clients_are_served_as_in_a_crowd() -> None:
    """Who does no more than send and give up is served the same, to the last bit, on the shorter way."""
    for seed in range(CASES // 4):
        case = full_case(seed)
        nobody = replace(case.requests, silent=np.zeros(len(case.requests), dtype=bool))
        assert told(replace(case, requests=nobody).run()) == told(case.run()), seed
