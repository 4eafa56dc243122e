"""Arrivals of every kind have the rate, the spread of gaps and the dispersion of counts that theory gives.

Intervals are computed: of a sample's mean, the central limit's 99.9 % for one look each.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import expm

from sim.faults import InputFault
from sim.scenario import load
from sim.workload import generate, generate_chunks
from sim.workload.arrivals import open_times
from sim.workload.modulation import chain_of, time_shares
from sim.workload.renewals import weibull_shape
from sim.workload.streams import Streams

FIXED = {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 10}
NORMAL_999 = 3.291
THREE_STATES = {
    "kind": "mmpp",
    "rates": [0, 3.1, 10.6],
    "sojourn_s": [22, 8, 5],
    "transitions": [[0, 0.4, 0.6], [0.9, 0, 0.1], [1, 0, 0]],
}
ON_OFF = {"kind": "on_off", "on_s": 8, "off_s": 22}
DAY = {"times_s": [0, 20, 30], "rates": [1, 4, 0], "period_s": 40, "interpolation": "linear"}
STEP = {"interpolation": "step"}
STEPS = DAY | STEP
RAMP = {"times_s": [0, 60], "rates": [0, 2], "interpolation": "linear"}
KINDS: dict[str, dict[str, Any]] = {
    "poisson": {"kind": "poisson"},
    "gamma": {"kind": "gamma", "burstiness": 0.25},
    "even gamma": {"kind": "gamma", "cv": 0.3},
    "weibull": {"kind": "weibull", "cv": 3.0},
    "mmpp": THREE_STATES,
    "on_off": ON_OFF,
    "day": {"kind": "poisson", "series": DAY},
    "steps": {"kind": "gamma", "cv": 2.0, "series": STEPS},
    "ramp": {"kind": "poisson", "series": RAMP},
    "states in a day": ON_OFF | {"series": DAY},
    "batches": {"kind": "weibull", "cv": 0.5, "batch": {"kind": "geometric", "mean": 2.5}},
    "answers of batches": {"kind": "poisson", "batch": {"kind": "fixed", "mean": 4}},
}


def counts(arrivals: dict[str, Any], rate_per_s: float, until_s: float, seeds: int) -> np.ndarray:
    """How many requests come before *until_s*, by seed."""
    found = []
    for seed in range(seeds):
        take = open_times({"arrivals": arrivals}, rate_per_s, Streams(seed))
        times_s = take(64)
        while times_s[-1] < until_s:
            times_s = np.concatenate([times_s, take(len(times_s))])
        found.append(np.searchsorted(times_s, until_s))
    return np.array(found)


def counts_apart(arrivals: dict[str, Any], rate_per_s: float, t_s: float, apart_s: float) -> np.ndarray:
    """How many requests come in each of 1000 stretches of *t_s* of one run, *apart_s* from one another: so
    far that what happens in one says nothing about the next."""
    begins_s = apart_s + np.arange(1000) * (t_s + apart_s)
    take = open_times({"arrivals": arrivals}, rate_per_s, Streams(6))
    times_s = take(int(1.5 * begins_s[-1] * rate_per_s))
    assert times_s[-1] > begins_s[-1] + t_s
    return np.searchsorted(times_s, begins_s + t_s) - np.searchsorted(times_s, begins_s)


def assert_mean(values: np.ndarray, mean: float) -> None:
    """The sample's mean lies within its 99.9 % bound of *mean*."""
    assert abs(values.mean() - mean) <= NORMAL_999 * values.std(ddof=1) / math.sqrt(len(values))


def assert_variance(values: np.ndarray, variance: float) -> None:
    """The sample's variance lies within its 99.9 % bound of *variance*."""
    assert_mean((values - values.mean()) ** 2 * len(values) / (len(values) - 1), variance)


@pytest.mark.parametrize("name", KINDS)
def test_the_mean_rate_is_the_loads_from_the_first_second(name: str) -> None:
    """E[N(t)] = rate x t: gaps begin in their stationary state, states too, and a series has a mean of 1.

    An ordinary renewal process, whose first gap is whole, would have (cv^2 - 1) / 2 more: 4 of 12 here.
    """
    until_s = 60 if name == "ramp" else 40 if "series" in KINDS[name] else 8
    assert_mean(counts(KINDS[name], 1.5, until_s, seeds=400), 1.5 * until_s)


