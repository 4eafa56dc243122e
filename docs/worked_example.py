"""Writes docs/worked-example.md: the numbers of a well-known example beside what the simulator says.

`python docs/worked_example.py` writes the page; a test holds the page to what this prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import sim
from sim.hardware import HardwareProfile, MemoryLedger
from sim.model import ModelSpec
from sim.scenario import Scenario
from sim.serving.compile import compile_step_time
from sim.simulation import ledger_of

FOLDER = Path(__file__).parents[1] / "scenarios" / "worked-example"
PAGE = Path(__file__).with_name("worked-example.md")
PROMPT, ANSWER = 3700, 300
MEAN_CONTEXT = PROMPT + ANSWER // 2
SHORT = {"workload.lengths.prompt_tokens": 100}
VARIED = {
    "workload.lengths": {
        "kind": "lognormal",
        "prompt_mean": 100,
        "prompt_cv": 0,
        "output_mean": ANSWER,
        "output_cv": 1,
    },
    "run.requests": 1600,
}
OPEN = {"engine.kv_layout": "contiguous"}
USD_PER_HOUR = 2.90


@dataclass(frozen=True)
class Published:
    """What was published of one system: tokens/s, seconds, a share, US dollars a million tokens."""

    in_flight: int
    tokens_per_s: float
    ttft_p50_s: float | None = None
    p99_s: float | None = None
    utilization: float | None = None
    usd: float | None = None


PUBLISHED = {
    "static": Published(8, 310, ttft_p50_s=1.4, utilization=0.31, usd=2.60),
    "continuous": Published(111, 2850, ttft_p50_s=0.9, p99_s=4.1, utilization=0.78, usd=0.28),
    "fp8": Published(222, 3900, p99_s=6.8),
}


@cache
def scenario(name: str) -> Scenario:
    """One of scenarios/worked-example/."""
    return sim.load(FOLDER / f"{name}.yaml")


@cache
def ledger(name: str) -> MemoryLedger:
    """Its memory."""
    return ledger_of(scenario(name))


@cache
def simulated(name: str, reading: str) -> dict[str, Any]:
    """The summary of a scenario under one reading of the example.

    fresh: every prompt is computed, users wait for their answers. short: prompts of 100 tokens, users.
    open fresh, open short: at the published rate instead, a reservation of max_model_len each. varied: as
    short, with lognormal answers whose standard deviation is their mean.
    """
    changes: dict[str, Any] = {}
    if "short" in reading:
        changes |= SHORT
    if reading == "varied":
        changes |= VARIED
    if "open" in reading:
        changes |= {**OPEN, "load": {"rate_per_s": rate_per_s(name)}}
    return sim.simulate(scenario(name).replace(changes)).summary()


def rate_per_s(name: str) -> float:
    """Requests a second in the published tokens a second."""
    return PUBLISHED[name].tokens_per_s / ANSWER


def tokens_per_s(summary: Mapping[str, Any]) -> float:
    """Output tokens a second of users who do not think, by Little's law: users / mean E2E x mean answer.

    Where equal requests run in step, what ends within a window depends on where it begins; this does not.
    """
    if "concurrency" in summary["scenario"]["load"]:
        return (
            summary["scenario"]["load"]["concurrency"]
            / summary["e2e_s"]["mean"]
            * summary["output_tokens"]["mean"]
        )
    return summary["output_throughput"]


def slot_share(summary: Mapping[str, Any]) -> float:
    """Share of a static loop's slots and decode steps that give someone a token."""
    tokens = summary["requests"]["completed"] * (summary["output_tokens"]["mean"] - 1)
    return tokens / (tokens + summary["idle_slot_steps"])


def cached_step_s(name: str) -> float:
    """One step of the published batch, full contexts in the cache and no prefill at all."""
    given, n = scenario(name), PUBLISHED[name].in_flight
    parts = HardwareProfile.from_mapping(given.hardware), ModelSpec.from_mapping(given.model)
    step_time = compile_step_time(*parts, given.engine, ledger(name).kv_cache_tokens)
    return step_time.mixed_s(n, n * MEAN_CONTEXT, 0, 0, 0, 0, n)


def prompt_flops(all_parameters: bool) -> float:
    """Of one prompt: 2 x weights x tokens, and attention over half of the pairs.

    The simulator counts the linear layers' weights; *all_parameters* counts embeddings too, the usual
    rule of thumb.
    """
    model = ModelSpec.from_mapping(scenario("continuous").model)
    linear = sum(n * k for n, k in model.layer_gemms(1)) * model.layers
    weights = model.parameters if all_parameters else linear
    attention = 4.0 * model.heads * model.head_dim * model.layers * PROMPT**2 / 2
    return 2.0 * weights * PROMPT + attention


