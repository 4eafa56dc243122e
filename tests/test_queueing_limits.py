"""A queue with limits, one sequence at a time, is a textbook's: what is turned away has a formula.

Intervals are t-intervals (99 %) over replications of the share that was turned away after warm-up.
"""

from __future__ import annotations

from math import exp
from typing import Any

import numpy as np
import pytest
from analytic import SERVICE_S, blocked, one_place, t_interval

from sim.simulation.recorder import CANCELLED, REJECTED, TIMED_OUT

REQUESTS, REPLICATIONS, WARMUP = 2500, 24, 500


def interval(load: float, status: int, **rules: Any) -> tuple[float, float]:
    """Middle and half-width of the interval for the share of requests that end with *status*."""
    runs = one_place(load, REQUESTS, REPLICATIONS, **rules)
    return t_interval([float((run.recorder.column("status")[WARMUP:] == status).mean()) for run in runs])


@pytest.mark.parametrize(("load", "waiting"), [(0.8, 1), (0.8, 4), (1.3, 2)])
def test_a_bounded_queue_refuses_as_m_m_1_k(load: float, waiting: int) -> None:
    """max_queued_requests is K - 1; a place more or less lies outside the interval."""
    middle, half = interval(load, REJECTED, admission__max_queued_requests=waiting)
    assert abs(middle - blocked(load, waiting + 1)) < half
    assert abs(middle - blocked(load, waiting)) > half
    assert abs(middle - blocked(load, waiting + 2)) > half


def late(load: float, deadline: float) -> float:
    """M/M/1+D: who would wait longer than *deadline* services leaves unserved.

    The work ahead of an arrival has the density load P0 exp(-(1 - load) w) up to D and falls like
    exp(-w) beyond, since nobody who comes then is served; P0 makes it one, and the loss is its tail
    (D. Y. Barrer, Operations Research 5, 1957; F. Baccelli and G. Hebuterne, Performance '81).
    """
    tail = load * exp(-(1 - load) * deadline)
    empty = 1 / (1 + load * (1 - exp(-(1 - load) * deadline)) / (1 - load) + tail)
    return empty * tail


@pytest.mark.parametrize(("load", "deadline"), [(0.8, 1.0), (0.8, 3.0), (1.3, 2.0)])
def test_a_deadline_in_the_queue_loses_as_m_m_1_plus_d(load: float, deadline: float) -> None:
    """queue_deadline_s of D services; half as long or half as long again lies outside the interval."""
    middle, half = interval(load, TIMED_OUT, admission__queue_deadline_s=deadline * SERVICE_S)
    assert abs(middle - late(load, deadline)) < half
    assert abs(middle - late(load, deadline / 2)) > half
    assert abs(middle - late(load, deadline * 1.5)) > half


def abandoned(load: float, patience: float, states: int = 400) -> float:
    """Patience until the answer's end, exponential with *patience* services in the mean.

    Births at rate *load*, deaths at 1 + n / patience with n there: the server's and each one's own. The
    share that leaves unserved is E[n] / patience / load (C. Palm's chain, with reneging in service, too).
    """
    weight = np.cumprod([1.0, *(load / (1 + n / patience) for n in range(1, states))])
    return float(weight @ np.arange(states)) / float(weight.sum()) / patience / load


@pytest.mark.parametrize(("load", "patience"), [(0.8, 2.0), (0.8, 10.0), (1.5, 5.0)])
def test_impatient_clients_leave_as_in_their_markov_chain(load: float, patience: float) -> None:
    """From the send to the answer's end: an abort frees the server. Half as much again is outside."""
    patient = {"kind": "exponential", "mean_s": patience * SERVICE_S}
    middle, half = interval(load, CANCELLED, workload__patience=patient)
    assert abs(middle - abandoned(load, patience)) < half
    assert abs(middle - abandoned(load, patience / 1.5)) > half
    assert abs(middle - abandoned(load, patience * 1.5)) > half


def test_without_limits_nobody_is_turned_away() -> None:
    """The formulas tend to nothing as their limits grow, and so does the simulation."""
    assert blocked(0.5, 60) < 1e-17 < 1e-12 > late(0.5, 60.0)
    assert abandoned(0.5, 1e6) < 1e-5
    assert interval(0.5, REJECTED, admission__max_queued_requests=60) == (0.0, 0.0)
