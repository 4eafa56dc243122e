"""Writes docs/benchmark.md: what the seven scenarios of scenarios/benchmark show beside their base.

`python docs/benchmark.py` writes the page from the runs of `kneesim compare benchmark`;
tests/test_benchmark.py holds each scenario to the direction of what is said of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from worked_example import table

from sim.cli.compare import loaded
from sim.planning.compare import Compared, Comparison, compare
from sim.report.compare_words import changed_words, how, overview, rows_of

PAGE = Path(__file__).with_name("benchmark.md")
SET = "benchmark"


@dataclass(frozen=True)
class Test:
    """One of the seven: what it shows, and the numbers to look at, by their paths in the summary."""

    __test__ = False  # for pytest

    shows: str
    look_at: tuple[str, ...]


TESTS = {
    "long-prompts": Test(
        "The same requests with longer prompts. More is computed before each first token, and the chunks "
        "of one prompt lie in the iterations in which the others decode: look at the gaps between tokens "
        "as well as at the first one. The shared beginnings are as long as they were, so a smaller share "
        "of the prompts is found.",
        ("ttft_s.p50", "ttft_s.p99", "itl_s.p99", "tpot_s.p99", "prefix_cache_hit_rate"),
    ),
    "long-answers": Test(
        "The same requests with longer answers. They stay longer in the batch, so each iteration reads "
        "the cache of more sequences: look at TPOT and the KV cache. First tokens suffer little, and "
        "throughput in tokens rises: requests a second say nothing of a load without the length of the "
        "answers.",
        ("tpot_s.p50", "tpot_s.p99", "ttft_s.p99", "kv_cache.usage_max", "output_throughput"),
    ),
    "cache-misses": Test(
        "Equal lengths, equal arrivals, and nothing to be found: what the shared system prompts were "
        "worth. It is the day after someone put the date on top of the prompt, and a plan that needs the "
        "hits fails on it. Look at TTFT and at the KV cache, in which nobody's blocks are anybody else's "
        "any more.",
        ("prefix_cache_hit_rate", "ttft_s.p50", "ttft_s.p99", "tpot_s.p99", "kv_cache.usage_mean"),
    ),
    "cancellations": Test(
        "People leave: some after a part of the answer, some for want of a first token, a share of them "
        "without telling the server, which works on for nobody; and who left unserved asks once more. The "
        "server's tokens fall by less than the useful ones: look at both, at goodput, and at the price.",
        ("requests.cancelled", "requests.retries", "goodput_fraction", "output_throughput",
         "useful_output_throughput", "ttft_s.p99", "cost.usd_per_1m_output_tokens"),
    ),
    "bursts": Test(
        "The same requests a second in the mean, but in bursts at twice the rate, which is above the "
        "capacity, with silence between them. Look at the percentiles and at the fullest cache: no mean "
        "of the load tells this one from its base.",
        ("ttft_s.p50", "ttft_s.p99", "tpot_s.p99", "kv_cache.usage_max", "request_throughput"),
    ),
    "mixed-tenants": Test(
        "The very same chat, draw by draw, and beside it a tenant with long documents. Look at the "
        "numbers of the class `chat`: what its users pay for the neighbour, although they are nearly all "
        "of the requests.",
        ("by_class.chat.ttft_s.p99", "by_class.chat.tpot_s.p99", "by_class.chat.goodput_fraction",
         "kv_cache.usage_max", "prefix_cache_hit_rate"),
    ),
    "deadline-pressure": Test(
        "Twice the load, which is more than the card serves, small batches, and an admission that refuses"
        " at once whoever would wait too long. Look at who was refused and at goodput: those who are let "
        "in are served within the limits, and the queue, which would grow without end, is steady.",
        ("requests.rejected", "goodput_fraction", "request_goodput", "ttft_s.p99", "tpot_s.p99"),
    ),
}  # fmt: skip
INTRODUCTION = """
# Seven tests that a benchmark owes

Written by `docs/benchmark.py` from the runs of

```
kneesim compare benchmark --out out/benchmark
```

A server that was measured with one kind of traffic was measured for that traffic alone.
`scenarios/benchmark/` has a chat service well below its knee (`base.yaml`) and seven small scenarios on it,
each with one thing changed. They run on the same random numbers, so that the differences are those of the
change ([how to read them](compare.md)). Put your own model, card and limits into all of them with
`key=value`, or write a `base.yaml` of your own beside copies of the seven.
"""


def page(comparison: Comparison) -> str:
    """The whole page."""
    header, cells = overview(comparison)
    parts = [INTRODUCTION.strip(), table(header, cells), how(comparison)]
    parts += [_section(comparison, other) for other in comparison.others]
    notes = [f"- {warning}" for warning in comparison.warnings]
    parts += ["## Notes\n\n" + "\n".join(notes)] if notes else []
    return "\n\n".join(parts) + "\n"


def _section(comparison: Comparison, other: Compared) -> str:
    test = TESTS[other.name]
    changed = "\n".join(f"- `{changed_words(found)}`" for found in other.changed)
    rows = {row.number.path: row for row in rows_of(comparison, other)}
    cells = [rows[path].cells() for path in test.look_at if path in rows]
    header = ["number", comparison.first.name, other.name, "difference", "relative", "95 % interval", ""]
    title = other.name.replace("-", " ").capitalize()
    return "\n\n".join([f"## {title}", test.shows, changed, table(header, cells)])


if __name__ == "__main__":
    PAGE.write_text(page(compare(loaded([SET]))), encoding="utf-8")
