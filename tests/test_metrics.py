"""metrics.csv: what a scrape of the engine's own metrics would have said, read off the records."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cases import random_case
from replay import Replay
from runs import STORIES, every_story, result, story
from test_closed_loop import random_loop
from test_static import random_static

from sim.faults import InputFault
from sim.report.metrics import _prefix_cache, metrics_at, scrapes_s, write_metrics
from sim.results import Result
from sim.simulation import Run, simulate
from sim.simulation.recorder import COMPLETED

LATENCIES = {
    "time_to_first_token_seconds": "ttft_s",
    "request_time_per_output_token_seconds": "tpot_s",
    "e2e_request_latency_seconds": "e2e_s",
    "request_queue_time_seconds": "queue_s",
}


def at_the_end(run: Run) -> dict[str, Any]:
    """The last scrape."""
    return {name: values[-1] for name, values in metrics_at(run, scrapes_s(run)).items()}


@every_story
def test_the_last_scrape_is_the_summary(name: str) -> None:
    """Nobody is inside any more, and every counter has come to what the summary and the requests say."""
    found, _ = story(name)
    last, summary, requests = at_the_end(found.run), found.summary(), found.requests
    done = requests[requests.status == "completed"]
    for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert last[f"vllm:{gauge}"] == 0
    assert last["vllm:num_preemptions_total"] == summary["preemptions"]
    assert last["vllm:request_success_total"] == summary["requests"]["completed"] == len(done)
    assert last["vllm:generation_tokens_total"] == requests.output_tokens.sum()
    assert last["vllm:prompt_tokens_total"] == requests.prompt_tokens[requests.first_token_s.notna()].sum()
    for metric, column in LATENCIES.items():
        values = (requests if column == "ttft_s" else done)[column]
        assert last[f"vllm:{metric}_sum"] == pytest.approx(values.sum())
        # An answer of one token has no time per output token; the engine counts it as none.
        assert last[f"vllm:{metric}_count"] == (len(values) if column == "tpot_s" else values.count())


@every_story
def test_an_answer_takes_what_its_parts_take(name: str) -> None:
    """E2E is queue, prefill and decode (no front end here); of the whole run so far, too."""
    found, _ = story(name)
    at = metrics_at(found.run, scrapes_s(found.run, 0.1))
    parts = sum(at[f"vllm:request_{part}_time_seconds_sum"] for part in ("queue", "prefill", "decode"))
    front_end_s = found.run.recorder.column("queued_s") - found.run.requests.arrival_s
    total_s = at["vllm:e2e_request_latency_seconds_sum"]
    assert total_s == pytest.approx(parts, abs=1e-9) or front_end_s.any()
    assert total_s[-1] == pytest.approx(
        parts[-1] + front_end_s[found.run.recorder.column("status") == COMPLETED].sum()
    )


@every_story
def test_counters_agree_with_every_token(name: str) -> None:
    """At any instant: the tokens so far and the gaps between them, as a replay of the steps counts them."""
    found, tokens = story(name)
    at_s = scrapes_s(found.run, 0.037)
    at = metrics_at(found.run, at_s)
    times_s, gaps_s, gap_ends_s = _tokens(tokens)
    for i, now_s in enumerate(at_s.tolist()):
        assert at["vllm:generation_tokens_total"][i] == (times_s <= now_s).sum()
        assert at["vllm:inter_token_latency_seconds_count"][i] == (gap_ends_s <= now_s).sum()
        assert at["vllm:inter_token_latency_seconds_sum"][i] == pytest.approx(
            gaps_s[gap_ends_s <= now_s].sum(), abs=1e-6
        )


def _tokens(tokens: Replay) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times of all tokens, all gaps, and when each gap ended, in s."""
    each = [np.array(times_s) for times_s in tokens.tokens_s if times_s]
    gaps_s = np.concatenate([np.diff(times_s) for times_s in each])
    return np.concatenate(each), gaps_s, np.concatenate([times_s[1:] for times_s in each])


@every_story
def test_gauges_agree_with_the_scheduler(name: str) -> None:
    """As each iteration begins: its running list and its queue, and the blocks in use.

    Blocks to the last one in a row's first and last iteration; between them they are taken to grow evenly,
    and no decode opens more than one block ahead of that or behind it.
    """
    found, tokens = story(name)
    at = metrics_at(found.run, np.array(tokens.starts_s))
    assert at["vllm:num_requests_running"].tolist() == tokens.running
    assert at["vllm:num_requests_waiting"].tolist() == tokens.waiting
    blocks = np.rint(at["vllm:kv_cache_usage_perc"] * found.run.scheduler.num_blocks).astype(int)
    count = found.run.recorder.column("iterations")
    off = np.abs(blocks - np.array(tokens.blocks))
    last = np.cumsum(count) - 1
    assert not off[last].any()
    assert not off[last - count + 1].any()
    assert (off <= np.repeat(found.run.recorder.column("decodes"), count)).all()
    assert at["vllm:kv_cache_usage_perc"].max() == found.summary()["kv_cache"]["usage_max"]


