"""A run whose records go to files answers what it answers with its records in memory, in less of it."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from sim.cli.main import main
from sim.faults import InputFault
from sim.results import Result
from sim.results.parts import Parts
from sim.results.streaming import stream
from sim.scenario import Scenario
from sim.simulation import clients, simulate, simulate_in_parts
from sim.simulation.recorder import Recorder
from sim.workload import Requests

LENGTHS = {"kind": "lognormal", "prompt_mean": 500, "output_mean": 200, "cv": 1.0}
TIGHT = {"num_gpu_blocks_override": 800, "max_model_len": 8192}
GAP = {"kind": "exponential", "mean_s": 20.0}
SHARING = {
    "prefixes": {"kind": "groups", "groups": 5, "tokens": 200, "zipf": 1.0},
    "sessions": {"turns": {"kind": "geometric", "mean": 2.0}, "gap": GAP},
}
CLASSES = {
    "chat": {"share": 0.7, "lengths": LENGTHS, "slo": {"ttft_p99_s": 0.08}},
    "batch": {"share": 0.3, "lengths": {**LENGTHS, "output_mean": 400}},
}
ENGINES = ("vllm-v1@0.32", "vllm-v0@0.6.6", "sglang@0.5", "lmdeploy@0.2", "tensorrt-llm@1.0", "static")
RUNS: dict[str, dict[str, Any]] = {
    **{name: {"engine": {**TIGHT, "preset": name}} for name in ENGINES if name != "sglang@0.5"},
    "sglang@0.5": {
        "engine": {"preset": "sglang@0.5", "num_gpu_blocks_override": 12800, "max_model_len": 8192}
    },
    "step after step": {"engine": {**TIGHT, "async_scheduling": False}},
    "by priority": {
        "engine": {**TIGHT, "scheduling_policy": "priority"},
        "workload": {"lengths": LENGTHS, "priorities": {"weights": [0.5, 0.3, 0.2]}},
    },
    "impatient": {
        "engine": TIGHT,
        "workload": {"lengths": LENGTHS, "patience": {"kind": "exponential", "mean_s": 4.0}},
    },
    "short of room in the queue": {
        "engine": TIGHT,
        "admission": {"max_queued_requests": 4, "queue_deadline_s": 0.5},
    },
    "reserving": {"engine": {"kv_layout": "contiguous", "max_model_len": 8192}},
    "sharing": {
        "engine": {**TIGHT, "enable_prefix_caching": True},
        "workload": {"lengths": LENGTHS, **SHARING},
    },
    "users": {"load": {"concurrency": 12}},
    "classes": {"workload": {"classes": CLASSES}},
    "windows": {"slo": {"ttft_p90_s": 0.2, "itl_p99_s": 0.05}, "run": {"requests": 500, "window_s": 5.0}},
}


def scenario(**sections: Any) -> Scenario:
    document = {
        "name": "test",
        "hardware": "h100-80gb-sxm",
        "model": "llama-3.1-8b",
        "workload": {"lengths": LENGTHS},
        "load": {"rate_per_s": 14.0},
        "slo": {"ttft_p99_s": 0.5, "tpot_p99_s": 0.05},
        "run": {"requests": 500},
    }
    return sim.load({**document, **sections})


@cache
def whole(name: str) -> Result:
    return Result(simulate(scenario(**RUNS[name])))


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are sent a few at a time, so that records can be handed over as often."""
    monkeypatch.setattr(clients, "_CHUNK", 10)


def figures(document: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a summary with its place, but for what the clock on the wall says."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key not in ("wall_s", "requests_per_s"):
                yield from figures(value, f"{place}.{key}")
    elif isinstance(document, list):
        for number, value in enumerate(document):
            yield from figures(value, f"{place}.{number}")
    else:
        yield place, document


def differences(one: Result, other: Result) -> dict[str, tuple[Any, Any]]:
    """Where two summaries differ, by more than the order in which floating-point numbers are added."""
    first, second = dict(figures(one.summary())), dict(figures(other.summary()))
    assert first.keys() == second.keys()
    pairs = {place: (value, second[place]) for place, value in first.items()}
    return {place: pair for place, pair in pairs.items() if not _same(*pair)}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, rtol=1e-9, atol=1e-9))
    return bool(one == other)


