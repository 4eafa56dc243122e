"""What public capacity reviews expect to find. Each test names the thread that asked for it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import sim
from sim.planning.knee import Knee, find_knee
from sim.planning.limits import limits_of
from sim.planning.pareto import front
from sim.planning.sweep import Sweep
from sim.report.figures import knee_figure
from sim.report.page_loads import latency
from sim.report.page_runs import TTFT_PARTS, run_loads
from sim.report.page_sources import memory
from sim.report.page_story import Story, usd
from sim.report.sweep_report import sweep_text
from sim.report.text import memory_text
from sim.simulation import ledger_of

DOCUMENT: dict[str, Any] = {
    "name": "review",
    "hardware": "a100-80gb-sxm",
    "model": "llama-3-8b",
    "workload": {
        "arrivals": {"kind": "poisson"},
        "lengths": {"kind": "lognormal", "prompt_mean": 1000, "output_mean": 100, "cv": 0.5},
    },
    "load": {"rate_per_s": 4},
    "slo": {"ttft_p99_s": 1.5},
    "run": {"requests": 300, "precision": 0.1, "most_replications": 4},
}


@cache
def knee() -> Knee:
    return find_knee(sim.load(DOCUMENT))


@cache
def story() -> Story:
    return Story(knee(), knee().as_dict(), run_loads(knee()), ledger_of(knee().scenario).as_dict())


@cache
def by_users() -> Sweep:
    return sim.sweep(sim.load(DOCUMENT), {"load.concurrency": [1, 4, 16, 64]}, workers=1)


def rows_of(page: str) -> list[list[str]]:
    """The cells of every table row in a section of the page."""
    tree = ElementTree.fromstring(page)
    return [["".join(cell.itertext()) for cell in row] for row in tree.iter("tr")]


def test_throughput_and_speed_are_set_against_each_other_dynamo_2444() -> None:
    """dynamo#2444, aiperf#466: tokens/s of a GPU against tokens/s of a user, by configuration, with the front
    marked: more users are more of the one and less of the other, so that each of them is on it."""
    found = by_users()
    per_gpu, per_user = zip(*[pair for pair in found.speeds if pair], strict=True)
    assert list(per_gpu) == sorted(per_gpu)
    assert list(per_user) == sorted(per_user, reverse=True)
    assert per_user[0] == pytest.approx(1 / found.points[0].summary["tpot_s"]["mean"])
    assert found.front == [True] * 4
    assert [row["on_front"] for row in found.as_dict()["pareto"]] == [True] * 4
    header, _, *rows = sweep_text(found).splitlines()[:6]
    assert header.split()[-3:] == ["tokens/s/GPU", "tokens/s/user", "Pareto"]
    assert all(row.endswith("front") for row in rows)


def test_a_configuration_that_another_beats_is_off_the_front_dynamo_2444() -> None:
    """dynamo#2444: only who is beaten in both is off it; equals stay; what is unknown is on no front."""
    assert front([(1, 9), (5, 5), (4, 4), (9, 1), (5, 5), (5, 4), None]) == [
        True,
        True,
        False,
        True,
        True,
        False,
        False,
    ]


def test_percentile_over_rate_with_limit_and_knee_vllm_omni_6365() -> None:
    """vllm-omni#6365, guidellm#552: the limit's percentile at every rate tried, a line at the limit, and the
    knee at its rate."""
    found = knee()
    axes = next(axis for axis in knee_figure(found).axes if axis.get_ylabel().startswith("TTFT"))
    lines = axes.get_lines()
    limit = limits_of(found.scenario.slo)[0]
    scale = 1000 if "(ms)" in axes.get_ylabel() else 1
    rates = [point.rate_per_s for point in found.points]
    values = [scale * limit.value_s(point.summary) for point in found.points]
    curves = [line for line in lines if list(line.get_xdata()) == rates]
    assert any(list(line.get_ydata()) == pytest.approx(values) for line in curves)
    assert any(list(line.get_ydata()) == pytest.approx([scale * limit.bound_s] * 2) for line in lines)
    assert any(set(line.get_xdata()) == {found.rate_per_s} for line in lines)


