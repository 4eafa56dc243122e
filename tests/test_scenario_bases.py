"""Scenarios that stand on another one: what is replaced, where each value came from, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from scenario_inputs import SCENARIO, Catalogue, starting

from sim.faults import InputFault
from sim.scenario import json_schema, load, names

BELOW = """\
name: below
hardware: small-24gb
model: tiny-1b
engine: {max_num_seqs: 64, kv_cache_dtype: fp8}
workload:
  lengths: {kind: lognormal, prompt_mean: 500, output_mean: 200, cv: 1}
  prefixes: {kind: groups, groups: 5, tokens: 100}
load: {rate_per_s: 4}
slo: {ttft_p99_s: 1, tpot_p99_s: 0.1}
run: {requests: 100}
"""


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    made = Catalogue(tmp_path)
    made.write("below.yaml", BELOW)
    return made


def test_without_changes_it_is_its_base(catalogue: Catalogue) -> None:
    """In all but the name, which is its own file's."""
    own, below = (
        catalogue.load("base: below.yaml\n"),
        load(catalogue.root / "below.yaml", (), catalogue.folders),
    )
    assert own.sha256 == below.sha256
    assert (own.name, below.name) == ("chat", "below")


@pytest.mark.parametrize(
    ("line", "section", "expected"),
    [
        ("engine: {max_num_seqs: 8}", "engine", {"max_num_seqs": 8, "kv_cache_dtype": "fp8"}),
        ("engine: {kv_cache_dtype: null}", "engine", {"max_num_seqs": 64, "kv_cache_dtype": "auto"}),
        ("hardware: {memory_bytes: 12GB}", "hardware", {"name": "small-24gb", "memory_bytes": 12 * 10**9}),
        ("slo: {ttft_p99_s: 2}", "slo", {"ttft_p99_s": 2.0, "tpot_p99_s": 0.1}),
        ("load: {concurrency: 3}", "load", {"concurrency": 3}),
        ("load: burst", "load", {"mode": "burst"}),
        ("run: {duration_s: 60}", "run", {"duration_s": 60.0, "seed": 1}),
        ("workload: chat", "workload", {"name": "chat"}),
        ("workload: {lengths: {prompt_mean: 900}}", "workload", {"prefixes": {"kind": "groups", "groups": 5,
            "tokens": 100}}),
        ("workload: {prefixes: {kind: none}}", "workload", {"prefixes": {"kind": "none"}}),
        ("workload: {prefixes: null}", "workload", {"lengths": {"kind": "lognormal", "prompt_mean": 500.0,
            "output_mean": 200.0, "cv": 1.0}}),
    ],
)  # fmt: skip
def test_what_is_written_replaces_that_and_no_more(
    catalogue: Catalogue, line: str, section: str, expected: dict[str, Any]
) -> None:
    """Mapping by mapping; null takes away, a key drives out what it excludes, another kind its mapping."""
    found = getattr(catalogue.load(f"base: below.yaml\n{line}\n"), section)
    assert {key: found[key] for key in expected} == expected


def test_what_excludes_or_names_anew_leaves_nothing_of_the_base(catalogue: Catalogue) -> None:
    """A closed loop has no rate, a named workload not the heads of the written one."""
    own = catalogue.load(
        "base: below.yaml\nload: {concurrency: 3}\nworkload: {base: chat, zero_output: error}\n"
    )
    assert "rate_per_s" not in own.load
    assert "prefixes" not in own.workload
    assert own.workload["lengths"]["prompt_mean"] == 500


def test_each_value_tells_the_file_that_wrote_it(catalogue: Catalogue) -> None:
    """Also within one section, and through several bases."""
    catalogue.write("middle.yaml", "base: below.yaml\n\nworkload: {lengths: {prompt_mean: 900}}\n")
    sources = catalogue.load("base: middle.yaml\nload: {rate_per_s: 5}\n", ["slo.ttft_p99_s=3"]).sources
    assert sources["load.rate_per_s"] == "chat.yaml:2"
    assert sources["workload.lengths.prompt_mean"] == "middle.yaml:3"
    assert sources["workload"] == "below.yaml:5"
    assert sources["engine.max_num_seqs"] == "below.yaml:4"
    assert sources["slo.ttft_p99_s"] == "command line"