@pytest.mark.parametrize(("name", "cv"), [("gamma", 2.0), ("even gamma", 0.3), ("weibull", 3.0)])
def test_gaps_have_their_cv(name: str, cv: float) -> None:
    """In units of the mean gap, gaps have a mean of 1 and a mean square of 1 + cv^2; and they follow the
    distribution (Kolmogorov-Smirnov, 99.9 %)."""
    gaps = np.diff(open_times({"arrivals": KINDS[name]}, 4.0, Streams(2))(40_001)) * 4
    assert_mean(gaps, 1.0)
    assert_mean(gaps**2, 1 + cv**2)
    shape = weibull_shape(cv)
    law = (
        stats.weibull_min(shape, scale=1 / math.gamma(1 + 1 / shape))
        if name == "weibull"
        else stats.gamma(cv**-2, scale=cv**2)
    )
    assert stats.kstest(gaps, law.cdf).pvalue > 0.001


@pytest.mark.parametrize("cv", [0.01, 0.3, 1.0, 2.0, 13.0, 100.0])
def test_the_weibull_shape_has_the_cv(cv: float) -> None:
    """Solved for the shape, the closed form gives the cv again; cv 1 is the exponential distribution."""
    power = 1 / weibull_shape(cv)
    square = math.expm1(math.lgamma(1 + 2 * power) - 2 * math.lgamma(1 + power))
    assert math.sqrt(square) == pytest.approx(cv, rel=1e-9)
    assert weibull_shape(1.0) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("name", ["gamma", "even gamma"])
def test_dispersion_of_a_renewal_process(name: str) -> None:
    """Var N(t) = cv^2 t + 1/6 + cv^4/2 - mu3/3 of a stationary one at unit rate (Cox, Renewal Theory, 1962,
    4.5; mu3 the third central moment, 2 cv^4 of gamma gaps), up to what vanishes with t."""
    square = 4.0 if name == "gamma" else 0.09
    variance = square * 400 + 1 / 6 + square**2 / 2 - 2 * square**2 / 3
    assert_variance(counts_apart(KINDS[name], 1.0, 400, apart_s=50), variance)


def chain_variance(arrivals: dict[str, Any], rate_per_s: float, t_s: float) -> float:
    """Var N(t) of a Poisson process with a rate r(s) of a stationary chain: E[N] + 2 times the integral of
    (t - u) Cov(r(0), r(u)), by the exponential of a block matrix."""
    rates, stays_s, moves = chain_of(arrivals)
    shares = time_shares(stays_s, moves)
    rates = rates * rate_per_s / (shares @ rates)
    generator = (moves - np.eye(len(rates))) / stays_s[:, None]
    one, none = np.eye(len(rates)), np.zeros_like(moves)
    blocks = np.block([[generator, one, none], [none, none, one], [none, none, none]])
    twice = expm(blocks * t_s)[: len(rates), -len(rates) :]  # the integral of (t - u) e^(Q u)
    covariance = (shares * rates) @ twice @ rates - (rate_per_s * t_s) ** 2 / 2
    return rate_per_s * t_s + 2 * float(covariance)


@pytest.mark.parametrize("arrivals", [THREE_STATES, ON_OFF], ids=["mmpp", "on_off"])
@pytest.mark.parametrize("t_s", [1.0, 10.0, 60.0])
def test_dispersion_of_states(arrivals: dict[str, Any], t_s: float) -> None:
    """Counts of 1, 10 and 60 s of a modulated process have the variance of the closed form."""
    assert_variance(counts_apart(arrivals, 2.6, t_s, apart_s=60), chain_variance(arrivals, 2.6, t_s))


def test_stays_are_in_seconds_whatever_the_rate() -> None:
    """At three times the rate an on/off process has the same silences: the state is on at the same times."""
    slow, fast = (open_times({"arrivals": ON_OFF}, rate, Streams(4))(8000 * int(rate)) for rate in (1, 30))
    long_gaps = np.flatnonzero(np.diff(fast) > 5.0)
    assert len(long_gaps) > 50
    for first_s, last_s in zip(fast[long_gaps] + 0.5, fast[long_gaps + 1] - 0.5, strict=True):
        assert not np.any((slow > first_s) & (slow < last_s))


