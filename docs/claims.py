"""Writes docs/claims.md: what the field says of batching and memory, beside what small scenarios say.

`python docs/claims.py` writes the page; tests/test_claims.py holds the page to what this prints, and each
number to the law behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import claim_runs as runs
from worked_example import table

PAGE = Path(__file__).with_name("claims.md")


@dataclass(frozen=True)
class Claim:
    """A line of the page."""

    says: str
    reported: str
    simulated: str
    scenario: str
    verdict: str


def decode_of_eight() -> Claim:
    """Reading the weights dominates, until contexts are long."""
    ratios = [runs.decode_s(8, context) / runs.decode_s(1, context) for context in (128, 1024, 4096)]
    return Claim(
        "A decode step of 8 costs hardly more than of 1",
        "1.02x, 1.07x, 1.25x at 128, 1k, 4k context",
        ", ".join(f"{ratio:.2f}x" for ratio in ratios),
        "burst of 8 and of 1, steps in which all decode",
        "holds within 0.04",
    )


def prefill_of_four() -> Claim:
    """Prompts are computed at the rate of the card once they fill it."""
    ratios = [runs.prefill_s(4, tokens) / runs.prefill_s(1, tokens) for tokens in (128, 512, 2048, 4096)]
    return Claim(
        "Prefill of 4 prompts takes 4 times one, above 2k tokens",
        "about 4x",
        ", ".join(f"{ratio:.2f}x" for ratio in ratios) + " at 128, 512, 2k, 4k tokens",
        "burst of 4 and of 1, answers of one token, 8,192 tokens a step",
        "holds",
    )


def linear_past_the_knee() -> Claim:
    """Beyond the batch at which compute takes over."""
    first = (runs.decode_s(64, 256) - runs.decode_s(1, 256)) * 1e3
    return Claim(
        "Past the linear knee TPOT rises linearly with the batch",
        "a straight line",
        f"from 1 to 64 it rises by {first:.2f} ms, by 64 more from 256 to 512 by "
        + ", ".join(f"{rise:.2f}" for rise in runs.rises_ms())
        + " ms",
        "bursts of 1 to 512 at 256 tokens context",
        "holds but for the steps of tiles; TPOT rises before it, too: the knee is a bend",
    )


def continuous_over_static() -> Claim:
    """Groups last as long as their longest answer."""
    gains = [runs.gain(cv) for cv in runs.CVS]
    return Claim(
        "Continuous over static batching at equal slots is E[max of N] / E[length]",
        "1.4, 1.8, 2.6, 3.8 (N = 8, CV 0.25, 0.5, 1, 2)",
        ", ".join(f"{g.measured:.2f}" for g in gains)
        + "; E[max] / E of these answers "
        + ", ".join(f"{g.of_lengths:.2f}" for g in gains)
        + ", of the distribution "
        + ", ".join(f"{g.of_distribution:.2f}" for g in gains),
        "1,600 at once, prompts of 20, lognormal answers of mean 100, 8 slots",
        "holds",
    )


def paging_on_top() -> Claim:
    """More sequences in the same memory."""
    return Claim(
        "What paging adds at equal memory comes on top",
        "a further factor",
        f"{runs.paging_gain():.1f}x",
        "500 in, lognormal answers of mean 200 and CV 1, memory of 8 contexts of 4,096",
        "holds",
    )


def idle_slots() -> Claim:
    """The short answer's slot is held."""
    return Claim(
        "Answers of 80 and 800 tokens in one group waste the difference",
        "720 slot-steps",
        f"{runs.idle_slot_steps()} slot-steps",
        "a group of two",
        "holds",
    )


def halving() -> Claim:
    """The cache is divided by what a request takes."""
    whole = runs.concurrency(2048, "auto")
    return Claim(
        "Half the context or half the bytes of a key doubles concurrency",
        "2x",
        f"{whole} at 2,048 and 16 bits; {runs.concurrency(1024, 'auto')} at 1,024; "
        f"{runs.concurrency(2048, 'fp8')} at 8 bits",
        "a burst of 700 on 40 GB of cache, whole contexts reserved",
        "holds, to the rounding of whole requests",
    )


