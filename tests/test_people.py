"""People and their clients against theory: who leaves, who asks again, what that costs and what it is worth.

One sequence at a time (`analytic.one_place`). Intervals are t-intervals (99 %) over replications.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from analytic import SERVICE_S, STEP_S, blocked, one_place, reneging, t_interval
from cases import in_seconds, sent
from scipy import stats
from support import NO_FRONT_END, EvenSteps, base

from sim.faults import InputFault
from sim.results import Result
from sim.simulation import simulate
from sim.simulation.recorder import CANCELLED, COMPLETED
from sim.workload import Streams
from sim.workload.patience import open_patience

REQUESTS, REPLICATIONS, WARMUP = 2000, 12, 400


@pytest.mark.parametrize(("load", "patience"), [(0.8, 2.0), (1.5, 5.0)])
def test_who_waits_for_a_place_leaves_as_in_erlang_a(load: float, patience: float) -> None:
    """Patience in the queue, exponential: twice or half as much lies outside the interval."""
    waits = {"queue": {"kind": "exponential", "mean_s": patience * SERVICE_S}}
    done = one_place(load, REQUESTS, REPLICATIONS, workload__patience=waits)
    left = [float((run.recorder.column("status")[WARMUP:] == CANCELLED).mean()) for run in done]
    middle, half = t_interval(left)
    assert abs(middle - reneging(load, patience)) < half
    assert abs(middle - reneging(load, patience / 2)) > half
    assert abs(middle - reneging(load, patience * 2)) > half


def test_retries_make_load_and_no_useful_work() -> None:
    """M/M/1/2 whose refused come back twice, long after: the load is the solution of a' = a (1 + B + B^2).

    Far later than the queue remembers, what comes back is Poisson, too, so that every attempt is refused
    with B = B(a'), Erlang's blocking at that load. B^3 of the requests are lost for good; without retries it
    is B(a). The server is busy for 1 - p0 of the time, of a' now.
    """
    load, again = 0.7, {"max": 2, "base_s": 300 * SERVICE_S, "cap_s": 300 * SERVICE_S, "jitter": 1}
    offered = load
    for _ in range(100):
        share = blocked(offered, 2)
        offered = load * (1 + share + share**2)
    rules: dict[str, Any] = {"admission__max_queued_requests": 1, "workload__retries": again}
    done = list(one_place(load, REQUESTS, REPLICATIONS, **rules))
    tried = [1 + len(run.recorder.column("attempt_sent_s")) / REQUESTS for run in done]
    middle, half = t_interval(tried)
    assert abs(middle - offered / load) < max(half, 0.02)
    assert middle > 1 + 5 * half
    for run in done:
        counts = Result(run).summary()["requests"]
        assert counts["offered"] == REQUESTS == counts["completed"] + counts["rejected"]
        assert counts["retries"] == len(run.recorder.column("attempt_sent_s"))


def test_cancelling_a_tenth_at_random_ages_saves_half_of_its_work() -> None:
    """A reader who leaves at a token drawn evenly from its answer's has had half of it in the mean.

    Of the decoded tokens a tenth of a half, 5 %, is not computed (but for the one in progress each time).
    """
    stop = {"stop_after": {"kind": "uniform", "share": 0.1}}
    rules: dict[str, Any] = {"load.rate_per_s": 1.0, "run.requests": 3000}
    lengths = {"lengths": {"kind": "fixed", "prompt_tokens": 10, "output_tokens": 400}}
    all_read, some_leave = (
        Result(
            simulate(base().replace({**rules, "workload": {**lengths, **more}}), step_time=EvenSteps(STEP_S))
        )
        for more in ({}, {"patience": stop})
    )
    computed = [
        int(r.run.recorder.column("decodes") @ r.run.recorder.column("iterations"))
        for r in (all_read, some_leave)
    ]
    saved = 1 - computed[1] / computed[0]
    deviation = np.sqrt(3000 * 0.1 * (1 / 3 - 0.1 / 4)) / 3000  # of a sum of U with probability 0.1
    assert abs(saved - 0.05) < 3 * deviation + 1 / 400
    checks = some_leave.summary()["checks"]
    assert checks["blocks_conserved"]
    assert checks["tokens_conserved"]


def test_work_counts_once_however_often_it_is_sent() -> None:
    """Impatient people ask again: what the failed attempts computed is output, and never useful."""
    patience = {"kind": "exponential", "mean_s": 2 * SERVICE_S}
    again = {"max": 3, "base_s": SERVICE_S, "on": ["abandoned"]}
    for run in one_place(1.2, 300, 2, workload__patience=patience, workload__retries=again):
        summary, recorder = Result(run).summary(), run.recorder
        status = recorder.column("status")
        assert summary["requests"]["completed"] == int((status == COMPLETED).sum())
        assert summary["requests"]["retries"] > 0
        assert summary["output_throughput"] > summary["useful_output_throughput"]
        assert summary["request_throughput"] <= summary["useful_output_throughput"]
        assert (recorder.column("finish_s") >= run.requests.arrival_s).all()


def test_a_retry_by_hand() -> None:
    """Refused at 1.5, sent again 2 s later: latency counts from 1.5, its row is the last attempt's."""
    scenario = base().replace(
        {
            **NO_FRONT_END,
            "engine.max_num_seqs": 1,
            "admission.max_queued_requests": 1,
            "workload.retries": {"base_s": 2.0, "jitter": 0},
        }
    )
    for leap in (1, None):
        run = in_seconds(leap)(scenario, (0.0, 5, 3), (1.0, 5, 2), (1.5, 5, 2))
        assert run.recorder.column("attempt_left_s").tolist() == [1.5]
        assert run.recorder.column("queued_s").tolist() == [0.0, 1.0, 3.5]
        assert Result(run).requests["e2e_s"].tolist() == [3.0, 4.0, 5.5]
        assert Result(run).summary()["requests"]["retries"] == 1


def test_a_connection_by_hand() -> None:
    """One connection: who means to send at 1 sends at 3, when the first is answered."""
    scenario = base().replace({**NO_FRONT_END, "workload.connections": 1})
    for leap in (1, None):
        run = in_seconds(leap)(scenario, (0.0, 5, 3), (1.0, 5, 2))
        assert run.recorder.column("sent_s").tolist() == [0.0, 3.0]
        rows = Result(run).requests
        assert rows["send_delay_s"].tolist() == [0.0, 2.0]
        assert rows["e2e_s"][1] == rows["finish_s"][1] - 1.0


@pytest.mark.parametrize("silent", [False, True])
def test_a_silent_client_keeps_the_server_busy(silent: bool) -> None:
    """Gone at 4.5 of an answer of 20: its place is free at 5, or at 20 where nobody tells the server."""
    scenario = base().replace({**NO_FRONT_END, "engine.max_num_seqs": 1})
    requests = replace(sent((0.0, 5, 20, 4.5), (1.0, 5, 2)), silent=np.array([silent, False]))
    run = simulate(scenario, requests=requests, step_time=EvenSteps(1.0))
    assert run.recorder.column("finish_s")[0] == 4.5
    assert run.recorder.column("first_scheduled_s")[1] == (20.0 if silent else 5.0)
    assert run.recorder.partial_answers[0] == (20 if silent else 4)


def test_a_reader_stops_at_its_token() -> None:
    """After three tokens, at 3: the fourth is in progress and lost, and the place is free at 4."""
    scenario = base().replace({**NO_FRONT_END, "engine.max_num_seqs": 1})
    requests = replace(sent((0.0, 5, 20), (1.0, 5, 2)), stop_after=np.array([3, 0]))
    run = simulate(scenario, requests=requests, step_time=EvenSteps(1.0))
    assert run.recorder.column("finish_s")[0] == 3.0
    assert run.recorder.partial_answers[0] == 3
    assert run.recorder.column("first_scheduled_s")[1] == 4.0


@pytest.mark.parametrize(
    "kind", [{"kind": "weibull", "shape": 0.7}, {"kind": "lognormal", "cv": 1.5}, {"kind": "exponential"}]
)
def test_patience_has_its_mean(kind: dict[str, Any]) -> None:
    """Within five standard errors, and drawn in pieces it is the same to the last bit."""
    section = {"first_token": {**kind, "mean_s": 9.0}}
    tokens = np.full(20_000, 10)
    whole = open_patience(section, Streams(1))(tokens)["first_token_patience_s"]
    take = open_patience(section, Streams(1))
    pieces = [take(tokens[:1000])["first_token_patience_s"], take(tokens[1000:])["first_token_patience_s"]]
    assert np.concatenate(pieces).tolist() == whole.tolist()
    assert abs(whole.mean() - 9.0) < 5 * stats.sem(whole)


@pytest.mark.parametrize(
    ("base_s", "cap_s", "right"), [(3.0, 3.0, True), (3.0, 9.0, True), (3.1, 3.0, False)]
)
def test_waits_between_attempts_are_capped_from_the_first_one_on(
    base_s: float, cap_s: float, right: bool
) -> None:
    """A cap below the first wait is a fault, told with both; one that equals it is none."""
    asked = {"workload.retries": {"base_s": base_s, "cap_s": cap_s}}
    if right:
        assert base().replace(asked).workload["retries"]["cap_s"] == cap_s
        return
    with pytest.raises(InputFault, match=r"workload\.retries\.cap_s must be >= base_s 3\.1 \(got 3\)"):
        base().replace(asked)