@pytest.mark.parametrize("series", [DAY, STEPS], ids=["linear", "step"])
def test_a_series_is_the_rate_over_time(series: dict[str, Any]) -> None:
    """Arrivals by phase of the period follow the integral of the rates (chi-square over 1 s, 99.9 %), and
    none come where the rate is 0."""
    arrivals = {"kind": "poisson", "series": series}
    phase_s = open_times({"arrivals": arrivals}, 5.0, Streams(3), begin_s=-77.0)(40_000) % 40
    knots, rates = np.array([0, 20, 30, 40.0]), np.array([1, 4, 0, 1.0])
    fine = (np.arange(40_000) + 0.5) / 1000
    rate = np.interp(fine, knots, rates) if series is DAY else rates[np.searchsorted(knots, fine) - 1]
    shares = rate.reshape(40, 1000).sum(axis=1) / rate.sum()
    observed = np.bincount(phase_s.astype(int), minlength=40)
    assert not observed[shares == 0].any()
    expected = 40_000 * shares[shares > 0]
    distance = ((observed[shares > 0] - expected) ** 2 / expected).sum()
    assert distance < stats.chi2.ppf(0.999, len(expected) - 1)


def test_constant_arrivals_up_a_ramp() -> None:
    """Of a rate that rises straight from 0 to 2 in 60 s, the k-th of 60 comes at 60 sqrt(k / 60), and
    afterwards they come at twice the mean rate."""
    arrivals = {"kind": "constant", "series": RAMP}
    times_s = open_times({"arrivals": arrivals}, 1.0, Streams(1))(81)
    assert times_s[:61] == pytest.approx(60 * np.sqrt(np.arange(61) / 60))
    assert times_s[60:] == pytest.approx(60 + np.arange(21) / 2)


def test_batches_come_together() -> None:
    """Fixed batches of 4 are at one time each; geometric ones have sizes of P(n) = (1 - 1/m)^(n-1) / m."""
    fixed = open_times({"arrivals": KINDS["answers of batches"], "answers": 3}, 6.0, Streams(1))(1200)
    assert np.array_equal(fixed, np.repeat(fixed[::12], 12))
    assert len(np.unique(fixed)) == 100
    drawn = open_times({"arrivals": KINDS["batches"]}, 6.0, Streams(1))(30_000)
    _, sizes = np.unique(drawn, return_counts=True)
    observed = np.bincount(np.minimum(sizes[:-1], 12), minlength=13)[1:]
    shares = 0.6 ** np.arange(11) / 2.5
    expected = (len(sizes) - 1) * np.append(shares, 1 - shares.sum())
    assert ((observed - expected) ** 2 / expected).sum() < stats.chi2.ppf(0.999, 11)


@pytest.mark.parametrize("name", KINDS)
def test_arrivals_in_pieces_are_those_at_once(name: str) -> None:
    """Ten and then twenty are thirty, in bytes, and times lie on the grid and never fall."""
    workload = {"arrivals": KINDS[name], "lengths": FIXED}
    run = {"requests": 3000, "seed": 9}
    whole = generate(workload, {"rate_per_s": 3.0}, run).arrival_s
    pieces = [chunk.arrival_s for chunk in generate_chunks(workload, {"rate_per_s": 3.0}, run, rows=37)]
    assert np.array_equal(np.concatenate(pieces), whole)
    assert np.array_equal(whole * 2**32, np.rint(whole * 2**32))
    assert np.all(np.diff(whole) >= 0)


@pytest.fixture
def grid(tmp_path: Path) -> dict[str, Any]:
    """A trace of forty requests on a grid of 3 s, four at each time."""
    path = tmp_path / "grid.csv"
    rows = "".join(f"{k // 4 * 3},{k + 1},{k + 1}\n" for k in range(40))
    path.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}", encoding="utf-8")
    return {
        "arrivals": {"kind": "trace", "path": path, "jitter_s": 3},
        "lengths": {"kind": "trace", "path": path},
    }


