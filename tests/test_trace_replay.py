"""Recorded traffic as requests of a run: what a scenario says of its file, with classes and waits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scenario_inputs import SCENARIO, Catalogue

import sim
from sim.faults import InputFault
from sim.workload import Requests, generate
from sim.workload.recorded import MOST_CLASSES

TABLE = "ts,n_in,n_out,team,urgency\n0,100,10,red,1\n250,200,20,blue,0\n1000,300,30,red,1\n"
LOG = "".join(f"{second},POST /chat {100 * second}\n" for second in range(1, 6)) + "GET /health\n"


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return Catalogue(tmp_path)


def scenario(workload: str, load: str = "trace") -> str:
    """The usual scenario with *workload* under *load*."""
    text = SCENARIO.replace("workload: chat", f"workload: {workload}").replace("{rate_per_s: 4}", load)
    return text + "run: {warmup: 0}\n"


def sent(catalogue: Catalogue, workload: str, load: str = "trace") -> Requests:
    """The requests of that scenario."""
    loaded = catalogue.load(scenario(workload, load))
    return generate(loaded.workload, loaded.load, loaded.run)


def test_a_table_of_any_columns(catalogue: Catalogue) -> None:
    """Names and unit from the scenario; classes and urgency come along, the larger class first."""
    catalogue.write("t.csv", TABLE)
    columns = "{arrival: ts, prompt: n_in, output: n_out, class: team, priority: urgency}"
    requests = sent(catalogue, f"{{base: ./t.csv, trace: {{columns: {columns}, time_unit: ms}}}}")
    assert requests.arrival_s.tolist() == [0, 0.25, 1]
    assert requests.prompt_tokens.tolist() == [100, 200, 300]
    assert requests.class_names == ("red", "blue")
    assert requests.classes is not None
    assert requests.classes.tolist() == [0, 1, 0]
    assert requests.priorities is not None
    assert requests.priorities.tolist() == [1, 0, 1]


def test_a_run_tells_the_classes_of_a_trace_apart(catalogue: Catalogue) -> None:
    """By class as the trace names them; what was left out is among the warnings."""
    catalogue.write("t.csv", TABLE + "1500,10,0,red,1\n")
    columns = "{arrival: ts, prompt: n_in, output: n_out, class: team}"
    text = scenario(f"{{base: ./t.csv, trace: {{columns: {columns}, time_unit: ms}}}}")
    document = sim.simulate(catalogue.load(text)).summary()
    assert {name: part["requests"]["offered"] for name, part in document["by_class"].items()} == {
        "red": 2, "blue": 1}  # fmt: skip
    assert "1 rows of the trace without an answer were left out" in document["warnings"]


def test_small_classes_are_one(catalogue: Catalogue) -> None:
    """A class for each of a thousand users would say nothing: the 99 largest keep their names."""
    rows = "".join(f"{row},{1 + row % 7},2,u{row % 1000 if row % 2 else row % 150}\n" for row in range(4000))
    catalogue.write("t.csv", "arrival_s,prompt_tokens,output_tokens,tenant\n" + rows)
    requests = sent(catalogue, "./t.csv")
    assert len(requests.class_names) == MOST_CLASSES
    assert requests.class_names[-1] == "others"
    assert requests.classes is not None
    counts = np.bincount(requests.classes)
    assert counts.sum() == 4000
    assert (np.diff(counts[:-1]) <= 0).all()


def test_a_log_without_lengths_takes_drawn_ones(catalogue: Catalogue) -> None:
    """Arrivals by a pattern, lengths of another kind; other lines are left out and counted."""
    catalogue.write("access.log", LOG)
    reading = "trace: {pattern: '^(?P<arrival>\\d+),POST', time_unit: s}"
    lengths = "lengths: {kind: fixed, prompt_tokens: 9, output_tokens: 2}"
    requests = sent(catalogue, f"{{base: ./access.log, {reading}, {lengths}}}")
    assert requests.arrival_s.tolist() == [0, 1, 2, 3, 4]
    assert requests.notes == {"log_lines_unmatched": 1}
    faults = catalogue.faults(scenario(f"{{base: ./access.log, {reading}, lengths: null}}"))
    assert "workload.lengths is missing" in faults[0]


def test_delays_are_waits_for_the_answer(catalogue: Catalogue) -> None:
    """A line without a time of its own comes a delay after its session's line before."""
    turn = {"input_length": 5, "output_length": 2, "session_id": "a"}
    lines = [{**turn, "timestamp": 0}, {**turn, "session_id": "b", "timestamp": 100}, {**turn, "delay": 500}]
    catalogue.write("t.jsonl", "\n".join(map(json.dumps, lines)))
    requests = sent(catalogue, "./t.jsonl", "{mode: trace, time_scale: 2}")
    assert requests.follows is not None
    assert requests.follows.previous.tolist() == [-1, -1, 0]
    assert requests.follows.think_s.tolist() == [0, 0, 0.25]
    assert sent(catalogue, "./t.jsonl", "{rate_per_s: 1}").follows is None


@pytest.mark.parametrize(
    ("workload", "sentence"),
    [
        ("{base: chat, trace: {time_unit: s}}", "workload.trace goes with arrivals.kind or lengths.kind"),
        ("{base: ./t.csv, trace: {time_unit: min}}", "workload.trace.time_unit must be s, ms, us, ns or iso"),
        ("{base: ./t.csv, trace: {columns: {prompts: a}}}", "did you mean prompt?"),
    ],
)  # fmt: skip
def test_what_a_scenario_says_wrongly_of_a_file(catalogue: Catalogue, workload: str, sentence: str) -> None:
    """Before the file is read."""
    catalogue.write("t.csv", TABLE)
    faults = catalogue.faults(scenario(workload))
    assert len(faults) == 1
    assert sentence in faults[0]


def test_a_warm_up_longer_than_the_traffic(catalogue: Catalogue) -> None:
    """Nothing would be left to look at: a sentence for a trace, and one for a run's duration."""
    catalogue.write("t.csv", "arrival_s,prompt_tokens,output_tokens\n0,5,5\n20,5,5\n")
    text = scenario("./t.csv").replace("warmup: 0", "warmup: 30s")
    loaded = catalogue.load(text)
    with pytest.raises(InputFault, match=r"t\.csv: the last request comes at 20 s, within run\.warmup"):
        generate(loaded.workload, loaded.load, loaded.run)
    faults = catalogue.faults(text.replace("30s", "30s, duration_s: 10"))
    assert "run.warmup must be shorter than run.duration_s 10 (got 30 s)" in faults[0]
