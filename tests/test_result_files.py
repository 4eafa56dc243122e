"""Result files of load generators: what is read, and what is refused in a sentence."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import result_documents as documents
from support import base

import sim
from sim.calibration.result_files import read_result_file, read_result_files
from sim.faults import InputFault


@cache
def answers(load: str = "concurrency", value: float = 4) -> documents.Answers:
    """A short run of a small mix of lengths."""
    lengths = {"kind": "lognormal", "prompt_mean": 300, "output_mean": 40, "cv": 0.5}
    run = {"requests": 60, "warmup": 0.0}
    changes = {"load": {load: value}, "workload": {"lengths": lengths}, "run": run}
    return documents.Answers(sim.simulate(base().replace(changes)))


def _written(tmp_path: Path, tool: str) -> Path:
    if tool == "aiperf":
        (tmp_path / "profile_export.jsonl").write_text(documents.aiperf_records(answers()))
    made: dict[str, Any] = {
        "vllm": documents.vllm(answers()),
        "detailed": documents.vllm(answers(), detailed=True),
        "sglang": documents.sglang(answers()),
        "guidellm": documents.guidellm(answers()),
        "aiperf": documents.aiperf(answers()),
    }
    return documents.write(tmp_path / "result.json", made[tool])


@pytest.mark.parametrize("tool", ["vllm", "detailed", "sglang", "guidellm", "aiperf"])
def test_every_tool_tells_of_the_same_load_the_same(tmp_path: Path, tool: str) -> None:
    """Load, counts and latencies of one run are what the client saw, whichever tool wrote them down."""
    (load,) = read_result_file(_written(tmp_path, tool))
    assert (load.kind, load.value, load.completed, load.failed) == ("concurrency", 4.0, 60, 0)
    assert load.prompt_tokens_mean == pytest.approx(answers().prompt.mean())
    assert load.output_tokens_mean == pytest.approx(answers().output.mean())
    assert load.duration_s == pytest.approx(answers().duration_s, rel=1e-6)
    assert load.metrics["output_throughput"] == pytest.approx(answers().rates()["output"])
    assert load.metrics["ttft_mean_s"] == pytest.approx(answers().ttft_s.mean())
    assert load.metrics["ttft_p99_s"] == pytest.approx(np.percentile(answers().ttft_s, 99))
    if tool != "vllm":
        assert load.metrics["e2e_p50_s"] == pytest.approx(np.median(answers().e2e_s))
    if tool != "guidellm":
        assert load.metrics["tpot_mean_s"] == pytest.approx(answers().tpot_s.mean())


def test_guidellm_weights_gaps_by_tokens(tmp_path: Path) -> None:
    """Its inter-token latency is the mean over all gaps, which a mean over requests (TPOT) is not."""
    (load,) = read_result_file(_written(tmp_path, "guidellm"))
    gaps = answers().output - 1
    assert load.metrics["itl_mean_s"] == pytest.approx(np.average(answers().tpot_s, weights=gaps))
    assert "tpot_mean_s" not in load.metrics


@pytest.mark.parametrize("tool", ["detailed", "aiperf"])
def test_lists_of_requests_give_the_lengths_in_the_order_sent(tmp_path: Path, tool: str) -> None:
    """Warm-up and failed requests are not among them."""
    (load,) = read_result_file(_written(tmp_path, tool))
    assert load.sent is not None
    order = np.argsort(answers().sent_s, kind="stable")
    columns = (load.sent.prompt_tokens, load.sent.output_tokens)
    expected = (answers().prompt[order], answers().output[order])
    if tool == "aiperf":  # which of those sent at one instant was first, its records do not say
        columns, expected = tuple(map(np.sort, columns)), tuple(map(np.sort, expected))
    np.testing.assert_array_equal(columns, expected)


def test_an_open_loop_is_sent_at_its_recorded_times(tmp_path: Path) -> None:
    """A detailed file of a rate says when each request was sent; the first at 0."""
    rated = answers("rate_per_s", 5.0)
    (load,) = read_result_file(documents.write(tmp_path / "r.json", documents.vllm(rated, detailed=True)))
    assert (load.kind, load.value) == ("rate", 5.0)
    assert load.sent is not None
    assert load.sent.sent_s == pytest.approx(rated.sent_s - rated.sent_s[0])


def test_requests_that_failed_are_not_among_those_sent(tmp_path: Path) -> None:
    """vLLM lists them with no token and no time."""
    document = documents.vllm(answers(), detailed=True)
    lists = {"input_lens": 9999, "output_lens": 0, "ttfts": 0.0, "itls": [], "start_times": 5.0}
    document |= {name: [failed, *document[name]] for name, failed in lists.items()} | {"failed": 1}
    (load,) = read_result_file(documents.write(tmp_path / "r.json", document))
    assert load.failed == 1
    assert load.sent is not None
    assert load.sent.prompt_tokens.tolist() == answers().prompt.tolist()
    assert load.metrics["e2e_mean_s"] == pytest.approx(answers().e2e_s.mean())


def test_one_file_can_hold_many_loads(tmp_path: Path) -> None:
    """Lines (`--append-result`, SGLang) and guidellm's benchmarks each are a load, with their place."""
    loads = (answers(), answers("rate_per_s", 5.0))
    lines = documents.write(tmp_path / "lines.jsonl", *map(documents.sglang, loads))
    report = documents.write(tmp_path / "benchmarks.json", documents.guidellm(*loads))
    found = read_result_files([lines, report])
    assert [load.kind for load in found] == ["concurrency", "rate"] * 2
    assert [load.place for load in found] == [
        f"{lines}:1",
        f"{lines}:2",
        f"{report} benchmarks[0]",
        f"{report} benchmarks[1]",
    ]


