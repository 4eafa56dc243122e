"""Writes docs/engine-claims.md: what people reported of engines under pressure, beside small scenarios.

`python docs/engine_claims.py` writes the page; tests/test_engine_claims.py holds the page to what this
prints, and each direction to its cause.
"""

from __future__ import annotations

from pathlib import Path

import engine_runs as runs
from claims import Claim
from worked_example import table

PAGE = Path(__file__).with_name("engine-claims.md")
_ISSUES = "https://github.com/"


def thread(repository: str, number: int) -> str:
    """A public thread, as a link."""
    return f"[{repository.partition('/')[2]}#{number}]({_ISSUES}{repository}/issues/{number})"


VLLM = "vllm-project/vllm"


def preemption() -> Claim:
    """B-07."""
    seen = runs.overcommitted()
    return Claim(
        "B-07. Slots that the cache cannot back freeze some answers; nothing fails, and the card looks busy",
        f"8 answers at 240 tokens/s until the cache is at 96 %, then it breaks down ({thread(VLLM, 18115)}); "
        "elsewhere 1 stream in 50 freezes for about 6 s, p99 six times the mean",
        f"median gap {seen.in_time_s * 1e3:.0f} ms; 1 in 50 has one of {seen.worst_of_50_s:.1f} s or more, "
        f"the longest {seen.longest_s:.1f} s; p99 {seen.over_mean:.1f} times the mean; {seen.recomputed:.0%} "
        f"of the prompt tokens again; {seen.lost} failed; busy {seen.busy:.0%}",
        "256 users on 256 slots, prompts of 500 and answers of 600 with CV 1",
        "holds",
    )


def admission_loop() -> Claim:
    """B-08."""
    off, on = runs.two_long_prompts(False), runs.two_long_prompts(True)
    return Claim(
        "B-08. Two prompts that do not fit together preempt each other, unless only a whole one is admitted",
        f"two of 120k on one L40S ({thread(VLLM, 21793)}, {thread(VLLM, 21809)}); 100 down to 1.5 tokens/s a "
        f"GPU ({thread(VLLM, 37307)}); mended by the gate",
        f"without the gate {off.preemptions} preemptions, {off.recomputed_tokens:,} tokens again, the "
        f"second's first token at {off.last_first_token_s:.0f} s; with it {on.preemptions}, "
        f"{on.recomputed_tokens:,} and {on.last_first_token_s:.0f} s",
        f"two of 120,000 at once, {runs.capacity('auto'):,} fit; scheduler_reserve_full_isl false and true, "
        "no prefix caching",
        "holds: the loop ends when one of them gets through",
    )


def whole_prompts() -> Claim:
    """B-09."""
    beside = [runs.unchunked(prompt) for prompt in (4096, 8192, 12_288)]
    longest = ", ".join(f"{one.longest_gap_s:.2f}" for one in beside)
    times = ", ".join(f"{one.longest_gap_s / beside[0].longest_gap_s:.1f}" for one in beside)
    return Claim(
        "B-09. A prompt that is computed whole freezes every answer meanwhile; the median does not see it",
        "0.5, 1.2, 2.2 s for 4k, 8k, 12k (1, 2.4, 4.4 times), median about 15 ms throughout (pegainfer#368, "
        "a 4B model)",
        f"{longest} s ({times} times); median {beside[0].median_gap_s * 1e3:.1f} to "
        f"{beside[-1].median_gap_s * 1e3:.1f} ms, p99 {beside[0].p99_gap_s * 1e3:.0f} to "
        f"{beside[-1].p99_gap_s * 1e3:.0f} ms",
        "8 answers of 400, one prompt among them, vllm-v0@0.6.6",
        "holds; grows less than there, on another card with another kernel",
    )


def cache_hit() -> Claim:
    """B-10's kind."""
    seen = runs.warm()
    return Claim(
        "B-10's kind, a cache hit. The second prompt with the same head starts at once, though nothing is "
        "held between the two",
        "50k common and 5k own tokens: a test expects TTFT to drop about 10 times "
        f"({thread('tenstorrent/tt-inference-server', 4050)}); usage of 0 % between requests is no loss "
        f"({thread(VLLM, 5176)}, {thread(VLLM, 12077)})",
        f"{seen.cold_s:.2f} s, then {seen.warm_s:.2f} s: {seen.cold_s / seen.warm_s:.1f} times; "
        f"{seen.found_tokens:,} tokens found, {seen.held_blocks} blocks held after them",
        "the same, one request a minute after the other",
        "holds",
    )


def chunk_size() -> Claim:
    """B-11."""
    small, large = runs.chunked(1024), runs.chunked(2048)
    return Claim(
        "B-11. Larger chunks: longer gaps for those who write, a little less wait for who comes, equal "
        "throughput",
        "1,024 to 2,048: longest gap 66 to 103 ms (1.6 times), TTFT 401 to 356 ms (-11 %) on 14B; 113 to 189 "
        "ms (1.7 times), 706 to 644 ms (-9 %) on 27B "
        f"({thread('kekzl/imp', 1873)})",
        f"{small.longest_gap_s * 1e3:.0f} to {large.longest_gap_s * 1e3:.0f} ms "
        f"({large.longest_gap_s / small.longest_gap_s:.1f} times), TTFT {small.ttft_s * 1e3:.0f} to "
        f"{large.ttft_s * 1e3:.0f} ms ({large.ttft_s / small.ttft_s - 1:+.0%}), throughput "
        f"{large.tokens_per_s / small.tokens_per_s - 1:+.1%}",
        "8 answers of 400, one prompt of 6,144, qwen3-14b on an RTX PRO 6000",
        "holds; a step's fixed costs are smaller here, so chunks of 1,024 lose less",
    )