def test_ttft_is_split_and_priced_agentic_benchmarks_32() -> None:
    """agentic-coding-harness-benchmarks#32: queue and prefill apart, p50, p90 and p99, and the price of a
    million tokens, in and out together, in the same table; the parts' means are TTFT's."""
    rows = rows_of(latency(story()))
    for part in (*TTFT_PARTS, "together"):
        assert sum(row[0] == part and len(row) == 4 for row in rows) == len(story().runs)
    assert ["TTFT", "p50", "p90", "p99"] in rows
    for run in story().runs:
        cost = usd(run.summary["cost"]["usd_per_1m_total_tokens"])
        assert ["$/1M tokens, in and out", cost, "", ""] in rows
        parts_s = sum(float(run.parts_s[part].mean()) for part in TTFT_PARTS)
        assert parts_s == pytest.approx(run.summary["ttft_s"]["mean"], rel=1e-9)


def test_the_log_line_over_time_vllm_42827() -> None:
    """vLLM's own log line, asked for in vllm#42827: running, waiting, KV usage, prompt and generation tokens
    over time, and how often somebody was preempted. Tokens over time add up to all tokens."""
    for run in story().runs:
        series = run.timeline.series
        assert {"running", "waiting", "kv", "prompt", "generation"} <= set(series)
        bin_s = float(run.timeline.edges_s[1])
        counts = run.summary["requests"]
        generated = float(series["generation"].mean.sum()) * bin_s
        assert counts["completed"] == counts["offered"]
        assert generated == pytest.approx(counts["offered"] * run.summary["output_tokens"]["mean"], rel=0.1)
        assert 0 < series["kv"].most.max() <= 1
        assert run.summary["preemptions"] == 0


def test_the_ledger_speaks_the_engines_words_vllm_8031() -> None:
    """vllm#8031 and the engine's start-up lines: total x fraction, weights, non-torch, activations, KV cache,
    blocks, tokens, and how many full contexts; the column sums to the card."""
    ledger = story().ledger
    text = memory_text(ledger)
    for words in ("weights", "activations", "overhead", "KV cache", "blocks", "requests at full context"):
        assert words in text
    rows = {row[0]: row[1] for row in rows_of(memory(story())) if len(row) >= 2}
    assert rows["× gpu_memory_utilization 0.92"] == f"{0.92 * ledger['gpu_memory_bytes'] / 2**30:,.2f} GiB"
    assert rows["GPU blocks"] == f"{ledger['num_gpu_blocks']:,} of 16 tokens"
    assert rows["GPU KV cache size"] == f"{ledger['num_gpu_blocks'] * 16:,} tokens"
    full = ledger["kv_cache_tokens"] / ledger["max_model_len"]
    assert rows[f"maximum concurrency for {ledger['max_model_len']:,} tokens per request"] == f"{full:.2f}x"
    sizes = ("weights", "activations", "non-torch and CUDA graphs", "KV cache", "left to others")
    held = sum(float(rows[name].split()[0]) for name in sizes)
    assert held == pytest.approx(ledger["gpu_memory_bytes"] / 2**30, abs=0.03)


def test_the_pages_of_a_review_are_files(tmp_path: Path) -> None:
    """aibrix#933, aiconfigurator: a sweep's Pareto table is in sweep.json beside CSV and Parquet."""
    found = sim.sweep(sim.load(DOCUMENT), {"load.concurrency": [1, 4]}, workers=1, out=tmp_path)
    assert {path.name for path in found.files} == {"table.csv", "table.parquet", "sweep.json"}
    assert '"on_front": true' in (tmp_path / "sweep.json").read_text(encoding="utf-8")