def test_blocks_do_not_grow_evenly_everywhere() -> None:
    """In some story something is off between the ends of a row: the tolerance above is needed."""
    some = 0
    for name in STORIES:
        found, tokens = story(name)
        usage = metrics_at(found.run, np.array(tokens.starts_s))["vllm:kv_cache_usage_perc"]
        some += (np.rint(usage * found.run.scheduler.num_blocks) != tokens.blocks).sum()
    assert some


@every_story
def test_requests_inside_add_up_to_their_stays(name: str) -> None:
    """Little's law: the sum of running and waiting over time is the sum of the stays in the engine.

    Sampled every 2^-8 s; each stay is then counted to within one interval.
    """
    found, _ = story(name)
    interval_s = 2.0**-8
    at = metrics_at(found.run, scrapes_s(found.run, interval_s))
    inside = at["vllm:num_requests_running"] + at["vllm:num_requests_waiting"]
    recorder = found.run.recorder
    stays_s = recorder.column("finish_s") - recorder.column("queued_s")
    let_in = stays_s > 0
    assert inside.sum() * interval_s == pytest.approx(stays_s[let_in].sum(), abs=interval_s * let_in.sum())


@pytest.mark.parametrize("name", ["preempting", "impatient and crowded"])
def test_leaps_change_nothing(name: str, tmp_path: Path) -> None:
    """A run that leaps writes the bytes of one that steps."""
    stepping, _ = story(name)
    leaping = Result(simulate(stepping.run.scenario, requests=STORIES[name][0]))
    files = [write_metrics(run, tmp_path / str(i), 0.05) for i, run in enumerate((stepping, leaping))]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("ticks", [True, False], ids=["ties", "no ties"])
@pytest.mark.parametrize("rules", [random_static, random_loop], ids=["static", "users"])
def test_random_engines_count_every_token(rules: Any, ticks: bool) -> None:
    """Static groups with padding, users, deadlines, patience: the tokens that clients got, no other."""
    cancelled = 0
    for seed in range(40):
        run = random_case(seed, ticks, rules).run()
        requests, last = Result(run).requests, at_the_end(run)
        assert last["vllm:generation_tokens_total"] == requests.output_tokens.sum(), seed
        assert last["vllm:num_requests_running"] == last["vllm:num_requests_waiting"] == 0, seed
        cancelled += int(((requests.status != "completed") & (requests.output_tokens > 1)).sum())
    assert cancelled > 5


def test_the_file_holds_the_columns(tmp_path: Path) -> None:
    """A header of names, a row a scrape; whole numbers stay whole, others to a microsecond."""
    found, _ = story("preempting")
    with open(write_metrics(found, tmp_path, 0.5), newline="", encoding="utf-8") as lines:
        header, *rows = csv.reader(lines)
    at_s = scrapes_s(found.run, 0.5)
    at = {"time_s": at_s, **metrics_at(found.run, at_s)}
    assert header == list(at)
    assert np.array(rows, dtype=float) == pytest.approx(np.column_stack(list(at.values())), abs=5e-7)
    whole = [name for name, text in zip(header, rows[3], strict=True) if "." not in text]
    assert all(name.endswith(("_total", "_count", "running", "waiting")) for name in whole)
    assert len(whole) == 13


def test_prefix_cache_counters_grow_at_the_first_schedule() -> None:
    """What was looked up is the prompt, what was found its cached tokens; who never ran asked for nothing."""
    columns = {"first_scheduled_s": np.array([1.0, np.nan, 2.5]), "cached_tokens": np.array([0, 0, 32], "u4")}
    run: Any = SimpleNamespace(
        recorder=SimpleNamespace(column=columns.__getitem__),
        requests=SimpleNamespace(prompt_tokens=np.array([100, 70, 48])),
    )
    at = _prefix_cache(run, np.arange(4.0))
    assert at["vllm:prefix_cache_queries_total"].tolist() == [0, 100, 100, 148]
    assert at["vllm:prefix_cache_hits_total"].tolist() == [0, 0, 0, 32]


def test_too_many_rows_are_refused(tmp_path: Path) -> None:
    """A sentence with an interval that would do, and no file."""
    found = result()
    with pytest.raises(InputFault, match=r"metrics\.csv would have [\d,]+ rows at --scrape-interval 1e-06"):
        write_metrics(found, tmp_path, 1e-6)
    assert not list(tmp_path.iterdir())


def test_the_documentation_names_every_column() -> None:
    """docs/timeline.md has a row for each metric, and no other but the two that need prefix caching."""
    text = (Path(__file__).parents[1] / "docs" / "timeline.md").read_text(encoding="utf-8")
    table = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `vllm:")]
    told = {name for cell in table for name in re.findall(r"`([^`]+)`", cell)}
    names = metrics_at(story("steady")[0].run, np.zeros(1))
    assert told - {"vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"} == {
        name.removesuffix("_sum").removesuffix("_count") for name in names
    }