def test_no_rate_and_no_cap_is_a_burst(tmp_path: Path) -> None:
    """`--request-rate inf` sends everything at once, and so does a cap that nobody meets."""
    document = {**documents.vllm(answers()), "max_concurrency": None}
    capped = {**document, "max_concurrency": 60}
    for load in read_result_file(documents.write(tmp_path / "burst.json", document, capped)):
        assert (load.kind, load.value, load.load_words()) == ("burst", None, "burst of 60")


VLLM_FAULTS = [
    ({"completed": None}, "has no completed"),
    ({"request_rate": None}, "has no request_rate"),
    ({"request_rate": "fast"}, "request_rate must be a number > 0 or inf (got 'fast')"),
    ({"request_rate": 4.0}, "the cap may have been met"),
    ({"ramp_up_strategy": "linear"}, "the rate was ramped up"),
    ({"mean_ttft_ms": float("nan")}, "mean_ttft_ms must be a finite number > 0 (got nan)"),
    ({"mean_tpot_ms": "12 ms"}, "mean_tpot_ms must be a finite number > 0 (got '12 ms')"),
    ({"total_output_tokens": 10**9}, "output tokens/s, but its totals make"),
    ({"mean_tpot_ms": 0.02}, "its mean TPOT is 2e-05 s, which no server reaches"),
    ({"failed": 30}, "30 of 90 requests failed"),
    ({"output_lens": [3, 4]}, "lists are of different lengths (60 input_lens, 2 output_lens, 60 ttfts)"),
    ({"input_lens": [0.5]}, "input_lens must be a list of whole numbers >= 1"),
    ({"itls": [["a"]] * 60}, "itls must be a list of lists of numbers"),
]


@pytest.mark.parametrize(("change", "sentence"), VLLM_FAULTS, ids=[str(c)[1:24] for c, _ in VLLM_FAULTS])
def test_what_a_flat_file_lacks_is_said(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    """Each fault is a sentence that begins with the file."""
    document = {**documents.vllm(answers(), detailed=True), **change}
    path = documents.write(tmp_path / "result.json", document)
    with pytest.raises(InputFault) as refused:
        read_result_file(path)
    assert any(fault.startswith(str(path)) and sentence in fault for fault in refused.value.faults)


def test_other_versions_are_refused(tmp_path: Path) -> None:
    """A report of a version whose fields are not known is not guessed at."""
    old = {**documents.guidellm(answers()), "metadata": {"version": 1}}
    with pytest.raises(InputFault, match=r"metadata.version 1; known: 2"):
        read_result_file(documents.write(tmp_path / "old.json", old))
    new = {**documents.aiperf(answers()), "schema_version": "2.0"}
    with pytest.raises(InputFault, match=r"schema_version 2.0; known: 1.x"):
        read_result_file(documents.write(tmp_path / "new.json", new))


def test_loads_that_no_scenario_has_are_refused(tmp_path: Path) -> None:
    """guidellm's replays and aiperf's runs without a stated load say what is known instead."""
    report = documents.guidellm(answers())
    report["benchmarks"][0]["config"]["strategy"] = {"type_": "replay"}
    with pytest.raises(InputFault, match=r"type_ 'replay' is no load of a scenario; known: synchronous"):
        read_result_file(documents.write(tmp_path / "g.json", report))
    export = {**documents.aiperf(answers()), "input_config": {}}
    with pytest.raises(InputFault, match="says neither request_rate nor concurrency"):
        read_result_file(documents.write(tmp_path / "a.json", export))


def test_units_are_read_not_assumed(tmp_path: Path) -> None:
    """An aiperf block in microseconds is a thousandth of one in ms; an unknown unit is refused."""
    export = documents.aiperf(answers())
    export["time_to_first_token"]["unit"] = "us"
    (load,) = read_result_file(documents.write(tmp_path / "a.json", export))
    assert load.metrics["ttft_mean_s"] == pytest.approx(answers().ttft_s.mean() / 1e3)
    export["time_to_first_token"]["unit"] = "ticks"
    with pytest.raises(InputFault, match=r"time_to_first_token.unit 'ticks' is no unit of time"):
        read_result_file(documents.write(tmp_path / "a.json", export))


def test_truncated_and_foreign_files_are_refused_together(tmp_path: Path) -> None:
    """Half a document, an empty file, a folder, another program's JSON: one sentence each, all at once."""
    half = tmp_path / "half.json"
    half.write_text(json.dumps(documents.vllm(answers()))[:200])
    empty = tmp_path / "empty.json"
    empty.touch()
    foreign = documents.write(tmp_path / "foreign.json", {"results": []})
    listed = documents.write(tmp_path / "list.json", [1, 2])
    with pytest.raises(InputFault) as refused:
        read_result_files([half, empty, tmp_path, foreign, listed, tmp_path / "absent.json"])
    texts = refused.value.faults
    expected = ("was it truncated", "is empty", "cannot be read", "is no result of", "must be a JSON object")
    assert all(part in text for part, text in zip(expected, texts, strict=False))
    assert "No such file" in texts[-1]
