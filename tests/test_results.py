"""What a run answers, against every token of it looked at one by one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from runs import FIXED, STORIES, every_story, requests, result, story

from sim.results import Result
from sim.results.steps import SPREAD
from sim.simulation import simulate

PER_REQUEST = ("ttft", "server_ttft", "queue", "tpot", "stall", "e2e")


def leave_s(run: Result) -> np.ndarray:
    patience_s = run.run.requests.patience_s
    return run.run.requests.arrival_s + (np.inf if patience_s is None else patience_s)


# -- against every token -----------------------------------------------------------------------------


def test_the_stories_are_about_what_they_say() -> None:
    """Preemptions and cancellations happen where they should, and nowhere else.

    However small the token budget is, it never ends before a sequence that decodes: nobody sits a step out.
    """
    for name in STORIES:
        run, tokens = story(name)
        assert (tokens.preemptions > 0) == ("preempting" in name or name.startswith("impatient")), name
        cancelled = run.summary()["requests"]["cancelled"]
        assert (cancelled > 5) == ("impatient" in name), name
        assert run.summary()["preemptions"] == tokens.preemptions


@every_story
def test_each_request_has_the_latencies_of_its_tokens(name: str) -> None:
    """TTFT, E2E, TPOT, stall and the tokens that its client got, of every request, to the very bit."""
    run, tokens = story(name)
    rows, sent = run.requests, run.run.requests
    for i, times_s in enumerate(tokens.tokens_s):
        row = rows.iloc[i]
        assert row.output_tokens == len(times_s)
        if len(times_s) < sent.output_tokens[i]:
            assert row.status == "cancelled"
            assert row.finish_s == leave_s(run)[i]
            assert np.isnan(row.e2e_s)
            continue
        assert row.status == "completed"
        assert row.first_token_s == times_s[0]
        assert row.finish_s == times_s[-1]
        assert row.ttft_s == times_s[0] - sent.arrival_s[i]
        assert row.e2e_s == times_s[-1] - sent.arrival_s[i]
        if len(times_s) == 1:
            assert np.isnan([row.tpot_s, row.stall_s]).all()
        else:
            assert row.tpot_s == pytest.approx((times_s[-1] - times_s[0]) / (len(times_s) - 1), rel=1e-12)
            assert row.stall_s == tokens.gaps_s(i).max()


@every_story
def test_gaps_are_those_between_tokens(name: str) -> None:
    """ITL of all gaps of the measured requests together: number, largest and mean exactly.

    Percentiles are within SPREAD, relatively, of a gap that occurred.
    """
    run, tokens = story(name)
    measured = np.flatnonzero(run._table.measured)
    gaps_s = np.concatenate([tokens.gaps_s(i) for i in measured])
    itl_s = run.summary()["itl_s"]
    assert itl_s["n"] == len(gaps_s) > 20
    assert itl_s["max"] == gaps_s.max()
    assert itl_s["mean"] == pytest.approx(gaps_s.mean(), rel=1e-12)
    for p in (50, 90, 95, 99):
        exact_s = np.percentile(gaps_s, p, method="inverted_cdf")
        assert itl_s[f"p{p}"] == pytest.approx(exact_s, rel=SPREAD)


@every_story
def test_summaries_are_of_those_who_came_in_the_window_and_completed(name: str) -> None:
    """Every latency's statistics from the rows of requests.csv by numpy; with warm-up left out."""
    run, _ = story(name)
    rows, found = run.requests.copy(), run.summary()
    rows["server_ttft_s"] = rows.first_token_s - run.run.recorder.column("queued_s")
    chosen = rows[rows.in_window & (rows.status == "completed")]
    for metric in PER_REQUEST:
        values = chosen[f"{metric}_s"].dropna().to_numpy()
        described = found[f"{metric}_s"]
        assert described["n"] == len(values)
        assert described["mean"] == pytest.approx(values.mean())
        assert described["max"] == values.max()
        for p in (50, 90, 95, 99):
            assert described[f"p{p}"] == pytest.approx(np.percentile(values, p))
    for name_ in ("prompt_tokens", "output_tokens"):
        assert found[name_]["mean"] == pytest.approx(chosen[name_].mean())


@every_story
def test_use_of_the_pool_is_what_every_iteration_held(name: str) -> None:
    """Mean over busy time and maximum of the blocks in use; the mean grows evenly within a batch.

    Wasted is what blocks hold beyond tokens, in iterations in which everybody decodes.
    """
    run, tokens = story(name)
    seconds, blocks = np.array(tokens.seconds), np.array(tokens.blocks)
    usable, cache_use = run.run.scheduler.num_blocks, run.summary()["kv_cache"]
    assert cache_use["usage_max"] == blocks.max() / usable
    mean = seconds @ blocks / seconds.sum() / usable
    assert cache_use["usage_mean"] == pytest.approx(mean, rel=0.02)
    assert 0.0 < cache_use["usage_mean"] <= cache_use["usage_max"] <= 1.0
    only = np.array(tokens.only_decodes)
    held, kept = seconds[only] @ blocks[only] * 16, seconds[only] @ np.array(tokens.kept_tokens)[only]
    assert cache_use["wasted_fraction"] == pytest.approx(1 - kept / held, abs=0.02)