def test_jitter_takes_a_trace_off_its_grid(grid: dict[str, Any]) -> None:
    """Each time moves by less than 3 s, in the trace's own seconds, and the rows keep their order; another
    seed moves them otherwise."""
    one = generate(grid, {"mode": "trace", "time_scale": 2}, {"seed": 1})
    other = generate(grid, {"mode": "trace", "time_scale": 2}, {"seed": 2})
    moved_s = one.arrival_s * 2 - np.arange(40) // 4 * 3
    assert len(np.unique(one.arrival_s)) == 40
    assert np.all((moved_s >= 0) & (moved_s < 3))
    assert np.all(np.diff(one.arrival_s) > 0)
    assert one.prompt_tokens.tolist() == list(range(1, 41))
    assert not np.any(one.arrival_s == other.arrival_s)
    again = generate(grid, {"rate_per_s": 2}, {"requests": 100, "seed": 1}).arrival_s
    assert again[39] == pytest.approx(39 / 2)  # the mean rate is that of the moved times
    assert again[40:80] - 20 == pytest.approx(again[:40], abs=1e-9)


def test_moves_by_jitter_are_uniform_below_it(tmp_path: Path) -> None:
    """Of rows so far apart that none passes another: means over 99.9 % intervals, none outside (0, 3) s."""
    path = tmp_path / "apart.csv"
    rows = "".join(f"{10 * k},5,5\n" for k in range(2000))
    path.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}", encoding="utf-8")
    recorded = {"kind": "trace", "path": path}
    workload = {"arrivals": recorded | {"jitter_s": 3}, "lengths": recorded}
    moved_s = generate(workload, {"mode": "trace"}, {"seed": 1}).arrival_s - 10.0 * np.arange(2000)
    assert np.all((moved_s >= 0) & (moved_s < 3))
    assert abs(moved_s.mean() - 3 / 2) < NORMAL_999 * 3 / math.sqrt(12 * 2000)
    assert abs((moved_s**2).mean() - 3**2 / 3) < NORMAL_999 * 3**2 * math.sqrt((1 / 5 - 1 / 9) / 2000)


def test_a_source_of_arrivals_does_not_move_another() -> None:
    """Batches, states and a series leave lengths and patience as they are, and a series the states."""
    lengths = {"kind": "lognormal", "prompt_mean": 900, "output_mean": 200, "cv": 1.4}
    patience = {"kind": "exponential", "mean_s": 9}
    runs = [
        generate(
            {"arrivals": kind, "lengths": lengths, "patience": patience}, {"rate_per_s": 3}, {"requests": 99}
        )
        for kind in KINDS.values()
    ]
    for column in ("prompt_tokens", "output_tokens", "patience_s"):
        assert len({getattr(run, column).tobytes() for run in runs}) == 1, column
    assert len({run.arrival_s.tobytes() for run in runs}) == len(KINDS)


def test_a_rate_that_ends() -> None:
    """Where the last rate of a series is 0, a run of a time ends with it, and one of requests says how many
    there are."""
    down = {"kind": "constant", "series": {"times_s": [0, 10], "rates": [2, 0], "interpolation": "linear"}}
    workload = {"arrivals": down, "lengths": FIXED}
    times_s = generate(workload, {"rate_per_s": 2}, {"duration_s": 50}).arrival_s
    assert len(times_s) == 20 or (len(times_s) == 21 and times_s[20] <= 10)
    with pytest.raises(
        InputFault, match=rf"run\.requests must be at most {len(times_s)}, which .* \(got 30\)"
    ):
        generate(workload, {"rate_per_s": 2}, {"requests": 30})


