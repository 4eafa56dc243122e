"""What clients do, rule by rule: what each asks again for, when, and with which patience and luck."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import in_seconds
from scipy import stats
from support import NO_FRONT_END, EvenSteps, base

from sim.simulation import Run, simulate
from sim.simulation.recorder import CANCELLED, COMPLETED, REJECTED
from sim.workload import Streams
from sim.workload.patience import open_patience

CLIENTS = 20_000


def one_at_a_time(**workload: Any) -> dict[str, Any]:
    """Keys of a server with one place."""
    sections = {f"workload.{name}": section for name, section in workload.items()}
    return {**NO_FRONT_END, "engine.max_num_seqs": 1, **sections}


def sends(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """When each request of *run* was sent and when it left, in s: a row a request, a column an attempt.

    Without those that completed; all others were sent equally often.
    """
    records = run.recorder
    request, failed = records.column("attempt_request"), np.flatnonzero(records.column("status") != COMPLETED)
    order = [np.flatnonzero(request == row) for row in failed]
    first, left = (
        np.array([[*records.column(log)[rows], records.column(last)[row]]
                  for row, rows in zip(failed, order, strict=True)])
        for log, last in (("attempt_sent_s", "queued_s"), ("attempt_left_s", "finish_s"))
    )  # fmt: skip
    return first, left


@pytest.mark.parametrize("limit", ["total", "first_token", "queue"])
def test_who_asks_again_has_new_patience(limit: str) -> None:
    """Of four asks of one request no two wait equally long, and each has the distribution's mean.

    Whoever is served keeps the only place for longer than all the others wait.
    """
    mean_s, times = 5.0, 4
    patience = {limit: {"kind": "exponential", "mean_s": mean_s}}
    again = {"max": times - 1, "base_s": 1.0, "jitter": 0, "on": ["abandoned"], "timeout_s": 1e6}
    lengths = {"kind": "fixed", "prompt_tokens": 1, "output_tokens": 8000}
    rules = one_at_a_time(patience=patience, retries=again, lengths=lengths)
    run = simulate(base().replace({**rules, "run.requests": 300}), step_time=EvenSteps(1.0))
    sent_s, left_s = sends(run)
    waits_s = left_s - sent_s
    assert len(waits_s) >= 298
    assert all(len(set(row)) == times for row in waits_s.tolist())
    for ask in waits_s.T:
        assert abs(ask.mean() - mean_s) < 5 * stats.sem(ask)


def test_who_was_refused_and_then_leaves_was_refused() -> None:
    """Refused at 1.5 and gone at 2.5, before the next attempt: the record is that of the refusal."""
    rules = one_at_a_time(retries={"base_s": 5.0, "jitter": 0})
    scenario = base().replace({**rules, "admission.max_queued_requests": 1})
    for leap in (1, None):
        run = in_seconds(leap)(scenario, (0.0, 5, 20), (1.0, 5, 2), (1.5, 5, 2, 1.0))
        assert run.recorder.column("status").tolist() == [COMPLETED, COMPLETED, REJECTED]
        assert run.recorder.column("finish_s")[2] == 1.5
        assert not len(run.recorder.column("attempt_sent_s"))


@pytest.mark.parametrize(("told_s", "refused_s"), [(7.0, 8.5), (60.0, 61.5), (61.0, 3.5)])
def test_retry_after_is_for_who_was_refused(told_s: float, refused_s: float) -> None:
    """Refused at 1.5: again after what the server says, if that is 60 s at most; or else after 2 s.

    Who left at 4.5 has heard nothing of the server, and asks again after 2 s in any case.
    """
    again = {"max": 1, "base_s": 2.0, "jitter": 0, "on": ["rejected", "abandoned"], "retry_after_s": told_s}
    scenario = base().replace({**one_at_a_time(retries=again), "admission.max_queued_requests": 1})
    for leap in (1, None):
        run = in_seconds(leap)(scenario, (0.0, 5, 20, 4.5), (1.0, 5, 2), (1.5, 5, 2))
        log = {name: run.recorder.column(f"attempt_{name}").tolist() for name in ("request", "status")}
        assert dict(zip(*log.values(), strict=True)) == {0: CANCELLED, 2: REJECTED}
        assert run.recorder.column("queued_s").tolist() == [6.5, 1.0, refused_s]


def test_every_wait_has_luck_of_its_own() -> None:
    """Full jitter: no two waits of a request are equal, nor two first waits, and all are evenly spread."""
    base_s, times = 64.0, 3
    again = {"max": times, "base_s": base_s, "cap_s": base_s, "jitter": 1, "timeout_s": 1e6}
    lengths = {"kind": "fixed", "prompt_tokens": 1, "output_tokens": 8000}
    rules = one_at_a_time(retries=again, lengths=lengths)
    scenario = base().replace({**rules, "admission.max_queued_requests": 1, "run.requests": 300})
    sent_s, left_s = sends(simulate(scenario, step_time=EvenSteps(1.0)))
    waits = (sent_s[:, 1:] - left_s[:, :-1]) / base_s
    assert waits.shape == (298, times)
    assert len(set(waits.ravel().tolist())) == waits.size
    for wait in waits.T:
        assert stats.kstest(wait, "uniform").pvalue > 1e-4


SHARES: dict[str, tuple[dict[str, Any], str]] = {
    "total": ({"kind": "fixed", "mean_s": 9.0, "share": 0.2}, "patience_s"),
    "queue": ({"queue": {"kind": "exponential", "mean_s": 9.0, "share": 0.2}}, "queue_patience_s"),
    "stop_after": ({"stop_after": {"kind": "fixed", "mean": 3, "share": 0.2}}, "stop_after"),
    "silent": ({"silent_share": 0.2}, "silent"),
}


@pytest.mark.parametrize("name", SHARES)
def test_a_share_is_a_share(name: str) -> None:
    """A fifth of the clients: as many as are in the binomial distribution's interval (99.9 %)."""
    section, column = SHARES[name]
    values = open_patience(section, Streams(1))(np.full(CLIENTS, 10))[column]
    have = int(((values > 0) & np.isfinite(values)).sum())
    least, most = stats.binom.interval(0.999, CLIENTS, 0.2)
    assert least <= have <= most


@pytest.mark.parametrize("output_tokens", [1, 2, 3, 6])
def test_a_reader_may_stop_at_every_token_but_the_last(output_tokens: int) -> None:
    """Evenly from 1 to the last but one: after 1 of two tokens always, and of one token never."""
    section = {"stop_after": {"kind": "uniform", "share": 1.0}}
    read = open_patience(section, Streams(1))(np.full(CLIENTS, output_tokens))["stop_after"]
    counts = np.bincount(read, minlength=output_tokens + 1)
    if output_tokens == 1:
        assert counts.tolist() == [CLIENTS, 0]
        return
    assert counts[0] == counts[output_tokens] == 0
    least, most = stats.binom.interval(0.9999, CLIENTS, 1 / (output_tokens - 1))
    assert all(least <= count <= most for count in counts[1:output_tokens])
