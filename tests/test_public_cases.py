"""Cases from public threads on LLM serving, re-created in direction and size. Each test names its thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import sim
from sim.planning.knee import find_knee
from sim.report.text import run_text
from sim.results import Result


def run(load: Mapping[str, Any], lengths: tuple[int, int] = (512, 64), **sections: Any) -> Result:
    """A run of an 8B model on one A100, with *lengths* (prompt, answer) and other sections as given."""
    prompt, output = lengths
    document = {
        "name": "case",
        "hardware": "a100-80gb-sxm",
        "model": "llama-3-8b",
        "workload": {
            "arrivals": {"kind": "poisson"},
            "lengths": {"kind": "fixed", "prompt_tokens": prompt, "output_tokens": output},
        },
        "load": load,
        "run": {"requests": 1000, "warmup": 0.0},
    }
    return sim.simulate(sim.load({**document, **sections}))


def test_overload_is_a_queue_vllm_3096() -> None:
    """vllm#3096: 1,000 requests at 90 times the service rate. The last waits 1000 / rate, throughput does not
    change, TTFT is the place in the queue over the rate, and the run is called unstable, with its slope."""
    engine = {"max_num_seqs": 8}
    rate = run({"mode": "burst"}, engine=engine).summary()["makespan"]["request_throughput"]
    found = run({"rate_per_s": 90 * rate}, engine=engine)
    summary = found.summary()
    assert summary["ttft_s"]["max"] == pytest.approx(1000 / rate, rel=0.03)
    assert summary["makespan"]["request_throughput"] == pytest.approx(rate, rel=0.02)
    place_s = np.arange(1000) / rate
    assert np.corrcoef(place_s, found.requests["ttft_s"])[0, 1] > 0.999
    assert not summary["stable"]
    assert summary["queue_growth_per_s"] == pytest.approx(89 * rate, rel=0.1)
    assert "UNSTABLE: the queue grows by" in run_text(summary)


def test_past_the_knee_only_the_queue_grows_sglang_32959() -> None:
    """sglang#32959: 8,192 tokens in, 1,024 out, 16 users against 1,024. Tokens/s differ by a few percent,
    TTFT by hundreds of times; requests/s over mean E2E, and a limit on TTFT, both choose 16 and not the most
    throughput."""
    card = {"hardware": "a100-40gb-sxm", "model": "llama-3.1-8b", "slo": {"ttft_p99_s": 20.0}}
    card["engine"] = {"max_model_len": 16384}
    few, many = (
        run({"concurrency": users}, (8192, 1024), **card, run={"requests": n, "warmup": 0.4}).summary()
        for users, n in ((16, 320), (1024, 2600))
    )
    assert few["output_throughput"] == pytest.approx(many["output_throughput"], rel=0.06)
    assert many["ttft_s"]["p50"] > 300 * few["ttft_s"]["p50"]
    power = [x["request_throughput"] / x["e2e_s"]["mean"] for x in (few, many)]
    assert power[0] > 20 * power[1]
    assert few["goodput_fraction"] > 0.98
    assert many["goodput_fraction"] < 0.05


@pytest.mark.parametrize("users", [16, 100])
def test_littles_law_holds_for_users_vultr_concurrency(users: int) -> None:
    """Vultr's MI325X and B200 pages, where X R gives 338 of 1,000 "concurrent": N = X R within two percent,
    and the effective concurrency that is reported is the users', who all wait for an answer."""
    summary = run({"concurrency": users}, run={"requests": max(1600, 40 * users), "warmup": 0.2}).summary()
    product = summary["request_throughput"] * summary["e2e_s"]["mean"]
    assert product == pytest.approx(summary["concurrency_mean"], rel=0.02)
    assert summary["concurrency_mean"] == pytest.approx(users, rel=0.02)
    assert summary["concurrency_max"] == users