@every_story
def test_nothing_is_lost_and_nothing_is_undefined(name: str) -> None:
    """Counts add up to what was offered, tokens and blocks are conserved, and JSON has no NaN."""
    run, _ = story(name)
    found = run.summary()
    counts = dict(found["requests"])
    counts.pop("retries")
    assert counts.pop("offered") == sum(counts.values()) == len(run.run.requests)
    assert found["checks"]["blocks_conserved"]
    assert found["checks"]["tokens_conserved"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@every_story
def test_leaping_answers_the_same(name: str) -> None:
    """The document, but for the clock on the wall and the events it took, does not depend on leaps."""
    stepping, _ = story(name)
    leaping = Result(simulate(stepping.run.scenario, requests=STORIES[name][0])).summary()
    ignored = {"simulator": None}
    assert json.dumps(leaping | ignored) == json.dumps(stepping.summary() | ignored)


# -- windows and rates -------------------------------------------------------------------------------


@pytest.mark.parametrize(("warmup", "start"), [(0.2, 20), (0.0, 0), (0.55, 55), ("1s", None)])
def test_the_window_runs_from_warm_up_to_the_last_arrival(warmup: Any, start: int | None) -> None:
    """A share counts requests, a time counts seconds; arrivals at its edges are inside."""
    sent = requests(100, 11)
    run = result(sent, run={"requests": 100, "warmup": warmup})
    window = run.summary()["window"]
    start_s = 1.0 if start is None else sent.arrival_s[start]
    assert (window["start_s"], window["end_s"]) == (start_s, sent.arrival_s[-1])
    assert window["requests"] == run.requests.in_window.sum() == (sent.arrival_s >= start_s).sum()
    assert run.summary()["ttft_s"]["n"] == window["requests"]


@every_story
def test_throughput_is_what_completed_in_the_window(name: str) -> None:
    """Whenever it was sent, per second of the window; what the cancelled got is output, but of no use."""
    run, _ = story(name)
    rows, found = run.requests, run.summary()
    start_s, end_s = found["window"]["start_s"], found["window"]["end_s"]
    ended = rows[(rows.finish_s > start_s) & (rows.finish_s <= end_s)]
    done = ended[ended.status == "completed"]
    length_s = end_s - start_s
    assert found["request_throughput"] == pytest.approx(len(done) / length_s)
    assert found["output_throughput"] == pytest.approx(ended.output_tokens.sum() / length_s)
    assert found["useful_output_throughput"] == pytest.approx(done.output_tokens.sum() / length_s)
    total = ended.output_tokens.sum() + done.prompt_tokens.sum()
    assert found["total_token_throughput"] == pytest.approx(total / length_s)


@every_story
def test_makespan_runs_from_the_first_send_to_the_last_completion(name: str) -> None:
    """Totals of the completed over that time, as load generators print them."""
    run, _ = story(name)
    rows, found = run.requests, run.summary()["makespan"]
    done = rows[rows.status == "completed"]
    duration_s = done.finish_s.max() - rows.arrival_s[0]
    assert found["duration_s"] == duration_s
    assert found["request_throughput"] == pytest.approx(len(done) / duration_s)
    assert found["output_throughput"] == pytest.approx(done.output_tokens.sum() / duration_s)
    total = (done.output_tokens + done.prompt_tokens).sum()
    assert found["total_token_throughput"] == pytest.approx(total / duration_s)


def test_a_burst_is_judged_by_its_makespan() -> None:
    """No window, so no throughput but the reason; latencies, makespan and concurrency are there."""
    found = result(load="burst", slo={"ttft_p99_s": 1.0}).summary()
    assert found["window"] == {"start_s": 0.0, "end_s": 0.0, "requests": 100}
    assert found["request_throughput"] is found["output_throughput"] is None
    assert "makespan" in found["throughput_reason"]
    assert found["makespan"]["request_throughput"] == pytest.approx(100 / found["e2e_s"]["max"])
    assert found["ttft_s"]["n"] == 100
    assert found["goodput_fraction"] is not None
    assert found["concurrency_max"] == 100
    assert found["stable"]
    usd_per_s = found["scenario"]["cost"]["gpu_hour_usd"] / 3600
    price = 1e6 * usd_per_s / found["makespan"]["output_throughput"]
    assert found["cost"]["usd_per_1m_output_tokens"] == pytest.approx(price)
    json.dumps(found, allow_nan=False)


@every_story
def test_cost_is_the_price_of_an_hour_over_its_tokens(name: str) -> None:
    """USD 1.39 an hour for one A100, by what the window put out.

    Where the queue grows the window is only the filling of the batch, and the makespan's rate may be higher.
    """
    found = story(name)[0].summary()
    usd_per_s = found["scenario"]["cost"]["gpu_hour_usd"] / 3600
    for kind, rate in (("output", "output_throughput"), ("total", "total_token_throughput")):
        tokens_per_s = found[rate]
        if not found["stable"]:
            tokens_per_s = max(tokens_per_s, found["makespan"][rate])
        assert found["cost"][f"usd_per_1m_{kind}_tokens"] == pytest.approx(1e6 * usd_per_s / tokens_per_s)


def test_all_gpus_of_a_replica_are_paid_for() -> None:
    """Two GPUs cost twice as much an hour."""
    found = result(engine={"tensor_parallel_size": 2}, cost={"gpu_hour_usd": 3.6}).summary()
    assert found["cost"]["usd_per_1m_output_tokens"] * found["output_throughput"] == pytest.approx(2000)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("mixed", [False, True])
def test_priorities_and_their_policy_need_each_other(policy: str, mixed: bool) -> None:
    """One without the other has no effect, and the run says so."""
    priorities = {"priorities": {"weights": [0.5, 0.5]}} if mixed else {}
    found = result(engine={"scheduling_policy": policy}, workload={**FIXED, **priorities})
    warned = [warning for warning in found.summary()["warnings"] if "has no effect" in warning]
    assert len(warned) == (mixed != (policy == "priority"))
