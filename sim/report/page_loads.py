"""What the runs below, at and beyond the knee show: use, latencies and their parts, time, and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sim.planning.wording import duration, number, output_rate, turned_away
from sim.report.page_html import Html, bar, beside, folded, joined, paragraph, section, table, tag
from sim.report.page_runs import BINS, TTFT_PARTS, LoadRun
from sim.report.page_story import Story, column, share_of, spaced, usd
from sim.report.run_figures import percent, tails_figure, time_figure

SLOWEST = 0.01
STATISTICS = ("mean", "p50", "p90", "p99")


def one_run_each(story: Story) -> Html:
    """That what follows is one run a load, and why its percentiles differ from the answer's."""
    offered = max(run.summary["requests"]["offered"] for run in story.runs)
    seed = story.knee.scenario.run["seed"]
    words = f"From here on each load is one run of {offered:,} requests, seed {seed}"
    sampling = ((story.at_knee.get("interval") or {}).get("parts") or {}).get("sampling") or {}
    pooled = sampling.get("replications")
    beyond = f"; the verdict pools {pooled} replications, so a percentile here may differ from it a little"
    return paragraph(f"{words}{beyond if pooled else ''}.")


def in_use(runs: Sequence[LoadRun]) -> Html:
    """How much of everything was in use, a column a load."""
    rows = [
        ["served, requests/s", *(number(r.summary["request_throughput"]) for r in runs)],
        ["output, tokens/s", *(number(output_rate(r.summary)) for r in runs)],
        ["queue", *(_queue(r.summary) for r in runs)],
        ["sequences in an iteration, mean", *(number(r.summary["batch_size_mean"]) for r in runs)],
        ["KV blocks in use, mean", *(share_of(r.summary["kv_cache"]["usage_mean"]) for r in runs)],
        ["KV blocks in use, largest", *(share_of(r.summary["kv_cache"]["usage_max"]) for r in runs)],
        ["preemptions", *(number(r.summary["preemptions"]) for r in runs)],
        ["prompt tokens computed again", *(number(r.summary["recomputed_tokens"]) for r in runs)],
    ]
    names = {
        "busy": "busy: an iteration runs",
        "mfu": "of the peak flops (MFU)",
        "mbu": "of the peak memory bandwidth (MBU)",
        "front_end": "front end busy",
    }
    for key, words in names.items():
        rows.append([words, *(share_of(r.summary["utilization"].get(key)) for r in runs)])
    held = [r.summary["binding"]["shares"] for r in runs]
    for key in (k for k in held[0] if k != "nothing" and any(shares[k] >= 0.0005 for shares in held)):
        rows.append([f"head of the queue waited for: {spaced(key)}", *(share_of(s[key]) for s in held)])
    header = ["", *(column(r) for r in runs)]
    return table("What was in use (shares of time, unless said otherwise)", header, rows)


def _queue(summary: Mapping[str, Any]) -> str:
    if summary["stable"]:
        return "steady"
    growth_per_s = summary["queue_growth_per_s"]
    return f"grows by {number(growth_per_s)}/s" if growth_per_s > 0 else "grows"


def latency(story: Story) -> Html:
    """TTFT taken apart at each load: shares of the mean, of the slowest, and percentiles of each part."""
    runs = [run for run in story.runs if len(run.ttft_s)]
    if not runs:
        return section("latency", "Where the first token's time goes", paragraph("No request completed."))
    words = (
        "TTFT is counted from the client's send. Front end: tokenising, one request after another, and "
        "hand-over. Queue: until the scheduler first takes the request. Prefill: from there to the first "
        "token, with waits between chunks and recomputation."
    )
    keys = joined(
        tag("li", joined([tag("i", class_=f"part-{index}"), name])) for index, name in enumerate(TTFT_PARTS)
    )
    bars = [drawn for run in runs for drawn in _split_bars(run)]
    tables = beside(*(_parts_table(run) for run in runs))
    note = paragraph("The bars are means, which add up; the tables are percentiles, which do not.")
    blocks = (paragraph(words), tag("ul", keys, class_="keys"), *bars, tables, note)
    return section("latency", "Where the first token's time goes", *blocks)


def _split_bars(run: LoadRun) -> list[Html]:
    drawn = []
    for name, rows in (
        ("mean of all requests", np.arange(len(run.ttft_s))),
        ("mean of the slowest 1 % by TTFT", run.slowest(SLOWEST)),
    ):
        total_s = float(run.ttft_s[rows].mean())
        shares = [(part, float(run.parts_s[part][rows].mean()) / total_s) for part in TTFT_PARTS]
        drawn.append(bar(f"{column(run)}: {name}", shares, duration(total_s)))
    return drawn


def _parts_table(run: LoadRun) -> Html:
    rows = []
    for name, values in [*run.parts_s.items(), ("together", run.ttft_s)]:
        percentiles = np.percentile(values, [50, 90, 99]).tolist()
        rows.append([name, *(duration(x, padded=True) for x in percentiles)])
    cost = run.summary.get("cost") or {}
    rows.append(["$/1M tokens, in and out", usd(cost.get("usd_per_1m_total_tokens")), "", ""])
    return table(column(run), ["TTFT", *STATISTICS[1:]], rows)