def test_what_a_class_takes_over_tells_its_file_too(catalogue: Catalogue) -> None:
    """The traffic around the classes is theirs in the end, but stands where it was written."""
    lengths = "{kind: lognormal, prompt_mean: 500, output_mean: 200, cv: 1}"
    classes = f"workload: {{classes: {{one: {{share: 1}}, two: {{share: 2}}}}, lengths: {lengths}}}"
    catalogue.write("middle.yaml", f"base: usual\n{classes}\n")
    sources = catalogue.load("base: middle.yaml\nworkload: {lengths: {prompt_mean: 900}}\n").sources
    assert sources["workload.classes.two.lengths.prompt_mean"] == "chat.yaml:2"
    assert sources["workload.classes.two.share"] == "middle.yaml:2"


def test_a_trace_is_sought_beside_the_file_that_names_it(catalogue: Catalogue) -> None:
    """The base's beside the base, wherever the scenario on it lies."""
    catalogue.write("deep/trace.csv", "arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,20,5\n")
    catalogue.write("deep/below.yaml", SCENARIO.replace("chat", "{arrivals: {kind: trace, path: trace.csv}, "
                    "lengths: {kind: trace, path: trace.csv}}"))  # fmt: skip
    own = catalogue.load("base: deep/below.yaml\nload: trace\n")
    assert Path(own.workload["lengths"]["path"]).is_file()


def test_a_resolved_scenario_needs_no_base_any_more(catalogue: Catalogue) -> None:
    """What a result holds loads by itself, and a change is a change of the whole."""
    own = catalogue.load("base: below.yaml\nload: {rate_per_s: 5}\n")
    assert load(json.loads(json.dumps(own.resolved())), (), catalogue.folders).sha256 == own.sha256
    assert own.replace({"load.rate_per_s": 4.0}).sha256 == catalogue.load("base: below.yaml\n").sha256


def test_a_mapping_may_have_a_base_too(catalogue: Catalogue) -> None:
    """As Python writes it: a name of the catalogue, or a path."""
    assert load({"base": "usual", "load": {"rate_per_s": 9}}, (), catalogue.folders).load["rate_per_s"] == 9


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("base: belov.yaml", "chat.yaml:1: scenario belov.yaml is not there; did you mean below.yaml?"),
        ("base: usuel", "chat.yaml:1: scenario usuel is unknown; did you mean usual?"),
        ("base: [below.yaml]", "chat.yaml:1: base must be a scenario's name or path (got a list of 1)"),
        ("base: chat.yaml", "chat.yaml:1: base must not lead back to this file (got chat.yaml)"),
        ("base: round.yaml", "round.yaml:1: base must not lead back to this file (got chat.yaml)"),
        ("base: broken.yaml", "broken.yaml:2: engine.max_seqs is unknown; did you mean max_num_seqs?"),
        ("base: below.yaml\nload: {rate: 4}", "chat.yaml:2: load.rate is unknown"),
    ],
)
def test_faults_have_the_place_where_they_were_written(
    catalogue: Catalogue, text: str, sentence: str
) -> None:
    """In this file or in a base; a circle ends."""
    catalogue.write("round.yaml", "base: chat.yaml\n")
    catalogue.write("broken.yaml", "base: below.yaml\nengine: {max_seqs: 4}\n")
    starting(sentence, catalogue.faults(text + "\n"))


def test_a_base_that_cannot_be_read_is_the_only_fault(catalogue: Catalogue) -> None:
    """What it would have said is not missed as well."""
    assert len(catalogue.faults("base: belov.yaml\nload: {rate_per_s: 4}\n")) == 1


def test_the_command_line_names_the_scenario_and_not_its_base(catalogue: Catalogue) -> None:
    """It comes after the base was read."""
    starting(
        "command line: base must stand in the scenario's file", catalogue.faults(SCENARIO, ["base=usual"])
    )


def test_an_editor_asks_a_scenario_with_a_base_for_nothing_else() -> None:
    """Its schema wants hardware, model and workload of the others."""
    schema = Draft202012Validator(json_schema())
    assert schema.is_valid({"base": "below.yaml", "load": {"rate_per_s": 4}})
    assert not schema.is_valid({"hardware": "a100-80gb-sxm", "model": "llama-3-8b"})


def test_a_scenario_in_a_folder_has_the_folder_in_its_name(catalogue: Catalogue) -> None:
    """So that those of a set are found by name."""
    catalogue.write("scenarios/set/one.yaml", SCENARIO)
    assert names("scenarios", catalogue.folders) == ("set/one", "usual")
    assert load("set/one", (), catalogue.folders).name == "one"
    with pytest.raises(InputFault, match=r"scenario set/two is unknown; did you mean set/one\?"):
        load("set/two", (), catalogue.folders)
