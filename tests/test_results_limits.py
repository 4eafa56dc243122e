"""What is undefined, who is good, who is refused, and what the machine was used for."""

from __future__ import annotations

import json

import numpy as np
import pytest
from cases import admitting, in_seconds
from replay import replay
from runs import STORIES, TIGHT, at, every_story, requests, result, story

import sim
from sim.results import Result
from sim.workload import Requests

# -- undefined values, percentiles, goodput ----------------------------------------------------------


def test_answers_of_one_token_have_no_time_between_tokens() -> None:
    """TPOT, ITL and stall are null with n = 0 and the reason; TTFT equals E2E."""
    found = result(requests(50, 12, output=1)).summary()
    for metric in ("tpot_s", "itl_s", "stall_s"):
        assert found[metric]["n"] == 0
        assert found[metric]["mean"] is found[metric]["p99"] is found[metric]["max"] is None
        assert "one token" in found[metric]["reason"]
    assert found["ttft_s"] == found["e2e_s"]
    json.dumps(found, allow_nan=False)


def test_percentiles_that_limits_name_are_there() -> None:
    """p75 of TTFT, p99.9 of ITL, and no more of the others than usual."""
    found = result(slo={"ttft_p75_s": 1, "itl_p99.9_s": 1, "server_ttft_p10_s": 1, "e2e_max_s": 9}).summary()
    assert found["ttft_s"]["p50"] <= found["ttft_s"]["p75"] <= found["ttft_s"]["p90"]
    assert found["itl_s"]["p99"] <= found["itl_s"]["p99.9"] <= found["itl_s"]["max"]
    assert found["server_ttft_s"]["p10"] <= found["server_ttft_s"]["p50"]
    assert set(found["e2e_s"]) == {"mean", "p50", "p90", "p95", "p99", "max", "n"}


@every_story
def test_a_request_is_good_when_it_meets_every_limit(name: str) -> None:
    """Of its own TTFT, TPOT and largest gap; out of all that were sent in the window, also the cancelled."""
    run, tokens = story(name)
    rows, found = run.requests, run.summary()
    good = 0
    for i in np.flatnonzero(rows.in_window):
        gaps_s = tokens.gaps_s(i)
        good += bool(
            rows.status[i] == "completed"
            and rows.ttft_s[i] <= 0.2
            and gaps_s.max(initial=0.0) <= 0.05
            and (not len(gaps_s) or gaps_s.mean() <= 0.03)
        )
    assert found["goodput_fraction"] == good / found["window"]["requests"]
    window_s = found["window"]["end_s"] - found["window"]["start_s"]
    offered = found["window"]["requests"]  # as many arrivals are one gap fewer apart
    assert found["request_goodput"] == pytest.approx(good / offered * (offered - 1) / window_s)


def test_goodput_tells_stories_apart() -> None:
    """Somewhere all are good, somewhere some are: the test above sees both."""
    fractions = {name: story(name)[0].summary()["goodput_fraction"] for name in STORIES}
    assert fractions["short answers"] == 1.0
    assert any(0.0 < fraction < 1.0 for fraction in fractions.values())


def test_without_limits_there_is_no_goodput() -> None:
    """Null, and the reason beside it."""
    found = result().summary()
    assert found["request_goodput"] is found["goodput_fraction"] is None
    assert found["goodput_reason"]


def test_the_limit_on_gaps_is_for_the_largest() -> None:
    """One pause over the limit makes a request bad, though nearly all its gaps are short."""
    alone = result(at((0.0, 100, 200)), run={"requests": 1, "warmup": 0}).summary()["itl_s"]
    sent = at((0.0, 100, 200), (1.0, 2000, 1))
    limit_s = 2 * alone["max"]
    found = result(sent, run={"requests": 2, "warmup": 0}, slo={"itl_p50_s": limit_s}).summary()
    assert found["itl_s"]["p99"] < limit_s < found["itl_s"]["max"]
    assert found["goodput_fraction"] == 0.5


@pytest.mark.parametrize(("limit_s", "good"), [(1.0, 1.0), (0.999, 0.0)])
def test_what_just_holds_is_good_and_who_ends_with_the_window_is_in_it(limit_s: float, good: float) -> None:
    """First tokens after exactly a second; the second of three ends as the third arrives, at 13 s, which is
    the window's end."""
    asked = admitting().replace({"run.warmup": 0, "slo": {"ttft_p99_s": limit_s}})
    found = Result(in_seconds(1)(asked, (0.0, 5, 3), (10.0, 5, 3), (13.0, 5, 3))).summary()
    assert (found["ttft_s"]["max"], found["window"]["end_s"]) == (1.0, 13.0)
    assert found["goodput_fraction"] == good
    assert found["request_throughput"] == pytest.approx(2 / 13)


