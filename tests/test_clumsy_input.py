"""What people type by mistake, and the one sentence that gets them out of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenario_inputs import SCENARIO, Catalogue

from sim.faults import InputFault
from sim.scenario import load

CLOSED = SCENARIO.replace("{rate_per_s: 4}", "{concurrency: 8, think: {kind: fixed, mean_s: 1s}}")


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return Catalogue(tmp_path)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("load.rate=3", "load.rate is unknown; did you mean rate_per_s?"),
        (
            "engine.gpu_memory_utilization=110%",
            "engine.gpu_memory_utilization must be a share of one > 0 and <= 1, such as 92% (got 110%)",
        ),
        (
            "slo.ttft_p99_s=1e300",
            "slo.ttft_p99_s must be a time in seconds > 0, such as 250ms (got 1e+300); no time is longer "
            "than 1,048,576 s, twelve days",
        ),
        (
            "engine.host_step_s=2min",
            "engine.host_step_s must be a time in seconds >= 0 and <= 60, such as 250ms (got 2min)",
        ),
        (
            "load.think={kind: fixed, mean_s: 1}",
            "load.think goes with load.concurrency only; write that, how many users, instead of the rate",
        ),
    ],
)
def test_the_sentence_is_the_way_out(catalogue: Catalogue, override: str, sentence: str) -> None:
    """It names what must be written, proposes nothing absurd, and is the only one."""
    assert catalogue.faults(SCENARIO, [override]) == [f"command line: {sentence}"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (SCENARIO.replace("hardware:", "hardwear:"), "1: hardwear is unknown; did you mean hardware?"),
        (SCENARIO.replace("rate_per_s", "rate"), "4: load.rate is unknown; did you mean rate_per_s?"),
        (
            SCENARIO.replace("{rate_per_s: 4}", "{rate_per_s: 4, concurrency: 8}"),
            "4: load.concurrency excludes rate_per_s; write one of them",
        ),
    ],
)
def test_one_mistake_is_told_once(catalogue: Catalogue, text: str, sentence: str) -> None:
    """A misspelt key is not missing as well, and two loads are one fault."""
    assert catalogue.faults(text) == [f"chat.yaml:{sentence}"]


def test_another_key_that_is_missing_is_told_too(catalogue: Catalogue) -> None:
    """Only the key that was meant is spared: what is written nowhere is still missing."""
    text = SCENARIO.replace("hardware:", "hardwear:").replace("model: tiny-1b\n", "")
    assert [fault.partition(" is ")[0] for fault in catalogue.faults(text)] == [
        "chat.yaml: model",
        "chat.yaml:1: hardwear",
    ]


def test_the_other_kind_of_load_takes_everything_of_the_first_along(catalogue: Catalogue) -> None:
    """A rate over users leaves neither users nor their thought; users over a rate leave no rate."""
    assert catalogue.load(CLOSED, ["load.rate_per_s=2"]).load == {"rate_per_s": 2}
    assert catalogue.load(CLOSED, ["load.mode=burst"]).load == {"mode": "burst"}
    assert catalogue.load(SCENARIO, ["load.concurrency=8"]).load == {"concurrency": 8}
    thinking = catalogue.load(CLOSED, ["load.concurrency=9"]).load
    assert thinking == {"concurrency": 9, "think": {"kind": "fixed", "mean_s": 1.0}}


def test_two_loads_on_one_command_line_are_a_fault(catalogue: Catalogue) -> None:
    """Which of a rate and a concurrency is meant cannot be told from their order; one key twice can."""
    both = ["load.rate_per_s=2", "load.concurrency=8"]
    told = "command line: load.concurrency and load.rate_per_s exclude one another; write one of them"
    assert catalogue.faults(SCENARIO, both) == [told]
    assert catalogue.load(SCENARIO, ["load.rate_per_s=2", "load.rate_per_s=3"]).load == {"rate_per_s": 3}
    assert catalogue.load(SCENARIO, ["load.rate_per_s=", "load.concurrency=8"]).load == {"concurrency": 8}


def test_a_duration_over_users_says_what_to_write(catalogue: Catalogue) -> None:
    """A closed loop is as long as its requests: the sentence has the key, and a number for it."""
    timed = SCENARIO + "run: {duration_s: 9}\n"
    sentence = "run.duration_s does not go with load.concurrency; write run.requests, such as 2000"
    assert catalogue.faults(timed, ["load.concurrency=8"]) == [f"chat.yaml:5: {sentence}"]
    assert catalogue.load(timed, ["load.concurrency=8", "run.requests=2000"]).run["requests"] == 2000


@pytest.mark.parametrize("kind", ["hardware", "model", "workload"])
def test_a_folder_is_no_name(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A folder where one works, or in the catalogue, is called a folder, with a file in it that could do."""
    monkeypatch.chdir(catalogue.root)
    catalogue.write("mine/one.yaml", "name: one\n")
    fault = catalogue.faults(SCENARIO, [f"{kind}=mine"])[0]
    assert fault.endswith(f"mine is a folder; name a file, such as {Path('mine', 'one.yaml')}")


def test_a_folder_of_scenarios_is_no_scenario(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for the scenario itself."""
    monkeypatch.chdir(catalogue.root)
    with pytest.raises(InputFault) as caught:
        load("scenarios", folders=catalogue.folders)
    assert str(caught.value) == (
        f"scenario scenarios is a folder; name a file, such as {Path('scenarios', 'usual.yaml')}"
    )