def test_a_client_that_cannot_hold_its_users_shows_it_vultr_concurrency() -> None:
    """Vultr's pages again: 1,000 users with 300 requests between them, or at their desks thinking, are never
    1,000 in flight; the mean and the largest number in the system say so."""
    short = run({"concurrency": 1000}, run={"requests": 300, "warmup": 0.0}).summary()
    assert short["concurrency_max"] == 300
    think = {"kind": "exponential", "mean_s": 60.0}
    thinking = run({"concurrency": 100, "think": think}, run={"requests": 2000, "warmup": 0.2}).summary()
    response_s, users = thinking["e2e_s"]["mean"], 100
    assert thinking["concurrency_mean"] == pytest.approx(users * response_s / (response_s + 60), rel=0.1)


def test_prefill_between_decodes_is_their_worst_gap_vllm_tt_plugin_119() -> None:
    """vllm-tt-plugin#119: whole prompts between decodes against small chunks mixed in. The worst gap falls
    several times, while TTFT and throughput change by percents."""
    runs = []
    for budget in (16384, 2048):
        engine = {"max_num_batched_tokens": budget, "max_num_seqs": 64}
        found = run({"rate_per_s": 0.8}, (8000, 300), engine=engine, run={"requests": 400, "warmup": 0.1})
        runs.append(found.summary())
    whole, mixed = runs
    assert whole["itl_s"]["max"] > 4 * mixed["itl_s"]["max"]
    assert whole["itl_s"]["p50"] == pytest.approx(mixed["itl_s"]["p50"], rel=0.2)
    assert mixed["ttft_s"]["p50"] == pytest.approx(whole["ttft_s"]["p50"], rel=0.3)
    assert mixed["output_throughput"] == pytest.approx(whole["output_throughput"], rel=0.03)


def test_one_token_answers_have_no_tpot_vllm_omni_6693() -> None:
    """vllm-omni#6693, flexible-inference-bench#68: where all answers have one token TPOT and ITL are null
    with n = 0 and the reason, and a limit on them is said to be not evaluated; the others decide."""
    slo = {"ttft_p99_s": 2.0, "tpot_p99_s": 0.05}
    quick = {"requests": 300, "precision": 0.1, "most_replications": 4}
    summary = run({"rate_per_s": 4}, (512, 1), slo=slo).summary()
    for metric in ("tpot_s", "itl_s"):
        assert summary[metric]["n"] == 0
        assert summary[metric]["mean"] is summary[metric]["p99"] is None
        assert "one token" in summary[metric]["reason"]
    assert summary["goodput_fraction"] == 1.0
    knee = find_knee(run({"rate_per_s": 4}, (512, 1), slo=slo, run=quick).run.scenario)
    assert knee.limits["tpot_p99_s"]["at_knee"] is None
    assert any("not evaluated" in warning for warning in knee.warnings)
    assert knee.limits["ttft_p99_s"]["at_knee"] <= 2.0


def test_the_refused_have_no_latency_vllm_5895() -> None:
    """vllm#5895: failed requests with a TTFT of 0 dragged the median to 0. Latencies are the completed's
    alone, the others are counted, and goodput is out of all that were offered."""
    slo = {"ttft_p99_s": 1e3}
    engine = {"max_num_seqs": 4}
    summary = run({"rate_per_s": 40}, engine=engine, admission={"max_queued_requests": 4}, slo=slo).summary()
    counts = summary["requests"]
    assert counts["rejected"] > 500
    assert counts["completed"] + counts["rejected"] == counts["offered"] == 1000
    assert summary["ttft_s"]["n"] == counts["completed"]
    assert summary["ttft_s"]["p50"] > 0.05
    assert summary["goodput_fraction"] == counts["completed"] / 1000


def test_the_start_is_left_out_under_load_evalscope_1641() -> None:
    """evalscope#1641, mlcommons/endpoints#86: the users' first requests come all at once. Left out by count
    or by time they no longer make the p99, and the system is as full at the window's start as later."""
    users = {"concurrency": 64}
    rows = {
        warmup: run(users, (2000, 200), run={"requests": 1500, "warmup": warmup}).summary()
        for warmup in (0.0, 0.2, "60s")
    }
    assert rows[0.0]["ttft_s"]["max"] > 3 * rows[0.2]["ttft_s"]["max"]
    for warmup in (0.2, "60s"):
        window = rows[warmup]["window"]
        assert window["start_s"] > 0
        assert rows[warmup]["concurrency_mean"] == pytest.approx(64, rel=0.01)
        assert rows[warmup]["makespan"]["duration_s"] > window["end_s"] - window["start_s"]


