"""With one sequence at a time a replica is the textbook's single server, and its queue must obey the book.

Requests arrive in a Poisson stream and hold the server for as many iterations as they have output tokens
(the first is the prefill), so service times are known exactly, and with them the mean wait in the queue:
E[W] = rate E[S^2] / (2 (1 - load)), Pollaczek-Khinchine (L. Kleinrock, Queueing Systems 1, 1975, ch. 5).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats
from support import NO_FRONT_END, EvenSteps, base

from sim.scenario import Scenario
from sim.simulation import Run, simulate

STEP_S = 2.0**-10
TOKENS = 200  # the mean answer
CONFIDENCE = 0.99
FIXED = {"kind": "fixed", "prompt_tokens": 1, "output_tokens": TOKENS}
GEOMETRIC = {"kind": "geometric", "prompt_tokens": 1, "output_mean": TOKENS}

# Load, replications, requests of each, and the widest half-interval (relative) that would still mean
# something: a wait that is wrong by 10 % (20 % at 0.9) lies far outside.
RUNS = [(0.3, 40, 3000, 0.03), (0.6, 40, 1500, 0.03), (0.8, 40, 2000, 0.03), (0.9, 25, 5000, 0.06)]


def one_at_a_time(lengths: dict[str, Any], load: float, requests: int, seed: int) -> Run:
    """A run in which the server is busy for a share *load* of the time."""
    return simulate(_scenario(lengths, load, requests, seed), step_time=EvenSteps(STEP_S))


def _scenario(lengths: dict[str, Any], load: float, requests: int, seed: int) -> Scenario:
    return base().replace(
        {
            **NO_FRONT_END,
            "engine.max_num_seqs": 1,
            "workload": {"arrivals": {"kind": "poisson"}, "lengths": lengths},
            "load.rate_per_s": load / (TOKENS * STEP_S),
            "run.requests": requests,
            "run.seed": seed,
        }
    )


def waits_s(run: Run) -> np.ndarray:
    return run.recorder.column("first_scheduled_s") - run.recorder.column("queued_s")


def second_moment_s2(lengths: dict[str, Any]) -> float:
    """E[S^2] of the service time: geometric on 1, 2, ... with mean m has E[N^2] = 2 m^2 - m."""
    tokens2 = TOKENS**2 if lengths["kind"] == "fixed" else 2 * TOKENS**2 - TOKENS
    return tokens2 * STEP_S**2


def mean_wait_s(lengths: dict[str, Any], load: float) -> float:
    """Pollaczek-Khinchine."""
    return load / (TOKENS * STEP_S) * second_moment_s2(lengths) / (2 * (1 - load))


def replication(run: Run, load: float, lengths: dict[str, Any]) -> list[float]:
    """The mean wait after warm-up (a fifth), and three means that are exactly 0 in expectation.

    X is a request's service time less the gap to the next arrival, centred: its mean, that of its square
    less the variance, and that of its product with the request's own wait, of which both are
    independent. They tell most of a run's luck (by Lindley's recursion, W' = max(0, W + X), the mean
    wait is a function of them and of the idle times), without a word of queueing theory.
    """
    first, rate_per_s = len(run.requests) // 5, load / (TOKENS * STEP_S)
    service_s, gap_s = run.requests.output_tokens[:-1] * STEP_S, np.diff(run.requests.arrival_s)
    x_s = (service_s - gap_s + 1 / rate_per_s - TOKENS * STEP_S)[first:]
    variance_s2 = 1 / rate_per_s**2 + second_moment_s2(lengths) - (TOKENS * STEP_S) ** 2
    wait_s = waits_s(run)[:-1][first:]
    luck = (x_s, x_s**2 - variance_s2, wait_s * x_s)
    return [float(wait_s.mean()), *(float(part.mean()) for part in luck)]


def t_interval(rows: np.ndarray) -> tuple[float, float]:
    """Middle and half-width of the t-interval for the mean of column 0, the others being controls.

    Controls have mean 0: the mean is the constant of the regression on them (S. S. Lavenberg and P. D.
    Welch, Management Science 27, 1981).
    """
    inputs = np.column_stack([np.ones(len(rows)), rows[:, 1:]])
    coefficients = np.linalg.lstsq(inputs, rows[:, 0], rcond=None)[0]
    degrees = len(rows) - inputs.shape[1]
    residual = rows[:, 0] - inputs @ coefficients
    scale = float(residual @ residual) / degrees * np.linalg.inv(inputs.T @ inputs)[0, 0]
    return float(coefficients[0]), float(stats.t.ppf((1 + CONFIDENCE) / 2, degrees) * scale**0.5)


@pytest.mark.parametrize(("load", "replications", "requests", "widest"), RUNS)
def test_md1(load: float, replications: int, requests: int, widest: float) -> None:
    """Equal answers: the mean wait is load E[S] / (2 (1 - load)), within a 99 % interval."""
    expected_s = mean_wait_s(FIXED, load)
    assert expected_s == pytest.approx(load * TOKENS * STEP_S / (2 * (1 - load)))
    _assert_inside(FIXED, load, replications, requests, widest)


@pytest.mark.parametrize(("load", "replications", "requests", "widest"), RUNS)
def test_mm1(load: float, replications: int, requests: int, widest: float) -> None:
    """Geometric answers: within a 99 % interval of the exact mean, 0.25 % below load E[S] / (1 - load).

    A geometric service is an exponential one in whole iterations; its E[S^2] is less by 1 / (2 x 200).
    """
    exponential_s = load * TOKENS * STEP_S / (1 - load)
    assert mean_wait_s(GEOMETRIC, load) == pytest.approx((1 - 1 / (2 * TOKENS)) * exponential_s)
    _assert_inside(GEOMETRIC, load, replications, requests, widest)


def _assert_inside(
    lengths: dict[str, Any], load: float, replications: int, requests: int, widest: float
) -> None:
    rows = [
        replication(one_at_a_time(lengths, load, requests, seed), load, lengths)
        for seed in range(1, replications + 1)
    ]
    middle_s, half_s = t_interval(np.array(rows))
    expected_s = mean_wait_s(lengths, load)
    assert half_s < widest * expected_s
    assert abs(middle_s - expected_s) < half_s


@pytest.mark.parametrize("lengths", [FIXED, GEOMETRIC], ids=["fixed", "geometric"])
def test_every_wait_follows_from_the_one_before(lengths: dict[str, Any]) -> None:
    """Lindley's recursion, W' = max(0, W + S - gap), to the last bit, request by request."""
    run = one_at_a_time(lengths, 0.9, 3000, seed=1)
    service_s, arrival_s = run.requests.output_tokens * STEP_S, run.requests.arrival_s
    expected_s = [0.0]
    for service, gap in zip(service_s[:-1].tolist(), np.diff(arrival_s).tolist(), strict=True):
        expected_s.append(max(0.0, expected_s[-1] + service - gap))
    assert waits_s(run).tolist() == expected_s
