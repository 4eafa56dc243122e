"""What a workload may say of prefixes, sessions and answers, and what it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scenario_inputs import SCENARIO, Catalogue

from sim.workload import generate

TRACE = """\
{"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}
{"timestamp": 5000, "input_length": 700, "output_length": 2, "hash_ids": [1, 3]}
"""
HEADS = "prefixes: {kind: groups, groups: 20"
TURNS = "sessions: {turns: {kind: geometric, mean: 3}"
THINK = f"{TURNS}, think: {{kind: fixed, mean_s: 9}}"
GAP = "gap: {kind: fixed, mean_s: 90s}"
CALLS = "calls: {kind: geometric, mean: 2.5}"
TOOLS = f"tools: {{{CALLS}, time: {{kind: fixed, mean_s: 1}}, output: {{kind: fixed, mean: 9}}}}"


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return Catalogue(tmp_path)


def workload(
    catalogue: Catalogue,
    line: str,
    lengths: str = "kind: fixed, prompt_tokens: 9, output_tokens: 2",
    load: str = "{rate_per_s: 4}",
) -> str:
    """A scenario whose workload says *line* of sharing."""
    catalogue.write("traces/day.jsonl", TRACE)
    catalogue.write("workloads/shared.yaml", f"lengths: {{{lengths}}}\n{line}\n")
    return SCENARIO.replace("workload: chat", "workload: shared").replace("{rate_per_s: 4}", load)


@pytest.mark.parametrize(
    "line",
    [
        f"{HEADS}, tokens: 1k, zipf: 0, share: 80%}}",
        f"{HEADS}, tokens_mean: 900, tokens_cv: 1}}",
        f"{TURNS}, {GAP}}}",
        f"{THINK}, {TOOLS}, first: {{kind: table, quantiles: [0, 1], tokens: [9, 90]}}}}",
        "sessions: {turns: {kind: fixed, mean: 4}, gap: {kind: lognormal, mean_s: 2min, cv: 1.3}}",
        "answers: 4",
        "prefixes: {kind: none}",
    ],
)
def test_ways_to_share(catalogue: Catalogue, line: str) -> None:
    """What the table has can be simulated."""
    scenario = catalogue.load(workload(catalogue, line))
    assert len(generate(scenario.workload, scenario.load, {"requests": 50, "seed": 1})) == 50


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (f"{HEADS}}}", "prefixes.tokens and prefixes.tokens_mean: exactly one must be there"),
        (f"{HEADS}, tokens: 9, tokens_mean: 9}}", "prefixes.tokens and prefixes.tokens_mean: exactly one"),
        (f"{HEADS}, tokens: 9, tokens_cv: 1}}", "prefixes.tokens_cv goes with prefixes.tokens_mean only"),
        (f"{HEADS}, tokens: 0}}", "prefixes.tokens must be a whole number of tokens >= 1 (got 0)"),
        (f"{HEADS}, tokens: 9, share: 2}}", "prefixes.share must be a share of one"),
        (f"{HEADS}, tokens: 9, hash_of: block}}", "prefixes.hash_of does not go with prefixes.kind groups"),
        ("prefixes: {kind: groups, tokens: 9}", "prefixes.groups is missing: how many heads there are"),
        ("prefixes: {kind: trace}", "prefixes.kind trace needs lengths.kind trace"),
        ("prefixes: {kind: group, groups: 9}", "prefixes.kind must be groups, trace, reuse or none"),
        (f"{TURNS}}}", "sessions.gap is missing: the time from a turn's arrival to the next one's"),
        (f"{TURNS}, {GAP}, think: {{kind: fixed, mean_s: 9}}}}", "sessions.think excludes gap"),
        (f"{TURNS}, {GAP}, {TOOLS}}}", "sessions.gap does not go with tools, whose requests wait"),
        (f"{THINK}, tools: {{time: {{kind: fixed, mean_s: 1}}}}}}", "sessions.tools.calls is missing"),
        (f"{THINK}, first: {{kind: fixed}}}}", "sessions.first.mean is missing"),
        (f"sessions: {{turns: {{kind: table, values: [1, 2], weights: [1]}}, {GAP}}}",
         "sessions.turns must have as many values as weights (got 2 and 1)"),
        (f"{TURNS}, gap: {{kind: table, quantiles: [0, 1], seconds: [9, 3]}}}}",
         "sessions.gap.seconds must never fall"),
        (f"{TURNS}, gap: {{kind: lognormal, mean_s: 9}}}}", "sessions.gap.cv is missing"),
        (f"sessions: {{turns: {{kind: fixed, mean: 2.5}}, {GAP}}}",
         "sessions.turns.mean must be a whole number where kind is fixed (got 2.5)"),
        (f"sessions: {{{GAP}}}", "sessions.turns is missing: turns of a session"),
        (f"answers: 2\n{TURNS}, {GAP}}}", "answers does not go with sessions, which go on from one answer"),
        ("answers: 0", "answers must be a whole number >= 1 and <= 1000 (got 0)"),
    ],
)  # fmt: skip
def test_what_cannot_be_shared_is_told(catalogue: Catalogue, line: str, sentence: str) -> None:
    """In a sentence, at its line."""
    faults = catalogue.faults(workload(catalogue, line))
    assert any(fault.startswith("shared.yaml:") and f": {sentence}" in fault for fault in faults), faults


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            f"{TURNS}, {GAP}}}",
            "sessions goes with drawn lengths and arrivals only: a trace has its own turns",
        ),
        ("answers: 3", "answers must be 1 with a trace, which has a line for each request (got 3)"),
    ],
)
def test_a_trace_has_its_own_turns(catalogue: Catalogue, line: str, sentence: str) -> None:
    """And its own answers."""
    text = workload(catalogue, line, "kind: trace, path: ../traces/day.jsonl")
    assert any(sentence in fault for fault in catalogue.faults(text))


@pytest.mark.parametrize(
    ("line", "load", "sentence"),
    [
        (f"{TURNS}, {GAP}}}", "burst", "load must have rate_per_s: the workload's sessions come at a rate"),
        (f"{TURNS}, {GAP}}}", "{concurrency: 8}", "load must have rate_per_s"),
        ("answers: 3", "{concurrency: 8}", "load.concurrency does not go with workload.answers"),
    ],
)
def test_loads_that_cannot_send_them(catalogue: Catalogue, line: str, load: str, sentence: str) -> None:
    """Sessions need a rate, and users ask for one answer at a time."""
    faults = catalogue.faults(workload(catalogue, line, load=load))
    assert any(fault.startswith(f"chat.yaml:4: {sentence}") for fault in faults), faults


def sent(catalogue: Catalogue, text: str) -> Any:
    scenario = catalogue.load(text)
    return generate(scenario.workload, scenario.load, scenario.run)


def test_a_trace_of_lines_shares_by_its_ids(catalogue: Catalogue) -> None:
    """Named alone, or as the base of a patch that says otherwise; at its own times or others."""
    workload(catalogue, "")
    text = SCENARIO.replace("workload: chat", "workload: traces/day.jsonl").replace(
        "{rate_per_s: 4}", "trace"
    )
    assert sent(catalogue, text).contents.of(1) == (((0, 512),), -1)
    for prefixes, there in (("kind: trace, hash_of: block", True), ("kind: none", False)):
        patch = f"workload: {{base: traces/day.jsonl, prefixes: {{{prefixes}}}}}"
        assert (
            sent(catalogue, text.replace("workload: traces/day.jsonl", patch)).contents is not None
        ) is there
    assert (
        sent(catalogue, text.replace("\nload: trace", "\nload: {mode: trace, time_scale: 2}")).arrival_s[1]
        == 2.5
    )