@pytest.mark.parametrize("name", RUNS)
def test_in_parts_and_whole_the_answers_are_the_same(name: str, tmp_path: Path) -> None:
    """Every figure of the summary; and the tables, to the last bit. Some of each part goes on after it."""
    import pandas as pd

    parts = stream(scenario(**RUNS[name]), rows=60)
    assert parts._records.parts is not None
    assert len(parts._records.parts._parts) > 3
    assert differences(whole(name), parts) == {}
    parts.write(tmp_path)
    pd.testing.assert_frame_equal(
        pd.read_parquet(tmp_path / "requests.parquet"), whole(name).requests, check_dtype=False
    )
    pd.testing.assert_frame_equal(
        pd.read_parquet(tmp_path / "steps.parquet"), whole(name).steps, check_dtype=False
    )
    csv = pd.read_csv(tmp_path / "requests.csv")
    assert csv.request_id.tolist() == list(range(len(whole(name).requests)))


@pytest.mark.parametrize("rows", [1, 7, 33, 499, 10_000])
def test_it_does_not_matter_where_parts_end(rows: int) -> None:
    """However many requests a part has, from one to all: preemptions, cancellations and windows included."""
    chosen = scenario(**RUNS["impatient"], run={"requests": 300, "window_s": 4.0})
    assert differences(Result(simulate(chosen)), stream(chosen, rows=rows)) == {}


def test_who_leaves_while_an_iteration_runs_stays_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What that one has had of an answer is known at its end only: it is handed over no earlier.

    All leave after half a second, in order, and often the next request is sent before that end.
    """
    monkeypatch.setattr(clients, "_CHUNK", 1)
    lengths = {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 4000}
    leaving = {"lengths": lengths, "patience": {"kind": "fixed", "mean_s": 0.5}}
    chosen = scenario(workload=leaving, run={"requests": 80}, load={"rate_per_s": 20.0})
    expected = Result(simulate(chosen))
    assert expected.summary()["requests"]["cancelled"] == 80
    assert expected.requests.output_tokens.min() > 10
    assert differences(expected, stream(chosen, rows=1)) == {}


def test_the_stories_are_about_what_they_say() -> None:
    """Somebody is preempted, gives up, is refused, comes too late, finds a prefix; and windows are judged."""
    found = {name: whole(name).summary() for name in RUNS}
    for name in ("step after step", "by priority", "vllm-v0@0.6.6"):
        assert found[name]["preemptions"] > 10, name
    assert found["impatient"]["requests"]["cancelled"] > 10
    assert found["short of room in the queue"]["requests"]["rejected"] > 10
    assert found["sharing"]["prefix_cache_hit_tokens"] > 1000
    assert found["windows"]["windows"]["count"] > 3
    assert list(found["classes"]["by_class"]) == ["chat", "batch"]


def test_what_is_kept_does_not_grow() -> None:
    """Four times the requests: no more of them, and of the steps, are in memory at any time."""

    def most_kept(requests: int) -> int:
        kept = []

        def sink(handed: Requests, records: Recorder) -> None:
            kept.append(len(handed) + records.num_rows)

        run = simulate_in_parts(
            scenario(run={"requests": requests}, load={"rate_per_s": 8.0}), sink, rows=100
        )
        assert not run.recorder.status
        assert len(run.requests) == 0
        return max(kept)

    assert most_kept(4000) < 2 * most_kept(1000)


@pytest.mark.slow
def test_three_times_the_requests_take_the_same_memory() -> None:
    """Peak of what Python and numpy hold, summary included, for 300,000 requests and for 100,000.

    Run it with ``pytest -m slow tests/test_streaming.py``.
    """

    def peak_bytes(requests: int) -> int:
        tracemalloc.start()
        stream(scenario(run={"requests": requests}, load={"rate_per_s": 8.0})).summary()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert peak_bytes(300_000) < 1.5 * peak_bytes(100_000)


def test_an_interrupt_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Control-C while records are written: status 130, a sentence, and no file in the folder."""
    written = []

    def stop(self: object, requests: Requests, recorder: Recorder) -> None:
        add(self, requests, recorder)
        written.extend(path.name for path in tmp_path.rglob("*.arrow"))
        raise KeyboardInterrupt

    add = sim.results.parts.Parts.add
    monkeypatch.setattr(sim.results.parts.Parts, "add", stop)
    monkeypatch.setattr(
        sys, "argv", ["kneesim", "run", "chat-8b-a100", "--stream", "run.requests=50", "--out", str(tmp_path)]
    )
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert "interrupted: nothing is kept" in capsys.readouterr().err
    assert "requests.arrow" in written
    assert list(tmp_path.iterdir()) == []


def test_files_are_gone_with_the_result(tmp_path: Path) -> None:
    """What was written for the answers stays as long as they may be asked for."""
    result = stream(scenario(run={"requests": 50}), out=tmp_path)
    assert len(list(tmp_path.rglob("*.arrow"))) > 3
    del result
    assert list(tmp_path.iterdir()) == []


