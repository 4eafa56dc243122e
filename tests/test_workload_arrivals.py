"""When requests arrive."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.faults import InputFault
from sim.workload import Requests, generate

FIXED = {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 10}
NORMAL_999 = 3.291  # two-sided 99.9 % bound of a standard normal
KS_999 = math.sqrt(-math.log(0.001 / 2) / 2)  # of sqrt(n) D, Kolmogorov's limit


def requests_of(
    load: dict[str, Any], run: dict[str, Any], arrivals: str = "poisson", **workload: Any
) -> Requests:
    """Requests of fixed lengths unless *workload* says otherwise."""
    return generate({"arrivals": {"kind": arrivals}, "lengths": FIXED} | workload, load, {"seed": 5} | run)


@pytest.fixture
def trace(tmp_path: Path) -> dict[str, Any]:
    """A workload that replays five requests at 10, 11, 11, 14 and 18 s: mean rate 4 gaps / 8 s."""
    path = tmp_path / "five.csv"
    path.write_text(
        "arrival_s,prompt_tokens,output_tokens\n10,1,11\n11,2,12\n11,3,13\n14.0,4,14\n18,5,15\n",
        encoding="utf-8",
    )
    return {"arrivals": {"kind": "trace", "path": path}, "lengths": {"kind": "trace", "path": path}}


def test_poisson_gaps_are_exponential() -> None:
    """Gaps at rate 4/s follow 1 - exp(-4 t) (Kolmogorov-Smirnov, 99.9 %) and do not follow one another."""
    count = 20_000
    gaps = np.diff(requests_of({"rate_per_s": 4}, {"requests": count}).arrival_s, prepend=0)
    sorted_shares = 1 - np.exp(-4 * np.sort(gaps))
    distance = np.abs(sorted_shares - (np.arange(count) + 0.5) / count).max() + 0.5 / count
    assert distance * math.sqrt(count) < KS_999
    assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) * math.sqrt(count) < NORMAL_999


def test_poisson_counts_have_the_mean_rate() -> None:
    """A duration of 5,000 s at 4/s holds 20,000 requests, give or take the Poisson bound at 99.9 %."""
    requests = requests_of({"rate_per_s": 4}, {"duration_s": 5000})
    assert abs(len(requests) - 20_000) < NORMAL_999 * math.sqrt(20_000)
    assert requests.arrival_s[-1] < 5000


@pytest.mark.parametrize("arrivals", ["poisson", "constant"])
def test_another_rate_stretches_the_same_arrivals(arrivals: str) -> None:
    """Common random numbers: times x rate are the same at any rate, to half a tick of 2^-32 s."""
    slow = requests_of({"rate_per_s": 0.7}, {"requests": 1000}, arrivals)
    fast = requests_of({"rate_per_s": 19}, {"requests": 1000}, arrivals)
    assert np.allclose(slow.arrival_s * 0.7, fast.arrival_s * 19, rtol=1e-14, atol=20 * 2**-33)


def test_times_lie_on_the_clocks_grid_and_never_fall() -> None:
    """Every arrival and every patience is a multiple of 2^-32 s."""
    patience = {"kind": "exponential", "mean_s": 3.3}
    requests = requests_of({"rate_per_s": 1 / 3}, {"requests": 5000}, patience=patience)
    assert requests.patience_s is not None
    for times_s in (requests.arrival_s, requests.patience_s):
        assert np.array_equal(times_s * 2**32, np.rint(times_s * 2**32))
    assert np.all(np.diff(requests.arrival_s) >= 0)


def test_constant_arrivals_begin_at_zero() -> None:
    """At 4/s a request comes every 0.25 s, and 10 s hold exactly forty."""
    requests = requests_of({"rate_per_s": 4}, {"duration_s": 10}, "constant")
    assert requests.arrival_s.tolist() == [k * 0.25 for k in range(40)]


def test_a_burst_is_all_at_once() -> None:
    """load: burst puts every request at t = 0 and needs a number of requests."""
    assert requests_of({"mode": "burst"}, {"requests": 7}).arrival_s.tolist() == [0.0] * 7
    with pytest.raises(InputFault, match=r"run\.requests is missing: a burst has no duration"):
        requests_of({"mode": "burst"}, {"duration_s": 5})


def test_a_traces_own_times(trace: dict[str, Any]) -> None:
    """load: trace replays all rows, counted from the first; time_scale 2 halves every time."""
    requests = generate(trace, {"mode": "trace"}, {})
    assert requests.arrival_s.tolist() == [0, 1, 1, 4, 8]
    assert requests.output_tokens.tolist() == [11, 12, 13, 14, 15]
    assert generate(trace, {"mode": "trace", "time_scale": 2}, {}).arrival_s.tolist() == [0, 0.5, 0.5, 2, 4]


def test_a_replay_ends_with_the_trace_or_before(trace: dict[str, Any]) -> None:
    """Fewer rows on demand; more are not invented; notes say how many were not sent, or are lacking."""
    cut = generate(trace, {"mode": "trace"}, {"duration_s": 4})
    assert (cut.arrival_s.tolist(), cut.notes) == ([0, 1, 1], {"trace_rows_not_sent": 2})
    first = generate(trace, {"mode": "trace"}, {"requests": 2})
    assert (len(first), first.notes) == (2, {"trace_rows_not_sent": 3})
    assert generate(trace, {"mode": "trace"}, {"requests": 5}).notes == {}
    longest = generate(trace, {"mode": "trace"}, {"requests": 7})
    assert len(longest) == 5
    assert longest.notes == {"requests_beyond_trace": 2}


def test_a_trace_at_another_rate(trace: dict[str, Any]) -> None:
    """At 1/s the four gaps last 4 s; the trace then begins again one mean gap later, its rows drawn anew."""
    requests = generate(trace, {"rate_per_s": 1}, {"requests": 12, "seed": 2})
    assert requests.arrival_s.tolist() == [0, 0.5, 0.5, 2, 4, 5, 5.5, 5.5, 7, 9, 10, 10.5]
    assert requests.prompt_tokens[:5].tolist() == [1, 2, 3, 4, 5]
    assert np.array_equal(requests.output_tokens - requests.prompt_tokens, np.full(12, 10))
    assert requests.notes == {"trace_repeated": 2, "trace_rows_resampled": 7}


@pytest.mark.parametrize(
    ("load", "arrivals", "sentence"),
    [
        ({"rate_per_s": 0}, "poisson", r"load\.rate_per_s must be > 0 \(got 0\)"),
        ({"rate_per_s": math.nan}, "poisson", r"load\.rate_per_s must be > 0 \(got nan\)"),
        ({}, "poisson", "load needs rate_per_s"),
        ({"rate_per_s": 1}, "poison", r"arrivals\.kind poison is unknown; did you mean poisson\?"),
        ({"mode": "trace"}, "poisson", r"arrivals\.kind is poisson; give load\.rate_per_s, or a trace"),
    ],
)
def test_faults_of_a_load(load: dict[str, Any], arrivals: str, sentence: str) -> None:
    """A load that gives no arrival times says what would."""
    with pytest.raises(InputFault, match=sentence):
        requests_of(load, {"requests": 10}, arrivals)


def test_a_duration_too_short_for_any_request() -> None:
    """An empty run is a fault, not a table of nothing."""
    with pytest.raises(InputFault, match="no request arrives within"):
        requests_of({"rate_per_s": 0.01}, {"duration_s": 0.001})


def test_a_trace_without_times_or_with_one_instant(tmp_path: Path) -> None:
    """A replay asks for a column of times, a rate for two instants."""
    path = tmp_path / "t.csv"
    workload = {"arrivals": {"kind": "trace", "path": path}, "lengths": {"kind": "trace", "path": path}}
    path.write_text("TIMESTMP,ContextTokens,GeneratedTokens\n1,2,3\n", encoding="utf-8")
    with pytest.raises(InputFault, match=r"t\.csv:1: no column for the arrival times .*mean TIMESTAMP\?"):
        generate(workload, {"mode": "trace"}, {})
    assert (
        len(generate(workload | {"arrivals": {"kind": "poisson"}}, {"rate_per_s": 1}, {"requests": 4})) == 4
    )
    path.write_text("arrival_s,prompt_tokens,output_tokens\n4,2,3\n4,2,3\n", encoding="utf-8")
    with pytest.raises(InputFault, match=r"two times at least .*use load: burst"):
        generate(workload, {"rate_per_s": 1}, {"requests": 2})