# -- requests that cannot run ------------------------------------------------------------------------


def test_requests_that_never_fit_are_refused_and_counted() -> None:
    """A prompt of max_model_len leaves no room for an answer; one that needs the whole pool and a block
    more never ends. Both are refused as they come, the others run, and goodput counts both as offered.
    """
    engine = {"num_gpu_blocks_override": 32, "max_model_len": 512}  # 31 usable: 496 tokens
    sent = at((0.0, 100, 10), (1.0, 512, 5), (2.0, 496, 16), (3.0, 495, 2), (4.0, 2000, 1), (5.0, 100, 10))
    run = result(sent, engine, run={"requests": 6, "warmup": 0}, slo={"ttft_p99_s": 10})
    found, rows = run.summary(), run.requests
    refused = [False, True, True, False, True, False]
    assert rows.status.tolist() == ["never_schedulable" if no else "completed" for no in refused]
    assert found["requests"]["never_schedulable"] == 3
    assert found["requests"]["completed"] == 3
    assert found["window"]["requests"] == 6
    assert found["goodput_fraction"] == 0.5
    assert (rows.finish_s == rows.arrival_s).tolist() == refused
    assert rows.output_tokens[refused].sum() == 0
    assert found["concurrency_max"] == 1
    assert found["kv_cache"]["usage_max"] == 1.0
    json.dumps(found, allow_nan=False)


def test_nothing_runs_where_nothing_fits() -> None:
    """All refused: every statistic null with a reason, no division by nothing."""
    found = result(at((0.0, 9000, 1), (1.0, 9000, 1)), slo={"ttft_p99_s": 1, "tpot_p50_s": 1}).summary()
    assert found["requests"]["never_schedulable"] == 2
    assert found["ttft_s"]["reason"]
    assert found["makespan"]["reason"]
    assert found["utilization"]["busy"] is None
    assert found["goodput_fraction"] == 0.0
    json.dumps(found, allow_nan=False)


def test_answers_end_where_the_context_does() -> None:
    """8192 tokens of context: a prompt of 8000 answers with 192 at most, and the run says so."""
    run = result(at((0.0, 8000, 500), (0.0, 8000, 192), (0.0, 10, 5)), run={"requests": 3, "warmup": 0})
    assert run.requests.output_tokens.tolist() == [192, 192, 5]
    assert any(line.startswith("1 answers end at max_model_len") for line in run.summary()["warnings"])


def test_refused_requests_are_not_counted_as_cut() -> None:
    """What never runs has no answer to end early; it is counted as a prompt that was turned away."""
    run = result(at((0.0, 9000, 500), (0.0, 10, 5)), run={"requests": 2, "warmup": 0})
    (said,) = (line for line in run.summary()["warnings"] if "max_model_len" in line)
    assert said.startswith("1 prompts have engine.max_model_len tokens or more, and were turned away")


# -- pool, utilisation -------------------------------------------------------------------------------


def test_blocks_of_a_lone_request_by_hand() -> None:
    """20 tokens take 2 blocks, the 33rd a third: 2 blocks in steps 1 to 13, 3 in steps 14 to 16.

    Of ten usable blocks at most 3 are in use, and on average between 2 and 2.5: the log has the first and
    the last iteration of a batch.
    """
    engine = {"num_gpu_blocks_override": 11, "max_model_len": 100}
    run = result(at((0.0, 20, 16)), engine, run={"requests": 1, "warmup": 0})
    found, tokens = run.summary()["kv_cache"], replay(run.run)
    assert tokens.blocks == [2] * 13 + [3] * 3
    assert found["usage_max"] == 0.3
    assert found["capacity_tokens"] == 160
    assert found["num_gpu_blocks"] == 11
    assert 0.2 < found["usage_mean"] <= 0.25