def bandwidth_bound_per_s(name: str, measured: bool) -> float:
    """Tokens a second if a step does nothing but read the weights and all contexts once."""
    given, n = scenario(name), PUBLISHED[name].in_flight
    profile, model = HardwareProfile.from_mapping(given.hardware), ModelSpec.from_mapping(given.model)
    k, m = model.lm_head_gemm(1)
    weights = 2.0 * (sum(a * b for a, b in model.layer_gemms(1)) * model.layers + k * m)
    cache_bytes = float(n * MEAN_CONTEXT * model.kv_bytes_per_token(given.engine["kv_cache_dtype"], 1))
    both = (profile.memory_bandwidth_bytes_per_s,) * 2
    if measured:
        kernels = profile.decode_attention(model.kv_dtype(given.engine["kv_cache_dtype"]))
        both = (profile.gemm("bf16").roofline.bytes_per_s, kernels.bytes_per_s)
    return n / (weights / both[0] + cache_bytes / both[1])


def usd_per_million(per_s: float) -> float:
    """US dollars a million tokens at the published price of an hour."""
    return USD_PER_HOUR / 3600 / per_s * 1e6


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def reading_row(name: str, reading: str, words: str) -> list[str]:
    """One simulated row of the comparison."""
    run = simulated(name, reading)
    per_s, use = tokens_per_s(run), run["utilization"]
    shares = (use["busy"], use["mfu"], use["mbu"], run["kv_cache"]["usage_mean"])
    return [
        words,
        f"{run['concurrency_mean']:.0f}" if run["stable"] else "the queue grows",
        f"{per_s:,.0f}",
        f"{run['ttft_s']['p50']:.2f}" if run["stable"] else "-",
        f"{run['e2e_s']['p99']:.1f}" if run["stable"] else "-",
        " / ".join(f"{share:.0%}" for share in shares),
        f"{usd_per_million(per_s):.2f}",
    ]


def comparison(name: str) -> str:
    """The published row and the readings of one system."""
    told, step_s = PUBLISHED[name], cached_step_s(name)
    published = [
        "**published**",
        str(told.in_flight),
        f"{told.tokens_per_s:,.0f}",
        _or_dash(told.ttft_p50_s, ".1f"),
        _or_dash(told.p99_s, ".1f"),
        _or_dash(told.utilization, ".0%"),
        _or_dash(told.usd, ".2f"),
    ]
    cached_per_s = told.in_flight / step_s
    cached = [
        "A. full contexts, prompts free",
        str(told.in_flight),
        f"{cached_per_s:,.0f}",
        "-",
        f"{step_s * ANSWER:.1f}",
        "-",
        f"{usd_per_million(cached_per_s):.2f}",
    ]
    rate = f"{rate_per_s(name):.2f}/s"
    rows = [
        published,
        cached,
        reading_row(name, "fresh", "B. every prompt computed, users"),
        reading_row(name, "open fresh", f"C. every prompt computed, {rate}"),
        reading_row(name, "short", "D. prompts of 100 tokens, users"),
        reading_row(name, "open short", f"E. prompts of 100 tokens, {rate}"),
    ]
    if name == "static":
        rows.append(reading_row(name, "varied", "F. as D, answers vary"))
    header = ["", "in flight", "tokens/s", "TTFT p50, s", "p99 E2E, s", "busy / MFU / MBU / KV", "$ per 1M"]
    return table(header, rows)


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def memory_table() -> str:
    """The ledger beside the published one."""
    plain, eight = ledger("memory"), ledger("fp8")
    full = plain.kv_bytes_per_token * 4096
    rows = [
        ["weights", "16 GB", f"{plain.weights_bytes / 1e9:.2f} GB", "holds"],
        ["cache", "60 GB", f"{plain.kv_cache_bytes / 1e9:.2f} GB", "holds"],
        ["a request of 4,096 tokens", "0.54 GB", f"{full / 1e9:.3f} GB", "holds"],
        ["concurrent at 4,096", "111", f"{plain.max_concurrency:.1f}", "holds"],
        ["the same, 8-bit cache", "0.27 GB", f"{eight.kv_bytes_per_token * 4096 / 1e9:.3f} GB", "holds"],
        ["concurrent, 8-bit cache", "222", f"{eight.max_concurrency:.1f}", "222 is twice the rounded 111"],
    ]
    return table(["", "published", "simulator", ""], rows)


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, memory_table(), LINES_OF_MONEY.format(**money()), physics(), SYSTEMS]
    for name in PUBLISHED:
        parts += [f"### {TITLES[name]}", comparison(name), VERDICTS[name].format(**figures())]
    return "\n\n".join(part.strip() for part in [*parts, CONCLUSION]) + "\n"