@pytest.mark.parametrize(
    ("arrivals", "sentences"),
    [
        ({"kind": "gamma"}, ["arrivals.burstiness and arrivals.cv: exactly one must be there"]),
        ({"kind": "weibull"}, ["arrivals.cv is missing: weibull arrivals need it"]),
        ({"kind": "poisson", "cv": 2}, ["arrivals.cv does not go with workload.arrivals.kind poisson"]),
        ({"kind": "gamma", "cv": 0}, ["arrivals.cv must be a number >= 0.01 and <= 100 (got 0)"]),
        ({"kind": "on_off", "on_s": 3}, ["arrivals.off_s is missing"]),
        (
            {"kind": "mmpp", "rates": [0, 1, 2], "sojourn_s": [1, 2]},
            ["arrivals.rates must have as many items as arrivals.sojourn_s, at least 2 (got 3 and 2)"],
        ),
        (
            {"kind": "mmpp", "rates": [0, 1, 2], "sojourn_s": [1, 2, 3]},
            ["arrivals.transitions is missing: 3 states need it"],
        ),
        (THREE_STATES | {"rates": [0, 0, 0]}, ["arrivals.rates must not all be 0"]),
        (
            THREE_STATES | {"transitions": [[0, 1], [1, 0]]},
            ["arrivals.transitions must be 3 rows of 3 (got rows of 2, 2)"],
        ),
        (
            THREE_STATES | {"transitions": [[0.5, 0.5, 0.5], [0, 0, 1], [0, 1, 0]]},
            ["in each row (row 1 has", "must be 0 on the diagonal", "(none leads from 2 to 1)"],
        ),
        (
            THREE_STATES | {"transitions": [[0, 1.2, -0.2], [0.5, 0, 0.5], [0.5, 0.5, 0]]},
            ["arrivals.transitions must be probabilities that add up to 1 in each row (row 1 has"],
        ),
        (
            THREE_STATES | {"transitions": [[0, 0.4, 0.6], [0.5, 0, 0.4], [0.5, 0.5, 0]]},
            ["arrivals.transitions must be probabilities that add up to 1 in each row (row 2 has"],
        ),
        (
            THREE_STATES | {"transitions": [0, 1]},
            ["must be a list of rows, each a list of numbers (got a list of 2)"],
        ),
        (
            {"kind": "poisson", "series": {"times_s": [0, 5, 4], "rates": [1, 2]}},
            ["arrivals.series must have as many rates as times_s, at least 2 (got 2 and 3)"],
        ),
        (
            {"kind": "poisson", "series": {"times_s": [1, 5], "rates": [0, 0], "period_s": 4}},
            ["series.times_s must rise from 0", "series.rates must not all be 0"],
        ),
        (
            {"kind": "poisson", "series": {"times_s": [0, 5], "rates": [1, 0], "period_s": 4}},
            ["series.period_s must be at least the last of times_s, 5 (got 4)"],
        ),
        (
            {"kind": "poisson", "series": {"times_s": [0, 5, 5], "rates": [1, 2, 3]}},
            ["arrivals.series.times_s must rise from 0"],
        ),
        (  # the last rate of steps begins where nothing comes any more
            {"kind": "poisson", "series": {"times_s": [0, 5], "rates": [0, 3], "period_s": 5} | STEP},
            ["arrivals.series.rates must not all be 0"],
        ),
        (
            {"kind": "poisson", "batch": {"kind": "fixed", "mean": 2.5}},
            ["arrivals.batch.mean must be a whole number where kind is fixed (got 2.5)"],
        ),
    ],
)
def test_faults_of_arrivals(arrivals: dict[str, Any], sentences: list[str]) -> None:
    """What does not fit together is told all at once, with the key, the requirement and what came."""
    asked = {
        "hardware": "h100-80gb-sxm",
        "model": "llama-3.1-8b",
        "workload": {"arrivals": arrivals, "lengths": FIXED},
        "load": {"rate_per_s": 1},
    }
    with pytest.raises(InputFault) as caught:
        load(asked)
    assert len(caught.value.faults) == len(sentences), caught.value.faults
    for sentence, fault in zip(sentences, caught.value.faults, strict=True):
        assert sentence in fault


@pytest.mark.parametrize("other", ["sessions", "classes"])
def test_sessions_and_classes_go_on(other: str) -> None:
    """More of their arrivals are drawn than are sent, so the rate must not end at 0."""
    turns = {"turns": {"kind": "fixed", "mean": 2}, "gap": {"kind": "fixed", "mean_s": 1}}
    down = {"series": {"times_s": [0, 10], "rates": [2, 0]}}
    asked = {
        "hardware": "h100-80gb-sxm",
        "model": "llama-3.1-8b",
        "workload": {"arrivals": down, "lengths": FIXED, other: turns if other == "sessions" else {"a": {}}},
        "load": {"rate_per_s": 1},
    }
    with pytest.raises(
        InputFault, match=r"arrivals\.series\.rates must not end at 0 with sessions or classes"
    ):
        load(asked)