def test_long_contexts_waste_half_a_block_a_sequence() -> None:
    """4000 to 4200 tokens: on average 7.5 of the last block's 16 tokens are empty, 0.2 %."""
    draw = np.random.default_rng(3)
    sent = Requests(np.zeros(40), draw.integers(4000, 4200, 40), draw.integers(100, 200, 40))
    wasted = result(sent, run={"requests": 40, "warmup": 0}).summary()["kv_cache"]["wasted_fraction"]
    assert wasted == pytest.approx(7.5 / 4200, rel=0.25)
    assert wasted < 8 / 4000


@pytest.mark.parametrize("rate_per_s", [0.5, 4.0, 50.0])
def test_shares_are_shares_on_the_shipped_scenario(rate_per_s: float) -> None:
    """Busy, MFU, MBU, front end, pool and what binds lie between 0 and 1, from idle to overload."""
    chat = sim.load("chat-8b-a100").replace({"load.rate_per_s": rate_per_s, "run.requests": 400})
    found = sim.simulate(chat).summary()
    shares = found["utilization"] | found["binding"]["shares"]
    shares |= {key: found["kv_cache"][key] for key in ("usage_mean", "usage_max", "wasted_fraction")}
    assert all(0.0 <= share <= 1.0 for share in shares.values()), shares
    assert sum(found["binding"]["shares"].values()) == pytest.approx(1.0)
    assert found["checks"]["tokens_conserved"]
    assert 0.0 < found["utilization"]["mbu"] <= found["utilization"]["busy"]


def test_utilisation_by_hand() -> None:
    """One request of 100 + 11 tokens: ten decodes after one prefill; flops, weights and KV from the shape.

    Linear layers have 6.98 G weights, the LM head 0.53 G is run for each token that comes out.
    """
    run = result(at((0.0, 100, 11)), run={"requests": 1, "warmup": 0})
    found, span_s = run.summary()["utilization"], run.requests.finish_s[0]
    linear = 32 * (4096 * 6144 + 4096 * 4096 + 4096 * 28672 + 14336 * 4096)
    pairs = 100 * 100 / 2 + sum(range(101, 111))
    flops = 2 * linear * 110 + 2 * 4096 * 128256 * 11 + 4 * 32 * 128 * 32 * pairs
    assert found["busy"] == 1.0
    assert found["mfu"] == pytest.approx(flops / span_s / 312e12, rel=1e-6)
    moved = 11 * 8030261248 * 2 + sum(range(101, 111)) * 131072
    assert found["mbu"] == pytest.approx(
        moved / span_s / run.run.profile.memory_bandwidth_bytes_per_s, rel=1e-6
    )


def test_concurrency_counts_those_inside() -> None:
    """Two overlap for a part of the time: at most two at once, and the mean over the window by hand."""
    run = result(at((0.0, 100, 100), (0.5, 100, 100), (9.0, 10, 1)), run={"requests": 3, "warmup": 0})
    found, stay_s = run.summary(), run.requests.e2e_s
    assert found["concurrency_max"] == 2
    assert found["concurrency_mean"] == pytest.approx((stay_s[0] + stay_s[1]) / 9.0)


def test_littles_law_holds_over_a_long_window() -> None:
    """L = lambda W to a few per cent where the window is long against a stay."""
    found = result(requests(1500, 13, rate_per_s=10), run={"requests": 1500, "warmup": 0.1}).summary()
    assert found["checks"]["littles_law_relative_error"] < 0.03
    assert found["stable"]


def test_an_overload_is_called_unstable() -> None:
    """Twice what it can take: the queue grows, the run says so and warns."""
    found = result(requests(400, 14, rate_per_s=40), TIGHT).summary()
    assert not found["stable"]
    assert found["queue_growth_per_s"] > 5
    assert any(line.startswith("unstable") for line in found["warnings"])


def test_collectives_over_pcie_say_whose_they_are() -> None:
    """Two GPUs without NVLink hang on one machine's topology; one GPU, or NVLink, does not."""

    def warned(card: str, gpus: int) -> bool:
        asked = sim.load(
            {
                "hardware": card,
                "model": "llama-3-8b",
                "engine": {"tensor_parallel_size": gpus},
                "workload": {"lengths": {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 3}},
                "load": "burst",
                "run": {"requests": 2, "warmup": 0},
            }
        )
        return any("over PCIe" in line for line in sim.simulate(asked).summary()["warnings"])

    assert warned("l40s-48gb-pcie", 2)
    assert not warned("l40s-48gb-pcie", 1)
    assert not warned("h100-80gb-sxm", 2)