def grouped_queries() -> Claim:
    """Its keys and values are smaller by that ratio; its weights are a little smaller, too."""
    return Claim(
        "A grouped-query model holds the ratio of heads more than its multi-head twin",
        "exactly 4x for 8 against 32 KV heads",
        f"{runs.heads_gain(True):.2f}x on equal cache, {runs.heads_gain(False):.2f}x on the card",
        "memory ledger; the twin's own projections take cache away on the card",
        "holds on equal cache",
    )


def wasted_memory() -> Claim:
    """A sequence's last block is half empty; a reservation is as empty as its request is short."""
    w = runs.waste()
    return Claim(
        "Paging wastes under half a block a sequence, reservation what the lengths leave of it",
        "8 of 16 tokens; 1 - E[context] / longest",
        f"{w.paged_tokens:.1f} tokens ({w.paged_share:.1%}); {w.reserved_share:.1%}, "
        f"by the lengths {w.expected_share:.1%}",
        "2 requests/s, prompts of 600 and answers of 200 with CV 0.5, reservations of 4,096",
        "holds",
    )


def busy_but_idle() -> Claim:
    """Busy says that something runs, not that much is done."""
    run = runs.cache_bound()
    return Claim(
        "A cache-bound server queues while its arithmetic is mostly idle, and looks busy",
        "busy near 100 %, MFU far below",
        f"busy {run['utilization']['busy']:.0%}, MFU {run['utilization']['mfu']:.0%}, cache full "
        f"{run['kv_cache']['usage_max']:.0%}, held up by {run['binding']['resource']}",
        "2,000 in, 1,000 out at 4 requests/s, 20 GB of cache",
        "holds",
    )


def output_cap() -> Claim:
    """The slowest answers are the longest ones."""
    measured, by_tail = runs.cap()
    return Claim(
        "An output cap of 512 cuts p99 E2E by what the length tail says",
        "512 / p99 of the answers",
        f"to {measured:.0%}; by the tail {by_tail:.0%}",
        "1 request/s, lognormal answers of mean 300 and CV 1",
        "holds under light load",
    )


def conflict() -> Claim:
    """Large batches are efficient and slow."""
    rows = [(aim, *runs.tuned(aim)) for aim in runs.TUNED]
    return Claim(
        "Throughput and latency conflict",
        "tuning for one costs the other",
        "; ".join(
            f"for {aim}: {per_s:,.0f} tokens/s, TPOT {tpot_s * 1e3:.0f} ms, p99 gap {gap_s * 1e3:.0f} ms"
            for aim, per_s, tpot_s, gap_s in rows
        ),
        "256 users; batches of 256 with 8,192 tokens a step against 16 with 512",
        "holds",
    )


CLAIMS = (
    decode_of_eight,
    prefill_of_four,
    linear_past_the_knee,
    continuous_over_static,
    paging_on_top,
    idle_slots,
    halving,
    grouped_queries,
    wasted_memory,
    busy_but_idle,
    output_cap,
    conflict,
)
INTRODUCTION = """
# Claims

Written by `docs/claims.py`, held by `tests/test_claims.py`. What is often said of batching and memory, how
large it is said to be, and what a small scenario makes of it: an 8B model (llama-3-8b) on one A100 with 80
GB, unless it says otherwise.
"""


def page() -> str:
    """The whole page."""
    lines = [claim() for claim in CLAIMS]
    rows = [[c.says, c.reported, c.simulated, c.scenario, c.verdict] for c in lines]
    header = ["claim", "reported", "simulated", "scenario", "verdict"]
    return INTRODUCTION.strip() + "\n\n" + table(header, rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
