"""What is said of batching and memory, held to the laws behind it; docs/claims.md shows the sizes."""

from __future__ import annotations

import claim_runs as runs
import claims
import pytest


def test_the_page_is_what_the_scenarios_say() -> None:
    """`python docs/claims.py` would write the page that is there."""
    assert claims.PAGE.read_text(encoding="utf-8") == claims.page()


@pytest.mark.parametrize(("context", "reported"), [(128, 1.02), (1024, 1.07), (4096, 1.25)])
def test_decode_of_eight_costs_hardly_more_than_of_one(context: int, reported: float) -> None:
    """Both read the weights once; the difference is the context that eight read."""
    assert runs.decode_s(8, context) / runs.decode_s(1, context) == pytest.approx(reported, abs=0.05)


def test_four_prompts_take_four_times_one_once_one_fills_the_card() -> None:
    """Short ones share the reading of the weights, so they take less; it never is clearly more than four."""
    ratios = [runs.prefill_s(4, tokens) / runs.prefill_s(1, tokens) for tokens in (128, 512, 2048, 4096)]
    assert ratios == sorted(ratios)
    assert ratios[0] < 3.2
    assert all(3.85 < ratio <= 4.05 for ratio in ratios[2:])


def test_past_the_linear_knee_tpot_rises_linearly() -> None:
    """Equal additions cost the same but for the steps of the kernels' tiles, and more than below the knee."""
    rises = runs.rises_ms()
    assert max(rises) / min(rises) < 1.4
    assert runs.decode_s(64, 256) * 1e3 - runs.decode_s(1, 256) * 1e3 < min(rises)


@pytest.mark.parametrize("cv", runs.CVS)
def test_continuous_over_static_is_the_largest_over_the_mean(cv: float) -> None:
    """To 4 % of what the very answers say; those are within their spread of the distribution."""
    gain = runs.gain(cv)
    assert gain.measured == pytest.approx(gain.of_lengths, rel=0.04)
    assert gain.of_lengths == pytest.approx(gain.of_distribution, rel=0.05)


@pytest.mark.parametrize(("cv", "reported"), [(0.25, 1.4), (0.5, 1.8), (1.0, 2.6), (2.0, 3.8)])
def test_the_reported_gains_are_those_of_the_distribution(cv: float, reported: float) -> None:
    """E[max of 8] / E of a lognormal, rounded as they were reported."""
    assert runs.largest_over_mean(cv) == pytest.approx(reported, abs=0.07)


def test_the_largest_of_equal_answers_is_their_mean() -> None:
    """Without variation static batching at equal slots loses nothing."""
    assert runs.largest_over_mean(1e-9) == pytest.approx(1.0)
    assert runs.gain(0.0).measured == pytest.approx(1.0, abs=0.02)


def test_paging_adds_to_that_at_equal_memory() -> None:
    """More than double, and not more than the ratio of a reservation to a mean context."""
    assert 2.0 < runs.paging_gain() < 4096 / 700


def test_80_and_800_tokens_in_one_group_idle_720_slot_steps() -> None:
    """The short answer's slot is held until the long one ends."""
    assert runs.idle_slot_steps() == 720


def test_half_the_context_or_half_the_bytes_doubles_concurrency() -> None:
    """To the rounding of whole requests: one more at most."""
    whole = runs.concurrency(2048, "auto")
    assert whole == 40_000_000_000 // 131_072 // 2048
    assert 2 * whole <= runs.concurrency(1024, "auto") <= 2 * whole + 1
    assert 2 * whole <= runs.concurrency(2048, "fp8") <= 2 * whole + 1


def test_grouped_queries_hold_the_ratio_of_heads_more() -> None:
    """Exactly, on equal cache; on the card the twin's larger projections leave it less."""
    assert runs.heads_gain(equal_cache=True) == 4.0
    assert 4.0 < runs.heads_gain(equal_cache=False) < 4.3


def test_paging_wastes_under_half_a_block_and_reservation_what_lengths_leave() -> None:
    """(16 - 1) / 2 tokens a sequence; 1 - E[context] / 4,096 of what is reserved."""
    waste = runs.waste()
    assert waste.paged_tokens == pytest.approx(7.5, abs=0.25)
    assert waste.paged_tokens < 8
    assert waste.reserved_share == pytest.approx(waste.expected_share, abs=0.01)
    assert waste.paged_share < waste.reserved_share / 20


def test_a_cache_bound_server_looks_busy_while_its_arithmetic_idles() -> None:
    """It queues for blocks, with a third of its peak in use."""
    run = runs.cache_bound()
    assert not run["stable"]
    assert run["binding"]["resource"] == "kv_blocks"
    assert run["utilization"]["busy"] > 0.99
    assert run["utilization"]["mfu"] < 0.35


def test_an_output_cap_cuts_the_slowest_by_the_tail_of_the_answers() -> None:
    """Under light load E2E is proportional to the answer: 512 over its 99th percentile, to 3 points."""
    measured, by_tail = runs.cap()
    assert measured == pytest.approx(by_tail, abs=0.03)
    assert by_tail < 0.5


def test_throughput_and_latency_conflict() -> None:
    """The same deployment, tuned for each, wins what it was tuned for by more than double."""
    throughput, latency = runs.tuned("throughput"), runs.tuned("latency")
    assert throughput[0] > 2 * latency[0]
    assert throughput[1] > 2 * latency[1]
    assert throughput[2] > 2 * latency[2]


def test_every_claim_is_on_the_page_once() -> None:
    """No line is lost in the table, and every one has all its columns."""
    lines = [claim() for claim in claims.CLAIMS]
    assert len({line.says for line in lines}) == len(lines) == 12
    assert all(all(vars(line).values()) for line in lines)
