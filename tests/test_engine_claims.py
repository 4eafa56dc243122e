"""Reported effects of schedulers and caches: their directions, and causes where they can be counted."""

from __future__ import annotations

import engine_claims
import engine_runs as runs
import pytest


def test_the_page_is_what_the_scenarios_say() -> None:
    """`python docs/engine_claims.py` would write the page that is there."""
    assert engine_claims.PAGE.read_text(encoding="utf-8") == engine_claims.page()


def test_overcommitted_slots_freeze_answers_and_nothing_fails() -> None:
    """One in fifty waits more than ten median gaps for a token; the card is busy with recomputing."""
    seen = runs.overcommitted()
    assert seen.worst_of_50_s > 10 * seen.in_time_s
    assert seen.longest_s > 2.0
    assert (seen.lost, seen.busy > 0.99, seen.recomputed > 0.1) == (0, True, True)


def test_the_gate_ends_the_loop_of_admission_and_preemption() -> None:
    """Without it tens of thousands of tokens are computed in vain, and the second answer starts far later."""
    off, on = runs.two_long_prompts(False), runs.two_long_prompts(True)
    assert (on.preemptions, on.recomputed_tokens) == (0, 0)
    assert off.preemptions > 1
    assert off.recomputed_tokens > 120_000
    assert off.last_first_token_s > 1.5 * on.last_first_token_s


def test_a_whole_prompt_freezes_answers_for_as_long_as_it_takes() -> None:
    """The gap grows more than in proportion (attention); the median stays, and p99, one gap in 3,192 away."""
    beside = [runs.unchunked(prompt) for prompt in (4096, 8192, 12_288)]
    gaps = [one.longest_gap_s for one in beside]
    assert gaps[1] > 2.0 * gaps[0]
    assert gaps[2] > 3.0 * gaps[0]
    assert beside[2].median_gap_s == pytest.approx(beside[0].median_gap_s, rel=0.01)
    assert beside[2].p99_gap_s < 2 * beside[0].median_gap_s


def test_the_same_prompt_in_chunks_freezes_nobody() -> None:
    """vLLM V1's gap is that of one chunk of 2,048, whatever the prompt."""
    gaps = [runs.beside(1, prompt, {}).longest_gap_s for prompt in (4096, 12_288)]
    assert gaps[1] < 1.6 * gaps[0]
    assert gaps[1] < 0.3 * runs.unchunked(12_288).longest_gap_s


def test_a_head_is_found_though_nothing_is_held() -> None:
    """All 50,000 tokens, in a cache of free blocks; what is left is a tenth of the work or little more."""
    seen = runs.warm()
    assert (seen.found_tokens, seen.held_blocks) == (50_000, 0)
    assert 5 < seen.cold_s / seen.warm_s < 11


def test_chunk_size_trades_gaps_for_ttft_and_leaves_throughput() -> None:
    """Twice the chunk: gaps by 1.5 to 2, a shorter wait, and the same tokens a second."""
    small, large = runs.chunked(1024), runs.chunked(2048)
    assert 1.5 < large.longest_gap_s / small.longest_gap_s < 2.0
    assert 0.85 < large.ttft_s / small.ttft_s < 1.0
    assert large.tokens_per_s == pytest.approx(small.tokens_per_s, rel=0.02)


def test_prefill_first_stops_answers_for_the_whole_backlog() -> None:
    """The worst gap is the time of eight prompts; mixed steps end that and cost next to nothing."""
    first, mixed = runs.eight_prompts("vllm-v0"), runs.eight_prompts("vllm-v1")
    assert first.longest_gap_s > 10 * mixed.longest_gap_s
    assert 0.8 * first.ttft_s < mixed.ttft_s < 1.1 * first.ttft_s
    assert 0.95 * first.tokens_per_s < mixed.tokens_per_s < 1.2 * first.tokens_per_s


def test_eight_bits_hold_twice_the_tokens() -> None:
    """To one block."""
    assert abs(runs.capacity("fp8") - 2 * runs.capacity("auto")) <= 32


def test_a_cache_for_one_of_two_conversations_is_none() -> None:
    """And one for both finds every head but the first two: 18 of 20 turns of 30,000 in 31,000."""
    none, most = runs.alternating(32_000), runs.alternating(100_000)
    assert none[0] < 0.05
    assert most[0] == pytest.approx(18 / 20 * 30_000 / 31_000, abs=1e-3)
    assert none[1] > 5 * most[1]


def test_a_shared_head_does_not_pay_for_twice_the_load() -> None:
    """Hit rates are equal, and the wait at 1.3 requests/s is twice that at 0.65, or more."""
    half, whole = runs.one_replica(0.65), runs.one_replica(1.3)
    assert whole[1] == pytest.approx(half[1], abs=1e-3)
    assert whole[0] > 2.0 * half[0]