def money() -> dict[str, str]:
    """What the published dollars come to."""
    hours = {name: PUBLISHED[name].tokens_per_s * 3600 / 1e6 for name in PUBLISHED}
    return {
        "static_hour": f"{2.60 * hours['static']:.2f}",
        "continuous_hour": f"{0.28 * hours['continuous']:.2f}",
        "ratio": f"{PUBLISHED['continuous'].tokens_per_s / PUBLISHED['static'].tokens_per_s:.1f}",
        "fp8": f"{usd_per_million(PUBLISHED['fp8'].tokens_per_s):.2f}",
    }


def figures() -> dict[str, str]:
    """What the verdicts quote."""
    static, slow = simulated("static", "fresh"), simulated("static", "short")
    light, eight = simulated("continuous", "open short"), simulated("fp8", "open short")
    return {
        "static_ttft": f"{static['ttft_s']['p50']:.1f}",
        "static_most": f"{tokens_per_s(static):,.0f}",
        "static_short": f"{tokens_per_s(slow):,.0f}",
        "static_e2e": f"{8 * ANSWER / PUBLISHED['static'].tokens_per_s:.1f}",
        "light_in_flight": f"{light['concurrency_mean']:.0f}",
        "light_ttft": f"{light['ttft_s']['p50']:.2f}",
        "fresh_ttft": f"{simulated('continuous', 'fresh')['ttft_s']['p50']:.1f}",
        "light_p99": f"{light['e2e_s']['p99']:.1f}",
        "bf16_cached": f"{111 / cached_step_s('continuous'):,.0f}",
        "fp8_cached": f"{222 / cached_step_s('fp8'):,.0f}",
        "fp8_mean_e2e": f"{222 / rate_per_s('fp8'):.1f}",
        "fp8_in_flight": f"{eight['concurrency_mean']:.0f}",
        "fp8_light_p99": f"{eight['e2e_s']['p99']:.1f}",
        "varied": f"{tokens_per_s(simulated('static', 'varied')):,.0f}",
        "varied_share": f"{slot_share(simulated('static', 'varied')):.0%}",
    }


def physics() -> str:
    """The three laws that the published serving lines meet or break."""
    peak = HardwareProfile.from_mapping(scenario("continuous").hardware).peak_flops("bf16")
    rate = rate_per_s("continuous")
    ours, usual = (prompt_flops(every) * rate for every in (False, True))
    bound, datasheet = (bandwidth_bound_per_s("continuous", measured) for measured in (True, False))
    return PHYSICS.format(
        ours=f"{ours / 1e12:.0f}",
        ours_share=f"{ours / peak:.1f}",
        usual=f"{usual / 1e12:.0f}",
        usual_share=f"{usual / peak:.1f}",
        peak=f"{peak / 1e12:.0f}",
        cached=f"{1 - peak / ours:.0%}",
        most_rate=f"{peak / prompt_flops(False):.1f}",
        e2e=f"{111 / rate:.1f}",
        tail=f"{(111 / rate - 0.99 * 4.1) / 0.01:.0f}",
        in_flight=f"{4.1 * rate:.0f}",
        bound=f"{bound:,.0f}",
        datasheet=f"{datasheet:,.0f}",
        step=f"{111 / cached_step_s('continuous'):,.0f}",
        step_ms=f"{cached_step_s('continuous') * 1e3:.1f}",
    )


INTRODUCTION = """
# The worked example

Written by `docs/worked_example.py` from the scenarios in `scenarios/worked-example/`; nothing is tuned to
fit.

An 8B model on one A100 with 80 GB, contexts of 4,096 tokens, answers of 300: a static loop of 8, then
continuous batching over a paged cache, then an 8-bit cache. The published numbers are laid beside the
simulator's, and where they differ physics decides. A prompt has 3,700 tokens here, so that prompt and
answer are 4,000.

## Memory
"""

LINES_OF_MONEY = """
All of it holds, with 80 GB read as decimal, the engine given all of it, and the published 4 GB as
everything else.

The price follows from the rates: $2.60 at 310 tokens/s is ${static_hour} an hour, $0.28 at 2,850 is
${continuous_hour} (0.28 is rounded). 2,850 over 310 is {ratio}. An 8-bit cache at 3,900 would make it
${fp8}. These lines agree with each other; whether the rates are possible is another question.
"""