def test_ramp_and_drain_are_in_no_rate_guidellm_92() -> None:
    """guidellm#92, apicurio#9893: a short run's tokens over its whole span understate the server; over the
    window they are the long run's, and both are there with their spans."""
    lengths = {"kind": "fixed", "prompt_tokens": 256, "output_tokens": 512}
    even = {"arrivals": {"kind": "constant"}, "lengths": lengths}
    found = run({"rate_per_s": 4}, workload=even, run={"requests": 80, "warmup": 0.5})
    short = found.summary()
    window, whole = short["output_throughput"], short["makespan"]["output_throughput"]
    assert window == pytest.approx(4 * 512, rel=0.06)
    assert whole < 0.85 * window
    finish_s, (start_s, end_s) = (
        found.requests["finish_s"],
        (short["window"][x] for x in ("start_s", "end_s")),
    )
    inside = int(((finish_s > start_s) & (finish_s <= end_s)).sum())
    assert window == pytest.approx(512 * inside / (end_s - start_s))


def test_a_rate_above_capacity_ends_and_says_what_it_is_guidellm_108() -> None:
    """guidellm#108, #242: the run ends with its requests, is labelled, and its percentiles are said to depend
    on its length, as they do: twice as long, about twice the p99."""
    engine = {"max_num_seqs": 8}
    one, two = (
        run({"rate_per_s": 20}, engine=engine, run={"requests": n, "warmup": 0.0}).summary()
        for n in (500, 1000)
    )
    assert one["requests"]["completed"] == 500
    assert not one["stable"]
    assert any("percentiles depend on the run's length" in warning for warning in one["warnings"])
    assert two["ttft_s"]["p99"] == pytest.approx(2 * one["ttft_s"]["p99"], rel=0.1)


def test_a_slow_first_answer_is_no_saturation_guidellm_606() -> None:
    """guidellm#606: answers of minutes, none of which ends in the first half minute: the batch fills, the
    queue does not grow, and nobody calls it saturated."""
    found = run({"rate_per_s": 0.5}, (6000, 2000), run={"duration_s": 120, "warmup": 0.0})
    assert found.requests["finish_s"].min() > 25
    assert found.summary()["stable"]


def test_what_is_recommended_keeps_the_limits_aiconfigurator_725() -> None:
    """aiconfigurator#725, #727: the load that is named keeps every limit it was asked for; if none does, the
    answer is none, with the nearest miss beside it."""
    quick = {"requests": 300, "precision": 0.1, "most_replications": 4}
    scenario = run({"rate_per_s": 4}, slo={"ttft_p99_s": 0.5, "tpot_p99_s": 0.04}, run=quick).run.scenario
    knee = find_knee(scenario)
    assert knee.feasible
    for limit in knee.limits.values():
        assert limit["at_knee"] <= limit["limit"] * (1 + 1e-9)
    none = find_knee(scenario.replace({"slo": {"tpot_p99_s": 0.001}}))
    assert none.rate_per_s is None
    assert none.nearest_miss is not None
    assert none.nearest_miss["limits"]["tpot_p99_s"]["value"] > 0.001


def test_tpot_has_one_definition_aiconfigurator_1141() -> None:
    """aiconfigurator#1141, configiq#8: with or without TTFT? TPOT is (E2E - TTFT) / (output tokens - 1) of
    each request, which is printed beside it; ITL, every gap, is a row of its own."""
    found = run({"rate_per_s": 4})
    table, summary = found.requests, found.summary()
    expected = (table["e2e_s"] - table["ttft_s"]) / (table["output_tokens"] - 1)
    assert np.allclose(table["tpot_s"], expected, rtol=1e-12)
    assert summary["tpot_s"]["mean"] == pytest.approx(expected.mean())
    text = run_text(summary)
    rows = [line.partition("  ")[0] for line in text.splitlines()]
    assert {"TPOT", "ITL"} <= set(rows)
    assert "TPOT is (E2E - TTFT) / (output tokens - 1) of a request; ITL is each gap" in text
