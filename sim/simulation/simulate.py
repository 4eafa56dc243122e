"""Runs: a scenario's engine, whoever sends to it, and the clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from math import ceil
from time import perf_counter

import numpy as np
from simpy import Environment

from sim.faults import InputFault
from sim.scenario import Scenario
from sim.simulation.callers import Callers, habits_by_class
from sim.simulation.clients import ClosedLoop, Piece, Progress, open_loop, send_pieces
from sim.simulation.clockwork import Clockwork
from sim.simulation.front_end import FrontEnd
from sim.simulation.handover import ROWS, Handover, PassingRecorder, Sink
from sim.simulation.recorder import Recorder
from sim.simulation.replica import Replica
from sim.simulation.server import Run, Server
from sim.simulation.upon_answers import UponAnswers
from sim.workload import (
    Requests,
    answers_decide,
    draw_think,
    generate,
    generate_chunks,
    users_of,
)
from sim.workload.arrivals import expected_requests


def simulate(
    scenario: Scenario,
    max_leap: int | None = None,
    *,
    requests: Requests | None = None,
    step_time: Clockwork | None = None,
    progress: Progress | None = None,
) -> Run:
    """Run *scenario* to the end of its last request.

    *max_leap* bounds the iterations that one event may stand for; 1 steps through every iteration,
    with the same result. *requests* and *step_time* take the place of the scenario's own (where users or
    sessions wait for answers, those decide when requests arrive). Raises InputFault where the model or one
    full context does not fit.
    """
    if requests is not None:
        return _simulated(scenario, max_leap, requests, step_time, progress)[0]
    settings, enough = dict(scenario.run), False
    while not enough:
        requests = generate(scenario.workload, scenario.load, settings)
        run, enough = _simulated(scenario, max_leap, requests, step_time, progress)
        settings["user_requests"] = 2 * len(requests)
    return run


def _simulated(
    scenario: Scenario,
    max_leap: int | None,
    requests: Requests,
    step_time: Clockwork | None,
    progress: Progress | None,
) -> tuple[Run, bool]:
    """The run of *requests*, and whether its users had enough of them."""
    began = perf_counter()
    server = Server.of(scenario)
    requests = server.within(requests)
    clockwork = step_time or server.step_time(requests)
    env, recorder = Environment(), Recorder(len(requests))
    replica = server.replica(env, clockwork, recorder, max_leap)
    possible = server.schedulable(requests)
    habits = habits_by_class(scenario.workload, scenario.run["seed"])
    waiting: UponAnswers | None = None
    if scenario.load.get("concurrency") is not None:
        requests = replace(requests, arrival_s=np.zeros(len(requests)))
        _closed_loop(scenario, requests, possible, server.front_end, replica, progress)
    elif requests.follows or users_of(scenario.workload, requests, 0):
        callers = Callers(env, requests, possible, server.front_end, replica, recorder, habits)
        waiting = _upon_answers(scenario, requests, callers)
        waiting.start(progress)
    else:
        open_loop(env, requests, possible, server.front_end, replica, recorder, progress, habits)
    env.run()
    if waiting is not None:
        requests = waiting.settle(recorder)
    return server.run(requests, replica, began), waiting is None or not waiting.ran_out


def simulate_in_parts(
    scenario: Scenario,
    sink: Sink,
    max_leap: int | None = None,
    *,
    progress: Progress | None = None,
    rows: int = ROWS,
) -> Run:
    """Run *scenario* like `simulate`, and hand its records to *sink* part by part as requests end.

    A part has about *rows* requests; the run that is returned has none left. Requests come in pieces too,
    where their traffic can be drawn so. Raises InputFault.
    """
    if answers_decide(scenario.workload):
        raise InputFault(
            "run.stream_records does not go with sessions or classes that wait for answers: leave it out"
        )
    began = perf_counter()
    server = Server.of(scenario)
    pieces = map(server.within, _chunks(scenario, rows))
    first = next(pieces)
    clockwork = server.step_time(first, scenario.engine["max_model_len"])
    env, recorder = Environment(), PassingRecorder()
    replica = server.replica(env, clockwork, recorder, max_leap)
    handover = Handover(sink, recorder, replica, progress, rows)
    if scenario.load.get("concurrency") is None:
        drawn = (
            Piece(piece, server.schedulable(piece), row)
            for row, piece in handover.pass_on(chain([first], pieces))
        )
        send_pieces(env, drawn, server.front_end, replica, recorder, handover.told, _expected(scenario))
    else:
        first = replace(first, arrival_s=np.full(len(first), np.inf))  # still to come
        handover.add(first)
        _closed_loop(scenario, first, server.schedulable(first), server.front_end, replica, handover.told)
    env.run()
    return server.run(handover.finish(), replica, began)


def _closed_loop(
    scenario: Scenario,
    requests: Requests,
    schedulable: np.ndarray,
    front_end: FrontEnd,
    replica: Replica,
    progress: Progress | None,
) -> None:
    """Have users send *requests* as they go; fills in when they arrive."""
    think_s = draw_think(scenario.load, len(requests), scenario.run["seed"])
    env, recorder, users = replica.env, replica.recorder, scenario.load["concurrency"]
    habits = habits_by_class(scenario.workload, scenario.run["seed"])
    callers = Callers(env, requests, schedulable, front_end, replica, recorder, habits)
    ClosedLoop(env, requests, callers, think_s, progress).start(users)


def _upon_answers(scenario: Scenario, requests: Requests, callers: Callers) -> UponAnswers:
    """Who sends where answers decide: as long as something comes at a rate, or so many requests in all."""
    users = users_of(scenario.workload, requests, scenario.run["seed"])
    if sum(len(some.rows) for some in users) == len(requests):
        return UponAnswers(callers.env, requests, callers, users, np.inf, scenario.run["requests"])
    until_s = scenario.run.get("duration_s") or float(requests.arrival_s[-1])
    return UponAnswers(callers.env, requests, callers, users, until_s)


def _chunks(scenario: Scenario, rows: int) -> Iterator[Requests]:
    """The requests of *scenario*, piece by piece; all at once where users ask for them as they go."""
    if scenario.load.get("concurrency") is None:
        return generate_chunks(scenario.workload, scenario.load, scenario.run, rows)
    return iter([generate(scenario.workload, scenario.load, scenario.run)])


def _expected(scenario: Scenario) -> int:
    """How many requests a run has, about; 0 where only its trace tells."""
    rate_per_s = scenario.load.get("rate_per_s")
    if rate_per_s is None:
        return scenario.run.get("requests") or 0
    return ceil(expected_requests(rate_per_s, scenario.run))