PHYSICS = """
## What the published rates require

**Compute.** 2,850 tokens/s in answers of 300 are 9.5 requests/s. Computing 9.5 fresh prompts of 3,700
tokens a second takes {ours} Tflop/s as the simulator counts (2 x the linear layers' weights x tokens, and
attention over half of the pairs), {usual} with all 8.03 billion parameters: {ours_share} and {usual_share}
times the card's datasheet peak of {peak}. At the very peak {most_rate} prompts/s would be the most. So at
least {cached} of the prompt tokens must be cached already, or contexts are only reserved and prompts are
short.

**Little's law.** In flight = rate x mean time. 111 in flight at 9.5/s are a mean E2E of {e2e} s. A p99 of
4.1 s cannot be E2E then, unless the slowest 1 % took {tail} s on average; 4.1 s of E2E are {in_flight} in
flight.

**Bandwidth.** A step that reads the weights and 111 contexts of 3,850 tokens (a prompt and half an answer)
once, at the rates measured for these kernels, caps the rate at {bound} tokens/s. With the overheads of the
kernels and of the engine a step takes {step_ms} ms, which is {step} tokens/s. At the datasheet's bandwidth,
which these kernels do not reach, the cap is {datasheet}. 2,850 with 111 full contexts is out of reach at
measured speeds. A cached prompt saves computing it, not this reading.
"""

SYSTEMS = """
## The three systems

Five or six readings of each. A: contexts are full and prompts cost nothing, a step of the batch alone (p99
is 300 such steps). B and D: as many users as were published in flight, each asking again when answered. C
and E: the published rate, and a contiguous reservation of 4,096 tokens a request; where their queue does
not grow, tokens/s are what was put in and say nothing. F: as D, with lognormal answers of mean 300 whose
standard deviation is 300, too. Tokens/s of users are by Little's law. KV is the share of the cache that is
held. The price is the published hour at each row's own rate.
"""

TITLES = {
    "static": "Static loop of 8",
    "continuous": "Continuous batching, paged cache",
    "fp8": "8-bit cache",
}

VERDICTS = {
    "static": """
310 tokens/s in groups of 8 equal answers are {static_e2e} s a group. Computing every prompt gives
{static_most} tokens/s (B); short prompts {static_short} (D), or {varied} where answers vary (F). So 310 is
of the right order. TTFT p50 of 1.4 s is less than the {static_ttft} s that the prefill of a full group
takes, so no full group of fresh prompts has it. E comes near both lines: short prompts at just that rate,
in groups that are seldom full; but there the rate was put in. Busy, MFU and MBU are not 31 %; the nearest
is F's share of slots and steps that give someone a token, {varied_share}.
""",
    "continuous": """
No reading gives the line. Fresh prompts (B, C) reach a third of it. Full contexts with free prompts (A) end
at {bf16_cached}. Short prompts under 4k reservations (E) carry 9.5/s with ease, and then p99 E2E is
{light_p99} s, near the published 4.1, but with {light_in_flight} in flight instead of 111. So the rate and
the 4.1 s fit together as short contexts; 111 would then be what there is room for, not what ran. TTFT of
0.9 s belongs to none of them: {fresh_ttft} s where every prompt is computed for users who wait, growing
without end at a fixed rate, {light_ttft} s where prompts are short. Busy is 100 %, and MFU, MBU and KV are
not 78 %.
""",
    "fp8": """
3,900 tokens/s are 13 requests/s; 222 in flight would mean a mean E2E of {fp8_mean_e2e} s, so 6.8 s is not
E2E of 222 in flight. Full contexts with free prompts (A) give {fp8_cached} tokens/s, which is the published
rate to 4 %, but the same reading misses the 16-bit line, so it explains one line and not the example. Short
prompts (E) carry 13/s with {fp8_in_flight} in flight. More load makes p99 longer there too ({light_p99} to
{fp8_light_p99} s), though by less than from 4.1 to 6.8. This profile has no 8-bit attention kernel: it is
taken to reach the bandwidth of the 16-bit one.
""",
}

CONCLUSION = """
## Verdict

The memory lines hold, and the money lines follow from the rates. The 16-bit line is no account of one
system with 111 full contexts in flight: it needs more than the card's peak for fresh prompts, more than its
measured bandwidth for cached ones, and a latency that Little's law forbids. The 8-bit rate is within reach
of cached prompts, with a latency two and a half times the published. Rates and p99 come nearest with short
contexts under long reservations, about a third as many in flight as fit; published TTFT and utilisation are
not met there either.
"""

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