def prefill_first() -> Claim:
    """B-12."""
    first, mixed = runs.eight_prompts("vllm-v0"), runs.eight_prompts("vllm-v1")
    return Claim(
        "B-12. Prompts first: answers stand still for all prompts that wait; the fix costs next to nothing",
        "worst gap 11,163 to 901 or 522 ms (12 or 21 times) by turns of prompts and decodes; TTFT +1.0 or "
        "+7.6 %, throughput -1.3 or -2.5 % (vllm-tt-plugin#119; asked in "
        f"{thread('InternLM/lmdeploy', 1740)}, {thread(VLLM, 8121)})",
        f"{first.longest_gap_s * 1e3:,.0f} to {mixed.longest_gap_s * 1e3:.0f} ms "
        f"({first.longest_gap_s / mixed.longest_gap_s:.0f} times) by mixed steps; TTFT "
        f"{mixed.ttft_s / first.ttft_s - 1:+.1%}, throughput "
        f"{mixed.tokens_per_s / first.tokens_per_s - 1:+.1%}",
        "8 answers of 400, eight prompts of 8,000 at once, vllm-v0@0.6.6 against vllm-v1@0.32 with equal "
        "host times",
        "holds; in mixed steps decodes ride along, so it costs even less than taking turns",
    )


def fp8_capacity() -> Claim:
    """B-15's capacity."""
    tokens = [runs.capacity(dtype) for dtype in ("auto", "fp8")]
    return Claim(
        "B-15's capacity. A cache of 8 bits holds twice the tokens",
        f"2x ({thread(VLLM, 42058)})",
        f"{tokens[0]:,} and {tokens[1]:,} tokens: {tokens[1] / tokens[0]:.4f}x",
        "memory ledger",
        "holds, to the rounding of blocks",
    )


def thrash() -> Claim:
    """B-17's kind."""
    (none, slow_s), (some, _), (most, fast_s) = (runs.alternating(n) for n in (32_000, 50_000, 100_000))
    return Claim(
        "B-17's kind, a thrashing cache. Two long conversations that alternate lose each other's cache where "
        "it holds only one",
        "reuse drops to 0 in every turn "
        f"({thread('syv-ai/qwen38-27b-rtx3090', 174)}; a hybrid model, and the cause there is a guess)",
        f"hit rate {none:.0%} in 32,000 tokens, {some:.0%} in 50,000, {most:.0%} in 100,000; TTFT "
        f"{slow_s:.2f} and {fast_s:.2f} s in the first and the last",
        "two heads of 30,000 tokens in turn, ten times, 1,000 new ones each",
        "holds; in between, the tail is lost and the head is not, since blocks go tail first",
    )


def hot_replica() -> Claim:
    """B-18's single-replica core."""
    (half_s, half_hits), (whole_s, whole_hits) = (runs.one_replica(rate) for rate in (0.65, 1.3))
    alone_s, without_s = runs.one_replica(0.01)[0], runs.one_replica(0.01, 0.0)[0]
    return Claim(
        "B-18's core. A shared head does not pay for a hot replica: the load that a router keeps together "
        "for the cache's sake queues",
        "a head of 2,548 in 9,800 tokens (26 %): TTFT 627 ms round robin, 1,617 ms cache-aware, 2.6 times "
        f"({thread('sgl-project/sglang', 21199)})",
        f"all on one: {whole_s * 1e3:,.0f} ms, half of it: {half_s * 1e3:,.0f} ms, {whole_s / half_s:.1f} "
        f"times, at hit rates of {whole_hits:.1%} and {half_hits:.1%}; the head saves "
        f"{1 - alone_s / without_s:.0%} of a lone TTFT",
        "one replica at 1.3 and 0.65 requests/s; routing over several replicas is not expressible yet",
        "holds for the core: either replica finds the head, one has twice the load",
    )


CLAIMS = (
    preemption,
    admission_loop,
    whole_prompts,
    cache_hit,
    chunk_size,
    prefill_first,
    fp8_capacity,
    thrash,
    hot_replica,
)
INTRODUCTION = """
# Engines under pressure

Written by `docs/engine_claims.py`, held by `tests/test_engine_claims.py`. What people reported in public of
schedulers and caches, and what a small scenario makes of it: llama-3.1-8b on one L40S, unless it says
otherwise. Their cards, models and loads are others, so directions are compared, and sizes where they are
ratios.
"""


def page() -> str:
    """The whole page."""
    lines = [claim() for claim in CLAIMS]
    rows = [[c.says, c.reported, c.simulated, c.scenario, c.verdict] for c in lines]
    return (
        INTRODUCTION.strip()
        + "\n\n"
        + table(["effect", "reported", "ours", "scenario", "verdict"], rows)
        + "\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