def tails(story: Story) -> Html:
    """The distributions of all latencies as tails."""
    words = (
        "A curve says which share of the values lies above x. A limit holds where the curve passes to the "
        "left of the crossing of the two limit lines; at the knee, where a limit is just met, a single run "
        "may pass on either side. TTFT and E2E beyond the capacity grow with the length of the run."
    )
    rows = [row for run in story.runs for row in _latency_rows(run)]
    header = ["", *STATISTICS, "max", "values"]
    numbers = folded("The same as a table", table("Latencies at each load", header, rows))
    drawn = tails_figure(story.runs, story.limits)
    return section("tails", "Distributions of the latencies", paragraph(words), drawn, numbers)


def _latency_rows(run: LoadRun) -> list[list[str]]:
    names = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "stall_s": "longest stall", "e2e_s": "E2E"}
    rows = []
    for key, name in names.items():
        found = run.summary[key]
        values = (duration(found.get(x), padded=True) for x in (*STATISTICS, "max"))
        rows.append([f"{name}, {column(run)}", *values, f"{found['n']:,}"])
    return rows


def over_time(story: Story) -> Html:
    """Running, waiting, cache and tokens over time at each load."""
    bins_s = [float(run.timeline.edges_s[1]) for run in story.runs]
    words = (
        f"Each run from its first request to its last token, in {BINS} bins of {duration(min(bins_s))} to "
        f"{duration(max(bins_s))}. The queue has a scale of its own in each column; the other panels of a "
        "row share theirs."
    )
    drawn = time_figure(story.runs, story.knee.scenario.engine.get("max_num_seqs"))
    return section("time", "Batch, queue and KV cache over time", paragraph(words), drawn)


def checks(story: Story) -> Html:
    """Laws that hold in any queueing system, and what a real server would have to show."""
    rows = [_littles_law(run) for run in story.runs]
    header = ["load", "X served, requests/s", "R mean E2E", "X·R", "N counted in the system", "X·R against N"]
    little = table("Little's law: N = X·R, in the measured window", header, rows, words=(0, 5))
    kept = [_conservation(run) for run in story.runs]
    named = ["load", "tokens", "KV blocks", "requests offered", "completed", "others"]
    laws = table("Conservation", named, kept, words=(0, 1, 2, 5))
    return section("checks", "Do the numbers hang together?", little, laws, *_on_a_server(story))


def _littles_law(run: LoadRun) -> list[str]:
    summary = run.summary
    served, mean_s, inside = (
        summary["request_throughput"],
        summary["e2e_s"]["mean"],
        summary["concurrency_mean"],
    )
    product = served * mean_s if served and mean_s else None
    if not summary["stable"]:
        verdict = "does not apply: the queue grows"
    elif product is None or not inside:
        verdict = "nothing was served"
    else:
        verdict = f"{round(100 * (product / inside - 1), 1) + 0.0:+.1f} %"
    return [column(run), number(served), duration(mean_s), number(product), number(inside), verdict]


def _conservation(run: LoadRun) -> list[str]:
    held = run.summary["checks"]
    words = {True: "conserved", False: "NOT CONSERVED"}
    counts = run.summary["requests"]
    return [
        column(run),
        words[bool(held["tokens_conserved"])],
        words[bool(held["blocks_conserved"])],
        f"{counts['offered']:,}",
        f"{counts['completed']:,}",
        turned_away(counts) or "none",
    ]


def _on_a_server(story: Story) -> list[Html]:
    """The log line and the percentiles that would refute the prediction."""
    words = (
        "To refute this page, send the same traffic to a server with these settings and read its log every "
        "ten seconds. Once warm, its means should be these. Which of them is off says what is wrong here."
    )
    names = {
        "prompt throughput, tokens/s": "prompt",
        "generation throughput, tokens/s": "generation",
        "running, requests": "running",
        "waiting, requests": "waiting",
        "KV cache usage": "kv",
    }
    rows = []
    for words_of_it, key in names.items():
        shown = percent if key == "kv" else number
        rows.append([words_of_it, *(shown(_mean(run, key)) for run in story.runs)])
    for key, name in (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("itl_s", "ITL")):
        for statistic in ("p50", "p99"):
            values = (duration(run.summary[key].get(statistic)) for run in story.runs)
            rows.append([f"{name} {statistic}", *values])
    header = ["", *(column(run) for run in story.runs)]
    return [tag("h3", "What a real server should show"), paragraph(words), table("Predicted", header, rows)]


def _mean(run: LoadRun, key: str) -> float:
    """The mean over the bins that lie in the measured window (all of them, if none does)."""
    edges_s, (start_s, end_s) = run.timeline.edges_s, run.timeline.window_s
    inside = (edges_s[:-1] >= start_s) & (edges_s[1:] <= end_s)
    values = run.timeline.series[key].mean
    return float(values[inside].mean() if inside.any() else values.mean())