def test_what_needs_all_records_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Series in Python, a timeline and metrics from the command line: one sentence each."""
    with pytest.raises(InputFault, match="in its files, not in memory"):
        stream(scenario(run={"requests": 50})).series("ttft")
    for option in (["--trace", str(tmp_path / "a.json")], ["--scrape-interval=1", "--out", str(tmp_path)]):
        monkeypatch.setattr(sys, "argv", ["kneesim", "run", "chat-8b-a100", "--stream", *option])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 2
        assert f"{option[0].partition('=')[0]} needs all records at once" in capsys.readouterr().err


def test_classes_have_answers_of_their_own() -> None:
    """Counts, throughputs and goodput of the classes add up; each is judged by its own limits."""
    found = whole("classes").summary()
    chat, batch = found["by_class"]["chat"], found["by_class"]["batch"]
    for name, count in found["requests"].items():
        assert chat["requests"][name] + batch["requests"][name] == count
    for rate in ("request_throughput", "output_throughput", "useful_output_throughput"):
        assert chat[rate] + batch[rate] == pytest.approx(found[rate])
    same = {name: {**its, "slo": {"ttft_p99_s": 0.08}} for name, its in CLASSES.items()}
    limits = {"slo": {"ttft_p99_s": 0.08}, "workload": {"classes": same}}
    alike = Result(simulate(scenario(**limits))).summary()
    goodput = sum(answers["request_goodput"] for answers in alike["by_class"].values())
    assert goodput == pytest.approx(alike["request_goodput"])
    loose = {**CLASSES, "chat": {**CLASSES["chat"], "slo": {"ttft_p99_s": 100.0}}}
    easy = Result(simulate(scenario(workload={"classes": loose}))).summary()["by_class"]
    assert easy["chat"]["goodput_fraction"] == 1.0 > chat["goodput_fraction"]
    assert easy["batch"] == batch


def test_failed_attempts_are_output_and_of_no_use() -> None:
    """Who gives up and asks again is one piece of work: counted once, while every token put out is."""
    patience = {"kind": "exponential", "mean_s": 1.5}
    asks_again = {"patience": patience, "retries": {"max": 2, "on": ["abandoned"]}}
    result = Result(simulate(scenario(workload={"lengths": LENGTHS, **asks_again}, run={"requests": 400})))
    found, rows, records = result.summary(), result.requests, result.run.recorder
    start_s, end_s = found["window"]["start_s"], found["window"]["end_s"]
    left_s = records.column("attempt_left_s")
    assert found["requests"]["offered"] == 400
    assert found["requests"]["retries"] == len(left_s) > 100
    lost = records.column("attempt_tokens")[(left_s > start_s) & (left_s <= end_s)].sum()
    ended = rows[(rows.finish_s > start_s) & (rows.finish_s <= end_s)]
    useful = ended.output_tokens[ended.status == "completed"].sum()
    assert lost > 1000
    assert found["output_throughput"] * (end_s - start_s) == pytest.approx(ended.output_tokens.sum() + lost)
    assert found["useful_output_throughput"] * (end_s - start_s) == pytest.approx(useful)
    assert found["checks"]["tokens_conserved"]


def test_failed_attempts_are_of_their_class() -> None:
    """What chat's people gave up is output of chat alone; with it the classes' outputs add up."""
    asks_again = {
        "patience": {"kind": "exponential", "mean_s": 1.5},
        "retries": {"max": 2, "on": ["abandoned"]},
    }
    classes = {**CLASSES, "chat": {**CLASSES["chat"], **asks_again}}
    found = Result(simulate(scenario(workload={"classes": classes}, run={"requests": 400}))).summary()
    chat, batch = found["by_class"]["chat"], found["by_class"]["batch"]
    assert chat["requests"]["retries"] == found["requests"]["retries"] > 50 > batch["requests"]["retries"]
    assert chat["output_throughput"] + batch["output_throughput"] == pytest.approx(found["output_throughput"])
    assert batch["output_throughput"] == batch["useful_output_throughput"]
    assert chat["output_throughput"] > 1.1 * chat["useful_output_throughput"]


def test_parts_find_each_request_at_its_row(tmp_path: Path) -> None:
    """At the edges of parts too; the last to arrive need not be in the last part."""
    times_s = [[0.0, 1.0], [4.0], [2.0, 3.0]]
    parts = Parts(tmp_path)
    for own in times_s:
        tokens = np.ones(len(own), dtype=np.int64)
        parts.add(Requests(np.array(own), tokens, tokens), Recorder(len(own)))
    parts.close()
    assert len(parts) == 5
    assert [parts.arrival_s(row) for row in range(5)] == [0.0, 1.0, 4.0, 2.0, 3.0]
    assert parts.last_arrival_s() == 4.0
    assert [requests.arrival_s.tolist() for requests, _ in parts] == times_s
